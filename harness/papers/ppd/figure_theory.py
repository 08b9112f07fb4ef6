"""PPD, Figures 3 and 4: what latency the extra compute units buy in theory, at the paper's match rates and at ours.

Both panels are theory: a match rate and k give a point of Theorem 4.1 with the early prediction at half the depth. Grey lines
are all match rates from 0 to 1 for each k; dataset and head decide where on them a point lies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.settings import Settings
from harness.measures.pipelines import match_rate
from harness.measures.statistics import Estimate
from harness.papers.ppd.match import MATCH_RATES
from harness.papers.ppd.setup import PAPER, PROBED, TASKS, depth_of, layers_of, match_arm
from harness.tables import published, style
from harness.tables.base import Figure
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREEN, GREY, VERMILION
from methods.ppd import theory
from methods.ppd.theory import PAPER_DEPTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

HALF = PAPER_DEPTH // 2
LOOKS = {"SQUAD": (GREEN, "o"), "WMT": (BLUE, "s"), "CNN/DM": (VERMILION, "D")}
LINES = {"N": "--", "Y": "-"}
HEADS = {"N": "the model's own head (N)", "Y": "a head trained for the layer (Y)"}
RATES = np.linspace(0, 1, 101)
Compute = Callable[[int, int, int, float], Any]  # depth, early layer, k and match rate to compute in units


@dataclass(frozen=True)
class _Curve:
    """The match rates of one dataset and head at half the depth, by k; ``layer`` of ``depth`` is where they were read."""

    dataset: str
    head: str
    rates: dict[int, Estimate]
    depth: int
    layer: int

    def latency(self, rate: float) -> float:
        return float(theory.latency_per_token(self.depth, self.layer, rate))


def published_curves() -> list[_Curve]:
    """The paper's rates (its Table 2)."""
    groups = published.groups(PAPER, "table_2", "layer", "dataset", "trained")
    return [
        _Curve(dataset, head, {int(row["k"]): _exact(row) for row in groups[str(HALF), dataset, head]}, PAPER_DEPTH, HALF)
        for dataset in TASKS
        for head in LINES
    ]


def measured_curves(settings: Settings, evidence: Evidence) -> list[_Curve]:
    """Our rates (catalogue table 1), fractions of 1; what has not been measured is left out."""
    depth, layer, found = depth_of(settings, PROBED), layers_of(settings)[HALF], []
    for dataset in TASKS:
        records = evidence.records_of(match_arm(settings, dataset))
        for head in LINES:
            rates = {k: match_rate(records, head, layer, k) for k in counts()}
            known = {k: rate.mapped(lambda pct: pct / 100) for k, rate in rates.items() if rate is not None}
            if known:
                found.append(_Curve(dataset, head, known, depth, layer))
    return found


def counts() -> list[int]:
    """The paper's k."""
    return sorted({int(row["k"]) for row in published.read(PAPER, "table_2")})


