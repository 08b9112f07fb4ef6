"""Writes a table as .md, .csv, .json and .tex. Each file appears whole or not at all, and holds no date."""

import csv
import io
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.catalogue.base import Cell, Settings, Table
from harness.errors import UsageError
from harness.render.latex import latex_table
from harness.render.text import markdown_page, title
from harness.render.traces import WorkedExample
from harness.render.worked import html_examples, markdown_examples

CSV_COLUMNS = ("row", "column", "published", "measured", "low", "high", "n", "unit", "status")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What made a table: the command, the commit, where it ran, and the record files behind it."""

    command: str
    commit: str
    environment: dict[str, str | int] = field(default_factory=dict)
    record_files: tuple[str, ...] = ()

    def facts(self, settings: Settings) -> dict[str, str]:
        where = f"{settings.dtype} on {settings.device}"
        return {
            "command": f"`{self.command}`",
            "profile": f"{settings.profile}, data {settings.source}, seed {settings.seed}, {where}",
            "commit": self.commit,
            "environment": ", ".join(f"{name} {value}" for name, value in self.environment.items()) or "unknown",
            "records": ", ".join(self.record_files) or "none",
        }


def write_table(
    table: Table,
    settings: Settings,
    cells: list[Cell],
    header: Header,
    folder: Path,
    examples: Sequence[WorkedExample] = (),
) -> list[Path]:
    """The four files of a table under ``folder``, named ``<paper>-<the paper's number>``, and a page of its worked examples."""
    texts = {
        "md": markdown_page(table, settings, cells, header.facts(settings)) + (markdown_examples(examples) if examples else ""),
        "csv": csv_text(cells),
        "json": json_text(table, settings, cells, header),
        "tex": latex_table(table, cells),
    }
    if examples:
        texts["html"] = html_examples(examples, title(table))
    return [write_whole(folder / f"{table.name}.{ending}", text) for ending, text in texts.items()]


def csv_text(cells: list[Cell]) -> str:
    """Tidy: one line a cell, numbers at full precision, empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for cell in cells:
        writer.writerow("" if (value := getattr(cell, name)) is None else value for name in CSV_COLUMNS)
    return out.getvalue()


def json_text(table: Table, settings: Settings, cells: list[Cell], header: Header) -> str:
    """Everything that the Markdown says, for programs."""
    document = {
        "table": table.number,
        "name": table.name,
        "title": title(table),
        "settings": asdict(settings),
        "header": asdict(header),
        "row_heads": table.row_heads,
        "columns": table.columns,
        "cells": [asdict(cell) for cell in cells],
        "notes": table.notes(settings),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write beside, then rename; a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UsageError(
            f"output {path}: cannot be written ({error.strerror}); free space or make the folder writable"
        ) from error
    return path
