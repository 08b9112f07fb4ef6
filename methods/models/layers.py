"""Compiled calls in the place of a family's layers, where a trial shows that they compute the same.

A layer's parts say how our loop would compute it (``methods.models.parts``); how it is called, and that it computes nothing
else, is seen by passes over some tokens, of which each layer's outcome is compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from kernels.layers.decoder import Cached, DecoderLayer, DecoderLayers, DecoderShape, compiled_layers
from methods.models.base import SourceStates

CACHE = ("past_key_values", "layer_past")  # as layers are given it
ROUNDING, OWN_ROUNDING = 5e-5, 1e-2  # in fp32, of what a layer adds to random numbers, and to those of a trained model
SUM_ROUNDING = 1e-6  # of the sum
HIDDEN = -1e30  # what masks add to scores that a token does not see is below


class PassCache(Cache):
    """The session's cache for one pass of a family's layers, and what compiled ones read of the pass.

    ``text`` ends where the pass ends, ``new`` is what it stores; both begin with layer ``first``. ``source`` is of all layers.
    """

    def __init__(
        self,
        layers: list[Any],
        text: Float[Tensor, "L B S H2 head_dim"],
        new: Float[Tensor, "L B n H2 head_dim"],
        first: int,
        source: SourceStates | None = None,
    ) -> None:
        super().__init__(layers=layers)
        self.text, self.new, self.first, self.source = text, new, first, source
        self._masks: dict[int, tuple[Tensor, int | None]] = {}
        self._turns: dict[int, tuple[Tensor, Tensor]] = {}

    def window(self, mask: Any) -> int | None:
        """Return how many tokens each one sees at most by a layer's mask, itself the last; None for a mask of another kind."""
        if mask is None:
            return self.text.shape[2]
        if id(mask) not in self._masks:  # which is kept, so that no other one gets its number
            self._masks[id(mask)] = mask, _window(mask, self.new.shape[2], self.text.shape[2])
        return self._masks[id(mask)][1]

    def turns(self, pair: tuple[Tensor, Tensor] | None) -> Float[Tensor, "n 2 1 turned"] | None:
        """Return a layer's cosines and sines as compiled calls read them."""
        if pair is None:
            return None
        cos, sin = pair
        if id(cos) not in self._turns:
            first, second = sin[0].chunk(2, -1)
            self._turns[id(cos)] = cos, torch.stack((cos[0], torch.cat((-first, second), -1)), 1).unsqueeze(2)
        return self._turns[id(cos)][1]

    def cached(self, number: int, pair: tuple[Tensor, Tensor] | None, window: int) -> Cached:
        """Return what the compiled call of one layer looks at."""
        own = slice(number - self.first, number - self.first + 1)
        states, mask = None, None
        if self.source is not None:
            states, mask = self.source.states[number : number + 1], self.source.mask
        return Cached(self.text[own], self.new[own], states, mask, self.turns(pair), window=window)


def _window(mask: Any, num_new: int, end: int) -> int | None:
    if not isinstance(mask, Tensor) or mask.shape[-2:] != (num_new, end):
        return None
    seen = mask if mask.dtype == torch.bool else mask == 0
    window = int(seen.flatten()[-end:].sum())
    wanted = torch.ones(num_new, end, dtype=torch.bool).tril(end - num_new).triu(end - num_new + 1 - window)
    is_mask = mask.dtype == torch.bool or bool((seen | (mask < HIDDEN)).all())
    return window if window and is_mask and bool((seen == wanted).all()) else None


class _Call:
    """What a family's layer is called with behind its hidden states, by name."""

    __slots__ = ("cache", "mask", "positions")
    cache: Any

    def __init__(self, names: Sequence[str], more: Sequence[Any], named: Mapping[str, Any]) -> None:
        given = {**dict(zip(names, more, strict=False)), **named} if more else named
        cache = next((given[name] for name in CACHE if name in given), None)
        self.cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        self.mask, self.positions = given.get("attention_mask", ...), given.get("position_embeddings")

    def window(self) -> int | None:
        """As ``PassCache.window``; None, too, without a mask's name, or with a cache of another kind."""
        return self.cache.window(self.mask) if isinstance(self.cache, PassCache) else None


def _names(layer: Any) -> tuple[str, ...]:
    """The names of what a layer takes behind its hidden states."""
    return tuple(signature(layer.forward).parameters)[1:]


