"""Regression by interval: what counts as a move, what an update writes, and that a broken method is noticed."""

import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.regress import Move, moves, pinned_set, read_baseline, update_baseline


def estimate(value: float, half: float = 0.05, n: int = 12) -> dict:
    return {"value": value, "low": value - half, "high": value + half, "n": n, "unit": ""}


def measured(value: float = 0.6, verdict: str = "identical", n: int = 12) -> dict:
    return {"pair": {"verdict": verdict, "metrics": {"alpha_overlap": estimate(value, n=n)}}}


@pytest.mark.parametrize(
    ("now", "moved"),
    [
        (measured(), []),
        (measured(0.69), []),
        (measured(0.71), ["alpha_overlap"]),
        (measured(verdict="bug"), ["verdict"]),
        (measured(n=11), ["alpha_overlap"]),
        ({"pair": {"verdict": "identical", "metrics": {}}}, ["alpha_overlap"]),
        ({}, ["all"]),
        ({**measured(), "new": measured()["pair"]}, ["all"]),
    ],
)
def test_a_number_moves_when_intervals_part_a_verdict_when_it_differs(now: dict, moved: list[str]) -> None:
    assert [move.metric for move in moves(measured(), now)] == moved


def test_update_writes_baselines_and_the_reason(tmp_path: Path) -> None:
    folder, changelog = tmp_path / "baselines", tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.1.0\n\n- first\n\n## Numbers that moved\n\n- older entry\n", encoding="utf8")
    update_baseline(folder, measured(0.7), [Move("pair", "alpha_overlap", "0.6", "0.7")], "better drafts", changelog)
    assert read_baseline(folder) == measured(0.7)
    text = changelog.read_text(encoding="utf8")
    assert "better drafts" in text
    assert "pair, alpha_overlap: 0.6 became 0.7" in text
    assert text.index("better drafts") < text.index("older entry")
    update_baseline(folder, {"other": measured()["pair"]}, [], "again", changelog)
    assert [path.stem for path in folder.glob("*.json")] == ["other"]


def test_no_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none there"):
        read_baseline(tmp_path)


def test_pinned_set_is_what_the_committed_baselines_cover() -> None:
    folder = Path(__file__).resolve().parents[2] / "results" / "baselines"
    committed = {path.stem: json.loads(path.read_text(encoding="utf8")) for path in folder.glob("*.json")}
    assert set(committed) == set(pinned_set())
    assert {values["verdict"] for values in committed.values()} <= {"identical", "near-tie", "same distribution", "lossy"}
    assert sum(len(values["metrics"]) for values in committed.values()) > 50
