"""SpecDec, Figures 2 and 4 (quality and speed, single sentences) and 5 (batch sizes)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, Experiment
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.measures.statistics import DESCRIPTIVE, Estimate, Missing
from harness.papers.specdec import setup
from harness.papers.specdec.columns import BY_TITLE, faster_beam
from harness.papers.specdec.cost import A_SENTENCE, TIMED_ARMS, arms_at
from harness.papers.specdec.measures import sentence_speedups
from harness.tables import published, style
from harness.tables.base import Figure
from harness.tables.engine import Known, Row, known_arms, plan_of
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {
    setup.BEAM: ("s", GREY),
    setup.THEIR_BEAM: ("D", GREY),
    setup.GREEDY: ("o", "black"),
    setup.ALONE: ("v", VERMILION),
    setup.STRICT: ("o", BLUE),
    setup.HIGH_QUALITY: ("^", GREEN),
    setup.HIGH_EFFICIENCY: ("P", PURPLE),
}
PUBLISHED_SPEEDS = {
    "SpecDec": setup.STRICT,
    "SpecDec++ (high-quality)": setup.HIGH_QUALITY,
    "SpecDec++ (high-efficiency)": setup.HIGH_EFFICIENCY,
}
BIN = 0.5
SHOWN_FRAC = 0.99  # of sentences, that the axis reaches


def recorded(settings: Settings, evidence: Evidence, figure: str) -> Known:
    """The arms of Table 1's comparison that are recorded, the baselines among them."""
    known = known_arms(setup.arms_of(settings, setup.EN_DE), evidence)
    found = Known({name: arm for name, arm in known.items() if succeeded(arm[1])}, evidence)
    if not {setup.GREEDY, setup.BEAM, setup.THEIR_BEAM} <= set(found):
        raise style.not_recorded(figure, "no comparison is recorded")
    return found


def points(known: Known) -> tuple[dict[str, tuple[Estimate, Estimate]], dict[str, str]]:
    """Return (speed over beam search, BLEU) of arms that have both, and why a speed must not be shown of the others."""
    found, refused = {}, {}
    for arm in (name for name in MARKS if name in known):
        speed, quality = (BY_TITLE[column].measure(known, Row(arm, arm)) for column in ("speed", "BLEU"))
        if isinstance(speed, Missing):
            refused[arm] = speed.why
        elif isinstance(speed, Estimate) and isinstance(quality, Estimate):
            found[arm] = (speed, quality)
    return found, refused


