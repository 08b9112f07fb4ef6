"""SpecDec, Figures 1 to 5. Drawn here are Figures 2 and 4 (quality and speed, single sentences) and 5 (batch sizes)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, Experiment
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.measures.sentences import sentence_speedups
from harness.measures.statistics import Estimate, Missing
from harness.papers.specdec.columns import BY_TITLE, faster_beam
from harness.papers.specdec.cost import A_SENTENCE, MIN_BATCHES, TIMED_ARMS, arms_at
from harness.papers.specdec.rounds import draw_relaxed, draw_strict
from harness.papers.specdec.setup import (
    ALONE,
    BEAM,
    EFFICIENCY,
    EN_DE,
    GREEDY,
    HIGH_EFFICIENCY,
    HIGH_QUALITY,
    PAPER,
    SIZES,
    STRICT,
    THEIR_BEAM,
    arms_of,
    gamma_of,
)
from harness.papers.specdec.traces import TRACES
from harness.tables import published
from harness.tables.base import Figure
from harness.tables.engine import Known, Row, known_arms, plan_of
from harness.tables.evidence import Evidence
from harness.tables.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    footnote,
    look,
    new_figure,
    not_shown,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {
    BEAM: ("s", GREY),
    THEIR_BEAM: ("D", GREY),
    GREEDY: ("o", "black"),
    ALONE: ("v", VERMILION),
    STRICT: ("o", BLUE),
    HIGH_QUALITY: ("^", GREEN),
    HIGH_EFFICIENCY: ("P", PURPLE),
}
PUBLISHED_SPEEDS = {
    "SpecDec": STRICT, "SpecDec++ (high-quality)": HIGH_QUALITY, "SpecDec++ (high-efficiency)": HIGH_EFFICIENCY,
}  # fmt: skip
BIN = 0.5
SHOWN_FRAC = 0.99  # of sentences, that the axis reaches


def recorded(settings: Settings, evidence: Evidence, figure: str) -> Known:
    """The arms of Table 1's comparison that are recorded, the baselines among them."""
    known = known_arms(arms_of(settings, EN_DE), evidence)
    found = Known({name: arm for name, arm in known.items() if succeeded(arm[1])}, evidence)
    if not {GREEDY, BEAM, THEIR_BEAM} <= set(found):
        raise UsageError(f"figure {figure}: no comparison is recorded; run `make reproduce-figure-{figure}`")
    return found


