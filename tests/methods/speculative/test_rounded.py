"""Self-speculation by rounding: the target with rounded weights drafts, behind what the target has read."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, MethodSpec, ModelSpec
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.build import build_drafter
from harness.run.peers import peer_method
from harness.run.refusals import check_names, check_rounded
from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts, rounded
from methods.speculative.overlap import teacher_logits
from methods.speculative.rounded import RoundedDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Inputs, Stop

CHECKPOINTS = Path(__file__).resolve().parents[3] / "results" / "baselines" / "checkpoints"
PROMPTS, OUTPUT, STOP = ((5, 9, 200, 31, 77), (77, 3)), (12, 300, 4, 9, 55, 8), Stop(max_new_tokens=12)


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(dtype="float64")


def target_of(models: Models, name: str) -> LoadedModel:
    return models.get(ModelSpec(name=str(CHECKPOINTS / name)))


def drafter_of(models: Models, target: LoadedModel) -> RoundedDrafter:
    drafter = build_drafter(DrafterSpec(kind="rounded", model=ModelSpec(name=f"int8:{target.name}")), target, models)
    assert isinstance(drafter, RoundedDrafter)
    return drafter


def inputs_of(target: LoadedModel) -> Inputs:
    if target.listener is None:
        return Inputs(PROMPTS)
    shape = target.stack.feature_shape
    assert shape is not None
    torch.manual_seed(0)
    return Inputs((target.opening,) * 2, features=torch.randn(2, *shape, dtype=torch.float64))


def test_drafts_have_the_rounded_models_law_behind_the_targets_cache(models: Models) -> None:
    """Against transformers' two models: a draft that reads its prompt by rounded weights has another law."""
    target = target_of(models, "llama-target")
    drafter, prompt = drafter_of(models, target), PROMPTS[0]
    draft = drafter.session.stack.model
    laws = torch.cat(list(teacher_logits(drafter.session, Inputs((prompt,)), OUTPUT)[1]))
    cache = DynamicCache(config=target.stack.model.config)
    rows = torch.tensor([[prompt[-1], *OUTPUT[:-1]]])
    with torch.no_grad():
        target.stack.model(torch.tensor([prompt[:-1]]), past_key_values=cache, use_cache=True)
        expected = draft(rows, past_key_values=cache).logits[0]
        alone = draft(torch.tensor([[*prompt, *OUTPUT[:-1]]])).logits[0, len(prompt) - 1 :]
    assert torch.allclose(laws, expected, atol=1e-5)  # transformers norms in fp32
    assert float((expected - alone).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["llama-target", "t5-target", "whisper-target", "specdec-verifier"])
def test_what_a_session_lends_is_what_it_would_read_anew(models: Models, name: str) -> None:
    """And the target's session stays as it is, whatever becomes of the draft's."""
    target = target_of(models, name)
    drafter, inputs = drafter_of(models, target), inputs_of(target)
    session, untouched = ModelSession(target.stack), ModelSession(target.stack)
    pending = session.prefill(inputs)
    rows = torch.tensor([[pending[0], *OUTPUT[:3]], [pending[1], *OUTPUT[3:]]])
    assert drafter.session.prefill(inputs) == pending == untouched.prefill(inputs)  # nothing is lent: it is read anew
    expected = drafter.session.extend(rows)
    drafter.read(session)
    assert drafter.session.prefill(inputs) == pending
    assert torch.equal(drafter.session.extend(rows), expected)
    drafter.session.select([1])
    drafter.session.extend(rows[:1])
    assert torch.equal(session.extend(rows), untouched.extend(rows))
    assert drafter.session.prefill(inputs) == pending  # what was lent served one text
    assert torch.equal(drafter.session.extend(rows), expected)


@pytest.mark.parametrize("name", ["llama-target", "t5-target", "whisper-target"])
def test_greedy_output_is_plain_decodings_in_a_batch(models: Models, name: str) -> None:
    target = target_of(models, name)
    method = DraftAndVerify(drafter_of(models, target), SpeculativeSampling(), partial(Constant, 3))
    found, expected = (
        one.generate(ModelSession(target.stack), inputs_of(target), Sampling(), Uniforms([0, 1], 12), STOP)
        for one in (method, Autoregressive())
    )
    assert [row.tokens for row in found] == [row.tokens for row in expected]
    steps = [step for row in found for step in row.steps]
    assert sum(step.num_accepted for step in steps) > 0.8 * sum(len(step.drafted) for step in steps) > 0


