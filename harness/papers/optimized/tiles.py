"""Optimized, Figures 1 and 2: the tiles that the kernels of kernels.verify are configured with, and what is done in one.

Nothing is run: widths and counts are the kernels' own constants at the vocabularies of the paper's models.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.settings import Settings
from harness.papers.optimized.setup import GAMMA
from harness.tables import style
from harness.tables.base import Figure
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREEN, GREY, ORANGE, VERMILION
from kernels.verify import sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VOCABULARIES = {"Llama2": 32_000, "Whisper .en": 51_864, "Qwen1.5": 151_936, "Gemma": 256_000}
SHOWN = "Llama2"
PALE = {BLUE: "#D6E8F5", GREEN: "#D3EFE5", ORANGE: "#FBEBC8", VERMILION: "#F9DDCF", GREY: "#EEEEEE"}
LEFT, WIDTH, HEIGHT = 2.0, 54.0, 1.9  # of a matrix: where it begins, how wide it is, how high a row
MARKED_ROW = 1
CHOSEN = 24  # the tile whose work is shown; any would do


@dataclass(frozen=True)
class _Panel:
    """The texts that differ between the two figures. Steps marked True are the sigmoid's own."""

    name: str
    kernel: str
    title: str
    matrices: tuple[str, str]
    steps: tuple[tuple[str, bool], ...]
    written: tuple[str, str, str]


EXACT = _Panel(
    name="optimized-1",
    kernel="exact",
    title="Exact kernel: one program a tile of a draft's row, softmax outside",
    matrices=("$p$, target probabilities", "$q$, draft probabilities"),
    steps=(
        ("load $p_k$, $q_k$", False),
        (r"$\tau_k = p_k \, / \, q_k$", False),
        ("$f_k = p_k - q_k$", False),
        (r"$a_k = \max(0, f_k)$", False),
        (r"$b_k = \Sigma_x \, a_k(x)$", False),
    ),
    written=(r"$\tau_k$", "$a_k$", "$b_k$"),
)
SIGMOID = _Panel(
    name="optimized-2",
    kernel="sigmoid",
    title="Sigmoid kernel: the same tiles on raw logits, no softmax",
    matrices=("$z^p$, target logits", "$z^q$, draft logits"),
    steps=(
        ("load $z^p_k$, $z^q_k$", True),
        (r"$\hat{p}_k, \hat{q}_k = \sigma((z_k - \alpha) \, / \, (\beta - \alpha))$", True),
        (r"$\hat{\tau}_k = \hat{p}_k \, / \, \hat{q}_k$", False),
        (r"$\hat{a}_k = \max(0, \hat{p}_k - \hat{q}_k)$", False),
        (r"$\hat{b}_k = \Sigma_x \, \hat{a}_k(x)$", False),
    ),
    written=(r"$\hat{\tau}_k$", r"$\hat{a}_k$", r"$\hat{b}_k$"),
)


def tile_widths(vocab_size: int) -> list[int]:
    """The widths of a row's tiles: all alike but the last."""
    return [min(sizes.TILE, vocab_size - start) for start in range(0, vocab_size, sizes.TILE)]


