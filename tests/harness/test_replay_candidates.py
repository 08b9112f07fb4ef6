"""Replays of PPD's candidates: what an early layer says is read by transformers' own model, and wrong candidates are found."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from harness.core.experiment import ModelSpec
from harness.exact.fit import draw_rows
from harness.models.fit import Models
from harness.models.loading import LoadedModel, load_model
from harness.models.names import pin_model
from harness.run.replay import Reader, replay
from harness.run.replay.candidates import early_logits
from harness.zoo.build import ensure
from methods.models import stack_for
from methods.ppd import pipeline
from methods.ppd.heads import EarlyHead, OwnHead, TrainedHeads
from methods.ppd.memory import PipelineSession
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.plans import Plan
from methods.sampling import Sampling
from methods.steps import Step
from methods.types import Inputs

PROMPT, LENGTH, SEED, COUNT = Inputs(((5, 6, 7),)), 40, 3, 2
CONFIGS = {
    "llama": LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2),
    "gpt2": GPT2Config(vocab_size=30, n_embd=16, n_layer=3, n_head=2),
}
Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def target(zoo_cache: Path) -> LoadedModel:
    ensure(["gpt-target"], "test", "toy", workers=0)
    return load_model(pin_model(ModelSpec(name="zoo:gpt-target"), "test", "toy"))


def random_heads(target: LoadedModel, layer: int) -> TrainedHeads:
    shape = (target.stack.vocab_size, target.stack.head_weight.shape[0])
    return TrainedHeads({layer: torch.randn(shape, generator=torch.Generator().manual_seed(4))}, target.stack)


def what_is_wrong(target: LoadedModel, head: EarlyHead | None = None, temperature: float = 0.0) -> list[str]:
    """Decode by a pipeline and replay it; the fault that is found, if any. As many decisions as there should be."""
    layer, sampling = target.stack.num_layers - 1, Sampling(temperature=temperature)
    method = PredictivePipelinedDecoding(
        target.stack, head or OwnHead(), Plan(early_layer=layer, num_candidates=COUNT), "simulated"
    )
    [row] = draw_rows(method, target.session(), PROMPT, sampling, [SEED], LENGTH)[1]
    found = replay(method, Reader(target, sampling, Models("cpu", "float32")), PROMPT, row, SEED, LENGTH)
    assert found is not None
    assert found.decisions == LENGTH + 2 * (LENGTH - 1)  # nothing is predicted for the token behind the last one
    return [] if found.fault is None else [found.fault.what or ""]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["N", "Y"])
def test_candidates_of_an_exact_pipeline_hold(target: LoadedModel, kind: str, temperature: float) -> None:
    head = OwnHead() if kind == "N" else random_heads(target, target.stack.num_layers - 1)
    assert what_is_wrong(target, head, temperature) == []


def second_best(patch: pytest.MonkeyPatch) -> None:
    whole = pipeline._most_likely
    patch.setattr(pipeline, "_most_likely", lambda logits, count: whole(logits, count + 1)[1:])


def one_twice(patch: pytest.MonkeyPatch) -> None:
    whole = pipeline._most_likely
    patch.setattr(pipeline, "_most_likely", lambda logits, count: whole(logits, 1) * count)


def own_head_always(patch: pytest.MonkeyPatch) -> None:
    whole = PipelineSession.head
    patch.setattr(PipelineSession, "head", lambda own, hidden, weight=None: whole(own, hidden))


def behind_the_first_layer(patch: pytest.MonkeyPatch) -> None:
    """A head that reads what a layer gave before the others ran."""
    run_layers, head, states = PipelineSession.run_layers, PipelineSession.head, list[torch.Tensor]()

    def run_some(own: PipelineSession, hidden: torch.Tensor, first: int, last: int) -> torch.Tensor:
        states[:] = [hidden]
        return run_layers(own, hidden, first, last)

    def read(own: PipelineSession, hidden: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
        return head(own, states[0] if weights else hidden, *weights)

    patch.setattr(PipelineSession, "run_layers", run_some)
    patch.setattr(PipelineSession, "head", read)


class Untold(Step):
    """A round that tells no match."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, False if name == "matched" and value else value)


def no_match_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline, "Step", Untold)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (second_best, "candidate"),
        (one_twice, "match"),
        (own_head_always, "candidate"),
        (behind_the_first_layer, "candidate"),
        (no_match_told, "match"),
    ],
)
def test_wrong_candidates_are_found(target: LoadedModel, monkeypatch: pytest.MonkeyPatch, fault: Fault, what: str) -> None:
    """The text stays right: nothing but a match rate shows these."""
    head = random_heads(target, target.stack.num_layers - 1) if fault is own_head_always else None
    assert what_is_wrong(target, head) == []
    fault(monkeypatch)
    assert what_is_wrong(target, head) == [what]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_an_early_layer_is_read_by_the_familys_own_norm_and_head(family: str, trained: bool) -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    stack, tokens = stack_for(model), [9, 8, 7, 6]
    numbers = torch.randn(stack.head_weight.shape, generator=torch.Generator().manual_seed(5))
    weight = numbers if trained else None
    for layer in range(1, stack.num_layers):
        found = early_logits(stack, PROMPT, tokens, layer, weight)
        with torch.no_grad():
            states = model(torch.tensor([[*PROMPT.prompts[0], *tokens[:-1]]]), output_hidden_states=True).hidden_states[layer]
            normed = (model.transformer.ln_f if family == "gpt2" else model.model.norm)(states)[0, -len(tokens) :]
        torch.testing.assert_close(found, normed @ (model.lm_head.weight.t() if weight is None else weight))
