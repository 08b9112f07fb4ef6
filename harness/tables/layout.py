"""How a table is printed: its finding, one line a row, the published number beside ours, footnotes; as Markdown and as LaTeX.

The Markdown is aligned, so that it reads as well in a terminal as on a page, and no line is longer than WIDTH: columns that do
not fit stand in a table of their own below, and long names of what ran in footnotes. The LaTeX needs booktabs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from harness.core.settings import Settings
from harness.core.text import markdown_lines
from harness.measures.statistics import DESCRIPTIVE, ENOUGH
from harness.tables import models
from harness.tables.base import Cell, Table
from harness.tables.finding import opening
from harness.tables.published import PAPER

WIDTH = 160
APPROXIMATE = "~"
LEGEND = (
    "value [low, high]: 95 % interval over n examples; a cell of fewer than its row's n names its own. With "
    f"{APPROXIMATE}: of fewer than {ENOUGH}, so approximate: at {DESCRIPTIVE} eight or nine of ten hold the truth "
    f"(NOTATION.md). A number of fewer than {DESCRIPTIVE} describes these alone; it has no interval, as what is computed, "
    "copied or the same in every example has none.",
    "(paper): as the paper prints it, blank where it has no such number; (README), (arXiv v1): from its code's page, its first "
    "version; (derived): arithmetic on its numbers. (here): measured; (computed): the formula's; (set): the paper's "
    "setting, taken over.",
)
WHOLE = ("tokens", "examples", "calls")
RAN = "ran"
Blocks = tuple[tuple[str, ...], ...]
Lines = list[tuple[str, ...]]  # columns, each its head and then a text for each row


@dataclass
class Grid:
    """Heads and rows of strings, how many leading columns are row heads, and the footnotes that (1), (2)... point to."""

    heads: list[str]
    rows: list[list[str]]
    num_row_heads: int
    footnotes: list[str] = field(default_factory=list)

    def mark(self, text: str) -> int:
        """The number of a footnote; equal texts share one."""
        if text not in self.footnotes:
            self.footnotes.append(text)
        return self.footnotes.index(text) + 1


def grids(table: Table, cells: list[Cell]) -> list[Grid]:
    """One or more for each block of columns, as many as WIDTH needs; they share their footnotes. The first says what ran.

    Rows without a model and blocks that no output reaches are left out where others are not; ``left_out`` tells of them.
    """
    cells = shown_cells(cells)
    footnotes: list[str] = []
    found: list[Grid] = []
    for block in shown_blocks(table.blocks, cells):
        found += _grids(table.row_heads, block, [cell for cell in cells if cell.column in block], footnotes, not found)
    return found


def shown_cells(cells: list[Cell]) -> list[Cell]:
    """Leave out the rows of which no cell has a model; all stay where that is so of all."""
    rows = {cell.row for cell in cells if cell.state != "no model"}
    return [cell for cell in cells if cell.row in rows] or cells


def shown_blocks(blocks: Blocks, cells: list[Cell]) -> Blocks:
    """Leave out the blocks of which no output reaches a single cell; all stay where that is so of all."""
    reached = {cell.column for cell in cells if cell.state != "not reached"}
    return tuple(block for block in blocks if reached.intersection(block)) or blocks


def left_out(table: Table, cells: list[Cell]) -> list[str]:
    """Say how many rows are not shown and which columns, by their reason."""
    shown = {cell.row for cell in shown_cells(cells)}
    reasons = {cell.row: cell.remark for cell in cells if cell.row not in shown}
    counts = {why: sum(other == why for other in reasons.values()) for why in reasons.values()}
    rows = [f"{count} rows of the paper stand in the CSV and the report alone: {why}." for why, count in counts.items()]
    blocks = shown_blocks(table.blocks, shown_cells(cells))
    columns = [column for block in table.blocks if block not in blocks for column in block]
    why = "; ".join(dict.fromkeys(cell.remark for cell in cells if cell.column in columns and cell.state == "not reached"))
    return [*rows, *([f"Columns {', '.join(columns)} stand in the CSV and the report alone: {why}."] if columns else [])]


def _grids(
    row_heads: tuple[str, ...], columns: tuple[str, ...], cells: list[Cell], footnotes: list[str], is_first: bool
) -> list[Grid]:
    """Columns in the table's order; one that has published numbers is printed as two."""
    heads = {cell.row: cell.heads for cell in cells}
    rows = list(heads)
    marks = Grid([], [], len(row_heads), footnotes)
    for cell in sorted(cells, key=lambda cell: rows.index(cell.row)):
        if cell.remark:
            marks.mark(cell.remark)  # footnotes are numbered row by row
    firsts: Lines = list(zip(row_heads, *heads.values(), strict=True))
    counts = counts_by_row(cells)
    lasts = _counted(rows, counts)
    start: Lines = [_ran(cells, [*firsts, *lasts], marks)] if is_first and any(cell.ran for cell in cells) else []
    parts: list[list[str]] = [[]]
    width = _width([*firsts, *start, *lasts])
    for column in columns:
        own = _width(_columns(column, rows, cells, marks, counts)) - 1
        if width + own > WIDTH and (parts[-1] or start):
            parts.append([])
            width = _width([*firsts, *lasts])
        parts[-1].append(column)
        width += own
    found: list[Grid] = []
    for part in parts:
        own_counts = counts_by_row([cell for cell in cells if cell.column in part]) if part else counts
        lines = [line for column in part for line in _columns(column, rows, cells, marks, own_counts)]
        found.append(_grid(firsts, [*([] if found else start), *lines], _counted(rows, own_counts), footnotes))
    return found


