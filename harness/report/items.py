"""The catalogue as it stands on disk: every table with its cells, every figure with its files, made or not; and the ledger."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.files import parsed, readable
from harness.core.settings import COMMITTED, Settings
from harness.papers import FIGURES, TABLES, command_of
from harness.report.relation import Judged, judge
from harness.tables.base import Cell, Figure, Table
from harness.tables.evidence import Evidence
from harness.tables.finding import opening

LEDGER = (
    "catalogue", "paper", "table", "row", "ran", "column", "published", "printed", "origin", "place", "measured", "low", "high",
    "unit", "n", "relation", "reason", "status", "note", "command", "commit",
)  # fmt: skip
FIGURE_ENDINGS = ("svg", "png", "html")
NOT_COMMITTED = "not committed: it has neither a number beside a published one nor a finding"


@dataclass(frozen=True, kw_only=True)
class TableItem:
    """A table of the catalogue with its judged cells. A table that was not made yet has published numbers and no file."""

    number: int
    name: str
    paper: str
    paper_number: int
    title: str
    state: str
    command: str
    settings: Settings
    row_heads: tuple[str, ...] = ()
    blocks: tuple[tuple[str, ...], ...] = ()
    judged: tuple[Judged, ...] = ()
    notes: tuple[str, ...] = ()
    commit: str = ""
    environment: Mapping[str, str | int] = field(default_factory=dict)
    record_files: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()
    finding: str = ""
    file: Path | None = None
    arms: frozenset[Experiment] = frozenset()

    @property
    def page(self) -> str:
        return f"table-{self.number}.html"

    @cached_property
    def cells(self) -> list[Cell]:
        return [one.cell for one in self.judged]


@dataclass(frozen=True, kw_only=True)
class FigureItem:
    """A figure of the catalogue with its ``files``; ``tables`` are the numbers of the tables that show the same experiments."""

    name: str
    title: str
    state: str
    command: str
    files: tuple[Path, ...] = ()
    tables: tuple[int, ...] = ()

    @property
    def paper(self) -> str:
        return self.name.rsplit("-", 1)[0]

    @property
    def paper_number(self) -> int:
        return int(self.name.rsplit("-", 1)[1])

    @property
    def page(self) -> str:
        return f"figure-{self.name}.html"

    @property
    def image(self) -> Path | None:
        return next((path for path in self.files if path.suffix == ".svg"), None)


@dataclass(frozen=True, kw_only=True)
class AdviceItem:
    """One run of ``foretoken advise``: its words, and its figure with all numbers as files."""

    title: str
    text: str
    image: Path
    numbers: Path

    @property
    def files(self) -> tuple[Path, Path]:
        return self.image, self.numbers


def advice_items(folder: Path) -> list[AdviceItem]:
    """All advice beside the records; none where none was asked for."""
    found = []
    for path in sorted(folder.glob("*.json")):
        document = read_json(path)
        with readable(f"advice {path}", "expected what `foretoken advise` writes: remove it, and run that again"):
            found.append(
                AdviceItem(title=document["title"], text=document["text"], image=path.with_suffix(".svg"), numbers=path)
            )
    return found


def table_items(folder: Path) -> list[TableItem]:
    """All tables of the catalogue and of plug-ins, read from the JSON files of a folder where they exist."""
    return [
        _table_item(table, folder) if plugins.find("table", number) is None else _of_plugin(table, folder)
        for number, table in TABLES.items()
    ]


def _of_plugin(table: Table, folder: Path) -> TableItem:
    """Read a plug-in's table. Its plan and cells may raise anything: the page shows the error, and the other tables stay."""
    try:
        return _table_item(table, folder)
    except UsageError:
        raise
    except Exception as error:
        state, command = f"broken: {type(error).__name__}: {error}", command_of("table", str(table.number), COMMITTED)
        return TableItem(**_names(table), state=state, command=command, settings=COMMITTED)


