"""An audit run on the test zoo: what it finds of right and wrong methods, how it goes on where it was killed, its report."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, WhisperConfig

from harness.cli import exact
from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.exact import checks, controls
from harness.exact import document as documents
from harness.exact import run as audit_run
from harness.exact.document import build_document
from harness.exact.run import audit, control_part, read_findings, work_on
from harness.exact.subjects import SIZES, Subject, zoo_subjects
from harness.measures.verdicts import verdict_of
from harness.models.loading import load_model
from harness.zoo.build import ensure
from kernels.products.matrix import Choice
from methods.parts import RULES
from methods.sampling import Uniforms
from methods.session import MIN_CAPACITY, ModelSession
from methods.speculative import rules
from methods.speculative.rules import SpeculativeSampling
from methods.types import Inputs

SIZE = replace(SIZES["test"], samples=1000, new_tokens=10, prompts=2)
FACTS = {"command": "foretoken audit", "code": "0", "seed": 0, "environment": {}, "models": {}}
CHOSEN = (
    "GPT: speculative / model / speculative-sampling, greedy",
    "GPT: speculative / model / speculative-sampling, greedy, batch 4",
    "GPT: autoregressive, greedy, batch 4",
    "GPT: autoregressive, temperature 1",
    "GPT: speculative / model / speculative-sampling, temperature 1",
    "GPT: speculative / model / lenience 0.1, greedy",
    "GPT: speculative / model / lenience 0.3, temperature 1",
)


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


@cache
def subjects() -> tuple[Subject, ...]:
    found = {subject.name: subject for subject in zoo_subjects("test", "toy", SIZE)}
    return tuple(found[name] for name in CHOSEN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def done(folder: Path) -> dict:
    return build_document("zoo-toy", subjects(), *audit(subjects(), SIZE, folder, quiet=True, workers=0), SIZE, FACTS)


def test_right_methods_are_found_as_they_are_declared(done: dict) -> None:
    verdicts = [(row["declared"], row["verdict"]) for row in done["subjects"]]
    for declared, verdict in verdicts[:3]:
        assert declared == "exact"
        assert verdict in ("identical", "near-tie")
    assert verdicts[3:] == [("exact", "same distribution")] * 2 + [("lossy", "lossy")] * 2
    assert done["passed"]


def test_every_control_is_caught(done: dict) -> None:
    """Those that the first audit was asked for, and what a hostile review smuggled past it."""
    assert {control["name"]: control["caught"] for control in done["controls"]} == dict.fromkeys(controls.CONTROLS, True)
    assert len(controls.CONTROLS) == 20


def test_controls_that_cannot_strike_a_target_of_few_positions_are_left_out_and_named(done: dict) -> None:
    """Fault: of a target with 64 positions, two faults beyond 64 tokens were "missed", and its audit failed."""
    device = torch.device("cpu")
    struck = {name for name, one in controls.CONTROLS.items() if one.can_strike(device, MIN_CAPACITY)}
    left = {"stale cache beyond 64", "both arms wrong alike"}
    assert {name for name, one in controls.CONTROLS.items() if one.can_strike(device, None)} - struck == left
    assert done["controls_left_out"] == []
    kept = {one["name"]: one for one in done["controls"] if one["name"] in struck}
    document = build_document("pair", [], {}, kept, SIZE, FACTS)
    assert (document["passed"], set(document["controls_left_out"])) == (True, left)
    assert documents.summarise(document).endswith("18 of 18 controls caught, 2 left out, which cannot strike here")
    assert "- control left out: both arms wrong alike; nothing goes wrong by it" in documents.as_markdown(document)


def test_the_evidence_is_there(done: dict) -> None:
    greedy, _, _, plain, sampled, relaxed, lenient = done["subjects"]
    assert greedy["prompts"] == 2
    assert plain["alarms"] == 0
    assert plain["tests_made"] >= 2 * 9
    assert set(sampled["largest_deviation"]) == {"draft 0", "draft 1", "bonus"}
    assert max(sampled["largest_deviation"].values()) < 1e-8
    assert {"position 0", "draft 0", "ranks of bonus", "numbers at 0, 1"} <= set(sampled["tests"])
    assert 0 < sampled["tests"]["position 0"]["tv_at_power_0.9"] < 0.25
    assert 0 < sampled["accepted"] < sampled["drafted"]
    for row in (relaxed, lenient):
        assert 0 < row["tv"]["low"] <= row["tv"]["value"] <= row["tv"]["high"] < 1
        assert row["nats"]["value"] > 0


def test_what_was_found_is_kept_and_a_killed_audit_goes_on(folder: Path, done: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line is torn, as a kill would leave it: that subject is audited again, no other one is."""
    path = folder / "findings-controls.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    names = []
    monkeypatch.setattr(audit_run, "run_control", lambda control, *grounds: names.append(control.what) or {"caught": True})
    for check in ("check_exact", "check_false_alarms"):
        monkeypatch.setattr(checks, check, lambda *arguments: pytest.fail("audited twice"))
    again = audit(subjects(), SIZE, folder, quiet=True, workers=0)
    assert names == [list(controls.CONTROLS.values())[-1].what]
    assert [again[0][row["name"]]["verdict"] for row in done["subjects"]] == [row["verdict"] for row in done["subjects"]]
    path.write_bytes(whole)


