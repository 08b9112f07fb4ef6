"""Markdown that is aligned, so that it reads as well in a terminal as on a page."""

from harness.catalogue.base import Cell, Settings, Table
from harness.render.layout import Grid, grids

PAPERS = {
    "ppd": "Predictive Pipelined Decoding",
    "leviathan": "Leviathan et al., Fast Inference from Transformers via Speculative Decoding",
    "specdec": "SpecDec",
    "optimized": "Optimized Speculative Sampling",
}


def title(table: Table) -> str:
    return f"{PAPERS.get(table.paper, table.paper)}, Table {table.paper_number}: {table.title}"


def markdown_table(table: Table, cells: list[Cell]) -> str:
    """The table alone, footnotes below it."""
    blocks = grids(table, cells)
    footnotes = [f"- ({number}) {text}" for number, text in enumerate(blocks[0].footnotes, start=1)]
    lines = [line for block in blocks for line in (*_lines(block), "")]
    return "\n".join([*lines, *footnotes]).rstrip("\n") + "\n"


def terminal_table(table: Table, settings: Settings, cells: list[Cell]) -> str:
    """What ``foretoken table`` prints: title, table, footnotes, notes."""
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
        "value [low, high]: 95 % interval over n examples. (paper): the published number, blank where the paper has none. "
        "(here): ours.\n\n"
        f"{notes}\n"
    )


def _lines(out: Grid) -> list[str]:
    widths = [max(len(row[i]) for row in [out.heads, *out.rows]) for i in range(len(out.heads))]

    def line(row: list[str]) -> str:
        padded = (text.replace("|", "\\|").ljust(width) for text, width in zip(row, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return [line(out.heads), line(["-" * width for width in widths]), *map(line, out.rows)]
