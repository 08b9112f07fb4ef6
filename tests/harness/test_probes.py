"""Probes: measured over a recorded text, recorded apart from it, resumed after a kill, refused for another text."""

from dataclasses import replace
from pathlib import Path

import pytest
from killed import kill_at

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import (
    Comparison,
    DrafterSpec,
    EarlyProbe,
    Experiment,
    MemoryProbe,
    MethodSpec,
    ModelSpec,
    OverlapProbe,
    Probe,
    RuleTimesProbe,
)
from harness.core.record_files import RecordFile, load_records, read_records
from harness.core.records import text_hash
from harness.run import record as recording
from harness.run.instruments import reset_peak
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from methods.errors import InputError

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))
COPY = OverlapProbe(drafter=DrafterSpec(kind="copy"))
OVERLAP, EARLY = OverlapProbe(drafter=DRAFT, leniences=(1.0, 0.5)), EarlyProbe(layers=(1,))
LIMIT = 4


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


def plain(*probes: Probe, **changes: object) -> Experiment:
    experiment = Experiment(
        task="text",
        profile="test",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec(name="autoregressive"),
        limit=LIMIT,
        max_new_tokens=12,
        num_threads=1,
        probes=probes,
    )
    return pin(experiment.replace(**changes))


def drafting(*probes: Probe, **changes: object) -> Experiment:
    return plain(*probes, method=MethodSpec.of("speculative", drafter=DRAFT), **changes)


