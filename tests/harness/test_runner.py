"""Runs: resumed after a kill they leave the records of an uninterrupted one; order and batches change nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from killed import kill_at

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.record_files import load_records
from harness.core.records import Record
from harness.measures.of_run import memory_access_factor
from harness.measures.pairing import out_of_turn
from harness.run import comparison as prepared
from harness.run import patience
from harness.run import record as recording
from harness.run import runner as runner_module
from harness.run.plan import run_plan
from harness.run.runner import Runner, pin
from harness.tables.evidence import stored_evidence
from harness.zoo.build import ensure
from kernels.inputs import SamplingSpec
from methods.errors import InputError

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


def comparison(**changes: object) -> Comparison:
    plain = Experiment(
        task="text",
        profile="test",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec(name="autoregressive"),
        sampling=SamplingSpec(temperature=1.0),
        limit=6,
        max_new_tokens=12,
        probes=(OverlapProbe(drafter=DRAFT),),
        num_threads=1,
        dtype="float64",
    ).replace(**changes)
    drafted = plain.replace(method=MethodSpec.of("speculative", drafter=DRAFT, gamma=3), probes=())
    return Comparison((pin(plain), pin(drafted)))


def timeless(record: Record) -> Record:
    """A record without what a clock saw."""
    steps = record.steps and replace(record.steps, draft_s=[], verify_s=[], round_s=[])
    return replace(
        record, wall_s=None, encode_s=None, draft_encode_s=None, on_processor_frac=None, steps=steps, run="", overlap=[]
    )


def outputs(runner: Runner, experiment: Experiment) -> dict[tuple[str, int], list[int] | None]:
    return {record.key: record.tokens for record in runner.records(experiment)}


def test_second_run_loads_no_model_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms, runner = comparison(limit=2), Runner(tmp_path, quiet=True)
    runner.run(arms)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    assert len(before) == 2
    assert runner.is_complete(arms)
    monkeypatch.setattr(runner_module.Models, "get", lambda *_: pytest.fail("a model was loaded"))
    Runner(tmp_path, quiet=True).run(arms)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before


def test_an_arm_that_came_later_is_recorded_again_with_the_others(tmp_path: Path) -> None:
    """Its times beside records of an earlier process are refused; ``again`` keeps the old records and makes all anew, once."""
    arms, runner = comparison(limit=2), Runner(tmp_path, quiet=True)
    runner.run(Comparison(arms.arms[:1]))
    Runner(tmp_path, quiet=True).run(arms)
    old = [runner.path(arm).read_bytes() for arm in arms.arms]
    refused = out_of_turn(*(runner.records(arm) for arm in arms.arms))
    assert refused is not None
    assert "--again" in refused.why
    assert runner.is_complete(arms)
    Runner(tmp_path, quiet=True).run(arms)
    assert [runner.path(arm).read_bytes() for arm in arms.arms] == old, "only where it is asked for"
    again = Runner(tmp_path, quiet=True, again=True)
    assert not again.is_complete(arms)
    again.run(arms)
    new = [again.records(arm) for arm in arms.arms]
    assert len({record.run for records in new for record in records}) == 1
    assert [[timeless(record) for record in records] for records in new] == [
        [timeless(Record.from_line(line)) for line in text.splitlines(keepends=True)] for text in old
    ]
    kept = [tmp_path / "replaced" / f"{arm.signature}-1.jsonl" for arm in arms.arms]
    assert [path.read_bytes() for path in kept] == old
    assert len(load_records(tmp_path)) == 4


def test_arms_whose_times_are_compared_and_were_torn_apart_are_recorded_anew(tmp_path: Path) -> None:
    """Without being asked, and only there: the arms of a named comparison stood in two processes."""
    arms = comparison(limit=2, comparison="a-table")
    Runner(tmp_path, quiet=True).run(Comparison(arms.arms[:1]))
    Runner(tmp_path, quiet=True).run(Comparison(arms.arms[1:]))
    runner = Runner(tmp_path, quiet=True)
    assert not runner.is_complete(arms)
    runner.run(arms)
    assert runner.is_complete(arms)
    assert len({record.run for arm in arms.arms for record in runner.records(arm)}) == 1


def test_arms_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    generate = recording.generate

    def spy(experiment: Experiment, *rest: object, **named: object) -> object:
        order.append(experiment.method.name)
        return generate(experiment, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(recording, "generate", spy)
    Runner(tmp_path, quiet=True).run(comparison(limit=4))
    timed = order[2:]  # one warm-up each
    assert timed == ["autoregressive", "speculative", "speculative", "autoregressive"] * 2


def test_results_do_not_depend_on_batch_or_limit(tmp_path: Path) -> None:
    single, batched, longer = comparison(limit=5), comparison(limit=5, batch_size=3), comparison(limit=7)
    runner = Runner(tmp_path, quiet=True)
    for arms in (single, batched, longer):
        runner.run(arms)
    for index in range(2):
        alone = outputs(runner, single.arms[index])
        assert len(alone) == 5
        assert alone == outputs(runner, batched.arms[index])
        assert alone.items() <= outputs(runner, longer.arms[index]).items()


def test_failure_is_a_record_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = comparison(limit=3)
    generate, calls = recording.generate, []

    def fail_once(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 4:  # the first two calls warm up
            raise InputError("draft: out of positions")
        return generate(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(recording, "generate", fail_once)
    runner = Runner(tmp_path, quiet=True)
    runner.run(arms)
    records = [record for arm in arms.arms for record in runner.records(arm)]
    failed = [record for record in records if record.status == "failed"]
    assert (len(records), len(failed)) == (6, 1)
    assert failed[0].error == "InputError: draft: out of positions"
    assert failed[0].tokens is None
    assert failed[0].wall_s is None


def test_killed_run_resumes_to_the_same_records(tmp_path: Path, zoo_cache: Path) -> None:
    arguments = [
        "-m", "harness", "run", "--quiet", "--profile", "test", "--task", "text", "--target", "zoo:gpt-target",
        "--draft", "zoo:gpt-draft", "--method", "speculative", "--temperature", "1", "--limit", "12",
        "--max-new-tokens", "16", "--threads", "1",
    ]  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    kill_at(6, killed, "*.jsonl", [*arguments, "--records", str(killed)], zoo_cache)
    assert 6 <= len(load_records(killed)) < 24
    for folder in (killed, whole):
        assert main([*arguments[2:], "--records", str(folder)]) == 0
    assert len(load_records(whole)) == 24
    assert [timeless(record) for record in load_records(killed)] == [timeless(record) for record in load_records(whole)]


def test_replicas_run_in_processes_of_their_own_and_decode_what_one_would(tmp_path: Path) -> None:
    whole = comparison(replicas=2, limit=5)
    run_plan(list(whole.divided()), Runner(tmp_path / "divided", quiet=True))
    run_plan([comparison(limit=5)], Runner(tmp_path / "single", quiet=True))
    divided, single = (stored_evidence(tmp_path / name) for name in ("divided", "single"))
    for arm, plain in zip(whole.arms, comparison(limit=5).arms, strict=True):
        records = divided.records_of(arm)
        assert [len(divided.records_of(part)) for part in arm.divided()] == [3, 2]
        assert {one.key: one.tokens for one in records} == {one.key: one.tokens for one in single.records_of(plain)}
        assert len({one.run for one in records}) == len({one.unit[0] for one in records}) == 2
    assert divided.state(whole.divided()) == "complete"
    factor = memory_access_factor(*(divided.records_of(arm) for arm in whole.arms))
    assert factor is not None
    assert factor.n == 5, "paired within each process"


def test_what_others_disturbed_is_decoded_again_and_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = comparison(replicas=2, limit=4).divided()[0]
    shares = iter([0.0, 0.5, 0.0, 0.0])  # of the second of two examples, then until others are done, then while it is repeated
    decoded: list[str] = []
    generated = prepared.generated
    monkeypatch.setattr(patience.Others, "share", lambda self: next(shares))
    monkeypatch.setattr(patience, "LOOK_S", 0.0)
    monkeypatch.setattr(
        prepared,
        "generated",
        lambda arm, prompts, *rest: decoded.append(prompts[0].example.id) or generated(arm, prompts, *rest),
    )
    patient = Runner(tmp_path / "patient", quiet=True, patience=patience.Patience(60))
    patient.run(part)
    assert next(shares, None) is None
    names = [record.example for record in patient.records(part.arms[0])]
    assert [decoded.count(name) for name in names] == [len(part.arms), 2 * len(part.arms)]
    hasty = Runner(tmp_path / "hasty", quiet=True)
    hasty.run(part)
    for arm in part.arms:
        assert outputs(patient, arm) == outputs(hasty, arm)


def test_what_fails_in_a_process_of_its_own_is_told_here(tmp_path: Path) -> None:
    part = comparison(replicas=2).divided()[0]
    folder = tmp_path / "file"
    folder.write_text("no folder")
    with pytest.raises((UsageError, OSError)):
        run_plan([part], Runner(folder, quiet=True))