def test_processes_find_the_same_and_every_part_has_a_file(tmp_path: Path) -> None:
    """Two parts, a process each; their progress and what they found are their own."""
    plain, small = [subjects()[2], subjects()[3]], replace(SIZE, samples=200, false_alarms=1)
    apart, alone = (audit(plain, small, tmp_path / str(workers), quiet=True, workers=workers) for workers in (2, 0))
    assert apart == alone
    assert {file.name for file in (tmp_path / "2").glob("findings-*")} == {
        "findings-gpt-greedy.jsonl",
        "findings-gpt-temperature-1.jsonl",
    }


def test_controls_run_on_the_first_pair_of_everything_whatever_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """PPD's pair, chosen alone, has no draft model for them; on a pair of short outputs some of their faults cannot show."""
    ran = []
    monkeypatch.setattr(audit_run, "run_control", lambda control, *rest: ran.append(control.what) or {"caught": True})
    monkeypatch.setattr(exact, "audit", lambda *arguments, **named: audit(*arguments[:-1], 0, **named))  # in this process
    command = ["audit", "--scale=test", "--quiet", "--prompts=1", f"--records={tmp_path}"]
    assert main([*command, "--only=PPD's Llama: ppd / batched, greedy"]) == 0
    assert ran == [control.what for control in controls.CONTROLS.values()]
    assert f"passed: 1 subjects (1 identical); {len(ran)} of {len(ran)} controls caught" in capsys.readouterr().out


def test_what_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without memory left, say, may have some the next time."""
    found = iter(["failed", "identical"])
    jobs = [("one", lambda: {"verdict": next(found)})]
    monkeypatch.setattr(audit_run, "_subject_jobs", lambda *arguments: jobs)
    part = audit_run._Part(name="one", ground=subjects()[0].plain)
    for expected in ("failed", "identical", "identical"):
        work_on(part, SIZE, tmp_path, (), quiet=True, line=0)
        assert read_findings(tmp_path / part.file) == {"one": {"verdict": expected}}
    assert next(found, None) is None
    (path := tmp_path / part.file).write_text(path.read_text().replace("failed", "lossy"))
    with pytest.raises(UsageError, match=rf"findings {path}: cannot be read \(the checksum of 'one' differs\)"):
        read_findings(path)


@pytest.mark.parametrize(("name", "control"), [(CHOSEN[0], "neighbouring token"), (CHOSEN[4], "no residual")])
def test_a_wrong_rule_turns_its_subject_red(name: str, control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "speculative-sampling", controls.CONTROLS[control].rule)
    monkeypatch.setattr(audit_run, "CONTROLS", {})
    chosen = [subject for subject in subjects() if subject.name == name]
    document = build_document("zoo-toy", chosen, *audit(chosen, SIZE, tmp_path, quiet=True, workers=0), SIZE, FACTS)
    assert (document["red"], document["passed"]) == ([name], False)
    documents.write_document(document, tmp_path / "report")
    verdict = verdict_of(chosen[0].experiment, tmp_path / "report")
    assert verdict is not None
    assert verdict.is_red


def test_too_few_samples_are_named_where_they_missed_a_control(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """More samples do not help a replay: whisper-base's lost update was said to be missed for want of them."""
    missed = {"red": [], "controls_missed": ["some control"], "passed": False}
    by_samples, by_replay = {"check": "replay", "missed_by": "samples"}, {"check": "replay"}
    found = {}
    monkeypatch.setattr(exact, "audit", lambda *arguments, **named: ({}, found))
    monkeypatch.setattr(exact, "models_of", lambda subjects: {})
    monkeypatch.setattr(exact, "build_document", lambda *arguments: missed)
    monkeypatch.setattr(exact, "summarise", lambda document: "FAILED")
    usual = SIZES["test"].samples
    for samples, finding, told in ((usual - 1, by_samples, True), (usual, by_samples, False), (usual - 1, by_replay, False)):
        found["some control"] = finding
        assert main(["audit", "--scale", "test", "--only", "GPT", "--samples", str(samples)]) == 1
        assert (f"samples {samples}: too few to find these faults" in capsys.readouterr().out) == told


