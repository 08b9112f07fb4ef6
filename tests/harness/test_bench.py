"""The benchmark: a plan of comparisons with peers, rows from their records, no goal met by wrong outputs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.cli.main import main
from harness.core.experiment import Comparison
from harness.core.record_files import load_records
from harness.core.records import Divergence, Record
from harness.measures.statistics import Missing
from harness.report import bench
from harness.report.bench import FAMILIES, Sizes
from harness.report.passes import as_meetings
from harness.run.runner import Runner
from harness.zoo.build import ensure

BUG = Divergence(position=1, margin=1.0, bound=1e-4, replays_agree=True, kind="bug")
TIE = Divergence(position=1, margin=1e-6, bound=1e-4, replays_agree=True, kind="near-tie")


@pytest.fixture
def arms(synthetic: SimpleNamespace) -> tuple[Comparison, list[Record], list[Record]]:
    """Plain decoding at 10 ms a token; a draft-and-verify arm at 15 ms a round of 3 tokens."""
    plain = synthetic.plain_experiment(probes=())
    ours = synthetic.drafted_experiment(plain)
    names = [f"e{number}" for number in range(6)]
    return (
        Comparison((plain, ours)),
        [synthetic.plain(plain, name) for name in names],
        [synthetic.drafted(ours, name) for name in names],
    )


def slower(records: list[Record], times: float, divergence: Divergence | None = None) -> list[Record]:
    """The same records with other times, the first parting from plain decoding."""
    made = [Record.from_line(record.to_line()) for record in records]
    for record in made:
        record.wall_s = times * (record.wall_s or 0)
    made[0].divergence = divergence
    return made


def test_ratios_are_of_totals_per_count(arms: tuple[Comparison, list[Record], list[Record]]) -> None:
    comparison, plain, ours = arms
    row = bench.autoregressive_row(comparison, plain, slower(plain, 2), deep=False)
    assert row.estimate is not None
    assert (row.estimate.value, row.estimate.n, row.met) == (pytest.approx(0.5), 6, True)
    assert "6 of 6 outputs equal" in row.detail
    assert not bench.autoregressive_row(comparison, plain, plain, deep=True).met  # 1 is not less than 1
    assert bench.autoregressive_row(comparison, plain, plain, deep=False).met
    row = bench.round_row(comparison, plain, ours, slower(ours, 4), 3)
    assert row.estimate is not None
    assert (row.estimate.value, row.met) == (pytest.approx(0.25), True)
    times = [sum(record.wall_s or 0 for record in one) / bench.num_tokens(one) for one in (plain, ours)]
    speed = bench.ratio(plain, ours, bench.num_tokens, "x")
    assert not isinstance(speed, Missing | None)
    assert speed.value == pytest.approx(times[0] / times[1])


def test_outputs_that_differ_are_explained_or_count_against_the_row(
    arms: tuple[Comparison, list[Record], list[Record]],
) -> None:
    comparison, plain, ours = arms
    tie = bench.autoregressive_row(comparison, plain, slower(plain, 2, TIE), deep=False)
    assert tie.met
    assert "5 of 6 outputs equal, 1 part at a near-tie" in tie.detail
    wrong = bench.autoregressive_row(comparison, plain, slower(plain, 2, BUG), deep=False)
    assert (wrong.estimate, wrong.met) == (None, False)
    assert "1 DIFFER" in wrong.detail
    assert "no number (goal <= 1.03: MISSED)" in wrong.as_text()
    for ours_or_other in ((slower(ours, 1, BUG), slower(ours, 4)), (ours, slower(ours, 4, BUG))):
        assert bench.round_row(comparison, plain, *ours_or_other, 3).estimate is None


def test_the_cost_model_predicts_the_speed_up_of_its_rounds(arms: tuple[Comparison, list[Record], list[Record]]) -> None:
    """10 ms a plain token; 24 ms a round of 4 drafts that emits 3: 10 x 3 / 24."""
    comparison, plain, ours = arms
    plain, ours = slower(plain, 1), slower(ours, 1)
    for record in plain:
        assert record.steps is not None
        record.steps.round_s = [10e-3] * len(record.steps.emitted)
    for record in ours:
        assert record.steps is not None
        count = len(record.steps.emitted)
        record.steps.draft_s, record.steps.verify_s, record.steps.round_s = [8e-3] * count, [14e-3] * count, [24e-3] * count
    emitted = bench.num_tokens(ours) / bench.num_rounds(ours)
    row = bench.cost_row(comparison, plain, ours, 4)
    assert row.estimate is not None
    assert f"rounds measured {emitted * 10 / 24:.2f}" in row.detail
    assert row.estimate.value == pytest.approx(1.0, abs=0.05)


def test_rows_of_a_family_come_from_records(zoo_cache: Path, tmp_path: Path) -> None:
    ensure(FAMILIES["gpt"].models, "test", "toy", workers=0)
    comparisons = bench.plan(FAMILIES["gpt"], Sizes(3, 2, 1, 16), "test", "toy", 1)
    assert [len(comparison.arms) for comparison in comparisons.values()] == [4, 3, 2]
    rows = list(bench.rows(comparisons, 3, Runner(tmp_path, quiet=True), 10))
    kinds = ["autoregressive", "round", "speed-up", "cost model", "memory", "autoregressive"]
    assert [row.name.split(" zoo:")[0] for row in rows] == kinds
    assert all("2 of 2 outputs equal" in row.detail for row in (*rows[:3], rows[5]))
    assert "after 2 examples" in rows[4].detail
    assert json.loads(json.dumps(rows[0].as_dict()))["signatures"]
    for row in rows[:4]:
        assert row.estimate is None or (row.estimate.value > 0 and row.estimate.low is not None)
        assert all(len(load_records(tmp_path / f"{name}.jsonl")) == 2 for name in row.signatures)
    files = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    again = list(bench.rows(comparisons, 3, Runner(tmp_path, quiet=True), 10))
    assert [row for row in again if "memory" not in row.name] == [row for row in rows if "memory" not in row.name]
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == files
    assert all(len(record.tokens or ()) == 16 for record in load_records(tmp_path / f"{rows[0].signatures[0]}.jsonl"))


def test_threads_meet_before_and_behind_every_row(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: one thread was asked for, and the first time was that of two."""
    ensure(FAMILIES["gpt"].models, "test", "toy", workers=0)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    sizes = ["--prompts", "2", "--repeats", "1", "--tokens", "16", "--gamma", "3", "--examples", "10"]
    for count in (2, 1):
        torch.set_num_threads(2)
        given = ["--threads", str(count), "--records", str(tmp_path / "records"), "--quiet"]
        assert main(["bench", "loops", "--profile", "test", "--only", "gpt", *sizes, *given]) == 0
        document = json.loads(Path("results/bench/loops-test-toy-gpt.json").read_text(encoding="utf8"))
        assert not Path("results/bench/loops-test-toy.json").exists()  # which is of all families
        assert len(document["meeting_s"]) == len(document["rows"]) + 1
        printed = capsys.readouterr().out
        if count == 1:
            assert document["meeting_s"] == [None] * 7
            assert "meet" not in printed
        else:
            assert f"2 threads meet in {as_meetings(document['meeting_s'])} now" in printed
    torch.set_num_threads(threads)


def test_committed_loops_are_of_every_family() -> None:
    """Fault: a run with --only gpt was committed over the rows of all."""
    document = json.loads((Path(__file__).parents[2] / "results/bench/loops-toy-toy.json").read_text(encoding="utf8"))
    named = " ".join(row["name"] for row in document["rows"])
    assert all(f"zoo:{model}" in named for family in FAMILIES.values() for model in family.models)


def test_dry_run_names_models_and_whether_they_are_cached(zoo_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ensure(FAMILIES["gpt"].models, "test", "toy", workers=0)
    assert main(["bench", "--dry-run", "--profile", "test", "--only", "gpt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["gpt-target", "gpt-draft"]
    assert all(line.endswith("cached") for line in lines)
