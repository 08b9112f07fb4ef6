"""What an audit says of runs whose truth is known: exact ones, a near-tie, a bug, a biased rule."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Divergence, Record
from harness.exact.controls import CONTROLS
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import speedup
from harness.measures.statistics import Estimate, Missing
from harness.models.fit import Models
from harness.run.divergence import classify
from harness.run.prompts import make_prompt, seed_of
from harness.run.replay import reading
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from methods.parts import RULES
from methods.sampling import Sampling, Uniforms
from methods.types import Inputs
from tasks import get_task
from tasks.sources.read import read_examples

CPU_FULL = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


def judged(comparison: Comparison, records: list[list[Record]], runner: Runner) -> dict[str, Any]:
    return judge_run(comparison, records, runner.with_models)


def run(folder: Path, temperature: float, **method: object) -> tuple[Comparison, list[list[Record]], Runner]:
    return run_method(folder, temperature, MethodSpec.of("speculative", drafter=DRAFT, gamma=3, **method))  # type: ignore[arg-type]


def run_method(folder: Path, temperature: float, spec: MethodSpec) -> tuple[Comparison, list[list[Record]], Runner]:
    plain = Experiment(
        task="text",
        profile="test",
        target=ModelSpec(name="zoo:gpt-target"),
        method=MethodSpec(name="autoregressive"),
        sampling=Sampling(temperature=temperature),
        limit=3,
        max_new_tokens=12,
        num_threads=1,
    )
    comparison = Comparison((pin(plain), pin(plain.replace(method=spec))))
    runner = Runner(folder, quiet=True)
    runner.run(comparison)
    return comparison, [runner.records(arm) for arm in comparison.arms], runner


def test_exact_runs_pass(tmp_path: Path) -> None:
    greedy = judged(*run(tmp_path, 0.0))
    assert greedy["verdict"] in ("identical", "near-tie")
    assert greedy["compared"] == 3
    sampled = judged(*run(tmp_path, 1.0))
    assert sampled["verdict"] == "same distribution"
    assert sampled["windows"] >= 2
    assert sampled["largest_deviation"] < 1e-8


def test_a_wrong_token_is_a_bug_and_shows_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "off-by-one", CONTROLS["neighbouring token"].rule)
    comparison, records, runner = run(tmp_path, 0.0, rule="off-by-one")
    found = judged(comparison, records, runner)
    assert found["verdict"] == "bug"
    assert len(found["divergences"]) == 3
    for divergence in found["divergences"]:
        assert divergence["kind"] == "bug"
        assert not divergence["replays_agree"]
    refused = speedup(records[0], records[-1])
    assert isinstance(refused, Missing)
    assert "3 of 3 outputs are not what plain decoding or the replay gives (choice" in refused.why


@pytest.mark.parametrize(("shift", "kind"), [(0.0, "near-tie"), (1.0, "bug")])
def test_a_near_tie_needs_a_small_margin_and_agreeing_replays(tmp_path: Path, shift: float, kind: str) -> None:
    """The same exact method, told that its outputs differ: replays agree, so only the margin decides."""
    comparison, records, runner = run(tmp_path, 0.0)
    arms, plain = (comparison.arms[0], comparison.arms[-1]), records[0][0]
    task = get_task("text")
    models = runner.models(arms[0])
    example = next(iter(read_examples(task, "toy", "test", 3, 0)))
    prompt = make_prompt(task, example, arms[0], models.get(arms[0].target))
    tokens = plain.tokens or []
    other = [*tokens[:4], tokens[4] + 1, *tokens[5:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "NEAR_TIE_FLOAT32", 0.0 if shift else 1e9)
        found = classify(arms, (tokens, other), prompt, 0, models)
    assert (found.position, found.replays_agree, found.kind) == (4, True, kind)


def test_a_sampled_pipeline_must_draw_plain_decodings_tokens(tmp_path: Path) -> None:
    """At the same seeds; where it does not, the margin is how far the random number was from the other token's share."""
    comparison, records, runner = run_method(tmp_path, 1.0, MethodSpec.of("ppd", early_layer=2, candidates=2))
    assert judged(comparison, records, runner)["verdict"] == "identical"
    arms, models = (comparison.arms[0], comparison.arms[-1]), runner.models(comparison.arms[0])
    target = models.get(arms[0].target)
    example = next(iter(read_examples(get_task("text"), "toy", "test", 3, 0)))
    prompt, tokens = make_prompt(get_task("text"), example, arms[0], target), records[0][0].tokens or []
    found = classify(arms, (tokens, [*tokens[:4], tokens[4] + 1, *tokens[5:]]), prompt, 0, models)
    session = target.session()
    pending = session.prefill(Inputs((prompt.tokens,)))
    probs = session.extend(torch.tensor([[*pending, *tokens[:4]]]))[0, -1].double().softmax(-1)
    drawn = float(Uniforms([seed_of(arms[0], example.id, 0)], 12).sample([4]))
    below, share = float(probs[: tokens[4]].sum()), float(probs[tokens[4]])
    assert below <= drawn < below + share
    assert found.margin == pytest.approx(below + share - drawn, abs=1e-6)  # the border between these two tokens
    assert (found.position, found.replays_agree, found.kind) == (4, True, "bug")


