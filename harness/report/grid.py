"""The table, the CSV file and the figure of a method at several gammas and ways of sampling (``foretoken run --gamma 1,2,4``).

A method with another drafter or rule stands in other rows and panels of it.

The curve is Theorem 3.8 of Leviathan et al. at the alpha and the cost ratio c that were measured beside it: c is the median
over the gammas. It takes verifying gamma + 1 tokens to cost no more than one and a round to have no fixed cost; "from costs" is
the speed of the tokens that a round emitted at what draft, verification and the rest of a round cost here.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from harness.core.experiment import Experiment
from harness.core.text import markdown_lines, text_table
from harness.measures.statistics import Estimate, Missing
from harness.tables import style
from harness.tables.files import write_whole
from harness.tables.style import BLUE, GREEN, ORANGE
from methods.speculative import theory
from tasks.sources.source import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "grid"
PANELS_A_ROW = 3
PARTS = ("drafter", "rule")  # told where there are several
SPEEDS = ("speedup", "decode_speedup")
FROM_METRICS = (
    *SPEEDS, "alpha_overlap", "tokens_per_step", "tokens_per_s", "ms_per_token", "baseline_ms_per_token",
)  # fmt: skip
HEADS = {
    "speedup": "speed",
    "decode_speedup": "rounds alone",
    "predicted_theorem": "Theorem 3.8",
    "predicted_costs": "from costs",
    "alpha_overlap": "alpha",
    "cost_ratio": "c",
    "tokens_per_step": "tokens a round",
    "tokens_per_s": "tokens/s",
    "ms_per_token": "ms a token",
    "baseline_ms_per_token": "plain ms a token",
}


@dataclass(frozen=True)
class Point:
    """A method at one gamma and one way of sampling.

    ``costs`` are what a round costs and what theory makes of it (``harness.papers.leviathan.speed.account``). ``refused`` says
    why its times must not be compared with plain decoding's.
    """

    experiment: Experiment
    metrics: Mapping[str, Estimate]
    costs: Mapping[str, Estimate | None] | Missing | None
    refused: str | None
    verdict: str

    @property
    def gamma(self) -> int:
        return self.experiment.method.gamma

    @property
    def parts(self) -> dict[str, str]:
        """Return the names of its drafter and rule."""
        method = self.experiment.method
        named = {"drafter": method.drafter and method.drafter.label, "rule": method.rule and method.rule.name}
        return {name: value for name, value in named.items() if value}

    @property
    def sampling(self) -> dict[str, float | int]:
        """How it is sampled: the temperature, and the filters that were asked for."""
        asked = self.experiment.sampling
        filters = {"top_k": asked.top_k, "top_p": asked.top_p}
        return {"temperature": asked.temperature, **{name: value for name, value in filters.items() if value is not None}}

    def value(self, name: str) -> Estimate | None:
        """Return one of HEADS; theory only where Eq. 1 holds for the method, and no speed where times are refused."""
        if name in FROM_METRICS:
            return None if name in SPEEDS and self.refused else self.metrics.get(name)
        if name == "predicted_theorem" and not self.follows_theory:
            return None
        return self.costs.get(name) if isinstance(self.costs, Mapping) else None

    @property
    def lacking(self) -> dict[str, str]:
        """Say why the speed or the cost ratio must not be shown, by their names."""
        costs = self.costs.why if isinstance(self.costs, Missing) else None
        return {name: why for name, why in (("speedup", self.refused), ("cost_ratio", costs)) if why is not None}

    @property
    def follows_theory(self) -> bool:
        """Say whether Eq. 1 describes the method: a constant gamma and an exact rule, of which alpha was measured."""
        return "memory_access_factor_eq1" in self.metrics and "alpha_overlap_lenient" not in self.metrics


def write(points: Sequence[Point], folder: Path) -> str:
    """Write ``grid.md``, ``grid.csv`` and the figure into a folder; return the table and the files for the terminal.

    Raises:
        UsageError: they cannot be written there.
    """
    heads, rows, reasons = _table(points)
    paths = [
        write_whole(folder / f"{NAME}.md", "\n".join([*markdown_lines(heads, rows), "", *reasons]).rstrip() + "\n"),
        write_whole(folder / f"{NAME}.csv", csv_text(points)),
    ]
    if any(point.value("speedup") for point in points):
        paths += draw(points, folder)
    else:
        reasons.append("No figure: no speed can be shown.")
    return "\n".join([*text_table([heads, *rows]), *reasons, *(str(path) for path in paths)])


def _axes_of(points: Sequence[Point]) -> list[str]:
    """Return what tells points apart besides gamma: drafter and rule where there are several, and all of how is sampled."""
    several = [name for name in PARTS if len({point.parts.get(name) for point in points}) > 1]
    return [*several, *dict.fromkeys(name for point in points for name in point.sampling)]


def _values(point: Point, names: Sequence[str]) -> dict[str, str]:
    """Return a point's values on axes, those that it has."""
    known = {**point.parts, **{name: f"{value:g}" for name, value in point.sampling.items()}}
    return {name: known[name] for name in names if name in known}


