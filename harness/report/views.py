"""What the templates print of a table: rows of places, each with its text, its sort key, and how it stands to the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.render.layout import Grid, measured_text, published_text
from harness.render.text import PAPERS
from harness.report.claims import Claim
from harness.report.items import TableItem
from harness.report.verdicts import REASONS, Judged

SHORT = {"ppd": "PPD", "leviathan": "Leviathan", "specdec": "SpecDec", "optimized": "Optimized"}
SHORT_HEAD = 32
MARKS = {"agrees": "=", "above": "▲", "below": "▼", "not comparable": ""}


@dataclass(frozen=True)
class Place:
    """One place of a printed table. ``key`` is what it sorts by: a number, or "" for its text; ``kind`` becomes its class."""

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
    """The table as the paper has it, a block of columns below the other, and the footnotes that (1), (2)... point to."""
    notes = Grid([], [], 0)
    return [_block(table, block, notes) for block in table.blocks], notes.footnotes


def _block(table: TableItem, columns: Sequence[str], notes: Grid) -> Block:
    """Columns with published numbers are two: the paper's and ours."""
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
    """The class of a row's head: short ones stay on one line, long ones get room."""
    return "line" if len(text) <= SHORT_HEAD else "wide"


def number_key(value: object) -> str:
    """The sort key of a number; of anything else none, which sorts last."""
    return repr(float(value)) if isinstance(value, int | float) else "none"


def shown(value: object) -> str:
    """A number with six digits at most; "" for none; other things as they are."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def interval(one: Judged) -> str:
    low, high = one.cell.low, one.cell.high
    return "" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def remark(one: Judged) -> str:
    """Why a cell has no number, or what its footnote says."""
    status = one.cell.status
    return status.removeprefix("impossible: ") if status.startswith("impossible: ") else one.cell.note


def codes(judged: Sequence[Judged]) -> list[tuple[str, str]]:
    """The reason codes that occur, with what each means."""
    present = {code for one in judged for code in one.reason.split("; ") if one.is_comparison}
    return [(code, meaning) for code, meaning in REASONS.items() if code in present]


def anchors(claims: Sequence[Claim]) -> dict[Claim, str]:
    """Where on the page of claims each stands: its paper, and its number there."""
    found: dict[Claim, str] = {}
    for claim in claims:
        number = 1 + sum(other.paper == claim.paper for other in found)
        found[claim] = f"{claim.paper}-{number}"
    return found


def paper_name(paper: str) -> str:
    """A paper's short name; a plug-in's tables are of what it calls itself."""
    return SHORT.get(paper, paper)


def papers_of(tables: Sequence[TableItem]) -> dict[str, str]:
    """Every paper's title: the four, and what tables of plug-ins belong to."""
    return PAPERS | {table.paper: table.paper for table in tables if table.paper not in PAPERS}


def capitalized(text: str) -> str:
    """The first letter alone: "PPD", "alpha" and "SQuAD" keep the rest."""
    return text[:1].upper() + text[1:]


def columns_of(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """All names that any of the rows has, in the order of their first mention; rows of one list may differ in kind."""
    return list(dict.fromkeys(name for row in rows for name in row))
