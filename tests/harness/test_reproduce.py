"""``foretoken reproduce``, killed in the middle: it goes on, repeats nothing, and ends with numbers."""

import json
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from killed import kill_at
from small_tables import TABLES

from harness import papers
from harness.cli.main import main
from harness.core.record_files import REPLACED
from harness.tables.base import Cell, Table
from harness.zoo.build import ensure

ARGUMENTS = ["reproduce", "--profile", "test", "--limit", "12", "--quiet"]
CODE = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
from harness import papers
from harness.cli import reproduce
from harness.cli.main import main
from small_tables import TABLES
papers.TABLES.update(TABLES)
reproduce.TABLES, reproduce.FIGURES = TABLES, {{}}
raise SystemExit(main(sys.argv[1:]))
"""


def test_killed_it_goes_on_and_ends_with_numbers(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    ensure(["gpt-target"], "test", "toy", workers=0)
    records = tmp_path / "records"
    monkeypatch.chdir(tmp_path)
    for number, table in TABLES.items():
        monkeypatch.setitem(papers.TABLES, number, table)
    monkeypatch.setattr("harness.cli.reproduce.TABLES", TABLES)
    monkeypatch.setattr("harness.cli.reproduce.FIGURES", {})
    for bound, most in (("LEAST_ON_PROCESSOR", 0), ("MAX_SPREAD", 1e9), ("MAX_DRIFT", 1e9)):
        monkeypatch.setattr(f"harness.measures.pairing.{bound}", most)  # other tests run beside this one
    day = datetime.now(UTC).date().isoformat()
    arguments = [*ARGUMENTS, "--records", str(records)]
    kill_at(7, records, "*.jsonl", ["-c", CODE, *arguments], zoo_cache)
    before = {path: path.read_bytes() for path in records.glob("*.jsonl")}
    assert sum(content.count(b"\n") for content in before.values()) < 24
    capsys.readouterr()
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "left out, as they are not committed: tables 102;" in said
    assert "[1/1] table 101 (small-1)" in said
    after = {path: path.read_bytes() for path in records.glob("*.jsonl")}
    assert not (records / REPLACED).exists()
    assert [content.count(b"\n") for content in after.values()] == [12, 12], "each text once"
    assert all(after[path].startswith(content[: content.rfind(b"\n") + 1]) for path, content in before.items())
    (page,) = tmp_path.rglob("small-1.json")
    document = json.loads(page.read_text())
    days = " to ".join(dict.fromkeys((day, datetime.now(UTC).date().isoformat())))
    assert document["header"]["recorded"] == f"on {days} (UTC) in 2 processes"
    (cell,) = document["cells"]
    assert (cell["status"], cell["n"] >= 11) == ("measured", True), "a text whose arms the kill tore apart is left out"
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in records.glob("*.jsonl")} == after


def test_all_is_written_once_more_of_all_that_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a figure recorded arms of a table before it anew, and the table went on to show what was no longer kept."""
    recorded, shown = list[int](), dict[int, list[int]]()

    def make(table: Table, args: Namespace) -> list[Cell]:
        if args.reproduce:
            recorded.append(table.number)
        shown[table.number] = list(recorded)
        return []

    monkeypatch.chdir(tmp_path)
    two = {number: replace(TABLES[101], number=number) for number in (101, 103)}
    monkeypatch.setattr("harness.cli.reproduce.TABLES", two)
    monkeypatch.setattr("harness.cli.reproduce.FIGURES", {})
    monkeypatch.setattr("harness.cli.reproduce.ensure_models", lambda arms: None)
    monkeypatch.setattr("harness.cli.reproduce.make_table", make)
    assert main([*ARGUMENTS, "--records", str(tmp_path / "records")]) == 0
    assert recorded == [101, 103]
    assert shown == {101: recorded, 103: recorded}