def _table(points: Sequence[Point]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the heads, the rows, and what is to be said below: the interval, and why numbers are missing."""
    names, reasons, rows = _axes_of(points), dict[str, int](), list[list[str]]()
    for point in points:
        shown = {name: _shown(point.value(name)) for name in HEADS}
        for name, why in point.lacking.items():
            shown[name] = f"({reasons.setdefault(why, len(reasons) + 1)})"
        values = _values(point, names)
        rows.append([*(values.get(name, "") for name in names), str(point.gamma), *shown.values(), point.verdict])
    heads = [*(name.replace("_", "-") for name in names), "gamma", *HEADS.values(), "audit"]
    few = any(estimate != estimate.shown for point in points for estimate in point.metrics.values())
    notes = [
        "value [low, high]: 95 % over examples" + ("; of fewer than 30 examples there is none" if few else "") + ".",
        "rounds alone: the speed without the time of encoders and prompts, a draft's too; it is what theory predicts.",
    ]
    return heads, rows, [*notes, *(f"({number}) {why}" for why, number in reasons.items())]


def _shown(found: Estimate | None) -> str:
    return "" if found is None else found.shown.as_text(".3g")


def csv_text(points: Sequence[Point]) -> str:
    """A line a point; each quantity with the ends of its interval, empty where there is none."""
    out, names = io.StringIO(), _axes_of(points)
    writer = csv.writer(out, lineterminator="\n")
    quantities = [f"{name}{end}" for name in HEADS for end in ("", "_low", "_high")]
    writer.writerow([*names, "gamma", *quantities, "n", "audit", "refused", "signature"])
    for point in points:
        values = [point.value(name) for name in HEADS]
        ends = [end for one in values for end in ((None, None, None) if one is None else (one.value, one.low, one.high))]
        n = max((one.n for one in values if one is not None), default=0)
        told = {**point.parts, **point.sampling}
        axes = [told.get(name, "") for name in names]
        numbers = ["" if end is None else f"{end:.6g}" for end in ends]
        writer.writerow([*axes, point.gamma, *numbers, n, point.verdict, point.refused or "", point.experiment.signature])
    return out.getvalue()


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draw speed against gamma, a panel for each drafter, rule and way of sampling, with Theorem 3.8 and costs of rounds."""
    names, panels = _axes_of(points), dict[str, list[Point]]()
    for point in points:
        values = _values(point, names)
        title = "\n".join(
            ", ".join(f"{name.replace('_', '-')} {value}" for name, value in values.items() if name in row)
            for row in (("drafter",), ("rule",), tuple(point.sampling))
            if set(row) & set(values)
        )
        panels.setdefault(title, []).append(point)
    columns = min(len(panels), PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    with style.look():
        figure = style.new_figure(1.6 + 3.6 * columns, 3.6 * rows)
        figure.subplots_adjust(hspace=0.45 + 0.12 * sum(name in names for name in PARTS), wspace=0.25)
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for axes, (title, shown) in zip(grid, panels.items(), strict=False):
            _panel(axes, title, shown)
        for axes in grid[::columns]:
            axes.set_ylabel("speed-up (times)")
        for axes in grid[len(panels) :]:
            axes.remove()
        style.legends_beside(figure, grid[columns - 1], ("times plain decoding", _legend(points)))
        style.footnote(figure, _provenance(points))
        return style.save(figure, folder, NAME)


def _panel(axes: "Axes", title: str, points: Sequence[Point]) -> None:
    points = sorted(points, key=lambda point: point.gamma)
    costs = [(point.gamma, cost.value) for point in points if (cost := point.value("predicted_costs")) is not None]
    if (known := curve(points)) is not None:
        gammas = np.linspace(0, 1.08 * points[-1].gamma, 200)
        axes.plot(gammas, theory.walltime_factor(known[0], gammas, known[1]), color=ORANGE, lw=1.8)
        title += f"\nalpha {known[0]:.2f}, c {known[1]:.2f}"
    if costs:
        axes.plot(*zip(*costs, strict=True), color=GREEN, lw=1.2, ls="--", marker="D", markersize=4)
    for point in points:
        if (speed := point.value("speedup")) is not None:
            axes.errorbar(
                point.gamma, speed.value, yerr=style.reach(speed), fmt="o", color=BLUE, markeredgecolor="black",
                ecolor="black", elinewidth=1, capsize=2, markersize=7, zorder=5,
            )  # fmt: skip
    axes.axhline(1, color="black", lw=0.8)
    axes.set_title(title, fontsize=11)
    axes.set(xlabel="gamma", xticks=[point.gamma for point in points])
    axes.set_xlim(0, 1.08 * points[-1].gamma)
    axes.set_ylim(bottom=0)


def curve(points: Sequence[Point]) -> tuple[float, float] | None:
    """Return alpha and c of one way of sampling, the median c over its gammas; None where theory does not apply."""
    known = [point for point in points if point.follows_theory and point.value("cost_ratio") is not None]
    if not known:
        return None
    alpha = known[0].metrics["alpha_overlap"].value
    return min(alpha, 1.0), median(cost.value for point in known if (cost := point.value("cost_ratio")) is not None)


def _legend(points: Sequence[Point]) -> list:
    measured = style.legend_line(ls="", marker="o", color=BLUE, markeredgecolor="black", label="measured")
    found = [measured]
    if any(point.value("predicted_theorem") for point in points):
        found.append(style.legend_line(color=ORANGE, lw=1.8, label="Theorem 3.8"))
    if any(point.value("predicted_costs") for point in points):
        found.append(
            style.legend_line(color=GREEN, lw=1.2, ls="--", marker="D", markersize=4, label="from the costs\nof its rounds")
        )
    return found


def _provenance(points: Sequence[Point]) -> str:
    first = points[0].experiment
    labels = dict.fromkeys(point.parts["drafter"] for point in points if "drafter" in point.parts)
    drafter = f" with {' or '.join(labels)}" if labels else ""
    speeds = [speed for point in points if (speed := point.value("speedup")) is not None]
    bars = (
        "bars are 95 % intervals over examples" if any(speed.shown.low is not None for speed in speeds) else "too few for bars"
    )
    refused = sum(point.refused is not None for point in points)
    left_out = f"\n{refused} of {len(points)} speeds are not shown: see the table." if refused else ""
    data = Path(Source.of(first.source).place).name
    return (
        f"{first.target.short}{drafter}, {first.method.name}; task {first.task}, data {data}; "
        f"{max(speed.n for speed in speeds)} examples, {bars}.{left_out}"
    )
