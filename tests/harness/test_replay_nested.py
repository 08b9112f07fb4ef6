"""The replay of drafts that are drafted for in turn: right ones hold, and what goes wrong inside turns a run red."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_replay import Fault, run

from harness.core.experiment import DrafterSpec, MethodSpec, ModelSpec
from harness.exact.controls import CONTROLS
from harness.run.replay import outputs
from harness.zoo.build import ensure
from methods.sampling import EndlessUniforms, Sampling, Uniforms
from methods.speculative.model import HierarchicalDrafter

DRAFT = ModelSpec(name="zoo:gpt-draft")
INNER = {
    "copy": DrafterSpec(kind="copy"),
    "model": DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-target")),  # another model: some of its drafts fall
    "bigram": DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-gpt")),
}
SAMPLED = {"T 1": {"temperature": 1.0}, "T 2": {"temperature": 2.0}, "filters": {"temperature": 0.7, "top_k": 20, "top_p": 0.9}}


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft", "ngram-gpt"), "test", "toy", workers=0)


def drafted_for(kind: str, rule: str = "speculative-sampling") -> MethodSpec:
    drafter = DrafterSpec(kind="hierarchical", model=DRAFT, inner=INNER[kind], options={"inner_gamma": 2})
    return MethodSpec.of("speculative", drafter=drafter, rule=rule, gamma=5)


@pytest.mark.parametrize("kind", INNER)
@pytest.mark.parametrize("sampled", SAMPLED.values(), ids=SAMPLED)
def test_right_drafts_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sampled: dict[str, Any]) -> None:
    made = list[Any]()
    whole = outputs.NestedDrafts.decisions
    monkeypatch.setattr(outputs.NestedDrafts, "decisions", lambda own: made.append((own, list(whole(own)))) or made[-1][1])
    found, _ = run(tmp_path, 1.0, drafted_for(kind), which="all", sampled=sampled)
    assert found["verdict"] == "same distribution"
    looked_at = sum(len(decisions) for _, decisions in made)
    decided = sum(min(one.step.num_accepted + 1, len(one.step.drafted)) for own, _ in made for one in own.drafts.output.rounds)
    assert 0.9 * decided <= looked_at <= decided, "nearly all drafts that were decided on are looked at"


@pytest.mark.parametrize("rule", ["speculative-sampling", "block-verification"])
def test_right_drafts_of_rows_that_end_apart_hold(tmp_path: Path, rule: str) -> None:
    found, _ = run(tmp_path, 1.0, drafted_for("model", rule), which="all", batch_size=3)
    assert found["verdict"] == "same distribution"


def another_temperature_inside(patch: pytest.MonkeyPatch) -> None:
    whole = HierarchicalDrafter._round

    def cooler(own: HierarchicalDrafter, positions: Sequence[int], sampling: Sampling, logits: Any) -> None:
        whole(own, positions, replace(sampling, temperature=sampling.temperature / 2), logits)

    patch.setattr(HierarchicalDrafter, "_round", cooler)


def numbers_of_the_level_above(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Uniforms, "nested", lambda own: own)


def inner_rounds_at_one_place(patch: pytest.MonkeyPatch) -> None:
    """Every inner round of a round looks at the numbers of the first one."""
    whole = HierarchicalDrafter.propose

    def propose(own: HierarchicalDrafter, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Any:
        numbers = own.uniforms
        own.uniforms = type("Fixed", (), {"verify": lambda _, starts, count: numbers.verify(positions, count)})()
        try:
            return whole(own, num_draft, positions, sampling)
        finally:
            own.uniforms = numbers

    patch.setattr(HierarchicalDrafter, "propose", propose)


def no_residual_inside(patch: pytest.MonkeyPatch) -> None:
    begin, wrong = HierarchicalDrafter.__init__, CONTROLS["no residual"].rule

    def init(own: HierarchicalDrafter, *given: Any) -> None:
        begin(own, *given)
        own.rule = wrong()

    patch.setattr(HierarchicalDrafter, "__init__", init)


@pytest.mark.parametrize(
    "fault", [another_temperature_inside, numbers_of_the_level_above, inner_rounds_at_one_place, no_residual_inside]
)
def test_what_goes_wrong_inside_turns_a_run_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    fault(monkeypatch)
    found, _ = run(tmp_path, 1.0, drafted_for("model"), which="all")
    assert found["verdict"] == "bug"
    assert "draft" in found["summary"].partition(";")[0]


def test_numbers_that_are_forgotten_where_a_row_ends_turn_a_run_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what is behind the first numbers of a row that another left was that of the level above."""
    whole = EndlessUniforms.select

    def select(own: EndlessUniforms, rows: Sequence[int]) -> Uniforms:
        chosen = whole(own, rows)
        chosen.level = 0
        return chosen

    monkeypatch.setattr(EndlessUniforms, "select", select)
    found, _ = run(tmp_path, 1.0, drafted_for("model", "block-verification"), which="all", batch_size=3, tokens=40)
    assert found["verdict"] == "bug"
