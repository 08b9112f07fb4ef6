"""A model with its key/value cache, for a batch whose rows may have different lengths.

The cache is one tensor [layers, B, capacity, 2 kv_heads, head_dim], keys' heads first: one call makes the views of all
layers, one copy stores keys and values. Rewinding only lowers a count; what lies behind it is overwritten or masked.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import Decoder, Drafted, VerifiedRow
from kernels.transfer import to_device
from kernels.verify.fused_cpu import Loop
from methods.errors import InputError
from methods.models.base import Frame, SourceStates, Stack
from methods.sampling import Sampling
from methods.types import Inputs, Proposal

MIN_CAPACITY = 64  # tokens: a short text's cache is laid out once; longer ones double it
SLACK = 64  # places behind the model's last position: drafts are stored before anybody looks whether they fit


class ModelSession:
    """Implements ``methods.types.Session`` over a stack. Cheap to make: sessions share the stack's weights.

    Logits and hidden states are inference tensors: compute with them freely, clone before autograd or in-place changes.
    ``hidden`` [B, n, D] is what the last ``extend`` gave to the head, before any final norm. Of a Whisper the logits behind a
    row's whole prompt, which draw its first token, are minus infinity for what the checkpoint says never begins an output (a
    blank or the end of text), as in transformers.
    """

    def __init__(self, stack: Stack, num_layers: int | None = None) -> None:
        """``num_layers``: only so many first layers run, and the head reads the last of these."""
        self.stack = stack
        self.vocab_size, self.num_layers = stack.vocab_size, num_layers or stack.num_layers
        self.position_limit, self.device = stack.position_limit, stack.device
        self.lengths: list[tuple[int, ...]] = []
        self._cache = torch.empty(0, device=stack.device, dtype=stack.dtype)
        self._source: Source | None = None
        self.hidden: Float[Tensor, "B n D"] = self._cache.view(0, 0, 0)
        self._never_first = torch.tensor(stack.begin_suppressed, dtype=torch.long, device=stack.device)
        self._prompt_lengths: list[int] = []

    @torch.inference_mode()
    def prefill(self, inputs: Inputs) -> list[int]:
        """Start anew: cache all of each prompt but its last token and return these; or encode the sources.

        Rows that are all alike (many samples of one prompt) are computed once.

        Raises:
            InputError: no prompt, an empty one, a token outside the vocabulary, or one longer than the position limit; features
                that the model does not hear, of another shape than it hears, or none.
        """
        stack = self.stack
        if stack.compiled is not None:
            stack.compiled.follow()
        inputs.check(stack.input_vocab_size, stack.prompt_limit, stack.feature_shape)
        once = inputs.row(0) if inputs.are_alike else inputs
        self._prompt_lengths = [len(prompt) for prompt in once.prompts]
        self.lengths = [(0,) * once.batch] * self.num_layers
        self._cache = self._empty_cache(once.batch)
        if stack.is_encoder_decoder:
            self._source = Source(stack, once, once.encoded)
        cached = [() if stack.encodes_prompts else prompt[:-1] for prompt in once.prompts]
        longest = max(map(len, cached))
        if longest:
            tokens = torch.tensor([list(row) + [0] * (longest - len(row)) for row in cached], device=stack.device)
            self._read(tokens)
            self.lengths = [tuple(map(len, cached))] * self.num_layers
        if once is not inputs:
            self.select([0] * inputs.batch)
        return stack.pending(inputs.prompts)

    @property
    def encoded(self) -> Float[Tensor, "B S D"] | None:
        """The encoder's states of the inputs of the last ``prefill``, whatever was selected since; one row if all are alike."""
        return None if self._source is None else self._source.encoded

    @torch.inference_mode()
    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """Append n tokens to every row and return the logits behind each. Rows of a larger batch may end in padding.

        Raises:
            InputError: a row is at the position limit (in a batch of one: the last token is past it).
        """
        frame = self._frame(tokens, 0, self.num_layers)
        self.hidden, logits = self.stack.whole(tokens, self.num_layers, frame)
        self._advance(frame, 0, self.num_layers)
        self._suppress(logits)
        return logits

    @property
    def is_compiled(self) -> bool:
        """Whether its passes are compiled calls, on a CPU; one that extends in a way of its own has none."""
        own = type(self)
        is_own = (own.extend, own._frame, own._suppress) == _OWN and "extend" not in vars(self)
        return self.stack.compiled is not None and is_own

    @torch.inference_mode()
    def draft(
        self,
        fed: Sequence[int],
        count: int,
        sampling: Sampling,
        uniforms: Float[Tensor, "1 n"] | None,
        drafted: Drafted | None = None,
    ) -> tuple[Int[Tensor, "1 n"], Float[Tensor, "1 n V"], Float[Tensor, "1 n"] | None] | None:
        """Append tokens to the only row and draw ``count`` behind them, as ``Decoder.draft``; all but the last are cached then.

        None, and nothing done, where it is no compiled call: ``is_compiled`` is False, several rows, an output's first token
        that some may not be, a head over some tokens without word of what is ``drafted``.

        Raises:
            InputError: as ``extend``; nothing to read or to draw, or too few uniforms.
        """
        stack, lengths, num_new = self.stack, self.lengths[0], len(fed) + count - 1
        compiled = self._compiled_call() if len(lengths) == 1 and len(fed) <= self.stack.choice.most_rows else None
        if compiled is None or (drafted is None and not (stack.has_all_tokens and compiled.drafts_its_own)):
            return None
        frame = self._frame_at(self._lengths_for(1, num_new, 0, self.num_layers), num_new, 0, self.num_layers)
        cached = stack.cached(frame)
        drawn = compiled.draft(fed, self.num_layers, cached, lengths[0], count, sampling, uniforms, drafted)
        self._advance(frame, 0, self.num_layers)
        return drawn

    @torch.inference_mode()
    def verify(
        self,
        pending: Sequence[int],
        proposal: Proposal,
        sampling: Sampling,
        uniforms: Float[Tensor, "B n"] | None,
        loop: Loop,
    ) -> tuple[list[VerifiedRow], Float[Tensor, "B n_plus_1 V"]] | None:
        """Append every row's pending token and its drafts and let the loop decide on these, as ``Decoder.verify``: return the
        verdicts, and the logits that they are of.

        None, and nothing done, where it is no compiled call: ``is_compiled`` is False, an output's first token that some may
        not be, more tokens than the choice has rows, drafts from logits of more digits.

        Raises:
            InputError: as ``extend``; what of the round does not fit.
        """
        (batch, num_draft), drawn_from, stack = proposal.tokens.shape, proposal.logits, self.stack
        num_new, has_more = num_draft + 1, drawn_from is not None and drawn_from.dtype.itemsize > stack.dtype.itemsize
        compiled = None if has_more or batch * num_new > stack.choice.most_rows else self._compiled_call()
        if compiled is None:
            return None
        frame = self._frame_at(self._lengths_for(batch, num_new, 0, self.num_layers), num_new, 0, self.num_layers)
        starts = frame.positions() if frame.start is None else frame.start
        asked = pending, self.num_layers, stack.cached(frame), starts, proposal, sampling, uniforms, loop
        self.hidden, logits, rows = compiled.verify(*asked)
        self._advance(frame, 0, self.num_layers)
        return rows, logits

    def _compiled_call(self) -> Decoder | None:
        """Return what runs passes and what stands behind them in one call; None where there is none."""
        stack, lengths = self.stack, self.lengths[0]
        begins = stack.begin_suppressed and any(map(int.__lt__, lengths, self._prompt_lengths))
        return None if begins or not self.is_compiled else stack.compiled

    @torch.inference_mode()
    def embed(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n D"]:
        return self.stack.embed(tokens, self._frame(tokens, 0, 0))

    @torch.inference_mode()
    def run_layers(self, hidden: Float[Tensor, "B n _"], first: int, last: int) -> Float[Tensor, "B n D"]:
        """Run layers first..last-1, whose cached lengths must be the same."""
        frame = self._frame(hidden, first, last)
        hidden = self.stack.run(hidden, first, last, frame)
        self._advance(frame, first, last)
        return hidden

    @torch.inference_mode()
    def _read(self, tokens: Int[Tensor, "B n"]) -> None:
        """Cache tokens of which nobody reads what the layers give: it saves the larger part of the last one."""
        frame = self._frame(tokens, 0, self.num_layers)
        frame.caches_only = True
        self.stack.run(self.stack.embed(tokens, frame), 0, self.num_layers, frame)
        self._advance(frame, 0, self.num_layers)

    @torch.inference_mode()
    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "_ V"] | None = None) -> Float[Tensor, "B n V"]:
        return self.stack.head(hidden, weight)

    def rewind(self, counts: Sequence[int]) -> None:
        def shorten(lengths: tuple[int, ...]) -> tuple[int, ...]:
            shorter = tuple(length - count for length, count in zip(lengths, counts, strict=True))
            if min(shorter) < 0 or min(counts) < 0:
                raise InputError(f"rewind {list(counts)}: expected counts between 0 and the cached lengths {list(lengths)}")
            return shorter

        self.lengths = _map_same(shorten, self.lengths)

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        rows = list(rows)
        batch = self._cache.shape[1]
        if rows == list(range(batch)):
            return
        used = max(max(lengths) for lengths in self.lengths)
        chosen = self._cache[:, :, :used].index_select(1, to_device(rows, self.device))
        self._cache = self._cache[:, : len(rows)] if len(rows) <= batch else self._with_rows(len(rows))
        self._cache[:, :, :used].copy_(chosen)
        self.lengths = _map_same(lambda lengths: tuple(lengths[row] for row in rows), self.lengths)
        if self._source is not None:
            self._source.select(rows)
            self._prompt_lengths = [self._prompt_lengths[row] for row in rows]

    def _suppress(self, logits: Float[Tensor, "B n V"]) -> None:
        """Take what never begins an output out of the logits that draw a row's first token."""
        if not self.stack.begin_suppressed:
            return
        num_new = logits.shape[1]
        for row, (prompt, cached) in enumerate(zip(self._prompt_lengths, self.lengths[0], strict=True)):
            place = prompt - 1 - (cached - num_new)
            if 0 <= place < num_new:
                logits[row, place].index_fill_(0, self._never_first, float("-inf"))

    def _empty_cache(self, batch: int) -> Float[Tensor, "L B capacity H2 head_dim"]:
        shape = (self.num_layers, batch, 0, 2 * self.stack.num_kv_heads, self.stack.head_dim)
        return torch.zeros(shape, device=self.device, dtype=self.stack.dtype)

    def _with_rows(self, count: int) -> Float[Tensor, "L B capacity H2 head_dim"]:
        """Return a cache of more rows, whatever it holds."""
        shape = (self.num_layers, count, *self._cache.shape[2:])
        return torch.zeros(shape, device=self.device, dtype=self.stack.dtype)

    def _lengths_for(self, batch: int, num_new: int, first: int, last: int) -> tuple[int, ...]:
        """Return the cached lengths of some layers. InputError where they differ, or the new tokens do not fit."""
        lengths = self.lengths[first]
        if self.lengths[first:last].count(lengths) != last - first:
            raise InputError(f"layers {first} to {last - 1}: their cached lengths differ, run them one by one")
        longest, limit = max(lengths), self.position_limit
        if limit is not None and (longest + num_new if batch == 1 else longest + 1) > limit:
            raise InputError(
                f"position limit {limit}: {longest} tokens are cached and {num_new} more do not fit; "
                "lower max_new_tokens or shorten the prompt"
            )
        return lengths

    def _frame(self, new: Tensor, first: int, last: int) -> Frame:
        lengths = self._lengths_for(new.shape[0], new.shape[1], first, last)
        return self._frame_at(lengths, new.shape[1], first, last)

    def _frame_at(self, lengths: tuple[int, ...], num_new: int, first: int, last: int) -> Frame:
        """Return the frame of rows of so many cached tokens; they were checked."""
        longest = max(lengths)
        end = longest + num_new
        start = longest if min(lengths) == longest else None
        if first < last:
            self._reserve(end)
        region, source = self._cache[first:last], None if self._source is None else self._source.view
        new = region if start is None else region[:, :, start:end]
        positions = _Positions(lengths, num_new, self.device)
        return Frame(len(lengths), num_new, start, end, positions, region[:, :, :end], new, source, start is None)

    def _advance(self, frame: Frame, first: int, last: int) -> None:
        longer = tuple([length + frame.num_new for length in self.lengths[first]])
        self.lengths[first:last] = [longer] * (last - first)

    def _reserve(self, end: int) -> None:
        capacity = self._cache.shape[2]
        if end <= capacity:
            return
        larger = max(end, 2 * capacity, MIN_CAPACITY)
        if self.position_limit is not None:
            larger = max(end, min(larger, self.position_limit + SLACK))
        shape = (*self._cache.shape[:2], larger, *self._cache.shape[3:])
        grown = torch.zeros(shape, device=self.device, dtype=self.stack.dtype)
        grown[:, :, :capacity].copy_(self._cache)
        self._cache = grown


