"""The kernels' benchmark: same rounds for all, medians and ratios by definition, and no speed-up of a kernel that is red."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.cli.flags import KERNEL_NAMES
from harness.cli.main import main
from harness.measures.statistics import Estimate, median
from harness.run import kernels as kernel_bench
from harness.run.kernels import NUM_ROUNDS, NUM_ROWS, Setting, bench_setting, calls_for, make_rounds, time_on_cpu
from kernels.verify import fused
from kernels.verify.check import Report
from kernels.verify.interface import Verdict
from kernels.verify.registry import KERNELS
from kernels.verify.sizes import bytes_moved
from kernels.verify.traffic import bandwidth, empty_launch_s

GREEN = Report("fused", "float32", 300, 0, 0)
SMALL = Setting(batch=1, gamma=2, vocab_size=64, acceptance=0.7)


def test_every_kernel_can_be_chosen() -> None:
    """The command line names them by itself, since to import them takes torch."""
    assert sorted(KERNEL_NAMES) == sorted([kernel_bench.TRANSFORMERS, *KERNELS])


@pytest.mark.parametrize("acceptance", [0.7, 0.8])
def test_rounds_have_the_acceptance_that_was_asked_for(acceptance: float) -> None:
    rounds = make_rounds(Setting(batch=8, gamma=5, vocab_size=2000, acceptance=acceptance))
    laws = [(p.logits.softmax(-1), t[:, :-1].softmax(-1)) for p, t in zip(rounds.proposals, rounds.targets, strict=True)]
    overlap = torch.stack([torch.minimum(draft, target).sum(-1) for draft, target in laws])
    assert float(overlap.mean()) == pytest.approx(acceptance, abs=0.02)
    assert len(rounds.targets) == NUM_ROUNDS
    assert len(make_rounds(SMALL).targets) == NUM_ROWS
    assert len(make_rounds(replace(SMALL, batch=3), 100).targets) == 34  # a batch more than a hundred rows fill


def test_an_interval_resamples_a_hundred_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def noted(calls: Sequence[Callable[[int], object]], num_rounds: int, repeats: int, cold: bool) -> np.ndarray:
        timed.append(num_rounds)
        return np.full((len(calls), repeats, num_rounds), 1e-6)

    monkeypatch.setattr(kernel_bench, "time_on_cpu", noted)
    bench_setting(SMALL, ["baseline", "fused"], {}, 2, 1e9, 2e-6)
    assert timed == [100]


def test_where_all_is_to_be_accepted_all_is() -> None:
    rounds = make_rounds(Setting(batch=2, gamma=3, vocab_size=50, acceptance=None))
    call = calls_for(["fused"], rounds)["fused"]
    for index in range(len(rounds.targets)):
        decisions = call(index)
        assert isinstance(decisions, Verdict)
        assert decisions.num_accepted.tolist() == [3, 3]


def test_calls_and_rounds_are_mixed_so_that_none_always_follows_the_same_other_one() -> None:
    log: list[tuple[str, int]] = []

    def named(name: str) -> Callable[[int], object]:
        return lambda i: log.append((name, i))

    seconds = time_on_cpu([named(name) for name in "ab"], num_rounds=8, repeats=20)
    assert seconds.shape == (2, 20, 8)
    assert (seconds > 0).all()
    timed = log[2 * 8 :]
    repeats = [timed[start : start + 16] for start in range(0, len(timed), 16)]
    assert all(sorted(repeat) == [(name, index) for name in "ab" for index in range(8)] for repeat in repeats)
    neighbours = [(one, other) for repeat in repeats for one, other in pairwise(repeat)]
    assert {(one[0], other[0]) for one, other in neighbours} == {("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")}
    same_round = sum(one[1] == other[1] for one, other in neighbours) / len(neighbours)
    assert same_round < 0.15  # by chance one in fifteen; it was every other one when both calls took a round before the next


def test_no_third_kernel_is_timed_between_a_kernel_and_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def noted(calls: Sequence[Callable[[int], object]], num_rounds: int, repeats: int, cold: bool) -> np.ndarray:
        assert not cold
        timed.append(len(calls))
        return np.full((len(calls), repeats, num_rounds), 1e-6 * len(timed))

    monkeypatch.setattr(kernel_bench, "time_on_cpu", noted)
    names = ["baseline", "exact", "fused"]
    rows = bench_setting(SMALL, names, dict.fromkeys(names, GREEN), 2, 1e9, 2e-6)
    assert timed == [2, 2]
    assert [row.kernel for row in rows] == names
    assert [row.ratio.value for row in rows if row.ratio is not None] == [1.0, 1.0, 1.0]  # each over the baseline beside it
    assert [row.median_s for row in rows] == pytest.approx([1.5e-6, 1e-6, 2e-6])


def test_medians_by_hand() -> None:
    assert median(np.array([3.0]), "s") == Estimate(3.0, None, None, 1, "s")
    few = median(np.array([1.0, 2.0, 4.0, 100.0]))  # an interval of four holds the truth in 88 % of all samples
    assert (few.value, few.low, few.high) == (3.0, None, None)
    typical = median(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
    assert typical.value == 3.0
    assert typical.low is not None
    assert typical.high is not None
    assert 1.0 <= typical.low <= 3.0 <= typical.high <= 100.0


def test_no_speed_up_of_a_red_kernel() -> None:
    red = Report("fused", "float32", 300, 0, 3)
    names = ["baseline", "fused"]
    rows = bench_setting(SMALL, names, {"baseline": GREEN, "fused": red}, 1, 1e9, 1e-6)
    assert rows[0].ratio is not None
    assert rows[0].ratio.value == 1.0
    assert rows[1].ratio is None
    assert "no speed-up shown: fused" in rows[1].as_text()
    assert "RED" in rows[1].as_text()
    unknown = bench_setting(SMALL, names, {"baseline": red, "fused": GREEN}, 1, 1e9, 1e-6)
    assert all(row.ratio is None for row in unknown)  # without a baseline that is right there is nothing to compare with


def test_ratio_is_of_the_baselines_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = np.stack([np.full((2, NUM_ROUNDS), 4e-6), np.full((2, NUM_ROUNDS), 1e-6)])
    monkeypatch.setattr(kernel_bench, "time_on_cpu", lambda *_, **__: made_up)
    rows = bench_setting(SMALL, ["baseline", "fused"], {"baseline": GREEN, "fused": GREEN}, 2, 1e9, 2e-6)
    assert rows[1].ratio is not None
    assert rows[1].ratio.value == pytest.approx(0.25)
    assert rows[1].median_s == pytest.approx(1e-6)
    assert rows[1].empty_calls == pytest.approx(0.5)
    assert rows[1].memory_frac == pytest.approx(rows[1].bytes_moved / 1e-6 / 1e9)
    assert rows[1].baseline_s == pytest.approx(4e-6)
    assert "0.250 of baseline" in rows[1].as_text()
    assert "4.0 us beside it" in rows[1].as_text()


def test_goals_are_met_by_the_whole_interval() -> None:
    setting = Setting(batch=1, gamma=5, vocab_size=32_000, acceptance=0.7)
    assert [setting.goal(name) for name in ("fused", "sigmoid", "exact")] == [0.25, 1.0, None]
    assert replace(setting, vocab_size=2048).goal("fused") == 1.0
    assert replace(setting, top_k=50).goal("fused") == 0.5
    assert replace(setting, device="cuda").goal("fused") is None
    _, row = bench_setting(SMALL, ["baseline", "fused"], {"baseline": GREEN, "fused": GREEN}, 1, 1e9, 2e-6)
    for value, low, high, met in ((0.9, 0.8, 1.0, True), (0.9, 0.8, 1.01, False), (0.9, None, None, True)):
        judged = replace(row, ratio=Estimate(value, low, high, 32), goal=1.0)
        assert judged.met is met
        assert f"(goal <= 1.0: {'met' if met else 'MISSED'})" in judged.as_text()
    assert replace(row, goal=None).met is None
    assert replace(row, ratio=None, goal=1.0).met is None


def test_rounds_with_a_filter_have_its_overlap_and_its_tokens() -> None:
    rounds = make_rounds(Setting(batch=8, gamma=5, vocab_size=2000, acceptance=0.7, top_k=20))
    overlap = []
    for proposal, target in zip(rounds.proposals, rounds.targets, strict=True):
        draft = proposal.sampling.probs(proposal.logits)
        assert bool((draft.gather(-1, proposal.tokens.unsqueeze(-1)) > 0).all())
        overlap.append(torch.minimum(draft, proposal.sampling.probs(target[:, :-1])).sum(-1))
    assert float(torch.stack(overlap).mean()) == pytest.approx(0.7, abs=0.03)
    calls = calls_for(["transformers", "baseline", "fused"], make_rounds(replace(SMALL, top_k=5)))
    assert len([call(0) for call in calls.values()]) == 3


def test_traffic_by_hand() -> None:
    """The target's 6 rows of fp16 logits, with a filter also the draft's 5, and two that decide; the baseline writes all 11.

    It writes them as fp32 probabilities, and where logits are fp16 first as fp32 logits, which it reads again.
    """
    assert bytes_moved("fused", 1, 5, 1000, "float16") == 8 * 2 * 1000
    assert bytes_moved("fused", 1, 5, 1000, "float16", filtered=True) == 13 * 2 * 1000
    assert bytes_moved("baseline", 2, 5, 1000, "float32") - bytes_moved("fused", 2, 5, 1000, "float32") > 2 * 11 * 4 * 1000
    wide, half = (bytes_moved("baseline", 1, 5, 1000, dtype) for dtype in ("float32", "float16"))
    assert half - wide == 11 * 1000 * (2 * 4 - 2)
    assert bandwidth("cpu", 2**22, 2) > 1e8
    assert 0 < empty_launch_s("cpu", 20) < 1e-2


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        "bench",
        "kernels",
        "--vocab",
        "200",
        "--top-k",
        "none",
        "--acceptance",
        "0.7",
        "all",
        "--rows",
        "20",
        "--repeats",
        "1",
    ]
    assert main([*arguments, "--threads", "1", "--gamma", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("green") == 5
    assert printed.count("of baseline") == 12
    assert "of 2 goals met, by the upper end of the interval" in printed
    [written] = (tmp_path / "results" / "bench").iterdir()
    assert written.name == "kernels-cpu-1-threads-float32.json"
    document = json.loads(written.read_text(encoding="utf8"))
    assert len(document["rows"]) == 12
    assert document["environment"]["torch"]
    assert document["environment"]["fused rule"] == fused.decided_by()
    assert document["checks"]["fused"]["num_wrong"] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--acceptance", "1.5"], "acceptance '1.5'"), (["--top-k", "0"], "top-k '0'"), (["--device", "cuda"], "device 'cuda'")],
)
def test_bad_flags_are_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    assert main(["bench", "kernels", *flags]) == 2
    assert message in capsys.readouterr().err


def test_caches_are_swept_before_each_timed_call_where_they_are_to_be_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch, "mv", lambda *_: log.append("sweep"))
    time_on_cpu([lambda _: log.append("call")], num_rounds=2, repeats=2, cold=True)
    assert log == ["call"] * 2 + ["sweep", "call"] * 4
    log.clear()
    time_on_cpu([lambda _: log.append("call")], num_rounds=2, repeats=2)
    assert "sweep" not in log


def test_cold_caches_are_a_cpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["bench", "kernels", "--cold", "--device", "cuda"]) == 2
    assert "--cold with --device cuda: only a CPU's caches" in capsys.readouterr().err