def points(known: Known) -> tuple[dict[str, tuple[Estimate, Estimate]], dict[str, str]]:
    """Return (speed over beam search, BLEU) of arms that have both, and why a speed must not be shown of the others."""
    found, refused = {}, {}
    for arm in MARKS:
        if arm not in known:
            continue
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
    with look():
        figure = new_figure(7.6, 4.8)
        axes = figure.subplots()
        for arm, (speed, quality) in found.items():
            marker, colour = MARKS[arm]
            axes.errorbar(
                speed.value, quality.value, xerr=_error(speed), yerr=_error(quality), fmt=marker, color=colour, markersize=8,
                ecolor=colour, elinewidth=1, capsize=2, label=arm, zorder=5,
            )  # fmt: skip
        for arm, speed_x in published_speeds().items():
            axes.axvline(speed_x, color=MARKS[arm][1], lw=1.2, ls=":", zorder=1)
        axes.plot([], [], color="black", lw=1.2, ls=":", label="the paper's speeds (BLEU not\nrecovered), in these colours")
        axes.set(title="Translation quality against speed", xlabel="speed over AT with beam 5 (times)", ylabel="BLEU")
        axes.set_xlim(left=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        footnote(figure, f"{_main_provenance(settings, known)} Bars: 95 % intervals over sentences.{not_shown(refused)}")
        return save(figure, folder, "specdec-2")


def published_speeds() -> dict[str, float]:
    """The speeds in the paper's text, by arm."""
    rows = {row["model"]: row for row in published.read(PAPER, "table_1") if row["metric"] == "speed_x"}
    values = {arm: published.value(rows[model], "value") for model, arm in PUBLISHED_SPEEDS.items()}
    return {arm: value for arm, value in values.items() if isinstance(value, float)}


def draw_distribution(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 4: over beam search as in the paper, and over greedy decoding."""
    known = recorded(settings, evidence, "specdec-4")
    if HIGH_EFFICIENCY not in known:
        raise UsageError("figure specdec-4: SpecDec++ is not recorded; run `make reproduce-figure-specdec-4`")
    speeds = {name: _speeds(known, arm) for name, arm in (("AT, b = 5", faster_beam(known)), (GREEDY, GREEDY))}
    with look():
        figure = new_figure(7.6, 4.4)
        axes = figure.subplots()
        _histogram(axes, speeds)
        low, high = claimed_range()
        axes.axvspan(low, high, color=SKY, alpha=0.15, lw=0, zorder=0)
        axes.annotate(
            "most sentences,\nin the paper", ((low + high) / 2, 1.0), xycoords=("data", "axes fraction"), ha="center", va="top",
            fontsize=9, color="#30678F", xytext=(0, -4), textcoords="offset points",
        )  # fmt: skip
        k = gamma_of(settings, EN_DE)
        axes.set(
            title=f"Speed-up of single sentences by SpecDec++ (k = {k}, {EFFICIENCY})", xlabel="speed-up (times)",
            ylabel="sentences (%)",
        )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        summed = " A sentence's repeats are summed." if known[GREEDY][0].repeats > 1 else ""
        footnote(figure, f"{_main_provenance(settings, known)}{summed} The last bar holds all that are faster.")
        return save(figure, folder, "specdec-4")


def _speeds(known: Known, baseline: str) -> np.ndarray:
    found = sentence_speedups(known[baseline][1], known[HIGH_EFFICIENCY][1])
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
    row = next(row for row in published.read(PAPER, "text_claims") if row["metric"] == "range_x")
    low, high = row["value"].split(" ")[0].split("-")
    return float(low), float(high)


def _error(estimate: Estimate) -> list[list[float]] | None:
    if estimate.low is None or estimate.high is None:
        return None
    return [[max(estimate.value - estimate.low, 0)], [max(estimate.high - estimate.value, 0)]]


def _main_provenance(settings: Settings, known: Known) -> str:
    experiment = known[GREEDY][0]
    return (
        f"{experiment.limit} sentences of {experiment.task}, profile {settings.profile}, data {Path(settings.source).name}, "
        f"on {settings.device}, batch 1."
    )


DEVICES = (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"), ("cuda", "float16"))
LINES = {
    BEAM: ("s", GREY, "--"),
    THEIR_BEAM: ("D", GREY, ":"),
    GREEDY: ("o", "black", "--"),
    STRICT: ("o", BLUE, "-"),
    HIGH_EFFICIENCY: ("P", PURPLE, "-"),
}
Latencies = dict[str, dict[int, Estimate]]


def latencies(settings: Settings, evidence: Evidence, device: str, dtype: str) -> tuple[Latencies, dict[str, str]]:
    """Milliseconds a sentence by arm and batch size on a device, and the reason of each arm whose times must not be shown."""
    found: Latencies = {name: {} for name in TIMED_ARMS}
    refused = {}
    for batch in SIZES[settings.profile].batches:
        arms = arms_at(settings, EN_DE, batch)
        there = {name: arm.replace(device=device, dtype=dtype) for name, arm in arms.items() if isinstance(arm, Experiment)}
        known = Known({name: arm for name, arm in known_arms(there, evidence).items() if succeeded(arm[1])}, evidence)
        for name in known if GREEDY in known else ():
            result = A_SENTENCE.measure(known, Row(name, name))
            if isinstance(result, Estimate):
                found[name][batch] = result
            elif isinstance(result, Missing):
                refused[f"{name}, at batch size {batch} on {device}, {dtype}"] = result.why
    return {name: values for name, values in found.items() if values}, refused


def draw_batches(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Devices other than the chosen one are shown where they have been measured."""
    places = dict.fromkeys([(settings.device, settings.dtype), *DEVICES])
    measured = {place: latencies(settings, evidence, *place) for place in places}
    found = {place: lines for place, (lines, _) in measured.items() if lines}
    refused = {arm: reason for _, reasons in measured.values() for arm, reason in reasons.items()}
    if not found:
        why = next(iter(refused.values()), "nothing is recorded; run `make reproduce-figure-specdec-5`")
        raise UsageError(f"figure specdec-5: {why}")
    with look():
        figure = new_figure(1.2 + 4.4 * len(found), 6.6)
        grid = figure.subplots(2, len(found), squeeze=False, sharex=True)
        for column, ((device, dtype), lines) in enumerate(found.items()):
            above, below = grid[0][column], grid[1][column]
            _panel(above, lines, lambda estimate: estimate)
            _panel(below, lines, _over(lines, _largest(settings)))
            above.set(title=f"{device}, {dtype}", yscale="log")
            below.axhline(1, color="black", lw=0.8)
            below.set(xlabel="batch size")
        grid[0][0].set(ylabel="ms a sentence")
        grid[1][0].set(ylabel=f"speed (AT, b = 5, batch {_largest(settings)} = 1)")
        grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        footnote(figure, _batch_provenance(settings) + not_shown(refused))
        return save(figure, folder, "specdec-5")


def _largest(settings: Settings) -> int:
    return max(SIZES[settings.profile].batches)


def _over(lines: Latencies, batch: int) -> Callable[[Estimate], Estimate | None]:
    """Speed over the faster beam search at a batch size (the largest is the paper's 1x); its own spread is not in the bars."""
    beams = [lines.get(name, {}).get(batch) for name in (BEAM, THEIR_BEAM)]
    times = [one.value for one in beams if one is not None]
    unit = min(times, default=0.0)

    def speed(estimate: Estimate) -> Estimate | None:
        if len(times) < len(beams):
            return None  # which is the faster is unknown
        low, high = (None if bound is None else unit / bound for bound in (estimate.high, estimate.low))
        return Estimate(unit / estimate.value, low, high, estimate.n, "x")

    return speed


def _panel(axes: "Axes", lines: Latencies, quantity: Callable[[Estimate], Estimate | None]) -> None:
    axes.set_xscale("log", base=2)
    for name, values in lines.items():
        marker, colour, style = LINES[name]
        shown = {batch: one for batch, estimate in values.items() if (one := quantity(estimate)) is not None}
        spread = [[one.value - (one.value if one.low is None else one.low) for one in shown.values()]]
        spread += [[(one.value if one.high is None else one.high) - one.value for one in shown.values()]]
        axes.errorbar(
            list(shown), [one.value for one in shown.values()], yerr=spread, marker=marker, color=colour, ls=style, lw=1.6,
            markersize=6, elinewidth=1, capsize=2, label=name,
        )  # fmt: skip
    batches = sorted({batch for values in lines.values() for batch in values})
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()


def _batch_provenance(settings: Settings) -> str:
    return (
        f"k = {gamma_of(settings, EN_DE)}, SpecDec++ with {EFFICIENCY}; {EN_DE.task}, profile {settings.profile}, data "
        f"{Path(settings.source).name}. Bars: 95 % over batches, none for fewer than {MIN_BATCHES}. Batch sizes are measured\n"
        "one after another. Below, 1 is the faster of our beam search and transformers'."
    )


def _main(settings: Settings) -> list[Comparison]:
    """The comparison of Table 1."""
    return plan_of([arms_of(settings, EN_DE)])


def _batches(settings: Settings) -> list[Comparison]:
    """The timed comparisons of Table 16."""
    return plan_of(arms_at(settings, EN_DE, batch) for batch in SIZES[settings.profile].batches)


SPECDEC_FIGURES = [
    Figure(name="specdec-1", title="an iteration: draft, verify, bifurcation", plan=TRACES.plan, draw=draw_strict),
    Figure(name="specdec-2", title="translation quality against speed", plan=_main, draw=draw_quality),
    Figure(
        name="specdec-3", title="the same by SpecDec++: what a relaxed rule lets stand", plan=TRACES.plan, draw=draw_relaxed
    ),
    Figure(name="specdec-4", title="how speed-ups of single sentences are distributed", plan=_main, draw=draw_distribution),
    Figure(name="specdec-5", title="latency and speed by batch size and device", plan=_batches, draw=draw_batches),
]
