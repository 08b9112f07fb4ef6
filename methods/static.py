"""A session of fixed shapes: its cache is laid out once, and a pass of few tokens is one step, on a GPU one CUDA graph.

A step finds all that it reads and writes at fixed places: the new tokens, how many are cached of each row, the whole cache. It
attends to all places of the cache behind a mask, which it makes of those lengths: what was rewound, or never written, has
weight 0. There is a step a number of new tokens, always over all rows; rows that have ended are padding.

An encoder-decoder's keys and values of the source are computed once a text, as in any session, and brought to a fixed place.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.capture import Capture, capture_for
from kernels.transfer import to_device
from methods.errors import InputError
from methods.models.base import Frame, SourceStates, Stack
from methods.session import ModelSession
from methods.types import Inputs

Made = TypeVar("Made")
MULTIPLE = 64  # capacities are rounded up to it: attention reads such rows at once


class Room(NamedTuple):
    """What a session is laid out for: the rows of a batch, and the tokens of the longest prompt and of the longest output."""

    rows: int
    prompt: int
    output: int


def check_static(stack: Stack) -> None:
    """InputError for a model whose passes have no static form."""
    if stack.parts or not stack.can_be_static:
        raise InputError(
            f"graphs of model type {stack.model.config.model_type!r}: it has no static form; expected a Llama, Mistral, Qwen2, "
            "Gemma, GPT-2, T5, BART, Marian or Whisper on one device, or graphs off"
        )


class StaticSession(ModelSession):
    """Gives what ``ModelSession`` gives, up to rounding. On a CPU its steps run uncaptured.

    Prompts, and passes of more than ``most_new`` tokens, run as in ``ModelSession``, over the same cache. All steps are
    captured when a session is made. What else is captured around passes (draws, verdicts) is so by whoever decodes, in its
    first text, which warms up.
    """

    @torch.inference_mode()
    def __init__(self, stack: Stack, room: Room, most_new: int, capture: Capture | None = None) -> None:
        """``most_new``: tokens of a step; ``capture`` turns a step into its captured form (None: what the device has).

        Raises:
            InputError: a model without a static form, or a step that cannot be captured.
        """
        check_static(stack)
        super().__init__(stack)
        rows, begin = room.rows, 1 if stack.encodes_prompts else room.prompt
        self.capacity, self.rows = _rounded(begin + room.output + most_new), rows
        shape = (self.num_layers, rows, self.capacity, 2 * stack.num_kv_heads, stack.head_dim)
        self._laid_out = torch.zeros(shape, device=self.device, dtype=stack.dtype)
        self._laid_source = LaidSource(stack, rows, room.prompt) if stack.is_encoder_decoder else None
        self._starts = torch.zeros(rows, device=self.device, dtype=torch.long)
        self._rotaries: list[Tensor | None] = []  # tables that captured passes read: others may make the stack replace its own
        sizes = range(1, most_new + 1)
        self._tokens = {size: torch.zeros(rows, size, device=self.device, dtype=torch.long) for size in sizes}
        self.most_new, self._capture = most_new, capture or capture_for(self.device)
        self._steps = {size: self.capture(partial(self.pass_at, self._tokens[size], self._starts)) for size in sizes}
        _, logits = self._steps[1]()
        self.logits_dtype = logits.dtype

    @torch.inference_mode()
    def capture(self, work: Callable[[], Made]) -> Callable[[], Made]:
        """Return the captured form of work that holds passes of this session; what it writes into the cache now is undone."""
        self._rotaries.append(self.stack.rotary(self.capacity))
        before = self._laid_out.clone()
        captured = self._capture(work)
        self._laid_out.copy_(before)
        return captured

    def prefill(self, inputs: Inputs) -> list[int]:
        """As ``ModelSession``'s. InputError for more rows, or longer sources, than the cache was laid out for."""
        if inputs.batch > self.rows:
            raise InputError(f"prompts: {inputs.batch} rows; the static cache was laid out for {self.rows}")
        pending = super().prefill(inputs)
        self._bring_source()
        return pending

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._bring_source()

    def _bring_source(self) -> None:
        if self._laid_source is not None and self._source is not None:
            self._laid_source.hold(self._source.view)

    @torch.inference_mode()
    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """As ``ModelSession``'s. InputError also where a row outgrows the capacity."""
        rows, num_new = tokens.shape
        if num_new not in self._steps:
            return super().extend(tokens)
        lengths = self.starts(rows, num_new)
        self._starts.copy_(to_device([*lengths, *[0] * (self.rows - rows)], self.device))
        self._tokens[num_new][:rows].copy_(tokens)
        hidden, logits = self._steps[num_new]()
        self.advance([num_new] * rows)
        self.hidden = hidden[:rows].clone()  # where it lies another step may write
        logits = logits[:rows].clone()
        self._suppress(logits)
        return logits

    def starts(self, rows: int, num_new: int) -> tuple[int, ...]:
        """Return how much each row has cached. InputError where so many more tokens do not fit."""
        lengths = self._lengths_for(rows, num_new, 0, self.num_layers)
        self._reserve(max(lengths) + num_new)
        return lengths

    def advance(self, counts: Sequence[int]) -> None:
        """Count what passes have appended to each row."""
        longer = tuple(length + count for length, count in zip(self.lengths[0], counts, strict=True))
        self.lengths = [longer] * self.num_layers

    def begins_output(self, num_new: int) -> bool:
        """Say whether a pass over so many tokens has logits from which something is taken out that never begins an output."""
        ends = zip(self._prompt_lengths, self.lengths[0], strict=True)
        return bool(self.stack.begin_suppressed) and any(0 <= prompt - 1 - cached < num_new for prompt, cached in ends)

    def pass_at(
        self, tokens: Int[Tensor, "rows n"], starts: Int[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "rows n D"], Float[Tensor, "rows n V"]]:
        """Run a pass over fixed memory: hidden states and logits. Nothing in it depends on what a tensor holds.

        ``starts``: how many tokens of each row are cached. Whoever captures it counts what it appends: ``advance``.
        """
        batch, num_new = tokens.shape
        positions = starts.unsqueeze(1) + torch.arange(num_new, device=self.device)
        text, source = self._laid_out, None if self._laid_source is None else self._laid_source.view
        frame = Frame(batch, num_new, None, self.capacity, lambda: positions, text, text, source, True)
        return self.stack.whole(tokens, self.num_layers, frame)

    def _empty_cache(self, batch: int) -> Float[Tensor, "L B capacity H2 head_dim"]:
        self._laid_out.zero_()  # a mask does not hide NaN
        return self._laid_out[:, :batch]

    def _with_rows(self, count: int) -> Float[Tensor, "L B capacity H2 head_dim"]:
        if count > self.rows:
            raise InputError(f"select: {count} rows; the static cache was laid out for {self.rows}")
        return self._laid_out[:, :count]

    def _reserve(self, end: int) -> None:
        if end > self.capacity:
            raise InputError(
                f"static cache: {end} tokens do not fit into the {self.capacity} that it was laid out for; "
                "lay it out for prompt and max_new_tokens, or turn graphs off"
            )