def _ran(cells: list[Cell], others: Lines, marks: Grid) -> tuple[str, ...]:
    """The column of the models that ran; in footnotes where their names do not fit beside ``others``."""
    names = ran_by_row(cells).values()
    if _width([*others, (RAN, *names)]) <= WIDTH:
        return (RAN, *names)
    return (RAN, *(f"({marks.mark(name)})" if name else "" for name in names))


def _grid(firsts: Lines, lines: Lines, lasts: Lines, footnotes: list[str]) -> Grid:
    """A grid of columns between row heads and counts, without the rows that these columns leave blank."""
    heads, *rows = zip(*firsts, *lines, *lasts, strict=True)
    end = len(firsts) + len(lines)
    return Grid(list(heads), [list(row) for row in rows if any(row[len(firsts) : end])], len(firsts), footnotes)


def _width(lines: Lines) -> int:
    return 1 + sum(3 + max(len(text) + text.count("|") for text in line) for line in lines)


def _columns(column: str, rows: Sequence[str], cells: Sequence[Cell], marks: Grid, counts: Mapping[str, int]) -> Lines:
    """The published numbers, where there are any, and ours; ``counts`` are the examples that the n of a row names."""
    by_row = {cell.row: cell for cell in cells if cell.column == column}
    heads = column_heads(column, list(by_row.values()))
    ours = (heads[-1], *(measured_text(by_row[row], marks, counts.get(row)) if row in by_row else "" for row in rows))
    is_mixed = heads[0].endswith(f"({MIXED})")
    papers = (heads[0], *(published_text(by_row[row], is_mixed) if row in by_row else "" for row in rows))
    return [papers, ours] if len(heads) > 1 else [ours]


MIXED = "published"


def column_heads(column: str, cells: Sequence[Cell]) -> list[str]:
    """The heads of a column: of the published numbers, if it has any, by whoever printed them; and of ours."""
    published = [cell for cell in cells if cell.published is not None]
    if not published:
        return [column]
    origins = {cell.origin or PAPER for cell in published}
    numbers = [cell for cell in cells if cell.measured is not None]
    kinds = {cell.status if cell.is_arithmetic else "here" for cell in numbers} or {"here"}
    ours = kinds.pop() if len(kinds) == 1 else "here"
    return [f"{column} ({origins.pop() if len(origins) == 1 else MIXED})", f"{column} ({ours})"]


def ran_by_row(cells: Sequence[Cell]) -> dict[str, str]:
    """Say which models ran, by row."""
    return {cell.row: cell.ran for cell in cells}


def counts_by_row(cells: Sequence[Cell]) -> dict[str, int]:
    """The most examples that a cell of each row is of; cells of fewer name their own."""
    counts: dict[str, int] = {}
    for cell in cells:
        if cell.n is not None:
            counts[cell.row] = max(cell.n, counts.get(cell.row, 0))
    return counts


def _counted(rows: Sequence[str], counts: Mapping[str, int]) -> Lines:
    return [("n", *(str(counts.get(row, "")) for row in rows))] if counts else []