def draw_quality(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 2. Of the paper's points at most one of two numbers is recovered: lines are its speeds, without a quality."""
    known = recorded(settings, evidence, "specdec-2")
    found, refused = points(known)
    with style.look():
        figure = style.new_figure(7.6, 4.8)
        axes = figure.subplots()
        for arm, (speed, quality) in found.items():
            marker, colour = MARKS[arm]
            axes.errorbar(
                speed.value, quality.value, xerr=style.reach(speed), yerr=style.reach(quality), fmt=marker, color=colour,
                markersize=8, ecolor=colour, elinewidth=1, capsize=2, label=arm, zorder=5,
            )  # fmt: skip
        for arm, speed_x in published_speeds().items():
            axes.axvline(speed_x, color=MARKS[arm][1], lw=1.2, ls=":", zorder=1)
        axes.plot([], [], color="black", lw=1.2, ls=":", label="the paper's speeds (BLEU not\nrecovered), in these colours")
        axes.set(title="Translation quality against speed", xlabel="speed over AT with beam 5 (times)", ylabel="BLEU")
        axes.set_xlim(left=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        style.footnote(
            figure,
            f"{_main_provenance(settings, known)} Bars: 95 % intervals over sentences.{style.not_shown(refused)}",
            _ran(known),
        )
        return style.save(figure, folder, "specdec-2")


def published_speeds() -> dict[str, float]:
    """The speeds in the paper's text, by arm."""
    rows = {row["model"]: row for row in published.read(setup.PAPER, "table_1") if row["metric"] == "speed_x"}
    values = {arm: published.value(rows[model], "value") for model, arm in PUBLISHED_SPEEDS.items()}
    return {arm: value for arm, value in values.items() if isinstance(value, float)}


def draw_distribution(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 4: over beam search as in the paper, and over greedy decoding."""
    known = recorded(settings, evidence, "specdec-4")
    if setup.HIGH_EFFICIENCY not in known:
        raise style.not_recorded("specdec-4", "SpecDec++ is not recorded")
    speeds = {name: _speeds(known, arm) for name, arm in (("AT, b = 5", faster_beam(known)), (setup.GREEDY, setup.GREEDY))}
    with style.look():
        figure = style.new_figure(7.6, 4.4)
        axes = figure.subplots()
        _histogram(axes, speeds)
        low, high = claimed_range()
        axes.axvspan(low, high, color=SKY, alpha=0.15, lw=0, zorder=0)
        axes.annotate(
            "most sentences,\nin the paper", ((low + high) / 2, 1.0), xycoords=("data", "axes fraction"), ha="center", va="top",
            fontsize=9, color="#30678F", xytext=(0, -4), textcoords="offset points",
        )  # fmt: skip
        k = setup.gamma_of(settings, setup.EN_DE)
        axes.set(
            title=f"Speed-up of single sentences by SpecDec++ (k = {k}, {setup.EFFICIENCY})", xlabel="speed-up (times)",
            ylabel="sentences (%)",
        )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        summed = " A sentence's repeats are summed." if known[setup.GREEDY][0].repeats > 1 else ""
        style.footnote(
            figure, f"{_main_provenance(settings, known)}{summed} The last bar holds all that are faster.", _ran(known)
        )
        return style.save(figure, folder, "specdec-4")


def _speeds(known: Known, baseline: str) -> np.ndarray:
    found = sentence_speedups(known[baseline][1], known[setup.HIGH_EFFICIENCY][1])
    if isinstance(found, Missing):
        raise UsageError(f"figure specdec-4: {found.why}")
    return np.array([]) if found is None else found


def _histogram(axes: "Axes", speeds: Mapping[str, np.ndarray]) -> None:
    """Percent of sentences a bin, the second outlined over the first; the last bin holds all that are faster."""
    top = max((np.quantile(values, SHOWN_FRAC) for values in speeds.values() if values.size), default=1.0)
    edges = np.arange(0, top + 2 * BIN, BIN).tolist()
    for (name, values), colour, filled in zip(speeds.items(), (PURPLE, ORANGE), (True, False), strict=True):
        if not values.size:
            continue
        label = f"over {name}: median {np.median(values):.1f},\n{values.min():.1f} to {values.max():.1f}, n = {len(values)}"
        shown, weights = np.minimum(values, edges[-1] - BIN / 2), np.full(len(values), 100 / len(values))
        axes.hist(
            shown, bins=edges, weights=weights, color=colour, label=label, lw=1.8,
            histtype="stepfilled" if filled else "step", alpha=0.6 if filled else 1.0,
        )  # fmt: skip


def claimed_range() -> tuple[float, float]:
    """The range that holds most sentences according to the paper's text."""
    row = next(row for row in published.read(setup.PAPER, "text_claims") if row["metric"] == "range_x")
    low, high = row["value"].split(" ")[0].split("-")
    return float(low), float(high)


def _ran(known: Known) -> str:
    return known.evidence.ran([experiment for experiment, _ in known.values()])


def _main_provenance(settings: Settings, known: Known) -> str:
    experiment = known[setup.GREEDY][0]
    return f"{experiment.limit} sentences of {experiment.task}, {style.data_of(settings)}, on {settings.device}, batch 1."


DEVICES = (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"), ("cuda", "float16"))
LINES = {
    setup.BEAM: ("s", GREY, "--"),
    setup.THEIR_BEAM: ("D", GREY, ":"),
    setup.GREEDY: ("o", "black", "--"),
    setup.STRICT: ("o", BLUE, "-"),
    setup.HIGH_EFFICIENCY: ("P", PURPLE, "-"),
}


def latencies(settings: Settings, evidence: Evidence, device: str, dtype: str) -> tuple[style.Lines, dict[str, str]]:
    """Milliseconds a sentence by arm and batch size on a device, and the reason of each arm whose times must not be shown."""
    known_at = {}
    for batch in setup.SIZES[settings.profile].batches:
        arms = arms_at(settings, setup.EN_DE, batch)
        there = {name: arm.replace(device=device, dtype=dtype) for name, arm in arms.items() if isinstance(arm, Experiment)}
        known = known_arms(there, evidence)
        if setup.GREEDY in known and succeeded(known[setup.GREEDY][1]):
            known_at[batch] = known
    label = f"{{name}}, at batch size {{place}} on {device}, {dtype}"
    return style.measured_lines(known_at, TIMED_ARMS, A_SENTENCE.measure, label)


def draw_batches(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Devices other than the chosen one are shown where they have been measured."""
    places = dict.fromkeys([(settings.device, settings.dtype), *DEVICES])
    measured = {place: latencies(settings, evidence, *place) for place in places}
    found = {place: lines for place, (lines, _) in measured.items() if lines}
    refused = {arm: reason for _, reasons in measured.values() for arm, reason in reasons.items()}
    if not found:
        raise style.none_to_show("specdec-5", refused)
    largest, task = max(setup.SIZES[settings.profile].batches), setup.task_of(settings, setup.EN_DE)
    with style.look():
        figure = style.new_figure(1.2 + 4.4 * len(found), 6.6)
        grid = figure.subplots(2, len(found), squeeze=False, sharex=True)
        for column, ((device, dtype), lines) in enumerate(found.items()):
            above, below = grid[0][column], grid[1][column]
            batches = sorted({batch for values in lines.values() for batch in values})
            _panel(above, lines, batches)
            _panel(below, _speeds_over(lines, largest), batches)
            above.set(title=f"{device}, {dtype}", yscale="log")
            below.axhline(1, color="black", lw=0.8)
            below.set(xlabel="batch size")
        grid[0][0].set(ylabel="ms a sentence")
        grid[1][0].set(ylabel=f"speed (AT, b = 5, batch {largest} = 1)")
        grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        style.footnote(
            figure,
            f"k = {setup.gamma_of(settings, setup.EN_DE)}, SpecDec++ with {setup.EFFICIENCY}; {task}, "
            f"{style.data_of(settings)}. Bars: 95 % over batches, none for fewer than {DESCRIPTIVE}. Batch sizes are measured\n"
            f"one after another. Below, 1 is the faster of our beam search and transformers'.{style.not_shown(refused)}",
            evidence.ran([arm for arm in arms_at(settings, setup.EN_DE, largest).values() if isinstance(arm, Experiment)]),
        )
        return style.save(figure, folder, "specdec-5")


def _speeds_over(lines: style.Lines, batch: int) -> style.Lines:
    """Speeds over the faster beam search at a batch size (the largest is the paper's 1x); its own spread is not in the bars."""
    beams = [lines.get(name, {}).get(batch) for name in (setup.BEAM, setup.THEIR_BEAM)]
    times = [one.value for one in beams if one is not None]
    if len(times) < len(beams):
        return {name: {} for name in lines}  # which is the faster is unknown
    unit = min(times)
    return {
        name: {place: one.mapped(lambda time: unit / time, "x") for place, one in values.items()}
        for name, values in lines.items()
    }


def _panel(axes: "Axes", lines: style.Lines, batches: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    style.draw_lines(axes, lines, LINES, markersize=6, elinewidth=1)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()


def _plan_main(settings: Settings) -> list[Comparison]:
    """The comparison of Table 1."""
    return plan_of([setup.arms_of(settings, setup.EN_DE)])


QUALITY = Figure(name="specdec-2", title="translation quality against speed", plan=_plan_main, draw=draw_quality)
DISTRIBUTION = Figure(
    name="specdec-4", title="how speed-ups of single sentences are distributed", plan=_plan_main, draw=draw_distribution
)
BATCHES = Figure(
    name="specdec-5",
    title="latency and speed by batch size and device",
    plan=lambda settings: plan_of(arms_at(settings, setup.EN_DE, batch) for batch in setup.SIZES[settings.profile].batches),
    draw=draw_batches,
)
