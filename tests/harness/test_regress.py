"""Regression by interval: what counts as a move, what an update writes, and that a broken method is noticed."""

import json
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.report.regress import Move, moves, pinned_set, read_baseline, update_baseline


def estimate(value: float, half: float = 0.05, n: int = 12) -> dict:
    return {"value": value, "low": value - half, "high": value + half, "n": n, "unit": ""}


def measured(value: float = 0.6, verdict: str = "identical", n: int = 12, weights: str = "w") -> dict:
    return {"pair": {"verdict": verdict, "weights": weights, "metrics": {"alpha_overlap": estimate(value, n=n)}}}


def as_baseline(*several: dict) -> dict:
    return {name: [one[name] for one in several] for name in several[0]}


@pytest.mark.parametrize(
    ("now", "moved"),
    [
        (measured(), []),
        (measured(0.69), []),
        (measured(0.71), ["alpha_overlap"]),
        (measured(verdict="bug"), ["verdict"]),
        (measured(n=11), ["alpha_overlap"]),
        ({"pair": {"verdict": "identical", "weights": "w", "metrics": {}}}, ["alpha_overlap"]),
        ({}, ["all"]),
        ({**measured(), "new": measured()["pair"]}, ["all"]),
    ],
)
def test_a_number_moves_when_intervals_part_a_verdict_when_it_differs(now: dict, moved: list[str]) -> None:
    assert [move.metric for move in moves(as_baseline(measured()), now)] == moved


@pytest.mark.parametrize(
    ("value", "weights", "moved"), [(0.6, "w", 0), (0.8, "w", 1), (0.8, "v", 0), (0.6, "u", 0), (0.7, "u", 1)]
)
def test_known_weights_have_a_baseline_of_their_own_and_others_must_meet_one(value: float, weights: str, moved: int) -> None:
    baselines = as_baseline(measured(0.58), measured(0.82, weights="v"))
    assert len(moves(baselines, measured(value, weights=weights))) == moved


def test_an_update_keeps_the_baselines_of_other_weights_unless_numbers_moved(tmp_path: Path) -> None:
    folder, changelog = tmp_path / "baselines", tmp_path / "CHANGELOG.md"
    update_baseline(folder, measured(0.6), [], "first", changelog)
    moved = Move("pair", "alpha_overlap", "", "")
    update_baseline(folder, measured(0.8, weights="v"), [moved], "another processor", changelog)
    assert [one["weights"] for one in read_baseline(folder)["pair"]] == ["v", "w"]
    update_baseline(folder, measured(0.9, weights="v"), [moved], "new code", changelog)
    assert [one["weights"] for one in read_baseline(folder)["pair"]] == ["v"]


def test_update_writes_baselines_and_the_reason(tmp_path: Path) -> None:
    folder, changelog = tmp_path / "baselines", tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.1.0\n\n- first\n\n## Numbers that moved\n\n- older entry\n", encoding="utf8")
    update_baseline(folder, measured(0.7), [Move("pair", "alpha_overlap", "0.6", "0.7")], "better drafts", changelog)
    assert read_baseline(folder) == as_baseline(measured(0.7))
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
    several = [one for values in committed.values() for one in values]
    assert {one["verdict"] for one in several} <= {"identical", "near-tie", "same distribution", "lossy"}
    assert sum(len(one["metrics"]) for one in several) > 50
