"""Part 6: PPD with its processes on one device: the tokens of plain decoding, and what a round takes.

In fp32: in half precision a near-tie may part the two texts (on an H200 they parted after 43 tokens of 128). The model has
random weights, as in the loops, so that no download is needed; its early predictions are right as chance has it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from harness.gpu.loops import inputs_of
from harness.gpu.place import Item, Measured, Place
from harness.gpu.shapes import PIPELINE, build
from harness.run.instruments import clock_for
from methods.autoregressive import Autoregressive
from methods.models.base import Stack
from methods.ppd.heads import OwnHead
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.plans import Execution, Plan
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Generation, Stop

DTYPE = "float32"
WAYS: tuple[tuple[Execution, int], ...] = (("simulated", 1), ("process", 1), ("batched", 3))
GREEDY = Sampling(temperature=0.0)


def items(place: Place) -> Sequence[Item]:
    return [Item(name=f"{way}, k = {count}", seconds=15, measure=partial(measure, place, way, count)) for way, count in WAYS]


def measure(place: Place, execution: Execution, candidates: int) -> Measured:
    """Plain decoding and a pipeline that predicts after three quarters of the layers, on the same prompt, greedily."""
    shape = PIPELINE if place.sizes.real_models else PIPELINE.tiny
    stack = build(shape, place.device, DTYPE)
    plan = Plan(early_layer=max(1, 3 * stack.num_layers // 4), num_candidates=candidates)
    method = PredictivePipelinedDecoding(stack, OwnHead(), plan, execution)
    try:
        plain, piped = (_decode(place, one, stack) for one in (Autoregressive(), method))
    finally:
        method.close()
    equal = next((at for at, pair in enumerate(zip(plain.tokens, piped.tokens, strict=False)) if pair[0] != pair[1]), None)
    facts: dict[str, Any] = {
        "model": f"{shape.name}, {stack.num_layers} layers, predicted after {plan.early_layer}",
        "tokens": len(plain.tokens),
        "first token that differs": equal,
        "predictions that were right": sum(step.matched is True for step in piped.steps) / max(1, len(piped.steps)),
        "a plain round, ms": _median_ms(plain),
        "a round, ms": _median_ms(piped),
    }
    return {"facts": facts, "passed": equal is None}


def _decode(place: Place, method: Autoregressive | PredictivePipelinedDecoding, stack: Stack) -> Generation:
    """Decode twice, since the first starts processes and compiles."""
    num_new, inputs = place.sizes.new_tokens, inputs_of(place, stack)
    for _ in range(2):
        numbers, session = Uniforms([0], num_new, place.device), ModelSession(stack)
        [made] = method.generate(session, inputs, GREEDY, numbers, Stop(max_new_tokens=num_new), clock_for(place.device))
    return made


def _median_ms(text: Generation) -> float:
    return float(np.median([step.round_s for step in text.steps])) * 1e3