def _draw(panel: _Panel, settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    with style.look():
        figure = style.new_figure(11.0, 5.4)
        axes = figure.subplots()
        axes.set(xlim=(0, 110), ylim=(0, 54), title=panel.title)
        axes.axis("off")
        for label, top, colour, bend in ((panel.matrices[0], 50, BLUE, -0.1), (panel.matrices[1], 32, ORANGE, 0.3)):
            _draw_matrix(axes, label, top, colour)
            begin = (LEFT + (CHOSEN + 1) * sizes.TILE * WIDTH / VOCABULARIES[SHOWN], top - (MARKED_ROW + 0.5) * HEIGHT)
            _draw_arrow(
                axes,
                begin,
                (62.8, 43.3),
                color=colour,
                mutation_scale=12,
                lw=1.3,
                connectionstyle=f"arc3,rad={bend}",
                shrinkA=0,
            )
        ratio, positive, _ = panel.written
        _draw_matrix(axes, f"written: {ratio} and {positive}; used are $\\gamma$ ratios and one row (dark)", 14, GREEN)
        _draw_program(axes, panel)
        style.footnote(figure, notes(panel))
        return style.save(figure, folder, panel.name)


def _draw_matrix(axes: "Axes", label: str, top: float, colour: str) -> None:
    """Gamma rows of V columns, to scale along the vocabulary; marked are one tile, or of what is written the row used."""
    from matplotlib.patches import Rectangle

    size, widths = VOCABULARIES[SHOWN], tile_widths(VOCABULARIES[SHOWN])
    scale = WIDTH / size
    axes.text(LEFT, top + 0.8, label, fontsize=10, va="bottom")
    for row in range(GAMMA):
        start, bottom = LEFT, top - (row + 1) * HEIGHT
        for index, width in enumerate(widths):
            marked = row == MARKED_ROW and (index == CHOSEN or colour == GREEN)
            face = colour if marked else PALE[colour]
            axes.add_patch(Rectangle((start, bottom), width * scale, HEIGHT, facecolor=face, edgecolor="white", lw=0.7))
            start += width * scale
    shape = f"$\\gamma$ = {GAMMA} rows of V = {size:,}: K = {len(widths)} tiles of {sizes.TILE:,}"
    axes.text(LEFT, top - GAMMA * HEIGHT - 0.5, f"{shape}, the last of {widths[-1]:,}", fontsize=9, va="top")


def _draw_arrow(axes: "Axes", begin: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", **look))


def _draw_program(axes: "Axes", panel: _Panel) -> None:
    """The steps of one program on chip, what it writes back, and what follows."""
    from matplotlib.patches import Rectangle

    left, width, top, step = 63.0, 45.0, 49.0, 4.3
    height = step * len(panel.steps) + 4.2
    axes.add_patch(Rectangle((left, top - height), width, height, facecolor=PALE[GREY], edgecolor=GREY, lw=1.0))
    axes.text(left + 1, top - 0.8, f"one program: {sizes.NUM_WARPS} warps, on chip", fontsize=10, va="top", color="#333333")
    for number, (text, own) in enumerate(panel.steps):
        y = top - 3.6 - (number + 1) * step + 0.5
        axes.add_patch(
            Rectangle(
                (left + 1, y), width - 2, step - 0.8, facecolor="white", edgecolor=VERMILION if own else GREY,
                lw=2.0 if own else 0.8,
            )
        )  # fmt: skip
        axes.text(left + 2, y + (step - 0.8) / 2, text, fontsize=9.5, va="center")
    below = top - height
    cell = (width - 4) / len(panel.written)
    for number, text in enumerate(panel.written):
        x = left + 1 + number * (cell + 1)
        _draw_arrow(axes, (x + cell / 2, below), (x + cell / 2, below - 3.2), color="#555555", mutation_scale=10, lw=1.0)
        axes.add_patch(Rectangle((x, below - 6.6), cell, 3.4, facecolor=PALE[GREEN], edgecolor=GREEN, lw=1.0))
        axes.text(x + cell / 2, below - 4.9, text, fontsize=9.5, ha="center", va="center")
    axes.text(left + 1, below - 7.3, "written to memory", fontsize=9, va="top", color=GREEN)
    ratio, positive, total = panel.written
    after = f"then, outside: b = the sum of all {total};\na draft stands where r $\\leq$ its {ratio};\n"
    after += f"resampling from {positive} / b"
    axes.text(left + 1, below - 9.8, after, fontsize=10, va="top", linespacing=1.4)


def notes(panel: _Panel) -> str:
    """Counts at the papers' vocabularies, and how our kernels differ."""
    tile = sizes.TILE
    counts = ", ".join(
        f"{name} {-(-size // tile)} ({GAMMA * -(-size // tile):,} programs)" for name, size in VOCABULARIES.items()
    )
    moved = sizes.bytes_moved(panel.kernel, 1, GAMMA, VOCABULARIES[SHOWN], "float32") / 1e6
    ours = " or ".join(f"{size:,}" for size in sizes.FUSED_ROW_TILES)
    red = " Red: what differs from the exact kernel." if any(own for _, own in panel.steps) else ""
    return (
        f"As configured in kernels/verify/sizes.py: tiles of {tile:,} numbers (the paper's n = 1,024 threads), "
        f"{sizes.NUM_WARPS} warps of 32 threads, grid K x gamma x B.\nK at the paper's vocabularies, batch 1, gamma {GAMMA}: "
        f"{counts}.\n"
        f"A round of {SHOWN}, FP32, moves {moved:.1f} MB in all. Our fused kernel: tiles of {ours}, "
        f"{2 * GAMMA + 1} rows, and nothing of size V is written.{red}"
    )


TILES = (
    Figure(name="optimized-1", title="tiles of the exact kernel", plan=lambda settings: [], draw=partial(_draw, EXACT)),
    Figure(name="optimized-2", title="tiles of the sigmoid kernel", plan=lambda settings: [], draw=partial(_draw, SIGMOID)),
)