def test_times_of_different_processes_are_not_compared(tmp_path: Path) -> None:
    _, records, _ = run(tmp_path, 0.0)
    assert not isinstance(speedup(records[0], records[-1]), Missing)
    elsewhere = [replace(record, run="another") for record in records[-1]]
    refused = speedup(records[0], elsewhere)
    assert isinstance(refused, Missing)
    assert "not interleaved" in refused.why


def test_a_lenient_rule_that_claims_to_be_exact_is_biased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "slightly", CONTROLS["lenience 1.02"].rule)
    found = judged(*run(tmp_path, 1.0, rule="slightly"))
    assert found["verdict"] == "biased"
    assert found["largest_deviation"] > 1e-5


def test_lossy_methods_are_called_lossy(tmp_path: Path) -> None:
    assert judged(*run(tmp_path, 1.0, rule="lenience", lenience=0.3))["verdict"] == "lossy"
    assert judged(*run(tmp_path, 1.0))["verdict"] == "same distribution"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory left"), MemoryError(), RuntimeError(CPU_FULL)])
def test_a_divergence_that_memory_does_not_suffice_for_is_unresolved(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on, and later divergences use the copies that an earlier one loaded."""
    comparison, records, runner = run(tmp_path, 0.0)
    arms, tokens = (comparison.arms[0], comparison.arms[-1]), records[0][0].tokens or []
    models, example = runner.models(arms[0]), next(iter(read_examples(get_task("text"), "toy", "test", 3, 0)))
    prompt = make_prompt(get_task("text"), example, arms[0], models.get(arms[0].target))
    pair = (tokens, [*tokens[:4], tokens[4] + 1, *tokens[5:]])
    classify(arms, pair, prompt, 0, models)
    copy = models.in_fp64.get(arms[0].target)
    classify(arms, pair, prompt, 0, models)
    assert models.in_fp64.get(arms[0].target) is copy

    def full(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("harness.models.fit.load_model", full)
    found = classify(arms, pair, prompt, 0, Models())
    assert (found.position, found.kind, found.margin) == (4, "unresolved", None)
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="shapes"):
        classify(arms, pair, prompt, 0, Models())


def test_no_speed_is_shown_where_more_than_a_tenth_of_the_outputs_are_unresolved(
    synthetic: SimpleNamespace, arms: SimpleNamespace
) -> None:
    """In either arm; what failed is no output."""
    names = [f"text {number}" for number in range(20)]
    unresolved = Divergence(position=3, margin=None, bound=None, replays_agree=False, kind="unresolved")
    for spoiled in (0, 1):
        both = [
            [synthetic.plain(arms.plain, name) for name in names],
            [synthetic.drafted(arms.drafted, name) for name in names],
        ]
        for record in both[spoiled][:2]:
            record.divergence = unresolved
        assert isinstance(speedup(*both), Estimate)
        both[spoiled][-1].status = "failed"
        refused = speedup(*both)
        assert isinstance(refused, Missing)
        assert "2 of 19 outputs part from plain decoding's where memory did not suffice to tell why" in refused.why
