"""Targets that are laid on devices by transformers: on one device they are what they were; what cannot be spread is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec
from harness.models import loading as models
from harness.models.fit import Models
from harness.models.loading import LoadedModel, load_model
from harness.models.names import pin_model
from harness.run.build import build_method
from harness.run.replay import Reader, replay
from harness.zoo.build import ensure
from methods.autoregressive import Autoregressive
from methods.sampling import Sampling, Uniforms
from methods.spread import SpreadSession
from methods.types import Inputs, Stop

SPEC = ModelSpec(name="zoo:gpt-target", device_map="auto")


@pytest.fixture(scope="module")
def spec(zoo_cache: Path) -> ModelSpec:
    ensure(("gpt-target",), "test", "toy", workers=0)
    return pin_model(SPEC, "test", "toy")


def logits(model: LoadedModel) -> torch.Tensor:
    session = model.session()
    session.prefill(Inputs(((1, 5, 9, 4),)))
    return session.extend(torch.tensor([[4, 7]]))


def in_parts(model: LoadedModel) -> LoadedModel:
    stack, half = model.stack, model.stack.num_layers // 2
    stack.parts = tuple((first, last, stack.part(first, last, stack.device)) for first, last in ((0, half), (half, 2 * half)))
    return model


def test_a_mapped_model_says_what_the_other_says(spec: ModelSpec) -> None:
    pytest.importorskip("accelerate", reason="the package accelerate is not installed: .venv/bin/pip install -e '.[spread]'")
    plain, mapped = load_model(replace(spec, device_map=None)), load_model(spec)
    assert mapped.stack.parts == ()
    assert torch.equal(logits(plain), logits(mapped))
    assert isinstance(in_parts(mapped).session(), SpreadSession)
    assert torch.equal(logits(plain), logits(mapped))


def test_rounding_of_a_model_in_parts_is_no_fault(spec: ModelSpec) -> None:
    """In half precision one token at a time and all at once differ by more than they may in fp32."""
    models, sampling = Models(dtype="bfloat16"), Sampling(temperature=1.0)
    target = in_parts(load_model(replace(spec, device_map=None), dtype="bfloat16"))
    method, inputs = Autoregressive(), Inputs(((1, 5, 9, 4),))
    for seed in range(12):
        made = method.generate(target.session(), inputs, sampling, Uniforms([seed], 60), Stop(max_new_tokens=60))[0]
        found = replay(method, Reader(target, sampling, models), inputs, made, seed, 60)
        assert found is not None
        assert (found.decisions, found.fault) == (60, None)


def test_methods_with_caches_of_their_own_are_refused(spec: ModelSpec) -> None:
    target = in_parts(load_model(replace(spec, device_map=None)))
    for method in ("ppd", "transformers"):
        with pytest.raises(UsageError, match=f"method '{method}': zoo:gpt-target lies on several devices"):
            build_method(MethodSpec(name=method), target, Models())


def test_what_is_missing_or_unknown_is_named(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="device_map 'balanced' of model zoo:gpt-target: expected auto"):
        load_model(replace(spec, device_map="balanced"))
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"run: \.venv/bin/pip install -e '\.\[spread\]'"):
        load_model(spec)


def test_a_model_on_several_devices_has_another_signature() -> None:
    one = Experiment(task="text", target=replace(SPEC, device_map=None), method=MethodSpec(name="autoregressive"))
    assert one.signature != one.replace(target=SPEC).signature
