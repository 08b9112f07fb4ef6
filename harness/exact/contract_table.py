"""The contract of a table (harness/tables/base.py): its plan repeats, and its cells are functions of records."""

from collections.abc import Iterator

from harness.core.experiment import Comparison
from harness.core.settings import Settings
from harness.exact.finding import Finding, attempt, expect
from harness.tables.base import Table
from harness.tables.evidence import Evidence
from tasks import TASKS

PROFILES = ("toy", "small", "paper")


def check_table(table: Table) -> Iterator[Finding]:
    yield attempt("names what it shows", lambda: _check_names(table))
    for profile in PROFILES:
        settings = Settings(profile=profile, source="toy" if profile == "toy" else "hub")
        yield attempt(f"plans under profile {profile}", lambda settings=settings: _check_plan(table, settings))  # type: ignore[misc]
        yield attempt(f"says what is missing under profile {profile}", lambda settings=settings: _check_cells(table, settings))  # type: ignore[misc]


def _check_names(table: Table) -> str:
    for field in ("paper", "title"):
        expect(bool(getattr(table, field).strip()), f"{field} is empty")
    expect(bool(table.row_heads) and bool(table.columns), "has no row heads or no columns")
    expect(len(set(table.columns)) == len(table.columns), "two columns share a name")
    return f"{table.name}: {table.title}"


def _check_plan(table: Table, settings: Settings) -> str:
    plan = table.plan(settings)
    expect(all(isinstance(one, Comparison) for one in plan), "its plan holds what is no Comparison")
    expect(plan == table.plan(settings), "its plan differs when asked twice")
    unknown = {arm.task for one in plan for arm in one.arms} - set(TASKS)
    expect(not unknown, f"plans tasks that nobody knows: {', '.join(sorted(unknown))}")
    return f"{sum(len(one.arms) for one in plan)} experiments"


def _check_cells(table: Table, settings: Settings) -> str:
    cells = table.cells(settings, Evidence(lambda experiment: []))
    for cell in cells:
        expect(cell.column in table.columns, f"column {cell.column!r} is none of its columns")
        heads = len(cell.row.split(" / "))
        expect(heads == len(table.row_heads), f"row {cell.row!r} has {heads} parts for {len(table.row_heads)} row heads")
        expect(cell.status != "measured", f"cell {cell.row!r}, {cell.column!r} is measured, without any record")
    places = {(cell.row, cell.column) for cell in cells}
    expect(len(places) == len(cells) > 0, "has no cells, or two in one place")
    expect(all(isinstance(note, str) for note in table.notes(settings)), "a note is no text")
    return f"{len(cells)} cells"