def _draw(name: str, compute: Compute, label: str, settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Latency (Equation 3) against compute (Equation 5 or 6), at the paper's match rates and at ours."""
    measured = measured_curves(settings, evidence)
    with style.look():
        figure = style.new_figure(10.4, 4.6)
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        figure.subplots_adjust(wspace=0.08)
        for axes, title, curves in (
            (left, "The paper's match rates", published_curves()),
            (right, "Match rates measured here", measured),
        ):
            _panel(axes, title, curves, compute)
            axes.set(xlabel=label)
        most = max(float(compute(PAPER_DEPTH, HALF, k, rate)) for k in counts() for rate in (0.0, 1.0))
        left.set(ylabel="latency per token (greedy decoding's = 1)", xlim=(0.6, most + 0.4), ylim=(0.45, 1.06))
        if not measured:
            right.text(0.5, 0.5, "not run", transform=right.transAxes, ha="center", va="center", color="#555555")
        datasets = [_handle(colour, marker, "none", dataset) for dataset, (colour, marker) in LOOKS.items()]
        heads = [_handle("black", "o", LINES[head], text, hollow=head == "N") for head, text in HEADS.items()]
        rates = [style.legend_line(color=GREY, lw=1, label="match rate 0 (above) to 1")]
        style.legends_beside(figure, right, ("dataset", datasets), ("early prediction by", heads), ("at each k", rates))
        style.footnote(figure, _provenance(settings, measured), evidence.ran([match_arm(settings, name) for name in TASKS]))
        return style.save(figure, folder, name)


def _panel(axes: "Axes", title: str, curves: list[_Curve], compute: Compute) -> None:
    """Theorem 4.1 at half the depth: all rates for each k in grey, the given ones on them, greedy decoding at (1, 1)."""
    for k in counts():
        spent = [float(compute(PAPER_DEPTH, HALF, k, rate)) for rate in RATES]
        latency = np.asarray(theory.half_depth_latency_per_token(RATES))
        axes.plot(spent, latency, color="#BBBBBB", lw=1, zorder=1)
        axes.annotate(
            f"k = {k}", (spent[-1], latency[-1]), (0, -4), textcoords="offset points", ha="center", va="top", color="#555555"
        )
    for curve in curves:
        _plot(axes, curve, compute)
    axes.plot(1, 1, marker="*", markersize=12, color="black", ls="none", zorder=4)
    axes.annotate("greedy", (1, 1), (0, 7), textcoords="offset points", ha="center", va="bottom", fontsize=10)
    axes.set_title(title)


def _plot(axes: "Axes", curve: _Curve, compute: Compute) -> None:
    colour, marker = LOOKS[curve.dataset]
    spent = [float(compute(curve.depth, curve.layer, k, rate.value)) for k, rate in curve.rates.items()]
    latencies = [rate.mapped(curve.latency) for rate in curve.rates.values()]
    axes.errorbar(
        spent, [one.value for one in latencies], style.reaches(latencies),
        color=colour, ls=LINES[curve.head], lw=1.4, marker=marker, markersize=6, elinewidth=1, capsize=2.5,
        markerfacecolor="white" if curve.head == "N" else colour, zorder=3,
    )  # fmt: skip


def _handle(colour: str, marker: str, line: str, label: str, *, hollow: bool = False) -> "Line2D":
    face = "white" if hollow else colour
    return style.legend_line(color=colour, marker=marker, markersize=6, markerfacecolor=face, ls=line, lw=1.4, label=label)


def _exact(row: published.Row) -> Estimate:
    """A printed rate as a fraction; the paper gives no interval."""
    return Estimate(float(row["match_rate_pct"]) / 100, None, None, 0)


def _provenance(settings: Settings, measured: list[_Curve]) -> str:
    texts = {curve.dataset: next(iter(curve.rates.values())).n for curve in measured}
    shown = f"texts: {', '.join(f'{n} of {dataset}' for dataset, n in texts.items()) or 'none'}"
    place = f", layer {measured[0].layer} of {measured[0].depth}" if measured else ""
    until = "as long as the paper's" if settings.fixed_length else "until EOS; the paper's go on behind it"
    return (
        f"Theory in both panels, at the match rates of Table 2. Paper: Vicuna-13B, layer {HALF} of {PAPER_DEPTH}. "
        f"Here: {style.data_of(settings)}{place}; {shown};\n"
        f"bars are 95 % intervals over texts, {until}. Heads are not counted; Table 3 has what a real pipeline makes of it."
    )


def _figure(name: str, title: str, compute: Compute, label: str) -> Figure:
    return Figure(name=name, title=title, plan=MATCH_RATES.plan, draw=partial(_draw, name, compute, label))


THEORY = (
    _figure(
        "ppd-3", "latency against compute units busy on average", theory.compute_per_time_unit, "compute units busy on average"
    ),
    _figure(
        "ppd-4", "latency against compute per token", theory.compute_per_token, "compute per token (greedy decoding's = 1)"
    ),
)