def _table_item(table: Table, folder: Path) -> TableItem:
    file = folder / f"{table.name}.json"
    if file.exists():
        return read_table(table, file)
    settings = COMMITTED
    command = command_of("table", str(table.number), settings)
    cells = table.cells(settings, Evidence(lambda experiment: []))
    return TableItem(
        **_names(table),
        state="not made yet" if table.is_committed else NOT_COMMITTED,
        command=command,
        settings=settings,
        row_heads=table.row_heads,
        blocks=table.blocks,
        judged=tuple(judge(cells, settings)),
        notes=tuple(table.notes(settings)),
        finding=opening(table, settings, cells),
        arms=table.arms(settings),
    )


def read_table(table: Table, file: Path) -> TableItem:
    """Read a table as it was written. Its columns are the file's, in the catalogue's blocks where these have the same ones.

    Raises:
        UsageError: not a file as ``foretoken table`` writes it.
    """
    document = read_json(file)
    try:
        known = {one.name for one in fields(Settings)}
        values = {name: value for name, value in document["settings"].items() if name in known}
        settings = Settings(**{**values, "models": tuple(tuple(pair) for pair in values["models"])})
        cells, header = [Cell(**cell) for cell in document["cells"]], document["header"]
        columns, row_heads = tuple(document["columns"]), tuple(document["row_heads"])
        same = table.columns == columns
        return TableItem(
            **_names(table),
            state=_state(cells),
            command=header["command"],
            settings=settings,
            row_heads=row_heads,
            blocks=table.blocks if same else (columns,),
            judged=tuple(judge(cells, settings)),
            notes=tuple(document["notes"]),
            commit=header["commit"],
            environment=header["environment"],
            record_files=tuple(header["record_files"]),
            audits=tuple(header.get("audits", ())),
            finding=document["finding"],
            file=file,
            arms=table.arms(settings),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # settings that are refused are UsageErrors
        raise UsageError(
            f"table {file}: cannot be read ({error!r}); expected what `foretoken table` writes: write it again with "
            f"`make table-{table.number}`"
        ) from error


def _names(table: Table) -> dict[str, Any]:
    return {name: getattr(table, name) for name in ("number", "name", "paper", "paper_number", "title")}


def _state(cells: Sequence[Cell]) -> str:
    missing = sum(cell.status == "not run" for cell in cells)
    return f"made, {missing} of {len(cells)} cells not run" if missing else "made"


def figure_items(folder: Path, tables: Sequence[TableItem]) -> list[FigureItem]:
    """All figures of the catalogue, with their files in a folder."""
    return [_figure_item(name, figure, folder, tables) for name, figure in FIGURES.items()]


def _figure_item(name: str, figure: Figure, folder: Path, tables: Sequence[TableItem]) -> FigureItem:
    files = tuple(path for ending in FIGURE_ENDINGS if (path := folder / f"{name}.{ending}").exists())
    arms = figure.arms(COMMITTED)
    return FigureItem(
        name=name,
        title=figure.title,
        state="made" if files else "not made yet",
        command=command_of("figure", name, COMMITTED),
        files=files,
        tables=tuple(table.number for table in tables if arms & table.arms),
    )


def read_json(path: Path) -> Any:
    try:
        return parsed(path.read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"file {path}: cannot be read ({error}); expected JSON as this project writes it") from error


def ledger_rows(tables: Sequence[TableItem]) -> Iterator[dict[str, object]]:
    """One row for each cell. A table without cells has one row too, so that every table is counted."""
    for table in tables:
        known: dict[str, object] = {
            "catalogue": table.number,
            "paper": table.paper,
            "table": table.paper_number,
            "command": table.command,
            "commit": table.commit,
        }
        if not table.judged:
            yield known | {"relation": "not comparable", "reason": "not run", "status": table.state}
        for one in table.judged:
            cell = {name: getattr(one.cell, name) for name in LEDGER if hasattr(one.cell, name)}
            yield known | cell | {"relation": one.relation, "reason": one.reason}


def ledger_text(tables: Sequence[TableItem]) -> str:
    """The ledger as CSV: numbers at full precision, empty where there is none."""
    out = io.StringIO()
    writer = csv.DictWriter(out, LEDGER, lineterminator="\n")
    writer.writeheader()
    for row in ledger_rows(tables):
        writer.writerow({name: "" if row.get(name) is None else row[name] for name in LEDGER})
    return out.getvalue()
