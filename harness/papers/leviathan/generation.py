"""Leviathan et al., Figure 1: a real generation, a line a round, tokens coloured by what became of them; and as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UsageError
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.papers.leviathan.setup import generation_arm
from harness.tables.coloured import COLOURS, MEANINGS, Token, coloured_rounds, summary, to_html
from harness.tables.evidence import Evidence
from harness.tables.files import write_whole
from harness.tables.style import footnote, legend_patch, look, new_figure, printable, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 92
LINE_INCHES = 0.27
CHARACTER_INCHES = 0.0925


def draw_generation(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Draw the first example, not a chosen one."""
    arm = generation_arm(settings)
    records = succeeded(evidence.records_of(arm))
    if not records:
        raise UsageError("figure leviathan-1: no generation is recorded; run `make reproduce-figure-leviathan-1`")
    decode = evidence.decoder_of(arm)
    rounds = coloured_rounds(records[0], decode)
    heading = (
        f"{arm.target.name} with {arm.method.drafter.label}, gamma {arm.method.gamma}, temperature {arm.sampling.temperature:g}"  # type: ignore[union-attr]
    )
    page = write_whole(folder / "leviathan-1.html", to_html(records[0], decode, heading))
    with look():
        return [*save(_picture(rounds, heading), folder, "leviathan-1"), page]


def _picture(rounds: Sequence[Sequence[Token]], heading: str) -> "Figure":
    lines = [line for number, tokens in enumerate(rounds, start=1) for line in _wrap(number, [_printable(t) for t in tokens])]
    figure = new_figure((COLUMNS + 6) * CHARACTER_INCHES, (len(lines) + 3) * LINE_INCHES)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-5, COLUMNS + 1), ylim=(len(lines) + 1.6, -1.4))
    axes.set_axis_off()
    axes.text(-4.5, -0.8, f"{heading}: {summary(rounds)}", fontsize=10.5, va="center", fontweight="bold", parse_math=False)
    for height, (number, tokens) in enumerate(lines):
        _draw_line(axes, height, number, tokens)
    handles = [legend_patch(color=COLOURS[kind], label=meaning) for kind, meaning in MEANINGS.items()]
    axes.legend(
        handles=handles, loc="lower left", ncols=3, fontsize=9, bbox_to_anchor=(0.02, -0.02), columnspacing=1.5, handlelength=1
    )
    footnote(figure, "A line is one run of the target. Spaces are shown as they are; ⏎ is a line break.")
    return figure


def _wrap(number: int, tokens: Sequence[Token]) -> list[tuple[int | None, list[Token]]]:
    """A round on as many lines as it needs; only the first carries its number."""
    lines: list[tuple[int | None, list[Token]]] = [(number, [])]
    used = 0
    for token in tokens:
        if used + len(token.text) > COLUMNS and lines[-1][1]:
            lines.append((None, []))
            used = 0
        lines[-1][1].append(token)
        used += len(token.text)
    return lines


def _draw_line(axes: "Axes", height: int, number: int | None, tokens: Sequence[Token]) -> None:
    if number is not None:
        axes.text(-1.2, height, str(number), ha="right", va="center", fontsize=9, color="#777777")
    column = 0
    for token in tokens:
        width, colour = len(token.text), COLOURS[token.kind]
        axes.fill_between([column + 0.04, column + width - 0.04], height - 0.4, height + 0.4, color=colour, alpha=0.18, lw=0)
        for offset, character in enumerate(token.text):
            axes.text(
                column + offset + 0.5, height, character, ha="center", va="center", color=_darker(colour), fontsize=11,
                family="DejaVu Sans Mono", parse_math=False, fontweight="bold" if token.kind == "corrected" else "normal",
            )  # fmt: skip
        if token.kind in ("rejected", "dropped"):
            axes.plot([column + 0.1, column + width - 0.1], [height, height], color=colour, lw=1)
        if token.kind == "bonus":
            axes.plot([column + 0.1, column + width - 0.1], [height + 0.36] * 2, color=colour, lw=1.2)
        column += width


def _darker(colour: str) -> str:
    """The same hue, dark enough to read on its own tint."""
    return "#" + "".join(f"{int(int(colour[i : i + 2], 16) * 0.72):02x}" for i in (1, 3, 5))


def _printable(token: Token) -> Token:
    return Token(printable(token.text, "DejaVu Sans Mono"), token.kind)
