"""The pipeline on a real checkpoint, in fp64: what it emits is what plain decoding emits."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from methods.autoregressive import Autoregressive
from methods.models import stack_for
from methods.ppd.heads import OwnHead
from methods.ppd.options import EXECUTIONS
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.plans import Execution, Plan
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Inputs, Stop


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_public_checkpoint_says_the_same(shared: Path, execution: Execution, temperature: float) -> None:
    model = AutoModelForCausalLM.from_pretrained(shared / "models" / "stories260K", dtype=torch.float64)
    stack = stack_for(model.eval().requires_grad_(False))
    inputs, stop = Inputs(((1, 403, 407, 261), (1,))), Stop(max_new_tokens=48)
    sampling, uniforms = Sampling(temperature=temperature), Uniforms((5, 6), 48)
    plain = Autoregressive().generate(ModelSession(stack), inputs, sampling, uniforms, stop)
    method = PredictivePipelinedDecoding(stack, OwnHead(), Plan(early_layer=3, num_candidates=2), execution)
    piped = method.generate(ModelSession(stack), inputs, sampling, uniforms, stop)
    method.close()
    assert [generation.tokens for generation in piped] == [generation.tokens for generation in plain]
    assert {step.matched for generation in piped for step in generation.steps} == {True, False, None}
