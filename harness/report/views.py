"""Turn tables into what the templates print: rows of places, each with its text, sort key, and relation to the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.papers import PAPERS
from harness.papers.claim import Claim
from harness.report.items import TableItem
from harness.report.relation import REASONS, Judged
from harness.tables.layout import Grid, measured_text, published_text

SHORT_HEAD = 32
MARKS = {"agrees": "=", "above": "▲", "below": "▼", "not comparable": ""}


@dataclass(frozen=True)
class Place:
    """One place of a printed table. It sorts by ``key``, a number, or "" for its text; ``kind`` is its style class."""

    text: str
    key: str = ""
    kind: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Block:
    heads: tuple[str, ...]
    rows: tuple[tuple[Place, ...], ...]
    num_row_heads: int


def blocks(table: TableItem) -> tuple[list[Block], list[str]]:
    """Lay a table out as the paper does, in blocks of columns, with the footnotes that (1), (2)... refer to."""
    notes = Grid([], [], 0)
    return [_block(table, block, notes) for block in table.blocks], notes.footnotes


def _block(table: TableItem, columns: Sequence[str], notes: Grid) -> Block:
    """Lay out one block. A column with published numbers becomes two: the paper's and ours."""
    judged = [one for one in table.judged if one.cell.column in columns]
    by_place = {(one.cell.row, one.cell.column): one for one in judged}
    doubled = {one.cell.column for one in judged if one.is_comparison}
    heads = list(table.row_heads)
    for column in columns:
        heads += [f"{column} (paper)", f"{column} (here)"] if column in doubled else [column]
    rows = []
    for row in dict.fromkeys(one.cell.row for one in judged):
        places = [Place(part, kind=line_kind(part)) for part in row.split(" / ")]
        for column in columns:
            places += _places(by_place.get((row, column)), column in doubled, notes)
        rows.append(tuple(places))
    return Block(tuple(heads), tuple(rows), len(table.row_heads))


def _places(one: Judged | None, doubled: bool, notes: Grid) -> list[Place]:
    if one is None:
        return [Place("")] * (1 + doubled)
    cell = one.cell
    kind = one.relation.replace(" ", "-") if one.is_comparison else ""
    if cell.measured is None:
        kind = "absent"
    mark = MARKS[one.relation] if one.is_comparison else ""
    ours = Place(measured_text(cell, notes), number_key(cell.measured), kind, mark)
    paper = Place(published_text(cell.published, cell.unit), number_key(cell.published))
    return [paper, ours] if doubled else [ours]


def line_kind(text: str) -> str:
    """The style class of a row's head: short ones stay on one line, long ones get room."""
    return "line" if len(text) <= SHORT_HEAD else "wide"


def number_key(value: object) -> str:
    """The sort key of a number; "none", which sorts last, of anything else."""
    return repr(float(value)) if isinstance(value, int | float) else "none"


def shown(value: object) -> str:
    """Format a number with six digits at most; None as "", anything else as it is."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def interval(one: Judged) -> str:
    low, high = one.cell.low, one.cell.high
    return "" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def remark(one: Judged) -> str:
    """The reason why a cell has no number, or else its footnote."""
    status = one.cell.status
    return status.removeprefix("impossible: ") if status.startswith("impossible: ") else one.cell.note


def codes(judged: Sequence[Judged]) -> list[tuple[str, str]]:
    """The reason codes that occur, with their meanings."""
    present = {code for one in judged for code in one.reason.split("; ") if one.is_comparison}
    return [(code, meaning) for code, meaning in REASONS.items() if code in present]


def anchors(claims: Sequence[Claim]) -> dict[Claim, str]:
    """The anchor of each claim on the page of claims: its paper and its number there."""
    found: dict[Claim, str] = {}
    for claim in claims:
        number = 1 + sum(other.paper == claim.paper for other in found)
        found[claim] = f"{claim.paper}-{number}"
    return found


def paper_name(paper: str) -> str:
    """Return a paper's short name; a plug-in's paper has its key alone."""
    return str(PAPERS[paper].SHORT) if paper in PAPERS else paper


def papers_of(tables: Sequence[TableItem]) -> dict[str, str]:
    """Return every paper's title: those of the catalogue, and those that tables of plug-ins belong to."""
    known = {name: str(paper.TITLE) for name, paper in PAPERS.items()}
    return known | {table.paper: table.paper for table in tables if table.paper not in known}


def capitalized(text: str) -> str:
    """Capitalize the first letter alone, so that "PPD" and "SQuAD" keep the rest."""
    return text[:1].upper() + text[1:]


def columns_of(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """All names that occur in any row, in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))