_OWN = ModelSession.extend, ModelSession._frame, ModelSession._suppress  # a pass by anything else is no compiled call


class _Positions:
    """The positions [B, n] of a frame's new tokens, computed when first asked for."""

    def __init__(self, lengths: Sequence[int], num_new: int, device: torch.device) -> None:
        self.lengths, self.num_new, self.device = lengths, num_new, device
        self.table: Int[Tensor, "B n"] | None = None

    def __call__(self) -> Int[Tensor, "B n"]:
        if self.table is None:
            starts = to_device(self.lengths, self.device).unsqueeze(1)
            self.table = starts + torch.arange(self.num_new, device=self.device)
        return self.table


class Source:
    """An encoder-decoder's cross-attention cache, stored once a source however many rows (beams) read it.

    ``view`` is what the rows read.
    """

    def __init__(self, stack: Stack, inputs: Inputs, encoded: Float[Tensor, "B S D"] | None = None) -> None:
        """``encoded``: the encoder's states of these inputs, where another session has them already. Rows that are all alike
        are encoded once."""
        device, batch = stack.device, inputs.batch
        inputs = inputs.row(0) if inputs.are_alike else inputs
        tokens, mask = _padded(inputs, device) if inputs.features is None else (None, None)
        if encoded is not None:
            self.encoded = encoded
        elif tokens is not None:
            self.encoded = stack.encode(tokens, mask)
        else:
            assert inputs.features is not None
            self.encoded = stack.hear(inputs.features.to(device, stack.dtype))
        self._stored = stack.cross(self.encoded)
        self._mask = None
        if mask is not None:
            blocked = torch.zeros(mask.shape, device=device, dtype=stack.dtype).masked_fill_(mask == 0, float("-inf"))
            self._mask = blocked[:, None, None]
        self._arrange(list(range(batch)) if inputs.batch == batch else [0] * batch)

    def select(self, rows: Sequence[int]) -> None:
        sources = [self._sources[row] for row in rows]
        if sources != self._sources:
            self._arrange(sources)

    def _arrange(self, sources: list[int]) -> None:
        """Arrange the states so that row r reads source ``sources[r]``: expanded where all read one, else copied."""
        self._sources = sources
        if len(set(sources)) == 1:
            one, batch = sources[0], len(sources)
            states = self._stored[:, one : one + 1].expand(-1, batch, -1, -1, -1)
            self.view = SourceStates(states, None if self._mask is None else self._mask[one : one + 1])
        elif sources == list(range(self._stored.shape[1])):
            self.view = SourceStates(self._stored, self._mask)
        else:
            index = to_device(sources, self._stored.device)
            mask = None if self._mask is None else self._mask.index_select(0, index)
            self.view = SourceStates(self._stored.index_select(1, index), mask)


def _padded(inputs: Inputs, device: torch.device) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"] | None]:
    """Return sources as one tensor, and a mask that is 0 in the padding where there is any."""
    lengths = [len(prompt) for prompt in inputs.prompts]
    longest = max(lengths)
    padded = [list(prompt) + [0] * (longest - len(prompt)) for prompt in inputs.prompts]
    mask = None
    if min(lengths) < longest:
        mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).long().to(device)
    return torch.tensor(padded, device=device), mask


def _map_same(change: Callable[[tuple[int, ...]], tuple[int, ...]], lengths: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Apply a change to every layer's lengths, once where layers agree."""
    changed = {old: change(old) for old in set(lengths)}
    return [changed[old] for old in lengths]
