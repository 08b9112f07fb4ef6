"""Committed tables, made anew of the committed evidence: their cells, findings and pages must be what is committed.

No pinned comparison goes through them: what a table shows, refuses, compares with its paper and concludes is seen here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.files import readable, short_hash
from harness.core.settings import COMMITTED, COMMITTED_POCKET, Settings, folder_of
from harness.papers import TABLES
from harness.tables.archive import archive_of, unpacked
from harness.tables.base import Cell, Table, explained
from harness.tables.evidence import Evidence, kept_evidence
from harness.tables.files import Header, json_text
from harness.tables.layout import markdown_page

Shown = dict[str, str | list[float]]


def committed_tables(results: Path) -> Shown:
    """Return what is committed of every table under ``results``: the numbers of each row, and hashes of all that is text."""
    found: Shown = {}
    for name, table, _, folder, document in _committed(results):
        path = folder / f"{document['name']}.md"
        with readable(f"table {path}", f"make table-{table.number} writes it anew"):
            found |= _told(name, document, path.read_text(encoding="utf8"))
    return found


def rendered_tables(results: Path) -> Shown:
    """Return the same of what the evidence gives now. UsageError where a paper's evidence is not there."""
    found: Shown = {}
    for name, table, settings, folder, document in _committed(results):
        archive = archive_of(folder.parent, table.paper)
        if (kept := unpacked(archive)) is None:
            raise UsageError(f"evidence {archive}: not there, of {name}; `git checkout` brings back the committed one")
        evidence = kept_evidence(kept)
        cells = explained(table.cells(settings, evidence), evidence.reasons(table.plan(settings)))
        header = Header(**document["header"])
        page = markdown_page(table, settings, cells, header.line(settings, cells)) + _appendix(table, settings, evidence)
        found |= _told(name, json.loads(json_text(table, settings, list[Cell](cells), header)), page)
    return found


def _committed(results: Path) -> Iterator[tuple[str, Table, Settings, Path, dict[str, Any]]]:
    """Yield each table that is committed, paper by paper, so that each archive is read once."""
    for settings in (COMMITTED, COMMITTED_POCKET):
        folder = results / folder_of(settings).name / "tables" if settings == COMMITTED_POCKET else results / "tables"
        for table in sorted(TABLES.values(), key=lambda table: table.paper):
            if (path := folder / f"{table.name}.json").is_file():
                with readable(f"table {path}", f"make table-{table.number} writes it anew"):
                    document = json.loads(path.read_text(encoding="utf8"))
                    kept = {name: document[name] for name in ("name", "finding", "header", "cells")}
                yield f"{settings.profile} table {table.number}", table, settings, folder, kept


def _appendix(table: Table, settings: Settings, evidence: Evidence) -> str:
    return table.appendix(settings, evidence).markdown if table.appendix else ""


def _told(name: str, document: dict[str, Any], page: str) -> Shown:
    """Give numbers as numbers, whose last digits a processor may move, and the rest as hashes."""
    numbers: dict[str, list[float]] = {}
    texts = []
    for cell in document["cells"]:
        own = {key: value for key, value in cell.items() if isinstance(value, int | float) and not isinstance(value, bool)}
        numbers.setdefault(f"{name}, {cell['row']}", []).extend(map(float, own.values()))
        texts.append(cell | dict.fromkeys(own, "a number"))
    parts = {"texts of cells": json.dumps(texts), "finding": str(document["finding"]), "page": page}
    return {**numbers, **{f"{name}, {part}": short_hash(text, 8) for part, text in parts.items()}}
