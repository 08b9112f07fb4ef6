"""How a table is printed: one line a row, the published number beside ours, footnotes; as Markdown and as LaTeX.

The Markdown is aligned, so that it reads as well in a terminal as on a page. The LaTeX needs booktabs.
"""

from dataclasses import dataclass, field

from harness.core.settings import Settings
from harness.core.text import markdown_lines
from harness.measures.statistics import DESCRIPTIVE, ENOUGH
from harness.tables.base import Cell, Table
from harness.tables.published import NOT_RECOVERED, Published

APPROXIMATE = "~"
LEGEND = (
    f"value [low, high]: 95 % interval over n examples; with {APPROXIMATE} of fewer than {ENOUGH}, so approximate. A number of "
    f"fewer than {DESCRIPTIVE} describes these alone; it has no interval, as what is computed, copied or the same in every "
    "example has none.\n"
    "(paper): the published number, blank where the paper has none. (here): ours."
)
WHOLE = ("tokens", "examples", "calls")


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
    """One a block of columns; they share their footnotes."""
    footnotes: list[str] = []
    return [
        _grid(table.row_heads, block, [cell for cell in cells if cell.column in block], footnotes) for block in table.blocks
    ]


def _grid(row_heads: tuple[str, ...], columns: tuple[str, ...], cells: list[Cell], footnotes: list[str]) -> Grid:
    """Columns in the table's order; one that has published numbers is printed as two, "(paper)" and "(here)"."""
    by_place = {(cell.row, cell.column): cell for cell in cells}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    doubled = {cell.column for cell in cells if cell.published is not None}
    counted = any(cell.n is not None for cell in cells)
    heads = list(row_heads)
    for column in columns:
        heads += [f"{column} (paper)", f"{column} (here)"] if column in doubled else [column]
    out = Grid(heads + (["n"] if counted else []), [], len(row_heads), footnotes)
    for row in rows:
        line = row.split(" / ")
        for column in columns:
            cell = by_place.get((row, column))
            if column in doubled:
                line.append(published_text(cell.published, cell.unit) if cell else "")
            line.append(measured_text(cell, out) if cell else "")
        out.rows.append(line + ([_count(cells, row)] if counted else []))
    return out


def _count(cells: list[Cell], row: str) -> str:
    counts = [cell.n for cell in cells if cell.row == row and cell.n is not None]
    return str(max(counts)) if counts else ""


def published_text(value: Published, unit: str) -> str:
    """Blank where the paper has no number; "not recovered" where its number is lost to us."""
    if value is None or value == NOT_RECOVERED:
        return value or ""
    return _number(float(value), unit)


def measured_text(cell: Cell, out: Grid) -> str:
    """The value with its interval, or the status; reasons become footnotes."""
    reason = cell.status.removeprefix("impossible: ") if cell.status.startswith("impossible: ") else cell.note
    mark = f" ({out.mark(reason)})" if reason else ""
    if cell.measured is None:
        return cell.status.split(":")[0] + mark
    text = _number(cell.measured, cell.unit)
    if cell.low is not None and cell.high is not None:
        text += (
            f" [{_number(cell.low, cell.unit)}, {_number(cell.high, cell.unit)}]{APPROXIMATE if _is_approximate(cell) else ''}"
        )
    return text + mark


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
    footnotes = [f"- ({number}) {text}" for number, text in enumerate(blocks[0].footnotes, start=1)]
    lines = [line for block in blocks for line in (*markdown_lines(block.heads, block.rows), "")]
    return "\n".join([*lines, *footnotes]).rstrip("\n") + "\n"


def terminal_table(table: Table, settings: Settings, cells: list[Cell]) -> str:
    """Write what ``foretoken table`` prints: title, table, footnotes, notes."""
    notes = "\n".join(f"- {note}" for note in table.notes(settings))
    return f"Table {table.number}. {title(table)}\n\n{markdown_table(table, cells)}\n{notes}\n"


def markdown_page(table: Table, settings: Settings, cells: list[Cell], facts: dict[str, str]) -> str:
    """The whole file: what made it, the table, what differs."""
    head = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    notes = "\n".join(f"- {note}" for note in table.notes(settings))
    return (
        f"# {title(table)}\n\n"
        f"Catalogue number {table.number}: `make reproduce-table-{table.number}`\n\n{head}\n\n"
        f"{markdown_table(table, cells)}\n"
        f"{LEGEND}\n\n"
        f"{notes}\n"
    )


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
