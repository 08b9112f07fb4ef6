"""The simulation of what intervals contain, on records whose answer is known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.core.errors import UsageError
from harness.core.experiment import RuleSpec, RuleTimesProbe
from harness.core.records import Record, RuleTimes
from harness.measures.statistics import Estimate
from harness.report.coverage import Arm, arms_of, coverage, cut_short, measures_of, report


@pytest.fixture
def outputs(synthetic: SimpleNamespace, arms: SimpleNamespace) -> list[Record]:
    """Of 60 outputs 15 end at the limit."""
    records = [synthetic.plain(arms.plain, f"e{number}", 8 + number % 7) for number in range(60)]
    return [replace(one, stop_reason="eos" if number % 4 else "length") for number, one in enumerate(records)]


def test_an_exact_interval_covers_and_half_of_it_does_not(arms: SimpleNamespace, outputs: list[Record]) -> None:
    """400 samples: the chance that 95 % show as less than 92 is below 1 %."""

    def halved(own: list[Record]) -> Estimate | None:
        found = cut_short(own)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        return replace(found, low=(found.low + found.value) / 2, high=(found.high + found.value) / 2)

    measures = {"shares": lambda _, own: {"whole": cut_short(own), "half": halved(own)}}
    found = coverage(measures, Arm(arms.plain, (), outputs), 30, 400)["shares"]
    assert found["whole"] >= 0.92
    assert found["half"] < 0.85


def test_a_number_that_is_refused_is_no_sample(arms: SimpleNamespace, outputs: list[Record]) -> None:
    """Fault: what must not be shown counted as an interval that misses."""
    some = iter(range(1000))
    measures = {"shares": lambda _, own: {"at times": cut_short(own) if next(some) % 3 < 2 else None}}
    assert coverage(measures, Arm(arms.plain, (), outputs), 30, 200)["shares"]["at times"] >= 0.9


def test_a_report_names_every_kind(tmp_path: Path, synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    synthetic.write(tmp_path, arms.plain, [synthetic.plain(arms.plain, f"e{i}", 8 + i % 7) for i in range(60)])
    lines = report(tmp_path, 20)
    assert lines[0].split()[:2] == ["kind", "numbers"]
    assert any(line.startswith("mean") for line in lines)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="no arm has 40 examples"):
        report(empty)


def test_replicas_are_one_arm_beside_their_own_plain_decoding(
    tmp_path: Path, synthetic: SimpleNamespace, arms: SimpleNamespace
) -> None:
    """Two tasks of one comparison, each in three replicas with trainings of their own.

    Fault: plain decoding was found by its comparison's name, so that an arm stood beside another task's; and no file of
    replicas had enough examples.
    """
    rng = np.random.default_rng(1)
    for task, slow in (("wmt-en-de", 1.0), ("cnndm", 3.0)):
        for name in (arms.plain, arms.drafted):
            whole = name.replace(task=task, comparison="one", limit=60, replicas=3, retrained=True)
            for part in whole.divided():
                numbers = range(part.replica or 0, 60, 3)
                times = slow * (1 + 0.1 * rng.random(len(numbers)))
                make = synthetic.plain if name is arms.plain else synthetic.drafted
                records = [replace(make(part, f"e{i}", 9), wall_s=float(s)) for i, s in zip(numbers, times, strict=True)]
                synthetic.write(tmp_path, part, records)
    found = {(arm.experiment.task, arm.experiment.method.name): arm for arm in arms_of(tmp_path)}
    assert {key: len(arm.own) for key, arm in found.items()} == {
        (task, method): 60 for task in ("wmt-en-de", "cnndm") for method in ("autoregressive", "speculative")
    }
    for task in ("wmt-en-de", "cnndm"):
        arm = found[task, "speculative"]
        time = measures_of(arm)["ratio of paired times"](arm.plains, arm.own)["time"]
        assert isinstance(time, Estimate)
        assert (time.n, time.value) == (60, pytest.approx(1, abs=0.03))


def test_a_profiled_rule_stands_beside_the_baseline_rule(
    tmp_path: Path, synthetic: SimpleNamespace, arms: SimpleNamespace
) -> None:
    """Its calls take half of the baseline's time, of the same texts; the baseline rule itself has no other beside it."""
    rules = {"baseline": 2.0, "fused": 1.0}
    synthetic.write(tmp_path, arms.plain, [synthetic.plain(arms.plain, f"e{i}", 9) for i in range(40)])
    for rule, seconds in rules.items():
        arm = arms.drafted.replace(
            method=replace(arms.drafted.method, rule=RuleSpec(rule)), probes=(*arms.drafted.probes, RuleTimesProbe())
        )
        records = [synthetic.drafted(arm, f"e{i}", 9) for i in range(40)]
        times = [[seconds * (1 + i % 5)] * len(one.steps.drafted) for i, one in enumerate(records)]
        profiled = [RuleTimes(profiled_s=one, wall_s=one, run=records[0].run) for one in times]
        synthetic.write(tmp_path, arm, [replace(one, rule_times=own) for one, own in zip(records, profiled, strict=True)])
    found = {arm.experiment.method.rule.name: arm for arm in arms_of(tmp_path) if arm.experiment.method.rule is not None}
    assert {name: arm.has_rival for name, arm in found.items()} == {"baseline": False, "fused": True}
    measures = measures_of(found["fused"])
    ratios = measures["ratio of calls or of their time"](found["fused"].plains, found["fused"].own)
    assert {name: one.value for name, one in ratios.items()} == pytest.approx({"calls": 1, "profiled": 0.5, "time a call": 0.5})
    kind = "time a call, and its deviation"
    assert coverage({kind: measures[kind]}, found["fused"], 30, 100)[kind]["mean"] >= 0.85
