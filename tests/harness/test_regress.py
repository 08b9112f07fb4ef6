"""Regression example by example: what counts as a move, and what an update writes. Injected faults: test_regress_faults.py."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.measures.statistics import DESCRIPTIVE, Estimate
from harness.report import alarms
from harness.report.alarms import alarms_file, false_alarms, most_false_alarms
from harness.report.baseline import read
from harness.report.pinned import pinned_set
from harness.report.regress import COMMANDS, KNOWN, SCORED, Move, _pooled, moves, read_baseline, update_baseline
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES


def measured(
    values: tuple[float, ...] = (0.5, 0.7), verdict: str = "identical", output: str = "ab eos", weights: str = "w"
) -> dict:
    examples = {f"e{number}": {"alpha": value, "output": output} for number, value in enumerate(values)}
    mean = {"alpha": sum(values) / len(values)}
    spread = {"alpha": [min(values), max(values), len(values)]}
    return {"pair": {"verdict": verdict, "weights": weights, "metrics": mean, "intervals": spread, "examples": examples}}


@pytest.mark.parametrize(
    ("now", "moved"),
    [
        (measured(), []),
        (measured((0.5 + 1e-6, 0.7)), []),
        (measured((0.5, 0.71)), [("alpha", "1 of 2 examples")]),
        (measured((0.7, 0.5)), [("alpha", "2 of 2 examples")]),  # the mean is the same
        (measured((0.5,)), [("alpha", "1 of 2 examples"), ("output", "1 of 2 examples")]),
        (measured(output="cd eos"), [("output", "2 of 2 examples")]),
        (measured(verdict="bug"), [("verdict", "")]),
        (measured(weights="v"), [("weights", "")]),
        ({}, [("all", "")]),
        ({**measured(), "new": measured()["pair"]}, [("all", "")]),
    ],
)
def test_a_number_moves_where_any_example_does(now: dict[str, Any], moved: list[tuple[str, str]]) -> None:
    assert [(move.metric, move.count) for move in moves(measured(), now)] == moved


@pytest.mark.parametrize(
    ("key", "value", "moved"),
    [
        ("metrics", 0.61, ("alpha, pooled", "0.6", "0.61")),
        ("intervals", [0.55, 0.65, 2], ("alpha, interval", "0.5 0.7 2", "0.55 0.65 2")),
        ("intervals", [None, None, 2], ("alpha, interval", "0.5 0.7 2", "- - 2")),
        ("intervals", [0.5, 0.7 + 1e-7, 2], None),
    ],
)
def test_how_examples_are_added_up_is_held_too(key: str, value: object, moved: tuple[str, str, str] | None) -> None:
    now = measured()
    now["pair"][key]["alpha"] = value
    assert [(one.metric, one.baseline, one.now) for one in moves(measured(), now)] == ([moved] if moved else [])


def test_update_writes_baselines_and_the_reason(tmp_path: Path) -> None:
    folder, changelog = tmp_path / "baselines", tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.1.0\n\n- first\n\n## Numbers that moved\n\n- older entry\n", encoding="utf8")
    update_baseline(folder, measured(), [Move("pair", "alpha", "0.6", "0.7", "2 of 9 examples")], "better drafts", changelog)
    assert read_baseline(folder) == measured()
    text = changelog.read_text(encoding="utf8")
    assert "better drafts" in text
    assert "pair, alpha: 0.6 became 0.7 (2 of 9 examples)" in text
    assert text.index("better drafts") < text.index("older entry")
    update_baseline(folder, {"other": measured()["pair"]}, [], "again", changelog)
    assert [path.stem for path in folder.glob("*.json")] == ["other"]


def test_an_update_that_is_killed_leaves_every_baseline_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, changelog = tmp_path / "baselines", tmp_path / "CHANGELOG.md"
    update_baseline(folder, {"kept": measured()["pair"], "stale": measured()["pair"]}, [], "first", changelog)
    before, written = {path: path.read_bytes() for path in [changelog, *folder.iterdir()]}, []

    def killed(path: Path, content: str) -> None:
        written.append(path.stem)
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.report.regress.replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        update_baseline(folder, {"kept": measured()["pair"], "new": measured()["pair"]}, [], "second", changelog)
    assert {path: path.read_bytes() for path in [changelog, *folder.iterdir()]} == before
    assert written == ["kept"]


def test_no_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none there"):
        read_baseline(tmp_path)


def test_pinned_set_is_what_the_committed_baselines_cover() -> None:
    committed = read_baseline(Path(__file__).resolve().parents[2] / "results" / "baselines")
    assert set(committed) == {*pinned_set(), SCORED, KNOWN, COMMANDS}
    del committed[SCORED], committed[KNOWN], committed[COMMANDS]
    verdicts = {name: one["verdict"] for name, one in committed.items()}
    assert verdicts.pop("text-generate-batch") == "not tested", "random numbers of transformers' own"
    assert set(verdicts.values()) <= {"identical", "near-tie", "same distribution", "lossy"}
    assert all(len(one["examples"]) >= 16 for one in committed.values())
    assert sum(len(one["metrics"]) for one in committed.values()) > 100


def test_baselines_of_real_models_are_whole_and_long_enough_to_find_something() -> None:
    """`make regress PROFILE=pocket` holds each of them; an edited file is refused as it is read."""
    files = sorted((Path(__file__).resolve().parents[2] / "results" / "baselines" / "pocket").glob("*.json"))
    assert files
    for baseline in map(read, files):
        assert {arm.target.name for arm in baseline.comparison.arms} == {"pocket:smollm2"}
        assert {arm.source for arm in baseline.comparison.arms} == {"toy"}, "of data that every machine has"
        assert len(baseline.measured["examples"]) >= DESCRIPTIVE


UNWATCHED = {  # parts that the pinned set leaves out, and why
    "blockwise",  # needs heads, of which none are committed
}


def test_the_pinned_set_has_every_part() -> None:
    """A part that it lacks can change unseen: what is lossy, or drafts worse, is red nowhere else."""
    methods = [arm.method for comparison in pinned_set().values() for arm in comparison.arms]
    drafters = [method.drafter for method in methods if method.drafter is not None]
    rules, schedules = ([getattr(one, part) for one in methods] for part in ("rule", "schedule"))
    found = {
        *(method.name for method in methods),
        *(drafter.kind for drafter in drafters),
        *(spec.name for spec in (*rules, *schedules) if spec is not None),
    }
    parts = {*METHODS, *DRAFTERS, *RULES, *SCHEDULES}
    assert len(parts) >= 35
    assert found == parts - UNWATCHED


def test_a_number_that_an_example_does_not_have_is_not_written() -> None:
    """The error rate of a reference without words: JSON has no such number, and the baseline could not be read again."""
    found = _pooled({"wer": Estimate(float("nan"), None, None, 1), "f1": Estimate(50.0, None, None, 1, "%")})
    assert found == {"metrics": {"f1": 50.0}, "intervals": {"f1": [None, None, 1]}}


@pytest.mark.parametrize(("counts", "bound"), [([0] * 60, 1 - 0.05 ** (1 / 60)), ([0] * 100, 0.0295), ([0] * 49 + [7], 0.0914)])
def test_the_stated_share_of_false_alarms_counts_seeds(counts: list[int], bound: float) -> None:
    """Sixty clean seeds bound it by 4.9 %, not by 3 %; of one alarm the table value of Clopper and Pearson."""
    assert most_false_alarms(counts) == pytest.approx(bound, abs=2e-4)
    if not any(counts) and len(counts) == 60:
        text = (Path(__file__).resolve().parents[2] / "docs" / "exactness.md").read_text(encoding="utf8")
        told = f"on 60 seeds (one thread beside two, 4 examples each, 36 of the {len(pinned_set())} comparisons"
        assert told in " ".join(text.split())
        assert f"fewer than {most_false_alarms(counts):.1%} of".replace("%", " %") in " ".join(text.split())


def test_a_killed_count_of_false_alarms_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seed's answer is on the disk before the next begins; none is found twice, and a changed one is refused."""
    found: list[int] = []

    def moved(seed: int) -> list[str]:
        found.append(seed)
        return ["pair, alpha: 0.5 -> 0.6"] if seed == 2 else []

    monkeypatch.setattr(alarms, "_moved", moved)
    file = alarms_file(tmp_path / "new")
    killed = false_alarms(file, [1, 2, 3])
    assert [next(killed), next(killed)] == [[], ["pair, alpha: 0.5 -> 0.6"]]
    killed.close()
    file.write_bytes(file.read_bytes() + b'["seed 3", {"mov')
    assert list(map(len, false_alarms(file, [1, 2, 3, 4]))) == [0, 1, 0, 0]
    assert found == [1, 2, 3, 4]
    file.write_text(file.read_text().replace("-> 0.6", "-> 0.7"))
    with pytest.raises(UsageError, match="the checksum of 'seed 2' differs"):
        next(false_alarms(file, [1]))
