"""Committed tables are made anew by `make regress`: faults in what tables compute, refuse and conclude move them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.checkout import ROOT
from harness.core.errors import UsageError
from harness.papers.leviathan import speed
from harness.report import rendered
from harness.report.regress import same
from harness.report.rendered import committed_tables, rendered_tables
from harness.tables import finding

Patch = pytest.MonkeyPatch
TABLE = "leviathan-2"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """One committed table, and the evidence of its paper."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "evidence").symlink_to(ROOT / "results" / "evidence")
    for ending in ("json", "md"):
        (tmp_path / "tables" / f"{TABLE}.{ending}").symlink_to(ROOT / "results" / "tables" / f"{TABLE}.{ending}")
    return tmp_path


def nothing(patch: Patch) -> None:
    pass


def few_draws(patch: Patch) -> None:
    patch.setattr(speed, "RESAMPLES", 20)


def decided_one_by_one(patch: Patch) -> None:
    patch.setattr(finding, "_at_once", list)


@pytest.mark.parametrize(
    ("fault", "parts"),
    [(nothing, set()), (few_draws, {"numbers", "page"}), (decided_one_by_one, {"finding", "page"})],
)
def test_a_fault_in_what_tables_show_moves_them(
    results: Path, monkeypatch: Patch, fault: Callable[[Patch], None], parts: set[str]
) -> None:
    fault(monkeypatch)
    committed, rendered = committed_tables(results), rendered_tables(results)
    assert committed.keys() == rendered.keys()
    moved = {name for name, one in committed.items() if not same(one, rendered[name])}
    assert {"numbers" if isinstance(committed[name], list) else name.rsplit(", ", 1)[1] for name in moved} == parts


def test_a_processors_last_digits_are_no_change(results: Path, monkeypatch: Patch) -> None:
    """On five of nine kinds of processor the tenth digit of one number of 40 tables was another."""
    whole = rendered.json_text

    def json_text(*given: Any) -> str:
        document = json.loads(whole(*given))
        for cell in document["cells"]:
            cell["high"] = cell["high"] and cell["high"] * (1 + 1e-9)
        return json.dumps(document)

    monkeypatch.setattr(rendered, "json_text", json_text)
    committed = committed_tables(results)
    assert [name for name, one in rendered_tables(results).items() if not same(committed[name], one)] == []


@pytest.mark.parametrize(
    ("lost", "expected"), [("evidence", "evidence .*: not there"), (f"tables/{TABLE}.md", "cannot be read")]
)
def test_what_is_not_there_is_named(results: Path, lost: str, expected: str) -> None:
    (results / lost).unlink()
    with pytest.raises(UsageError, match=expected):
        assert committed_tables(results) != rendered_tables(results)