@dataclass(frozen=True)
class Seen:
    """One call of a family's layer: what it was given, a ``PassCache`` among it, and what it made."""

    hidden: Float[Tensor, "B n D"]
    call: _Call
    made: Any
    rounding: float  # of what it adds to each number of its tokens


class Recorded:
    """A family's layer that keeps what it is called with, or random numbers in place of what enters it.

    What enters trained layers holds single numbers thousands of times as large as the others, whose rounding hides these.
    """

    def __init__(self, family: nn.Module, number: int) -> None:
        self.family, self._names = family, _names(family)
        self.seen: list[Seen] = []
        self.is_random = False
        self._generator = torch.Generator().manual_seed(number)

    def __call__(self, hidden: Tensor, *more: Any, **named: Any) -> Any:
        if self.is_random:
            hidden = torch.randn(hidden.shape, generator=self._generator, dtype=hidden.dtype)
        made = self.family(hidden, *more, **named)
        call = _Call(self._names, more, named)
        self.seen.append(Seen(hidden, call, made, ROUNDING if self.is_random else OWN_ROUNDING))
        return made


class CompiledLayer:
    """A compiled call in a layer's place for passes in a text's order, of at most ``most_rows``; others are the family's."""

    def __init__(self, calls: DecoderLayers, number: int, family: nn.Module, most_rows: int, in_tuple: bool) -> None:
        self._calls, self._number, self._family, self._most_rows, self._in_tuple = calls, number, family, most_rows, in_tuple
        self._names = _names(family)

    def __call__(self, hidden: Tensor, *more: Any, **named: Any) -> Any:
        call = _Call(self._names, more, named)
        window = call.window() if hidden.shape[0] * hidden.shape[1] <= self._most_rows else None
        if window is None:
            return self._family(hidden, *more, **named)
        made = self._calls.run(hidden, 0, 1, call.cache.cached(self._number, call.positions, window), 0)
        return (made,) if self._in_tuple else made


@torch.no_grad()
def told_layer(
    described: tuple[DecoderLayer, DecoderShape], number: int, seen: Sequence[Seen], family: nn.Module, most_rows: int
) -> CompiledLayer | None:
    """Return a layer's compiled call if it gives what the family gave in every call that was seen, keys and values too."""
    layer, shape = described
    in_tuple = isinstance(seen[0].made, tuple)
    if any((in_tuple and len(one.made) != 1) or one.call.window() is None for one in seen):
        return None
    source, pair = seen[0].call.cache.source, seen[0].call.positions
    if (layer.source is None) != (source is None):
        return None
    if source is not None and (source.states.shape[2], source.states.shape[4]) != (2 * shape.heads, shape.head_size):
        return None
    if pair is not None:
        turned = pair[0].shape[-1]
        if turned % 2 or turned > shape.head_size or pair[0].dtype != torch.float32:
            return None
        shape = replace(shape, turned=turned)
    # Modules do not say how they are called: the usual arrangement first.
    for norms_behind, parallel, turns in product((False, True), (False, True), (True, False)):
        arranged = replace(shape, norms_behind=norms_behind)
        calls = compiled_layers([replace(layer, parallel=parallel, turns=turns)], arranged)
        if calls is not None and all(_agrees(calls, number, one) for one in seen):
            return CompiledLayer(calls, number, family, most_rows, in_tuple)
    return None


def _agrees(calls: DecoderLayers, number: int, seen: Seen) -> bool:
    """Make what the family made again, and compare."""
    passed = seen.call.cache
    text = passed.text.clone()
    cache = PassCache([], text, text[:, :, -passed.new.shape[2] :].zero_(), passed.first, passed.source)
    entered, theirs = seen.hidden, seen.made[0] if isinstance(seen.made, tuple) else seen.made
    window = seen.call.window()
    assert window is not None
    ours = calls.run(entered, 0, 1, cache.cached(number, seen.call.positions, window), 0)
    added = (theirs - entered).abs().amax((0, 1))
    own = number - passed.first
    stored = passed.text[own].abs().amax((0, 1))
    fits = (ours - theirs).abs() <= seen.rounding * added + SUM_ROUNDING * (theirs.abs() + entered.abs())
    return bool(fits.all() and ((text[own] - passed.text[own]).abs() <= seen.rounding * stored).all())