@pytest.mark.parametrize("name", ["llama-target", "t5-target", "whisper-target"])
def test_the_target_reads_inputs_once(models: Models, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a draft that reads them anew by the target's weights has the same laws, and takes twice as long to begin."""
    target, read, whole = target_of(models, name), list[ModelSession](), ModelSession.prefill
    method = DraftAndVerify(drafter_of(models, target), SpeculativeSampling(), partial(Constant, 3))
    monkeypatch.setattr(ModelSession, "prefill", lambda session, inputs: read.append(session) or whole(session, inputs))
    own = ModelSession(target.stack)
    method.generate(own, inputs_of(target), Sampling(), Uniforms([0, 1], 12), STOP)
    assert read == [own]


def test_a_session_of_another_model_is_not_taken_for_the_targets(models: Models) -> None:
    target = target_of(models, "llama-target")
    drafter, inputs = drafter_of(models, target), Inputs(PROMPTS)
    rounded_alone = ModelSession(drafter.session.stack)
    drafter.session.prefill(inputs)
    expected = drafter.session.extend(torch.tensor([OUTPUT[:3], OUTPUT[3:]]))
    rounded_alone.prefill(inputs)
    drafter.read(rounded_alone)
    drafter.session.prefill(inputs)
    assert torch.equal(drafter.session.extend(torch.tensor([OUTPUT[:3], OUTPUT[3:]])), expected)


def test_other_layers_are_refused(models: Models) -> None:
    target, other = target_of(models, "llama-target"), target_of(models, "llama-draft")
    with pytest.raises(InputError, match="drafter rounded: expected the target's own layers, with rounded weights, on one"):
        rounded(DraftParts(vocab_size=target.vocab_size, session=other.session(), target=target.stack))


TARGET, PINNED = ModelSpec(name="org/model"), ModelSpec(name="org/model", revision="a")
INT8 = ModelSpec(name="int8:org/model")
OWN = "drafter 'rounded' drafts with the target's own weights; expected bf16:org/model or int8:"
MISNAMED = [
    (TARGET, None, f"draft none: {OWN}org/model"),
    (TARGET, TARGET, f"draft org/model: {OWN}org/model"),
    (TARGET, ModelSpec(name="int8:org/other"), f"draft int8:org/other: {OWN}org/model"),
    (TARGET, replace(INT8, untrained=True), f"draft int8:org/model: {OWN}org/model"),
    (PINNED, replace(INT8, revision="b"), f"draft int8:org/model at b: {OWN}org/model at a"),
    (INT8, INT8, "target int8:org/model: drafter 'rounded' has no narrower weights; expected org/model"),
    (replace(TARGET, device_map="auto"), INT8, "device_map 'auto': drafter 'rounded' drafts on one device"),
]


@pytest.mark.parametrize(("target", "draft", "said"), MISNAMED)
def test_another_model_is_refused_by_its_name(target: ModelSpec, draft: ModelSpec | None, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_rounded(draft, target)
    assert said in str(caught.value)


def test_narrower_weights_of_the_target_may_draft() -> None:
    for target, names in ((TARGET, ("int8", "bf16")), (replace(TARGET, name="bf16:org/model"), ("int8",))):
        for name in names:
            check_rounded(ModelSpec(name=f"{name}:org/model"), target)
    check_rounded(ModelSpec(name="int8:org/model", revision="a"), PINNED)


@pytest.mark.parametrize("method", ["speculative-beam", "transformers"])
def test_methods_whose_drafts_read_every_prompt_are_refused(method: str) -> None:
    drafter = DrafterSpec(kind="rounded", model=ModelSpec(name="int8:org/model"))
    with pytest.raises(
        UsageError, match=f"drafter 'rounded': in method '{method}' a draft reads every prompt itself; expected"
    ):
        check_names(MethodSpec.of(method, drafter=drafter))
    check_names(MethodSpec.of("speculative", drafter=drafter))


def test_transformers_beside_it_drafts_with_the_same_weights() -> None:
    drafter = DrafterSpec(kind="rounded", model=ModelSpec(name="int8:org/model"))
    lent = peer_method("assistant", MethodSpec.of("speculative", drafter=drafter), drafter).drafter
    assert lent == DrafterSpec(kind="model", model=drafter.model)