def test_a_control_that_is_not_caught_fails_the_audit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = replace(controls.CONTROLS["no residual"], what="nothing", rule=SpeculativeSampling)
    monkeypatch.setattr(audit_run, "CONTROLS", {"harmless": harmless})
    document = build_document("zoo-toy", subjects(), *audit(subjects(), SIZE, folder, quiet=True, workers=0), SIZE, FACTS)
    assert (document["controls_missed"], document["passed"]) == (["harmless"], False)
    assert "FAILED" in documents.summarise(document)


def found_of_controls(folder: Path, samples: int) -> dict:
    part = control_part(subjects())
    assert part is not None
    work_on(part, replace(SIZE, samples=samples), folder, (), True, 0)
    return read_findings(folder / part.file)


@pytest.mark.parametrize("name", [name for name, one in controls.CONTROLS.items() if one.check == "samples"])
def test_a_fault_that_samples_miss_is_replayed(name: str, done: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SmolLM2 with a draft that is nearly always refused 2,000 samples do not show shared noise; here two are too few.

    Too few to tell once counted as caught.
    """
    monkeypatch.setattr(audit_run, "CONTROLS", {name: controls.CONTROLS[name]})
    control = found_of_controls(tmp_path, 2)[name]
    assert (control["caught"], control["check"], control["missed_by"]) == (True, "replay", "samples")
    assert f"| {name} " in documents.as_markdown({**done, "controls": [{"name": name, **control}]})
    assert "samples missed it, replay" in documents.as_markdown({**done, "controls": [{"name": name, **control}]})


def test_more_is_replayed_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of whisper-base in bfloat16 hid fifteen lost updates: none went beyond what rounding may move there."""
    half = controls.CONTROLS["lost update in bfloat16"]
    monkeypatch.setattr(audit_run, "CONTROLS", {"half": half, "single": replace(half, dtype="float32")})
    found = found_of_controls(tmp_path, 200)
    assert found["half"]["caught"]
    assert found["single"]["caught"]
    assert found["half"]["replayed"]["decisions"] > 2 * found["single"]["replayed"]["decisions"]


def test_shifted_positions_stay_within_the_cache(zoo_cache: Path) -> None:
    """They wrote a place behind it where it was full, and the audit of SmolLM2 died of that much later."""
    folder = ensure(("llama-target",), "test", "toy", workers=0)["llama-target"]
    session = controls._Shifted(load_model(ModelSpec(name=str(folder))).stack)
    session.prefill(Inputs(((3,) * (MIN_CAPACITY - 1),)))
    session.rewind([0])
    session.extend(torch.tensor([[5, 6]]))
    assert session._cache.shape[2] > MIN_CAPACITY == max(session.lengths[0])
    frame = session._frame(torch.tensor([[7, 8, 9]]), 0, session.num_layers)
    assert int(frame.positions()[0, 0]) == MIN_CAPACITY + 1
    assert int(frame.positions().max()) < frame.end == frame.text.shape[2]  # attention has room for what it sees


def test_shifted_positions_are_one_too_far(zoo_cache: Path) -> None:
    """The round after one whose drafts all stood computes other logits; the rounds before and behind it are the target's."""
    folder = ensure(("llama-target",), "test", "toy", workers=0)["llama-target"]
    stack = load_model(ModelSpec(name=str(folder))).stack
    wrong, right = controls._Shifted(stack), ModelSession(stack)
    for session in (wrong, right):
        session.prefill(Inputs(((3, 4, 5, 6),)))
    assert torch.equal(*(session.extend(torch.tensor([[7, 8]])) for session in (wrong, right)))
    for session in (wrong, right):
        session.rewind([0])
    assert wrong.lengths == right.lengths
    assert not torch.allclose(*(session.extend(torch.tensor([[9, 10]])) for session in (wrong, right)), atol=1e-4)


def test_a_control_of_the_compiled_loop_is_left_out_where_nothing_compiles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule itself is right, so that there it would be caught by no check."""
    name = "lenience 1.02 in the compiled loop"
    monkeypatch.setattr(audit_run, "CONTROLS", {name: controls.CONTROLS[name]})
    folders = [tmp_path / "compiled", tmp_path / "not"]
    for folder in folders:
        folder.mkdir()
    compiled = found_of_controls(folders[0], 2)[name]
    assert (compiled["caught"], compiled["failed"]) == (True, ["law of draft 0", "law of draft 1"])
    monkeypatch.setattr(rules.fused_cpu, "library", lambda: None)
    assert found_of_controls(folders[1], 2) == {}


def test_a_control_without_a_fault_is_caught_by_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = replace(controls.CONTROLS["shared noise"], uniforms=Uniforms)
    monkeypatch.setattr(audit_run, "CONTROLS", {"harmless": harmless})
    assert not found_of_controls(tmp_path, 200)["harmless"]["caught"]


def test_the_report_is_small_the_same_each_time_and_names_the_test(done: dict, tmp_path: Path) -> None:
    page, data = (path.read_text(encoding="utf8") for path in sorted(documents.write_document(done, tmp_path), reverse=True))
    assert page == documents.as_markdown(json.loads(data))
    assert len(data) < 6000 * len(done["subjects"])
    for words in ("passed: 7 subjects", "Bonferroni", "| no residual", "total variation"):
        assert words in page


def test_a_model_that_hears_is_audited_on_speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make audit TARGET=pocket:whisper-base DRAFT=...` gave it texts to read."""
    asked: list[str] = []
    monkeypatch.setattr(exact, "own_subjects", lambda target, draft, task, *others: asked.append(task) or [])
    for config in (WhisperConfig(), LlamaConfig()):
        config.save_pretrained(tmp_path / config.model_type)
        assert main(["audit", "--target", str(tmp_path / config.model_type), "--draft", "zoo:gpt-draft"]) == 2
    assert asked == ["librispeech-clean", "text"]


def test_the_command_lists_refuses_and_reports_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--scale", "test", "--dry-run"]) == 0
    assert CHOSEN[0] in capsys.readouterr().out
    assert main(["audit", "--target", "x"]) == 2
    assert "--draft belong together" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["audit", "--scale", "test", "--only", CHOSEN[2], "--records", str(tmp_path / "file"), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["audit", "--scale", "test", "--only", "no such subject"]) == 2
    assert "no subject's name holds that" in capsys.readouterr().err


def test_other_sources_or_another_loop_are_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings are reused by this hash: C++ decides tokens as Python does, and so does the choice between the two."""
    monkeypatch.setattr(audit_run, "ROOT", tmp_path)
    monkeypatch.setattr(audit_run, "AUDITED", ("kernels",))
    (tmp_path / "kernels").mkdir()
    seen = []
    for name, text in (("rule.py", "a"), ("rule.cpp", "a"), ("rule.cpp", "b"), ("rule.py", "b")):
        (tmp_path / "kernels" / name).write_text(text, encoding="utf8")
        seen.append(audit_run.hash_audited_code())
    (tmp_path / "kernels" / "README.md").write_text("no code", encoding="utf8")
    assert audit_run.hash_audited_code() == seen[-1]
    monkeypatch.setattr(audit_run.products, "choice", lambda: Choice(1, 4))
    seen.append(audit_run.hash_audited_code())
    monkeypatch.setattr(audit_run.fused, "decided_by", lambda: "another loop")
    seen.append(audit_run.hash_audited_code())
    assert len(set(seen)) == len(seen)
