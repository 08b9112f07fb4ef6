"""Leviathan et al., Figures 2, 3 and 4: the theory's curves with our pairs on them.

Lines are theory, markers with black edges are measured here. A marker's shape is the draft; error bars are 95 % intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.core.settings import Settings
from harness.measures.of_run import operations_factor
from harness.measures.statistics import Estimate
from harness.papers.leviathan.setup import PAPER, TARGET
from harness.papers.leviathan.speed import SPEED, costs_of, sections
from harness.tables import published, style
from harness.tables.base import Figure
from harness.tables.engine import known_arms
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY
from methods.speculative import theory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture
    from matplotlib.lines import Line2D

ALPHAS = np.linspace(0, 0.97, 195)
GAMMA_COLOURS = {1: GREY, 3: ORANGE, 5: GREEN, 7: BLUE, 10: PURPLE}
COST_COLOURS = {0.01: BLUE, 0.02: SKY, 0.05: GREEN, 0.1: ORANGE}
MARKERS = {"T5-small": "o", "T5-base": "s", "T5-large": "D"}


@dataclass(frozen=True)
class _Point:
    """One pair of Table 2 as measured here."""

    draft: str
    ran: str
    gamma: int
    alpha: Estimate
    tokens_per_step: Estimate
    cost_ratio: Estimate | None
    speedup: Estimate | None
    operations: Estimate | None

    @property
    def drafted_by(self) -> str:
        """The draft that ran: its name, size and layers, without what it learned from."""
        return self.ran.rpartition("; ")[2].partition(", distilled from ")[0]


def points(settings: Settings, evidence: Evidence) -> list[_Point]:
    """The pairs whose both arms are recorded and steady; the others are left out and counted by the caller."""
    found = []
    for section in sections(settings):
        known = known_arms(section.arms, evidence)
        for draft, (method, records) in known.items():
            result = known.once(costs_of, TARGET, draft) if draft != TARGET else None
            if isinstance(result, dict) and (alpha := result["alpha"]) and (tokens := result["tokens_per_step"]):
                cost, speed, operations = result["cost_ratio"], result["speedup"], operations_factor(records)
                found.append(_Point(draft, evidence.ran([method]), method.method.gamma, alpha, tokens, cost, speed, operations))
    return found


def draw_expected_tokens(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 2: Eq. 1 per gamma, and tokens per run of the target as counted."""
    with style.look():
        figure, axes = _axes("Expected tokens per run of the target", "expected tokens per run of the target")
        for gamma, colour in GAMMA_COLOURS.items():
            axes.plot(ALPHAS, theory.expected_tokens(ALPHAS, gamma), color=colour, lw=1.8)
        axes.plot(ALPHAS, theory.oracle_factor(ALPHAS, 0.0), color="black", lw=1.2, ls=":")
        measured = points(settings, evidence)
        for point in measured:
            _mark(axes, point, point.tokens_per_step, GAMMA_COLOURS[point.gamma])
        axes.set(ylim=(0.8, 11.2))
        lines = [_line(colour, f"gamma = {gamma}") for gamma, colour in GAMMA_COLOURS.items()]
        lines.append(style.legend_line(color="black", ls=":", lw=1.2, label="no limit: 1 / (1 - alpha)"))
        style.legends_beside(figure, axes, ("theory: Eq. 1", lines), ("measured here", _marker_legend(measured)))
        _provenance(figure, settings, measured)
        return style.save(figure, folder, "leviathan-2")


