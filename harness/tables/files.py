"""Writes a table as .md, .csv, .json and .tex, with what made it. Each file appears whole or not at all.

What it says of its making, the date too, is the recording's: it is the same whenever it is rendered.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, arms_of
from harness.core.files import readable, replace_file
from harness.core.record_files import DATE, read_environment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.tables.base import SPEEDS, Appendix, Cell, Table
from harness.tables.evidence import Evidence
from harness.tables.finding import opening
from harness.tables.layout import latex_table, markdown_page, title
from harness.tables.recordings import FILE

NOTHING_RUN = "none: nothing was run"
CSV_COLUMNS = ("column", "published", "measured", "low", "high", "n", "unit", "status")


@dataclass(frozen=True, kw_only=True)
class Header:
    """The origin of a table: the command, the commit, where and when it ran, and the record files behind it.

    ``recording``: which recording of the table it is, from 1 on; 0 where nobody counts, which is outside the committed results.
    """

    command: str
    commit: str
    recorded: str = ""
    recording: int = 0
    environment: dict[str, str | int] = field(default_factory=dict)
    record_files: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()

    def line(self, settings: Settings, cells: Sequence[Cell]) -> str:
        """Say in a line what made the table; the JSON and the site have the rest."""
        counts = [cell.n for cell in cells if cell.n is not None]
        many = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else str(*set(counts)) if counts else "none"
        which = f"; recording {self.recording} of this table ({FILE} lists all)" if self.recording else ""
        when = f"; recorded {self.recorded}{which}" if self.recorded else ""
        machine = ", ".join(f"{name} {self.environment.get(name, 'unknown')}" for name in ("processor", "cores"))
        return (
            f"Made by `{self.command}` (profile {settings.profile}, data {settings.source}, seed {settings.seed}, "
            f"{settings.arithmetic}); commit {self.commit}{when}; {machine}; examples {many}."
        )


def write_table(
    table: Table,
    settings: Settings,
    cells: list[Cell],
    header: Header,
    folder: Path,
    appendix: Appendix | None = None,
) -> list[Path]:
    """The four files of a table under ``folder``, named ``<paper>-<the paper's number>``, and its appendix as a page."""
    texts = {
        "md": markdown_page(table, settings, cells, header.line(settings, cells)) + (appendix.markdown if appendix else ""),
        "csv": csv_text(table, cells),
        "json": json_text(table, settings, cells, header),
        "tex": latex_table(table, cells),
    }
    if appendix:
        texts["html"] = appendix.html
    return [write_whole(folder / f"{table.name}.{ending}", text) for ending, text in texts.items()]


def num_lost(path: Path, settings: Settings, cells: list[Cell]) -> int:
    """Count the measured cells of a stored table of the same settings that have no number now because they were not run."""
    with readable(f"table {path}", "remove it, and run this again"):
        document = json.loads(path.read_text(encoding="utf8")) if path.is_file() else {"cells": []}
        measured = {(cell["row"], cell["column"]) for cell in document["cells"] if cell["status"] == "measured"}
        default = json.loads(json.dumps(asdict(Settings())))
        known = {name: document.get("settings", {}).get(name, value) for name, value in default.items()}  # of any version
    if known != json.loads(json.dumps(asdict(settings))):
        return 0
    return sum((cell.row, cell.column) in measured for cell in cells if cell.status == "not run")


def csv_text(table: Table, cells: list[Cell]) -> str:
    """Tidy: one line a cell, a column for each row head, numbers to ten digits, empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_head_columns(table.row_heads), *CSV_COLUMNS))
    for cell in cells:
        values = (_stable(getattr(cell, name)) for name in CSV_COLUMNS)
        writer.writerow((*cell.heads, *("" if value is None else value for value in values)))
    return out.getvalue()


def _head_columns(row_heads: Sequence[str]) -> list[str]:
    """Name the columns of the row heads; one whose name is taken says that it is of the row ("n (row)")."""
    names = list(CSV_COLUMNS)
    for name in row_heads:
        while name in names:
            name += " (row)"
        names.append(name)
    return names[len(CSV_COLUMNS) :]


def _stable(value: object) -> object:
    """Return a number to ten significant digits: the last ones depend on the processor that adds up."""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def json_text(table: Table, settings: Settings, cells: list[Cell], header: Header) -> str:
    """Everything that the Markdown says, for programs."""
    document = {
        "table": table.number,
        "name": table.name,
        "title": title(table),
        "settings": settings.written,
        "finding": opening(table, settings, cells),
        "header": asdict(header),
        "row_heads": table.row_heads,
        "columns": table.columns,
        "cells": [{one.name: _stable(getattr(cell, one.name)) for one in fields(cell) if one.compare} for cell in cells],
        "notes": table.notes(settings),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def write_whole(path: Path, content: str | bytes) -> Path:
    """Replace a file of the output at once, and make its folder.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return replace_file(path, content)
    except OSError as error:
        raise UsageError(
            f"output {path}: cannot be written ({error.strerror}); free space, make the folder writable or name another file"
        ) from error


def header_of(command: str, plan: Sequence[Comparison], cells: Sequence[Cell], evidence: Evidence) -> Header:
    """Say from what a table was made by ``command``: the record files and the environments of their records.

    Where it shows ratios of times, also what the exactness audit found of its methods.
    """
    arms = arms_of(plan)
    environments = environments_of(plan, evidence)
    keys = environments[0] if environments else {}
    return Header(
        command=command,
        commit=", ".join(commits_of(plan, evidence)) or NOTHING_RUN,
        recorded=recorded(records_of(plan, evidence), environments),
        environment={
            key: " and ".join(dict.fromkeys(str(facts.get(key)) for facts in environments))
            for key in keys
            if key not in ("commit", DATE)
        },
        record_files=tuple(sorted({f"{record.signature}.jsonl" for record in records_of(plan, evidence)})),
        audits=tuple(evidence.verdict_notes(arms)) if any(cell.unit in SPEEDS for cell in cells) else (),
    )


def recorded(records: Sequence[Record], environments: Sequence[Mapping[str, str | int]]) -> str:
    """Say on which days records were made, and in how many processes; nothing of none."""
    days = sorted({str(facts.get(DATE, "unknown")) for facts in environments})
    count = len({record.run for record in records})
    if not count:
        return ""
    when = "on an unknown day" if "unknown" in days else f"on {' to '.join(dict.fromkeys((days[0], days[-1])))} (UTC)"
    return f"{when} in {count} process{'es' if count > 1 else ''}"


def records_of(plan: Sequence[Comparison], evidence: Evidence) -> list[Record]:
    arms = arms_of(plan)
    return [record for arm in arms for record in evidence.records_of(arm)]


def environments_of(plan: Sequence[Comparison], evidence: Evidence) -> list[dict[str, str | int]]:
    """The machines and versions that the records of a plan were made with."""
    digests = sorted({record.environment for record in records_of(plan, evidence)})
    return [read_environment(evidence.folder, digest) for digest in digests]


def commits_of(plan: Sequence[Comparison], evidence: Evidence) -> list[str]:
    """The commits that the records of a plan were made at."""
    return list(dict.fromkeys(str(facts.get("commit", "unknown")) for facts in environments_of(plan, evidence)))
