"""Committed tables, made anew of the committed evidence: their cells, findings and pages must be what is committed.

No pinned comparison goes through them: what a table shows, refuses, compares with its paper and concludes is seen here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.files import readable, short_hash
from harness.core.settings import COMMITTED, COMMITTED_POCKET, Settings, folder_of
from harness.papers import TABLES
from harness.tables.archive import archive_of, unpacked
from harness.tables.base import Cell, Table, explained
from harness.tables.evidence import Evidence, kept_evidence
from harness.tables.files import Header, json_text
from harness.tables.layout import markdown_page


def committed_tables(results: Path) -> dict[str, str]:
    """Return what is committed of every table under ``results``: hashes of its cells, of its finding and of its page."""
    found: dict[str, str] = {}
    for name, _, _, folder, document in _committed(results):
        page = (folder / f"{document['name']}.md").read_text(encoding="utf8")
        found |= _told(name, document, page)
    return found


def rendered_tables(results: Path) -> dict[str, str]:
    """Return the same of what the evidence gives now."""
    found: dict[str, str] = {}
    for name, table, settings, folder, document in _committed(results):
        kept = unpacked(archive_of(folder.parent, table.paper))
        evidence = Evidence(lambda experiment: []) if kept is None else kept_evidence(kept)
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
                yield f"{settings.profile} table {table.number}", table, settings, folder, document


def _appendix(table: Table, settings: Settings, evidence: Evidence) -> str:
    return table.appendix(settings, evidence).markdown if table.appendix else ""


def _told(name: str, document: dict[str, Any], page: str) -> dict[str, str]:
    parts = {"cells": json.dumps(document["cells"]), "finding": str(document["finding"]), "page": page}
    return {f"{name}, {part}": short_hash(text, 8) for part, text in parts.items()}
