"""What an audit says of runs whose truth is known: exact ones, a near-tie, a bug, a biased rule."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness import audit as audit_module
from harness import zoo
from harness.audit import Divergence, audit
from harness.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.records import Record
from harness.runner import Runner, pin
from methods.sampling import Sampling
from methods.speculative.rules import RULES, SpeculativeSampling
from methods.types import Proposal, Verdict

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))


@pytest.fixture(scope="module", autouse=True)
def _models(zoo_cache: Path) -> None:
    zoo.ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0)


def run(folder: Path, temperature: float, **method: object) -> tuple[Comparison, list[list[Record]], Runner]:
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
    spec = MethodSpec(name="speculative", drafter=DRAFT, gamma=3, **method)  # type: ignore[arg-type]
    comparison = Comparison((pin(plain), pin(plain.replace(method=spec))))
    runner = Runner(folder, quiet=True)
    runner.run(comparison)
    return comparison, [runner.records(arm) for arm in comparison.arms], runner


def test_exact_runs_pass(tmp_path: Path) -> None:
    greedy = audit(*run(tmp_path, 0.0))
    assert greedy["verdict"] in ("identical", "near-tie")
    assert greedy["compared"] == 3
    sampled = audit(*run(tmp_path, 1.0))
    assert sampled["verdict"] == "same distribution"
    assert sampled["windows"] >= 2
    assert sampled["largest_deviation"] < 1e-8


def test_a_wrong_token_is_a_bug(tmp_path: Path) -> None:
    comparison, records, runner = run(tmp_path, 0.0)
    tokens = records[-1][1].tokens or []
    wrong = replace(records[-1][1], tokens=[*tokens[:5], (tokens[5] + 1) % 100, *tokens[6:]])
    logits = audit_module._logits_at(comparison.arms[0], records[0][1], 5, runner.models(comparison.arms[0]))
    found = audit(comparison, [records[0], [records[-1][0], wrong, records[-1][2]]], runner)
    [divergence] = found["divergences"]
    assert divergence["position"] == 5
    assert divergence["margin"] == pytest.approx(float(logits.topk(2).values.diff().abs()), abs=1e-6)
    assert found["verdict"] == ("bug" if divergence["margin"] >= 1e-4 else "near-tie")
    assert divergence["margin"] >= 1e-4


@pytest.mark.parametrize(
    ("margin", "agree", "kind"), [(1e-5, True, "near-tie"), (1e-5, False, "bug"), (1e-3, True, "bug"), (1e-3, False, "bug")]
)
def test_a_near_tie_needs_both_a_small_margin_and_agreeing_replays(margin: float, agree: bool, kind: str) -> None:
    assert Divergence("a", 0, 3, margin, 1e-4, agree).kind == kind


def test_a_lenient_rule_that_claims_to_be_exact_is_biased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slightly(SpeculativeSampling):
        """Compares with 1.02 times the target's probability."""

        def verify(
            self, proposal: Proposal, target_logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor
        ) -> Verdict:
            return super().verify(proposal, target_logits, sampling, torch.cat((uniforms[:, :-1] / 1.02, uniforms[:, -1:]), -1))

    monkeypatch.setitem(RULES, "slightly", Slightly)
    found = audit(*run(tmp_path, 1.0, rule="slightly"))
    assert found["verdict"] == "biased"
    assert found["largest_deviation"] > 1e-5


def test_lossy_methods_are_called_lossy(tmp_path: Path) -> None:
    assert audit(*run(tmp_path, 1.0, rule="lenience", lenience=0.3))["verdict"] == "lossy"
    assert audit(*run(tmp_path, 1.0))["verdict"] == "same distribution"