def draw_optimal_gamma(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 3: the gamma that maximises Theorem 3.8 per cost ratio, and where our pairs fall."""
    with style.look():
        figure, axes = _axes("Best number of drafted tokens", "gamma that maximises Theorem 3.8")
        for cost, colour in COST_COLOURS.items():
            axes.step(ALPHAS, [theory.optimal_gamma(alpha, cost) for alpha in ALPHAS], color=colour, lw=1.8, where="mid")
        measured = [point for point in points(settings, evidence) if point.cost_ratio]
        for point in measured:
            gamma = theory.optimal_gamma(min(point.alpha.value, 1.0), max(point.cost_ratio.value, 0.0))  # type: ignore[union-attr]
            _mark(axes, point, Estimate(gamma, None, None, point.alpha.n), "white")
        axes.set(ylim=(-0.5, 26))
        lines = [_line(colour, f"c = {cost:g}") for cost, colour in COST_COLOURS.items()]
        style.legends_beside(
            figure, axes, ("theory: Theorem 3.8", lines), ("at alpha and c measured here", _cost_legend(measured))
        )
        _provenance(figure, settings, measured)
        return style.save(figure, folder, "leviathan-3")


def draw_tradeoff(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 4: speed above, arithmetic operations below; the theory's draft is free, ours is not."""
    with style.look():
        figure = style.new_figure(7.2, 7.4)
        figure.subplots_adjust(bottom=0.07)
        above, below = figure.subplots(2, 1, sharex=True)
        for gamma, colour in GAMMA_COLOURS.items():
            above.plot(ALPHAS, theory.walltime_factor(ALPHAS, gamma, 0.0), color=colour, lw=1.8)
            below.plot(ALPHAS, theory.operations_factor(ALPHAS, gamma), color=colour, lw=1.8, ls="--")
        measured = points(settings, evidence)
        for point in measured:
            for axes, estimate in ((above, point.speedup), (below, point.operations)):
                if estimate:
                    _mark(axes, point, estimate, GAMMA_COLOURS[point.gamma])
        above.axhline(1, color="black", lw=0.8)
        above.set(ylabel="speed-up (times)", ylim=(0, 11.2), title="Speed against arithmetic operations")
        below.set(ylabel="operations (times the target's own)", xlabel="alpha", xlim=(0, 1), ylim=(0.8, 11.2))
        lines = [_line(colour, f"gamma = {gamma}") for gamma, colour in GAMMA_COLOURS.items()]
        style.legends_beside(
            figure, above, ("theory at c = 0", lines), ("measured wall-clock", _marker_legend(measured, models=False))
        )
        dashed = [style.legend_line(color="black", ls="--", lw=1.8, label="Theorem 3.11, c hat = 0")]
        style.legends_beside(figure, below, ("theory", dashed), ("counted positions", _marker_legend(measured)))
        _provenance(figure, settings, measured)
        return style.save(figure, folder, "leviathan-4")


def _axes(title: str, label: str) -> tuple["Picture", "Axes"]:
    figure = style.new_figure(7.2, 4.6)
    axes = figure.subplots()
    axes.set(title=title, xlabel="alpha", ylabel=label, xlim=(0, 1))
    return figure, axes


def _mark(axes: "Axes", point: _Point, height: Estimate, colour: str) -> None:
    axes.errorbar(
        point.alpha.value, height.value, xerr=style.reach(point.alpha), yerr=style.reach(height), markersize=7,
        fmt=MARKERS.get(point.draft, "^"), markerfacecolor=colour, markeredgecolor="black", ecolor="black", elinewidth=1,
        capsize=2, zorder=5,
    )  # fmt: skip


def _line(colour: str, label: str) -> "Line2D":
    return style.legend_line(color=colour, lw=1.8, label=label)


def _marker_legend(measured: Sequence[_Point], labels: dict[str, str] | None = None, models: bool = True) -> list["Line2D"]:
    """Name each draft as the paper does, and below it the ``models`` that ran: each task may have its own."""
    ran = {draft: dict.fromkeys(point.drafted_by for point in measured if point.draft == draft) for draft in MARKERS}
    used = [draft for draft in MARKERS if ran[draft]]
    if not used:
        return [style.legend_line(ls="", label="not run")]
    return [
        style.legend_line(
            ls="",
            marker=MARKERS[draft],
            color="white",
            markeredgecolor="black",
            label="\n".join([(labels or {}).get(draft, draft), *(f"({model})" for model in ran[draft] if models)]),
        )
        for draft in used
    ]


def _cost_legend(measured: Sequence[_Point]) -> list["Line2D"]:
    labels = {}
    for draft in MARKERS:
        costs = [point.cost_ratio.value for point in measured if point.draft == draft and point.cost_ratio]
        if costs:
            low, high = f"{min(costs):.2f}", f"{max(costs):.2f}"
            labels[draft] = f"{draft}, c = {low}" + (f" to {high}" if high != low else "")
    return _marker_legend(measured, labels)


def _provenance(figure: "Picture", settings: Settings, measured: Sequence[_Point]) -> None:
    total, targets = len(published.read(PAPER, "table_2")), [point.ran.partition("; ")[0] for point in measured]
    style.footnote(
        figure,
        f"Markers: {len(measured)} of {total} settings of Table 2 (task, draft, temperature), {style.data_of(settings)}; "
        f"bars are 95 % intervals over examples.\nThe target that ran: {', '.join(dict.fromkeys(targets)) or 'none'}.",
    )


CURVES = (
    Figure(
        name="leviathan-2",
        title="expected tokens per run of the target against alpha",
        plan=SPEED.plan,
        draw=draw_expected_tokens,
    ),
    Figure(name="leviathan-3", title="the best gamma against alpha", plan=SPEED.plan, draw=draw_optimal_gamma),
    Figure(name="leviathan-4", title="speed against arithmetic operations", plan=SPEED.plan, draw=draw_tradeoff),
)
