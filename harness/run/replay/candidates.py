"""Candidates of the PPD pipeline, held to what their early layer gives behind the emitted text.

transformers' own model reads the text once more for each early layer; its last layer then hands on what the early one gave, so
that the family's own final norm and head make logits of it. Of our code only a trained head's weights are used.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from harness.run.replay.decisions import Decision
from harness.run.replay.reading import HALF, NEAR_TIE_FLOAT32, read_text
from methods.models.base import Stack
from methods.ppd.heads import EarlyHead
from methods.types import Generation, Inputs


def candidates(head: EarlyHead, stack: Stack, inputs: Inputs, made: Generation) -> Iterator[Decision]:
    """Yield, of every round that predicted, how much likelier a token is that is no candidate, and whether the match is told.

    k candidates are the k likeliest tokens of the early layer. No bound is known in half precision, and a model on several
    devices is not read so: only matches are held to the text there.
    """
    rounds = [(position, step) for position, step in enumerate(made.steps) if step.candidates]
    for position, step in rounds:
        says = made.tokens[position] in step.candidates
        is_wrong = step.matched is not says or len(set(step.candidates)) < len(step.candidates)
        yield Decision(position, "match", float(is_wrong), 0.0)
    if stack.parts or stack.dtype in HALF:
        return
    for layer in sorted({step.early_layer or 0 for _, step in rounds}):
        logits = early_logits(stack, inputs, made.tokens, layer, head.weight(layer)).double()
        for position, step in rounds:
            if step.early_layer == layer:
                row = logits[position]
                least = row.topk(len(step.candidates)).values[-1]
                yield Decision(position, "candidate", float(least - row[step.candidates].min()), NEAR_TIE_FLOAT32)


@torch.inference_mode()
def early_logits(
    stack: Stack, inputs: Inputs, tokens: Sequence[int], layer: int, weight: Float[Tensor, "D V"] | None
) -> Float[Tensor, "T V"]:
    """Return what a head says behind ``layer`` before each token of one row's output: ``weight``, or the model's own.

    Raises RuntimeError where memory does not suffice.
    """
    projection, heard = stack.model.get_output_embeddings(), list[Tensor]()
    with _ended_at(stack, layer), _hooked(projection.register_forward_pre_hook(lambda _, given: heard.append(given[0]))):
        logits = read_text(stack, stack.model, inputs, tokens)
    if weight is None:
        return logits
    own = heard[-1][0, -len(tokens) :] @ weight
    return own if projection.bias is None else own + projection.bias


@contextmanager
def _ended_at(stack: Stack, layer: int) -> Iterator[None]:
    """While this is open the last layer of transformers' model hands on what ``layer`` gave."""
    layers = next(one for one in stack.model.modules() if isinstance(one, nn.ModuleList) and len(one) == stack.num_layers)
    given = list[Tensor]()

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        given[:] = [output[0] if isinstance(output, tuple) else output]

    def hand_on(_: nn.Module, __: Any, output: Any) -> Any:
        return (given[0], *output[1:]) if isinstance(output, tuple) else given[0]

    early, last = layers[layer - 1].register_forward_hook(keep), layers[-1].register_forward_hook(hand_on)
    with _hooked(early), _hooked(last):
        yield


@contextmanager
def _hooked(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()