class LaidSource:
    """An encoder-decoder's keys and values of the source at a fixed place, with a mask of what lies behind each source.

    A model that hears has no mask: all its sources are as long.
    """

    def __init__(self, stack: Stack, rows: int, longest: int) -> None:
        self.length = stack.source_length or _rounded(longest)
        shape = (stack.num_layers, rows, 2 * stack.num_kv_heads, self.length, stack.head_dim)
        states = torch.zeros(shape, device=stack.device, dtype=stack.dtype)
        self.view = SourceStates(states, None if stack.source_length else states.new_zeros(rows, 1, 1, self.length))

    @torch.inference_mode()
    def hold(self, source: SourceStates) -> None:
        """Copy what a session's rows read from now on; all else is 0, since a mask hides no NaN.

        Raises:
            InputError: a source that is longer than there is room for.
        """
        rows, length = source.states.shape[1], source.states.shape[3]
        if length > self.length:
            raise InputError(f"prompts: a source of {length} tokens; the static cache was laid out for {self.length}")
        self.view.states.zero_()
        self.view.states[:, :rows, :, :length].copy_(source.states)
        if self.view.mask is not None:
            self.view.mask[:rows].fill_(float("-inf"))
            self.view.mask[:rows, ..., :length] = 0.0 if source.mask is None else source.mask


def _rounded(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE
