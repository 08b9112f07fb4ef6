"""Decode with layers on several devices: each device has a session of its own, with the cache of its layers.

The hidden states go from device to device. What is not a layer (embeddings, final norm, head), and all that a method sees, lies
on one of them, the home.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from methods.errors import InputError
from methods.models import stack_for
from methods.models.base import Stack
from methods.session import ModelSession


def spread_stack(model: Any, home: torch.device) -> Stack:
    """Return the stack of a model whose layers lie on several devices; all else is moved to the first.

    Raises:
        InputError: an encoder-decoder, or a model of which some weights are on no device.
    """
    kind = model.config.model_type
    if model.config.is_encoder_decoder:
        raise InputError(f"model type {kind!r}: only decoder-only models are spread over devices; expected one device")
    layers = next(child for child in model.base_model.children() if isinstance(child, nn.ModuleList))
    places = [next(layer.parameters()).device for layer in layers]
    if {place.type for place in places} != {home.type}:
        named = ", ".join(sorted({str(place) for place in places}))
        raise InputError(f"model type {kind!r}: its layers were laid on {named}; expected {home.type} alone: add devices")
    _bring_home(model, layers, home)
    stack = stack_for(model)
    spans = [(place, [number for number, _ in span]) for place, span in groupby(enumerate(places), key=lambda pair: pair[1])]
    if len(spans) > 1:
        stack.parts = tuple((span[0], span[-1] + 1, stack.part(span[0], span[-1] + 1, place)) for place, span in spans)
    return stack


def _bring_home(model: Any, layers: nn.ModuleList, home: torch.device) -> None:
    inside = {id(module) for module in layers.modules()}
    for module in model.modules():
        if id(module) not in inside:
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter.data = parameter.data.to(home)
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(home)


class SpreadSession(ModelSession):
    """A session over a stack with parts: lengths are kept here, caches by the parts."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self._parts = [(first, last, ModelSession(part)) for first, last, part in stack.parts]

    def _up_to_date(self) -> Iterator[tuple[int, int, ModelSession]]:
        """Return the parts, told what is cached: a rewind only changes the lengths here."""
        for first, last, part in self._parts:
            part.lengths = self.lengths[first:last]
            yield first, last, part
            self.lengths[first:last] = part.lengths

    @torch.inference_mode()
    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        self.hidden = self.run_layers(self.embed(tokens), 0, self.num_layers)
        return self.stack.head(self.hidden)

    @torch.inference_mode()
    def run_layers(self, hidden: Float[Tensor, "B n _"], first: int, last: int) -> Float[Tensor, "B n D"]:
        for start, end, part in self._up_to_date():
            if max(first, start) < min(last, end):
                inside = max(first, start) - start, min(last, end) - start
                hidden = part.run_layers(hidden.to(part.device), *inside)
        return hidden.to(self.device)

    def _read(self, tokens: Int[Tensor, "B n"]) -> None:
        self.run_layers(self.embed(tokens), 0, self.num_layers)  # a part's last layer is not the model's

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        for _, _, part in self._up_to_date():
            part.select(rows)

    def _empty_cache(self, batch: int) -> Float[Tensor, "L B capacity H2 head_dim"]:
        for _, _, part in self._parts:
            part._cache = part._empty_cache(batch)
        return super()._empty_cache(0)