def run(folder: Path, *arms: Experiment) -> list[list]:
    runner = Runner(folder, quiet=True)
    runner.run(Comparison(arms))
    return [runner.records(arm) for arm in arms]


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """Every batch that is decoded, warm-ups included."""
    seen: list[Experiment] = []
    generate = recording.generate

    def spy(experiment: Experiment, *rest: object, **named: object) -> object:
        seen.append(experiment)
        return generate(experiment, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(recording, "generate", spy)
    return seen


def test_a_probe_that_comes_later_decodes_nothing_and_leaves_the_generation_alone(
    tmp_path: Path, decodings: list[Experiment]
) -> None:
    run(tmp_path, plain())
    path = RecordFile(tmp_path, plain()).path
    before = path.read_bytes()
    decodings.clear()
    [later] = run(tmp_path, plain(OVERLAP, EARLY))
    assert decodings == []
    assert path.read_bytes() == before
    [at_once] = run(tmp_path / "at once", plain(OVERLAP, EARLY))
    assert [(one.overlap, one.early) for one in later] == [(one.overlap, one.early) for one in at_once]
    assert all(one.overlap and one.early for one in later)
    assert all(len(one.overlap[0].by_lenience["0.5"]) == len(one.tokens) for one in later)
    assert run(tmp_path, plain())[0] == [replace(one, overlap=[], early=[]) for one in later]


def test_signatures_say_what_is_generated_and_not_how_much_or_what_is_measured() -> None:
    same = {plain(), plain(OVERLAP), plain(limit=9), plain(repeats=2)}
    assert len(same) == 4
    assert len({one.signature for one in same}) == 1
    assert plain(comparison="speed").signature != plain().signature
    ids = [probe.id for probe in (OVERLAP, replace(OVERLAP, leniences=(1.0,)), COPY, EARLY, MemoryProbe(), RuleTimesProbe())]
    assert len(set(ids)) == 6


def test_until_its_probes_have_looked_an_arm_has_no_record(tmp_path: Path) -> None:
    run(tmp_path, plain(EARLY))
    runner = Runner(tmp_path, quiet=True)
    assert len(runner.records(plain(EARLY))) == LIMIT
    assert runner.records(plain(EARLY, OVERLAP)) == []
    assert not runner.is_complete(Comparison((plain(EARLY, OVERLAP),)))


def test_a_larger_limit_goes_on_and_a_smaller_one_reads_the_first(tmp_path: Path, decodings: list[Experiment]) -> None:
    [first] = run(tmp_path, plain(EARLY, limit=2))
    decodings.clear()
    [more] = run(tmp_path, plain(EARLY, limit=5))
    assert len(decodings) == 1 + 3, "one warm-up and what was missing"
    assert more[:2] == first
    assert len(more) == 5
    [whole] = run(tmp_path / "whole", plain(EARLY, limit=5))
    assert [(one.example, one.tokens, one.early) for one in more] == [(one.example, one.tokens, one.early) for one in whole]
    decodings.clear()
    assert run(tmp_path, plain(EARLY, limit=2)) == [first]
    assert run(tmp_path, plain(EARLY, limit=5, repeats=1)) == [more]
    assert decodings == []
    [twice] = run(tmp_path, plain(limit=2, repeats=2))
    assert [one.key for one in twice] == [(one.example, repeat) for repeat in (0, 1) for one in first]


def test_memory_is_measured_in_a_pass_of_its_own(tmp_path: Path, decodings: list[Experiment]) -> None:
    if (reason := reset_peak()) is not None:
        pytest.skip(reason)
    undisturbed = run(tmp_path, plain(), drafting())
    decodings.clear()
    held = run(tmp_path, plain(MemoryProbe()), drafting(MemoryProbe()))
    assert len(decodings) == 2 * (1 + LIMIT), "a warm-up and a pass for each arm"
    assert all(one.peak_bytes is not None for records in held for one in records)
    assert [[replace(one, peak_bytes=None) for one in records] for records in held] == undisturbed


def test_rule_times_are_taken_along_with_a_generation_and_later_by_decoding_again(
    tmp_path: Path, decodings: list[Experiment]
) -> None:
    [along] = run(tmp_path / "along", drafting(RuleTimesProbe()))
    assert len(decodings) == 1 + LIMIT
    [before] = run(tmp_path / "later", drafting())
    [later] = run(tmp_path / "later", drafting(RuleTimesProbe()))
    assert [replace(one, rule_times=None) for one in later] == before
    for one, other in zip(along, later, strict=True):
        assert len(one.rule_times.wall_s) == len(other.rule_times.wall_s) == len(one.steps.drafted)
        assert one.rule_times.run == one.run
        assert other.rule_times.run != other.run


def test_a_pass_that_decodes_other_tokens_is_a_failure(tmp_path: Path) -> None:
    run(tmp_path, drafting())
    path = RecordFile(tmp_path, drafting()).path
    first, *rest = read_records(path)
    other = replace(first, tokens=[first.tokens[0] + 1, *first.tokens[1:]])
    path.write_text("".join(one.to_line() for one in (other, *rest)), encoding="utf8")
    [records] = run(tmp_path, drafting(RuleTimesProbe()))
    assert [one.status for one in records] == ["failed"] + ["ok"] * (LIMIT - 1)
    assert records[0].error == "decoded again for a probe, other tokens came out than were recorded"
    assert records[0].wall_s is None


def test_what_was_measured_over_another_text_is_refused(tmp_path: Path) -> None:
    arm = plain(EARLY)
    run(tmp_path, arm)
    file = RecordFile(tmp_path, arm)
    first, *rest = read_records(file.path)
    other = replace(first, tokens=[*first.tokens[:-1], 3], steps=None)
    file.path.write_text("".join(one.to_line() for one in (other, *rest)), encoding="utf8")
    for read in (file.read, lambda: load_records(file.path), lambda: run(tmp_path, arm)):
        with pytest.raises(UsageError, match="measured over another text of example"):
            read()


def test_what_was_measured_over_a_lost_generation_counts_again_when_the_same_comes_out(tmp_path: Path) -> None:
    arm = plain(EARLY)
    [before] = run(tmp_path, arm)
    file = RecordFile(tmp_path, arm)
    measured = file.probe_path(EARLY).read_bytes()
    file.path.unlink()
    assert file.read() == []
    [after] = run(tmp_path, arm)
    assert [(one.tokens, one.early) for one in after] == [(one.tokens, one.early) for one in before]
    assert file.probe_path(EARLY).read_bytes().startswith(measured)


def test_a_probe_that_fails_makes_a_failure_of_that_arm_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise InputError("no such layer")

    monkeypatch.setattr(recording, "early_ranks", broken)
    [records] = run(tmp_path, plain(EARLY))
    error = "InputError: no such layer (reading early layers along the text)"  # not "plain decoding's example failed" alone
    assert {(one.status, one.error, one.wall_s) for one in records} == {("failed", error, None)}
    assert {one.status for one in Runner(tmp_path).records(plain())} == {"ok"}


def test_a_torn_line_of_a_probe_is_cut_and_measured_again(tmp_path: Path, decodings: list[Experiment]) -> None:
    arm = plain(EARLY, OVERLAP)
    [whole] = run(tmp_path, arm)
    path = RecordFile(tmp_path, arm).probe_path(arm.probes[1])
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    assert len(RecordFile(tmp_path, arm).read()) == LIMIT - 1
    decodings.clear()
    assert run(tmp_path, arm) == [whole]
    assert decodings == []
    assert [line.split(b'"run"')[0] for line in path.read_bytes().splitlines()] == [
        line.split(b'"run"')[0] for line in text.splitlines()
    ]


def test_a_killed_run_resumes_to_the_same_numbers_and_repeats_nothing(tmp_path: Path, zoo_cache: Path) -> None:
    arguments = [
        "-m", "harness", "run", "--quiet", "--profile", "test", "--task", "text", "--target", "zoo:gpt-target",
        "--match-layers", "1", "--limit", "12", "--max-new-tokens", "16", "--threads", "1", "--memory",
    ]  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    kill_at(5, killed, "probes/*.jsonl", [*arguments, "--records", str(killed)], zoo_cache)
    before = {path: path.read_bytes() for path in killed.rglob("*.jsonl")}
    for folder in (killed, whole):
        assert main([*arguments[2:], "--records", str(folder)]) == 0
    for path, text in before.items():
        assert path.read_bytes().startswith(text[: text.rfind(b"\n") + 1])
    found = [[(one.key, one.tokens, one.early) for one in load_records(folder)] for folder in (killed, whole)]
    assert found[0] == found[1]
    assert len(found[0]) == 12
    for path in killed.rglob("probes/*.jsonl"):
        assert path.read_bytes().count(b"\n") == 12, path


def test_text_hashes_tell_texts_apart() -> None:
    assert len({text_hash(tokens) for tokens in ([1, 2], [12], [], [1], None)}) == 5
