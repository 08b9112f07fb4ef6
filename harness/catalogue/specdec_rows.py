"""From arms to a table of SpecDec's: sections of rows that share a comparison, and the paper's number for each cell."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.catalogue import published
from harness.catalogue.base import Cell, Published, RecordsOf, Settings, Table, cell_of, impossible
from harness.catalogue.roles import Absent
from harness.catalogue.specdec_columns import COLUMNS, Column, Known
from harness.catalogue.specdec_notes import arm_notes, column_notes, source_notes
from harness.catalogue.specdec_setup import PAPER, Arms, comparison_of
from harness.experiment import Comparison, Experiment
from harness.pairing import Refused, succeeded


@dataclass(frozen=True)
class Row:
    """A row, the arm that it shows, and (model, setting) of the paper's; None where it is ours alone."""

    name: str
    arm: str
    key: tuple[str, str] | None = None


@dataclass(frozen=True)
class Section:
    """Rows whose arms run together."""

    arms: Arms
    rows: tuple[Row, ...]


Sections = Callable[[Settings], Sequence[Section]]


def plan_of(sections: Sections) -> Callable[[Settings], list[Comparison]]:
    def plan(settings: Settings) -> list[Comparison]:
        found = [comparison for section in sections(settings) for comparison in comparison_of(section.arms)]
        return list(dict.fromkeys(found))

    return plan


def cells_of(
    table: str, sections: Sections, names: Sequence[str], columns: Mapping[str, Column] = COLUMNS
) -> Callable[[Settings, RecordsOf], list[Cell]]:
    """A cell a row and column, but where an arm has no such number, or its section no arm to compare with."""
    chosen = {name: columns[name] for name in names}

    def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
        found = []
        for section in sections(settings):
            arms = {name: arm for name, arm in section.arms.items() if isinstance(arm, Experiment)}
            known = {name: (arm, records_of(arm)) for name, arm in arms.items()}
            found += [cell for row in section.rows for cell in _row_cells(table, section, row, chosen, known)]
        return found

    return cells


def _row_cells(table: str, section: Section, row: Row, columns: Mapping[str, Column], known: Known) -> list[Cell]:
    arm, cells = section.arms[row.arm], []
    keys = {other.arm: other.key for other in section.rows}
    for name, column in columns.items():
        printed = printed_value(table, keys.get(column.papers_arm(known, row.arm)), column.metric)
        if isinstance(arm, Absent):
            cells.append(impossible(row.name, name, printed, arm.why, column.unit))
        elif _has(section, row.arm, column):
            cells.append(_cell(row, name, column, printed, known))
    return cells


def _has(section: Section, name: str, column: Column) -> bool:
    arm = section.arms[name]
    of_method = isinstance(arm, Experiment) and (column.methods is None or arm.method.name in column.methods)
    return of_method and all(other in section.arms for other in column.reads(name))


def _cell(row: Row, name: str, column: Column, printed: Published, known: Known) -> Cell:
    arms = [known[needed] for needed in dict.fromkeys((row.arm, *column.reads(row.arm)))]
    if not all(succeeded(records) for _, records in arms):
        return cell_of(row.name, name, printed, arms, lambda: None, column.unit)
    result = column.measure(known, row.arm)
    if column.optional and isinstance(result, Refused):
        return impossible(row.name, name, printed, result.reason, column.unit)
    return cell_of(row.name, name, printed, arms, lambda: result, column.unit, note=column.note(known, row.arm))


def printed_value(table: str, key: tuple[str, str] | None, metric: str | None) -> Published:
    """The paper's number; "not recovered" also where all that is left of a whole table, or of a row, is that it was there."""
    if key is None or metric is None:
        return None
    rows = published.read(PAPER, table)
    mine = {row["metric"]: row for row in rows if (row["model"], row["setting"]) == key}
    if metric in mine:
        return published.value(mine[metric], "value")
    if any(row["note"] == "footnote" for row in mine.values()):
        return None  # a number of the table's footnotes, which has no row
    return "not recovered" if _is_lost(rows, mine, metric) else None


def _is_lost(rows: Sequence[published.Row], mine: Collection[str], metric: str) -> bool:
    """By a line that stands for many numbers (a whole table's, all ROUGE of a row); in a table of speeds every row has one."""
    whole = any("all" in (row["metric"], row["model"].split()[0], row["setting"].split(" ")[0]) for row in rows)
    speeds = metric == "speed_x" and any(row["metric"] == metric for row in rows)
    return whole or metric.split("-")[0] in mine or bool(mine and speeds)


def table_of(
    number: int,
    paper_number: int,
    title: str,
    row_heads: tuple[str, ...],
    blocks: tuple[tuple[str, ...], ...],
    printed: tuple[str, ...],
    sections: Sections,
    extra: Callable[[Settings], list[str]] = lambda settings: [],
) -> Table:
    """A table whose cells are measures of arms. The paper's has the columns ``printed``; ``extra`` notes stand first."""
    names = [name for block in blocks for name in block]
    columns = {name: COLUMNS[name] if name in printed else replace(COLUMNS[name], metric=None) for name in names}
    numbers, plan = f"table_{paper_number}", plan_of(sections)
    return Table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=row_heads,
        blocks=blocks,
        plan=plan,
        cells=cells_of(numbers, sections, names, columns),
        notes=lambda settings: [*source_notes(numbers), *extra(settings), *column_notes(names), *arm_notes(plan(settings))],
    )
