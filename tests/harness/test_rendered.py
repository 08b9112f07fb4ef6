"""Committed tables are made anew by `make regress`: faults in what tables compute, refuse and conclude move them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.checkout import ROOT
from harness.papers.leviathan import speed
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
    [(nothing, set()), (few_draws, {"cells", "page"}), (decided_one_by_one, {"finding", "page"})],
)
def test_a_fault_in_what_tables_show_moves_them(
    results: Path, monkeypatch: Patch, fault: Callable[[Patch], None], parts: set[str]
) -> None:
    fault(monkeypatch)
    committed, rendered = committed_tables(results), rendered_tables(results)
    assert committed.keys() == rendered.keys()
    assert {name.rsplit(", ", 1)[1] for name, one in committed.items() if rendered[name] != one} == parts
