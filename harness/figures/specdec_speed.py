"""SpecDec, Figures 2 and 4: quality against speed, and how the speed-ups of single sentences are distributed."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.block_measures import sentence_speedups
from harness.catalogue import published
from harness.catalogue.base import Pieces, RecordsOf, Settings
from harness.catalogue.specdec_columns import COLUMNS, Known, faster_beam
from harness.catalogue.specdec_setup import (
    ALONE,
    BEAM,
    EFFICIENCY,
    EN_DE,
    GREEDY,
    HIGH_EFFICIENCY,
    HIGH_QUALITY,
    PAPER,
    STRICT,
    THEIR_BEAM,
    arms_of,
    gamma_of,
)
from harness.errors import UsageError
from harness.experiment import Experiment
from harness.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, footnote, look, not_shown, save
from harness.pairing import Refused, succeeded
from harness.statistics import Estimate

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


def known_arms(settings: Settings, records_of: RecordsOf, name: str) -> Known:
    """The arms of Table 1's comparison that are recorded, the baselines among them."""
    arms = {arm: one for arm, one in arms_of(settings, EN_DE).items() if isinstance(one, Experiment)}
    known = {arm: (one, records_of(one)) for arm, one in arms.items()}
    found = {arm: pair for arm, pair in known.items() if succeeded(pair[1])}
    if not {GREEDY, BEAM, THEIR_BEAM} <= set(found):
        raise UsageError(f"figure {name}: no comparison is recorded; run `make reproduce-figure-{name}`")
    return found


def points(known: Known) -> tuple[dict[str, tuple[Estimate, Estimate]], dict[str, str]]:
    """(speed over beam search, BLEU) of every arm that has both; and why not of the arms whose speed must not be shown."""
    found, refused = {}, {}
    for arm in MARKS:
        if arm not in known:
            continue
        speed, quality = (COLUMNS[column].measure(known, arm) for column in ("speed", "BLEU"))
        if isinstance(speed, Refused):
            refused[arm] = speed.reason
        elif isinstance(speed, Estimate) and isinstance(quality, Estimate):
            found[arm] = (speed, quality)
    return found, refused


def draw_quality(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
    """Figure 2. Of the paper's points at most one of two numbers is recovered: lines are its speeds, without a quality."""
    known = known_arms(settings, records_of, "specdec-2")
    found, refused = points(known)
    with look():
        figure = Figure(figsize=(7.6, 4.8))
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
        footnote(figure, f"{_provenance(settings, known)} Bars: 95 % intervals over sentences.{not_shown(refused)}")
        return save(figure, folder, "specdec-2")


def published_speeds() -> dict[str, float]:
    """The speeds that the paper's text has."""
    rows = {row["model"]: row for row in published.read(PAPER, "table_1") if row["metric"] == "speed_x"}
    values = {arm: published.value(rows[model], "value") for model, arm in PUBLISHED_SPEEDS.items()}
    return {arm: value for arm, value in values.items() if isinstance(value, float)}


def draw_distribution(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
    """Figure 4: over beam search as in the paper, and over greedy decoding."""
    known = known_arms(settings, records_of, "specdec-4")
    if HIGH_EFFICIENCY not in known:
        raise UsageError("figure specdec-4: SpecDec++ is not recorded; run `make reproduce-figure-specdec-4`")
    speeds = {name: _speeds(known, arm) for name, arm in (("AT, b = 5", faster_beam(known)), (GREEDY, GREEDY))}
    with look():
        figure = Figure(figsize=(7.6, 4.4))
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
        footnote(figure, f"{_provenance(settings, known)}{summed} The last bar holds all that are faster.")
        return save(figure, folder, "specdec-4")


def _speeds(known: Known, baseline: str) -> np.ndarray:
    found = sentence_speedups(known[baseline][1], known[HIGH_EFFICIENCY][1])
    if isinstance(found, Refused):
        raise UsageError(f"figure specdec-4: {found.reason}")
    return np.array([]) if found is None else found


def _histogram(axes: Axes, speeds: Mapping[str, np.ndarray]) -> None:
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


def _provenance(settings: Settings, known: Known) -> str:
    experiment = known[GREEDY][0]
    return (
        f"{experiment.limit} sentences of {experiment.task}, profile {settings.profile}, data {Path(settings.source).name}, "
        f"on {settings.device}, batch 1."
    )