def published_text(cell: Cell, is_mixed: bool = False) -> str:
    """The digits as they are printed, blank where there is no number; "not recovered" where it is lost to us.

    In a column of numbers of several origins (``is_mixed``) those that the paper does not print say whose they are.
    """
    if cell.paper_value is None:
        return str(cell.published or "")
    return cell.digits + (f", {cell.origin}" if is_mixed and cell.origin != PAPER else "")


def measured_text(cell: Cell, out: Grid, count: int | None = None) -> str:
    """The value with its interval, or the status; reasons become footnotes. ``count`` is the row's n, if it is said there."""
    mark = f" ({out.mark(cell.remark)})" if cell.remark else ""
    if cell.measured is None:
        return cell.state + mark
    text = _number(cell.measured, cell.unit)
    if cell.low is not None and cell.high is not None:
        text += (
            f" [{_number(cell.low, cell.unit)}, {_number(cell.high, cell.unit)}]{APPROXIMATE if _is_approximate(cell) else ''}"
        )
    own = f" n={cell.n}" if count is not None and cell.n not in (None, count) else ""
    return text + own + mark


def _is_approximate(cell: Cell) -> bool:
    return not cell.exact and cell.n is not None and cell.n < ENOUGH


def _number(value: float, unit: str) -> str:
    if unit in WHOLE and value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}".replace("-0.00", "0.00")


def title(table: Table) -> str:
    """Name a table by its paper, its number there and what it shows."""
    return f"{table.paper_title or table.paper}, Table {table.paper_number}: {table.title}"


def markdown_table(table: Table, cells: list[Cell]) -> str:
    """The table alone, footnotes below it."""
    blocks = grids(table, cells)
    footnotes = [_point(f"({number}) {text}") for number, text in enumerate(blocks[0].footnotes, start=1)]
    lines = [line for block in blocks for line in (*markdown_lines(block.heads, block.rows), "")]
    return "\n".join([*lines, *footnotes]).rstrip("\n") + "\n"


def terminal_table(table: Table, settings: Settings, cells: list[Cell]) -> str:
    """Write what ``foretoken table`` prints: title, finding, table, footnotes, notes."""
    head = f"Table {table.number}. {title(table)}\n\n{_paragraph(opening(table, settings, cells))}\n"
    return f"{head}\n{markdown_table(table, cells)}\n{_notes(table, settings, cells)}\n"


def markdown_page(table: Table, settings: Settings, cells: list[Cell], made: str) -> str:
    """The whole file: what was found, the table, what differs, and ``made``: by what, where and when."""
    legend = "\n".join(map(_paragraph, LEGEND))
    return (
        f"# {title(table)}\n\n"
        f"{_paragraph(f'**{opening(table, settings, cells)}**')}\n\n"
        f"{markdown_table(table, cells)}\n"
        f"{legend}\n\n"
        f"{_notes(table, settings, cells)}\n\n"
        f"{_paragraph(made)}\n"
    )


def _notes(table: Table, settings: Settings, cells: list[Cell]) -> str:
    notes = [*left_out(table, cells), *table.notes(settings), *([models.NOTE] if any(cell.ran for cell in cells) else [])]
    return "\n".join(map(_point, notes))


def _point(text: str) -> str:
    return "\n".join(wrap(f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _paragraph(text: str) -> str:
    return "\n".join(wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def escape(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def latex_table(table: Table, cells: list[Cell]) -> str:
    """Row heads left, numbers right, a tabular a block; footnotes follow."""
    blocks = grids(table, cells)
    tabulars = [line for block in blocks for line in (*_tabular(block), r"\par\medskip")][:-1]
    footnotes = [f"{{\\footnotesize ({i}) {escape(text)}\\par}}" for i, text in enumerate(blocks[0].footnotes, start=1)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(title(table))}}}",
            *tabulars,
            *([r"\par\medskip", *footnotes] if footnotes else []),
            r"\end{table}",
            "",
        ]
    )


def _tabular(block: Grid) -> list[str]:
    shape = "l" * block.num_row_heads + "r" * (len(block.heads) - block.num_row_heads)

    def line(row: list[str]) -> str:
        return " & ".join(map(escape, row)) + r" \\"

    rows = [line(row) for row in block.rows]
    return [
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        line(block.heads),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
