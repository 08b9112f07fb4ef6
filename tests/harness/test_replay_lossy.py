"""Replays of lossy rules: clean runs hold, and a decision that the rule's definition does not give is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_replay import MODEL, run

from harness.core.experiment import DrafterSpec, MethodSpec, ModelSpec
from harness.zoo.build import ensure
from kernels.verify import sigmoid
from kernels.verify.sigmoid import Scaling
from methods.sampling import Uniforms
from methods.specdec.rules import TopBeta
from methods.speculative import engine_rules
from methods.speculative.engine_rules import Typical
from methods.speculative.rules import Lenience

Fault = Callable[[pytest.MonkeyPatch], None]
COPY = DrafterSpec(kind="copy")
BIGRAM = DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-gpt"))


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    ensure(("gpt-target", "gpt-draft", "ngram-gpt"), "test", "toy", workers=0)


def method_of(rule: str, drafter: DrafterSpec = MODEL, **options: Any) -> MethodSpec:
    return MethodSpec.of("speculative", drafter=drafter, rule=rule, **{"gamma": 3, **options})


@pytest.mark.parametrize(
    ("rule", "options", "sampling"),
    [
        ("lenience", {"lenience": 0.3}, {"temperature": 0.0}),
        ("lenience", {"lenience": 0.3, "as_described": True}, {"temperature": 0.0}),
        ("top-beta", {"beta": 2, "tau": 0.7}, {"temperature": 0.0}),
        ("top-beta", {"beta": 3, "tau": 2.0, "cap": "printed"}, {"temperature": 0.0}),
        ("typical", {}, {"temperature": 0.0}),
        ("typical", {}, {"temperature": 1.0}),
        ("typical", {"epsilon": 0.02, "delta": 0.1}, {"temperature": 0.7, "top_k": 20}),
        ("target-greedy", {}, {"temperature": 0.0}),
        ("target-greedy", {}, {"temperature": 1.0}),
        ("sigmoid", {}, {"temperature": 0.0}),
        ("sigmoid", {}, {"temperature": 1.0}),
        ("sigmoid", {"scale": 1.0}, {"temperature": 1.0}),
        ("sigmoid", {"scale": 1e5}, {"temperature": 0.8, "top_k": 20}),
        ("sigmoid-released", {}, {"temperature": 1.0}),
        ("sigmoid-released", {"scale": 1.0}, {"temperature": 0.5, "top_p": 0.9}),
    ],
)
def test_every_decision_of_a_lossy_run_holds(tmp_path: Path, rule: str, options: dict, sampling: dict) -> None:
    for drafter in (MODEL, COPY, BIGRAM):
        folder = tmp_path / drafter.kind
        found, records = run(folder, 0.0, method_of(rule, drafter, **options), tokens=40, batch_size=2, sampled=sampling)
        assert found["verdict"] == "lossy"
        assert found["summary"].endswith("each as its rule takes what the target gives")
        assert found["replayed"]["faults"] == 0, [one.divergence for one in records[-1]]
        for record in records[-1]:
            assert record.steps is not None
            assert (record.replayed or 0) > sum(record.steps.num_accepted)


def test_sigmoids_in_half_precision_are_not_said_to_be_replayed(tmp_path: Path) -> None:
    """Fault: "each as the target gives it", of drafts alone, where nothing of what the rule decided was looked at."""
    found, records = run(tmp_path, 1.0, method_of("sigmoid"), tokens=12, dtype="bfloat16")
    assert "none of them the method's own, each as the target gives it" in found["summary"]
    assert [one.replayed for one in records[-1]] == [None] * 3
    assert all(one.replayed for one in records[0])


def changed(kind: type, **settings: Any) -> Fault:
    """A rule that decides by other settings than it was given."""

    def fault(patch: pytest.MonkeyPatch) -> None:
        verify = kind.verify  # type: ignore[attr-defined]

        def wrong(own: Any, *arguments: Any) -> Any:
            before = {name: getattr(own, name) for name in settings}
            vars(own).update(settings)
            try:
                return verify(own, *arguments)
            finally:
                vars(own).update(before)

        patch.setattr(kind, "verify", wrong)

    return fault


def entropy_of_the_best_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Typical, "accepts", lambda own, probs: probs > (own.delta * probs.amax(-1, keepdim=True)).clamp(max=own.epsilon)
    )


def second_choices(patch: pytest.MonkeyPatch) -> None:
    """The token behind the drafts is the target's second choice, in one round of four."""
    verdict, calls = engine_rules._verdict, iter(range(10**6))

    def wrong(proposal: Any, logits: torch.Tensor, sampling: Any, accepted: Any, best: torch.Tensor, **draws: Any) -> Any:
        second = logits.topk(2).indices[..., 1]
        return verdict(proposal, logits, sampling, accepted, second if next(calls) % 4 == 3 else best, **draws)

    patch.setattr(engine_rules, "_verdict", wrong)


