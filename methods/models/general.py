"""Any text model with attention, by its own forward pass in transformers: for families that have no stack of their own.

The model's layers, masks and positions are transformers'; its keys and values lie in the session's cache, which can rewind.
Layers run alone where the family's loop over them, tried once, gives the same piece by piece; those that are told to be of the
common kind (``methods.models.parts``) are then compiled calls. Rows whose lengths differ run one by one, since a family's own
masks take all rows to be equally long.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqMoEModelOutput

from kernels.products.matrix import TORCH, Choice
from methods.errors import InputError
from methods.models.base import EncoderDecoderStack, Frame, SourceStates, Stack, halves
from methods.models.layers import CompiledLayer, PassCache, Recorded, told_layer
from methods.models.parts import describe, join_weights, takes_layers
from methods.models.twin import Span, Spanned, Told, put_head, put_under_span, twin_of

LIMITS = ("max_position_embeddings", "n_positions")  # as configurations name the most positions
BODIES = ("model", "transformer")  # where a base_model_prefix names nothing
TRIED = 8  # tokens of the passes that show what the layers cache, whether they run alone, and what they compute
FAR = 1 << 14  # a position far into a text, of a family without a limit
OWN_HEAD = "no head but its own can be put on it; choose a method without trained heads"
MISFITS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)  # of layers that miss what others give


class _Passes(Stack):
    """What both kinds share: passes of the family's own decoder over the session's cache, and the family's own head.

    ``hidden`` of their sessions lies before the final norm, as that of other stacks; behind it where layers only run together.
    """

    runs_layers_alone = False
    num_compiled = 0  # layers whose passes are compiled calls
    _twin: Any
    _body: Any
    _embedding: Any
    _output: type  # what the layers return, as the model's head expects it
    _embedding_width: int
    _span: Span | None = None  # of the layers, where they run alone

    def _take(self, model: Any, choice: Choice, body: str | None) -> None:
        """Make the twin, and the model without its layers, which lie under ``body`` or under encoder and decoder apart."""
        if takes_layers(model, choice):
            join_weights(model)
        self._twin, self._told = twin_of(model, choice), Told()
        put_head(self._twin, self._told)
        given = _Given(self._told)
        object.__setattr__(given, "decoder", given)  # some families reach through to it
        self._shell = copy(self._twin)
        names = ("encoder", "decoder") if body is None else (body,)
        self._shell._modules = {**self._twin._modules, **dict.fromkeys(names, given)}

    @property
    def computed_by(self) -> str:
        return f"{self.choice}; {self.num_compiled} of {self.num_layers} layers compiled"

    @contextmanager
    def _first_pass(self) -> Iterator[None]:
        """Refuse a family whose forward pass wants more than tokens and a cache."""
        try:
            with torch.no_grad():
                yield
        except torch.OutOfMemoryError:
            raise
        except MISFITS as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise self._refusal(f"its forward pass over tokens and a cache fails ({said})") from error

    def _measure(self, cache: Cache) -> None:
        """Read off what the layers cached of ``TRIED`` tokens.

        Raises:
            InputError: nothing, or something else than a key and a value a token.
        """
        layers: list[Any] = [layer for layer in cache.layers if getattr(layer, "is_initialized", False)]
        shapes = [(layer.keys.shape, layer.values.shape) for layer in layers]
        if not shapes or any(shape[2] != TRIED for pair in shapes for shape in pair):
            raise self._refusal("it caches no keys and values of its tokens, so it cannot be rewound")
        self.num_kv_heads = max(shape[1] for pair in shapes for shape in pair)
        self.head_dim = max(shape[3] for pair in shapes for shape in pair)
        self.layers = [()] * self.num_layers

    @torch.no_grad()
    def _try_layers(self, **given: Any) -> None:
        """Find out whether layers run alone: passes of one layer each, and one of none, give what a pass of all does.

        They give it to the bit, unless a layer hands others more than hidden states, as T5's first one does: its table of
        distances.
        """
        embedded = self._embedding(torch.arange(1, 1 + TRIED, device=self.device)[None] % self.input_vocab_size)
        self._embedding_width = embedded.shape[-1]
        layers = put_under_span(self._body, self.num_layers)

        def run(span: Span, first: int, last: int, entering: Tensor | None) -> Tensor:
            with span.of(first, last, entering):
                return self._body(inputs_embeds=embedded, use_cache=False, **given).last_hidden_state

        if layers is None:
            return
        left: Any = None
        span = layers[0].span
        with self._first_pass():
            wanted = [run(span, 0, self.num_layers, None), span.left]
        try:
            for layer in range(self.num_layers):
                run(span, layer, layer + 1, left)
                left = span.left
            ended = run(span, self.num_layers, self.num_layers, left)
        except MISFITS:  # it is then as if they gave something else
            return
        if left.dim() == 3 and torch.equal(ended, wanted[0]) and torch.equal(left, wanted[1]):
            self._span, self.runs_layers_alone, self.width = span, True, left.shape[-1]
            self._compile_layers(layers)

    def _compile_layers(self, layers: list[Spanned]) -> None:
        """Put compiled calls in the place of the layers that they compute, as passes over some tokens show."""
        if not takes_layers(self.model, self.choice):
            return
        described = [describe(layer.module, self.num_kv_heads, self.head_dim, self.choice) for layer in layers]
        if not any(described):
            return
        recorded = [Recorded(layer.module, number) for number, layer in enumerate(layers)]
        told: list[CompiledLayer | None] = [None] * len(layers)
        try:
            sources = self._trial_sources()  # before its passes would be recorded
            for layer, record in zip(layers, recorded, strict=True):
                layer.function = record
            self._run_trials(recorded, sources)
            told = [
                None if one is None else told_layer(one, number, record.seen, record.family, self.choice.most_rows)
                for number, (one, record) in enumerate(zip(described, recorded, strict=True))
            ]
        except (*MISFITS, InputError):  # a family that takes no positions, or whose positions turn in a way of their own
            pass
        for layer, record, one in zip(layers, recorded, told, strict=True):
            layer.function = record.family if one is None else one
        self.num_compiled = self.num_layers - told.count(None)

    def _trial_sources(self) -> tuple[SourceStates | None, SourceStates | None]:
        """What passes over random numbers read of a source, and what those over the model's own do."""
        return None, None

    def _run_trials(self, recorded: list[Recorded], sources: tuple[SourceStates | None, SourceStates | None]) -> None:
        """Run passes in which numbers, positions, masks and what is cached differ; the last is near, as texts begin."""
        shape = self.num_layers, 1, 2 * TRIED, 2 * self.num_kv_heads, self.head_dim
        text = torch.zeros(shape, dtype=self.dtype, device=self.device)
        tokens = torch.arange(1, 1 + 2 * TRIED, device=self.device)[None] % self.input_vocab_size
        far = max(0, (self.position_limit or FAR) - TRIED)
        for is_random, start, shift in ((True, 0, 0), (True, TRIED, 0), (True, 0, far), (False, 0, far), (False, 0, 0)):
            for record in recorded:
                record.is_random = is_random
            end = start + TRIED
            stored = text[:, :, :end].clone()
            source = sources[0 if is_random else 1]
            given = self._cached(self._cache(stored, stored[:, :, start:], 0, start, source), source)
            positions = torch.arange(start + shift, end + shift, device=self.device)[None]
            embedded = self._embedding(tokens[:, start:end])
            self._body(inputs_embeds=embedded, position_ids=positions, use_cache=True, **given)
            text[:, :, start:end] = stored[:, :, start:]

    def _cache(
        self,
        text: Float[Tensor, "L B S H2 head_dim"],
        new: Float[Tensor, "L B n H2 head_dim"],
        first: int,
        start: int,
        source: SourceStates | None,
        apart: bool = False,
    ) -> Cache:
        """Return a pass's cache, whose layers begin with ``first``; all others have that one's, and do not use it."""
        halved = (zip(*halves(one.transpose(2, 3)), strict=True) for one in (text, new))
        own: list[Any] = [_Layer(start, seen, slots, apart) for seen, slots in zip(*halved, strict=True)]
        layers = own[:1] * first + own + own[:1] * (self.num_layers - first - len(own))
        return Cache(layers=layers) if apart else PassCache(layers, text, new, first, source)

    def _refusal(self, why: str) -> InputError:
        return InputError(f"model type {self.model.config.model_type!r}: {why}")

    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        return self._embedding(tokens)

    def run_by_torch(self, hidden: Float[Tensor, "B n _"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        return hidden if first == last else self._run(hidden, first, last, frame)[0]

    def whole(
        self, tokens: Int[Tensor, "B n"], num_layers: int, frame: Frame
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n V"]]:
        hidden, ended = self._run(self.embed(tokens, frame), 0, num_layers, frame)
        return hidden, self._project(ended)

    def _run(
        self, hidden: Float[Tensor, "B n _"], first: int, last: int, frame: Frame
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D2"]]:
        """Run layers first..last-1: what leaves them, and what the family's end, the final norm, makes of that."""
        if (first, last) != (0, self.num_layers):
            self.check_layers_alone()
        if frame.allowed is not None and frame.history is None:
            raise self._refusal("it reads a text in its order; this method reads branches at once: choose another")
        if frame.start is not None:
            return self._pass(hidden, first, last, frame.start, frame)
        starts = frame.positions()[:, 0].tolist()
        rows = [
            self._pass(hidden[row : row + 1], first, last, start, _row_of(frame, row, start))
            for row, start in enumerate(starts)
        ]
        left, ended = zip(*rows, strict=True)
        return torch.cat(left), torch.cat(ended)

    def _pass(
        self, hidden: Float[Tensor, "B n _"], first: int, last: int, start: int, frame: Frame
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D2"]]:
        """Do so for rows that are equally long. Behind the last position is padding, which comes back as zeros."""
        num_new = hidden.shape[1]
        fits = num_new if self.position_limit is None else min(num_new, self.position_limit - start)
        padding, end = (0, 0, 0, num_new - fits), start + fits
        apart = frame.history is not None
        text = frame.text if frame.history is None else frame.history
        cache = self._cache(text[:, :, :end], frame.new[:, :, :fits], first, start, frame.source, apart)
        given = self._cached(cache, frame.source)
        entering = hidden[:, :fits]
        if self._span is None:
            ended = F.pad(self._body(inputs_embeds=entering, use_cache=True, **given).last_hidden_state, padding)
            return ended, ended
        embedded = entering.new_zeros(*entering.shape[:2], self._embedding_width) if first else entering
        with self._span.of(first, last, entering if first else None):
            ended = self._body(inputs_embeds=embedded, use_cache=True, **given).last_hidden_state
        return F.pad(self._span.left, padding), F.pad(ended, padding)

    def _cached(self, cache: Cache, source: SourceStates | None) -> dict[str, Any]:
        """The arguments of the decoder that hold what is cached."""
        return {"past_key_values": cache}

    def part(self, first: int, last: int, device: torch.device) -> Stack:
        raise self._refusal("transformers runs its layers on one device; leave device_map out")

    def over(self, tokens: Int[Tensor, "K"]) -> Stack:
        raise self._refusal("its head gives logits of all tokens at once; leave --draft-tokens out")

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "_ V"] | None = None) -> Float[Tensor, "B n V"]:
        if weight is not None and self._span is None:
            raise self._refusal(OWN_HEAD)
        return self._project(hidden if self._span is None else self._end(hidden, self._span), weight)

    @torch.no_grad()
    def _end(self, hidden: Float[Tensor, "B n D"], span: Span) -> Float[Tensor, "B n D2"]:
        """Apply what the family has behind its layers."""
        with span.of(self.num_layers, self.num_layers, hidden):
            embedded = hidden.new_zeros(*hidden.shape[:2], self._embedding_width)
            return self._body(inputs_embeds=embedded, use_cache=False).last_hidden_state

    def _project(self, ended: Float[Tensor, "B n D"], weight: Float[Tensor, "_ V"] | None = None) -> Float[Tensor, "B n V"]:
        """Apply the family's own head, its last matrix or ``weight``, and what it does to its logits."""
        told = self._told
        told.output, told.weight = self._output(last_hidden_state=ended), weight
        told.output.encoder_global_attentions = None  # LED's
        given = {"decoder_inputs_embeds": ended} if self.is_encoder_decoder else {}
        try:
            logits = self._shell(inputs_embeds=ended, use_cache=False, **given).logits
            if told.weight is not None:  # no module multiplied by it
                raise self._refusal(OWN_HEAD)
            return logits
        finally:
            told.output = told.weight = None


class GeneralStack(_Passes):
    """A decoder-only model that transformers runs.

    Raises:
        InputError: a model that keeps a state in place of keys and values, which cannot be rewound; or that caches nothing.
    """

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        refuse_state(model)
        super().__init__(model, choice)
        config = model.config.get_text_config()
        self.num_layers, self.num_heads = config.num_hidden_layers, config.num_attention_heads
        self.position_limit = _first_of(config, LIMITS)
        name = next((name for name in (model.base_model_prefix, *BODIES) if name and hasattr(model, name)), None)
        if name is None:
            raise self._refusal(f"its layers are not apart from its head; expected one of {', '.join(BODIES)}")
        self._take(model, choice, name)
        self._body, self._embedding = getattr(self._twin, name), self._twin.get_input_embeddings()
        cache = DynamicCache()
        with self._first_pass():
            tokens = torch.ones(1, TRIED, dtype=torch.long, device=self.device)
            self._output = type(self._body(input_ids=tokens, past_key_values=cache, use_cache=True))
        self._measure(cache)
        self._try_layers()


class GeneralEncoderDecoderStack(_Passes, EncoderDecoderStack):
    """An encoder-decoder of texts that transformers runs; its decoder's view of the source is computed once.

    Raises:
        InputError: a model that keeps a state, that caches nothing, or whose outputs have no first token.
    """

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        refuse_state(model)
        super().__init__(model, choice)
        config = model.config
        decoder = config.get_text_config(decoder=True)
        self.num_layers = _first_of(config, ("decoder_layers", "num_decoder_layers", "num_layers")) or decoder.num_hidden_layers
        self.num_heads = _first_of(config, ("decoder_attention_heads",)) or decoder.num_attention_heads
        self.position_limit = _first_of(decoder, ("max_decoder_position_embeddings", *LIMITS))
        self.source_limit = _first_of(config, ("max_encoder_position_embeddings", *LIMITS))
        name = model.base_model_prefix if model.base_model_prefix and hasattr(model, model.base_model_prefix) else None
        self._take(model, choice, name)
        self._body = self._twin.get_decoder()
        self._embedding = self._body.get_input_embeddings()
        states = torch.zeros(1, 1, self._embedding.weight.shape[1], dtype=self.dtype, device=self.device)
        with self._first_pass():
            cache, made = self._read(states, TRIED)
        self._output = type(made) if name is None else Seq2SeqMoEModelOutput
        self._measure(cache.self_attention_cache)
        self._try_layers(encoder_hidden_states=states)

    def _read(self, states: Float[Tensor, "B S D"], num_tokens: int) -> tuple[EncoderDecoderCache, Any]:
        """Let the decoder read some first tokens, and so the source."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        tokens = torch.ones(states.shape[0], num_tokens, dtype=torch.long, device=self.device)
        with torch.no_grad():
            embedded = self._embedding(tokens)
            made = self._body(inputs_embeds=embedded, encoder_hidden_states=states, past_key_values=cache, use_cache=True)
        return cache, made

    def cross(self, states: Float[Tensor, "B S D"]) -> Float[Tensor, "L B H2 S head_dim"]:
        layers: list[Any] = self._read(states, 1)[0].cross_attention_cache.layers
        return torch.stack([torch.cat([layer.keys, layer.values], 1) for layer in layers])

    @torch.no_grad()
    def _trial_sources(self) -> tuple[SourceStates, SourceStates]:
        """Random ones; with padding at its end and without, so that both are tried."""
        width = self._embedding.weight.shape[1]
        states = torch.randn(1, TRIED, width, generator=torch.Generator().manual_seed(0), dtype=self.dtype)
        cross = self.cross(states)
        mask = torch.zeros(1, 1, 1, TRIED, dtype=self.dtype)
        mask[..., -2:] = float("-inf")
        return SourceStates(cross, mask), SourceStates(cross)

    def _cached(self, cache: Cache, source: SourceStates | None) -> dict[str, Any]:
        assert source is not None
        sources = DynamicCache()
        for number, (keys, values) in enumerate(source.cross):
            sources.update(keys, values, number)
        (keys, _), mask = source.cross[0], None
        if source.mask is not None:
            mask = (source.mask[:, 0, 0] == 0).long().expand(keys.shape[0], -1)
        width = self._embedding.weight.shape[1]
        return {
            "past_key_values": EncoderDecoderCache(cache, sources),
            "encoder_hidden_states": keys.new_zeros(keys.shape[0], keys.shape[2], width),  # read before, only asked for
            "encoder_attention_mask": mask,
        }


GENERAL = (GeneralStack, GeneralEncoderDecoderStack)


def refuse_state(model: Any) -> None:
    """InputError for a model that keeps a running state."""
    if getattr(model, "_is_stateful", False):
        kind = model.config.model_type
        raise InputError(f"model type {kind!r}: it keeps a running state, which cannot be rewound; choose one with attention")


def _first_of(config: Any, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := getattr(config, name, None)) is not None), None)


def _row_of(frame: Frame, row: int, start: int) -> Frame:
    """One row of a frame, whose entries begin at its own length."""
    one, new = slice(row, row + 1), slice(start, start + frame.num_new)
    source, mask = frame.source, frame.cross_mask
    if source is not None:
        source = SourceStates(source.states[:, one], mask if mask is None or mask.shape[0] == 1 else mask[one])
    return replace(
        frame, batch=1, start=start, text=frame.text[:, one], new=frame.new[:, one, new], source=source, scattered=False
    )


class _Layer(CacheLayerMixin):
    """A layer's part of a session's cache for one pass, as transformers asks for it.

    The keys and values that are ``cached`` [B, K, end, head_dim] end where the pass ends, or where it begins if the slots are
    ``apart``; the two ``slots`` [B, K, n, head_dim] take what is new. A layer may have fewer heads, and narrower ones.
    """

    is_sliding = False

    def __init__(self, start: int, cached: tuple[Tensor, Tensor], slots: tuple[Tensor, Tensor], apart: bool = False) -> None:
        super().__init__()
        self.length, self.is_initialized = start, True
        self._cached, self._slots, self._apart = cached, slots, apart

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.length += key_states.shape[2]
        keys = _stored(key_states, self._slots[0], self._cached[0])
        values = _stored(value_states, self._slots[1], self._cached[1])
        if self._apart:
            return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def _stored(part: Tensor, slot: Tensor, cached: Tensor) -> Tensor:
    """Store keys or values, and return what is cached of as many heads of this width."""
    if part.shape != slot.shape:
        heads, width = part.shape[1], part.shape[3]
        slot, cached = slot[:, :heads, :, :width], cached[:, :heads, :, :width]
    slot.copy_(part)
    return cached


class _Given(nn.Module):
    """In place of a model's layers: returns what they gave before, on which the model puts its head."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self._told = told

    def forward(self, *_: Any, **__: Any) -> Any:
        return self._told.output