def a_bonus_from_acceptance_numbers(patch: pytest.MonkeyPatch) -> None:
    verify = Uniforms.verify

    def wrong(own: Uniforms, starts: list[int], count: int) -> torch.Tensor:
        table = verify(own, starts, count).clone()
        table[:, -1] = table[:, 0]
        return table

    patch.setattr(Uniforms, "verify", wrong)


def sigmoids_of(**settings: float) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        activate = Scaling.activate
        other = Scaling(**settings)
        patch.setattr(Scaling, "activate", lambda own, logits: activate(other, logits))

    return fault


def residuals_of_the_target_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sigmoid, "_residual", lambda round, row, draft, num_accepted, scaling: scaling.activate(row))


def bonus_by_softmax(patch: pytest.MonkeyPatch) -> None:
    whole = sigmoid._last_token_weights

    def wrong(row: torch.Tensor, left: Any, total: Any, rejected: torch.Tensor, scaling: Scaling) -> torch.Tensor:
        return torch.where(rejected, whole(row, left, total, rejected, scaling), row.softmax(-1))

    patch.setattr(sigmoid, "_last_token_weights", wrong)


@pytest.mark.parametrize(
    ("rule", "options", "temperature", "fault"),
    [
        ("lenience", {"lenience": 0.3}, 0.0, changed(Lenience, lenience=0.6)),
        ("top-beta", {"beta": 2, "tau": 3.0}, 0.0, changed(TopBeta, beta=3)),
        ("top-beta", {"beta": 5, "tau": 0.7}, 0.0, changed(TopBeta, tau=1.0)),
        ("typical", {"epsilon": 0.9, "delta": 0.9}, 1.0, entropy_of_the_best_alone),
        ("typical", {}, 1.0, second_choices),
        ("typical", {}, 0.0, second_choices),
        ("target-greedy", {}, 1.0, second_choices),
        ("target-greedy", {"gamma": 1}, 1.0, a_bonus_from_acceptance_numbers),
        ("sigmoid", {}, 1.0, a_bonus_from_acceptance_numbers),
        ("sigmoid", {}, 1.0, sigmoids_of(alpha=-2e3, beta=2e3)),
        ("sigmoid", {"scale": 1.0}, 1.0, residuals_of_the_target_alone),
        ("sigmoid", {"scale": 1.0}, 1.0, bonus_by_softmax),
        ("sigmoid-released", {}, 1.0, sigmoids_of(alpha=-1.1e3, beta=0.9e3)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_a_lossy_rule_does_not_say_is_found(
    rule: str, options: dict, temperature: float, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a run of a lossy rule showed its speed whatever it had decided by."""
    fault(monkeypatch)
    found, _ = run(tmp_path, temperature, method_of(rule, **options), tokens=60)
    assert found["replayed"]["faults"] > 0
    assert found["verdict"] == "bug"
