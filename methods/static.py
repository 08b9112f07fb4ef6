"""A session of fixed shapes: its cache is laid out once, and a pass of few tokens is one step, on a GPU one CUDA graph.

A step finds all that it reads and writes at fixed places: the new tokens, how many are cached of each row, the whole cache. It
attends to all places of the cache behind a mask, which it makes of those lengths: what was rewound, or never written, has
weight 0. There is a step a number of new tokens, always over all rows; rows that have ended are padding.
"""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.capture import Capture, capture_for
from kernels.transfer import to_device
from methods.errors import InputError
from methods.models.base import Frame, Stack
from methods.session import ModelSession, scatter
from methods.types import Inputs

MULTIPLE = 64  # capacities are rounded up to it: attention reads such rows at once


def check_static(stack: Stack) -> None:
    """InputError for a model whose passes have no static form."""
    if stack.parts or not stack.can_be_static:
        raise InputError(
            f"graphs of model type {stack.model.config.model_type!r}: it has no static form; expected a Llama, Mistral, Qwen2, "
            "Gemma or GPT-2 on one device, or graphs off"
        )


class StaticSession(ModelSession):
    """Gives what ``ModelSession`` gives, up to rounding. On a CPU its steps run uncaptured.

    Prompts, and passes of more than ``most_new`` tokens, run as in ``ModelSession``, over the same cache. All steps are
    captured when a session is made, so that nothing is captured while a text is timed.
    """

    @torch.inference_mode()
    def __init__(self, stack: Stack, capacity: int, most_new: int, rows: int = 1, capture: Capture | None = None) -> None:
        """``capacity``: tokens of the longest row, prompt and output; ``most_new``: of a step; ``rows``: the most of a batch.

        ``capture`` turns a step into its captured form (None: what the device has).

        Raises:
            InputError: a model without a static form, or a step that cannot be captured.
        """
        check_static(stack)
        super().__init__(stack)
        self.capacity, self.rows = -(-(capacity + most_new) // MULTIPLE) * MULTIPLE, rows
        shape = (self.num_layers, rows, self.capacity, 2 * stack.num_kv_heads, stack.head_dim)
        self._laid_out = torch.zeros(shape, device=self.device, dtype=stack.dtype)
        self._starts = torch.zeros(rows, device=self.device, dtype=torch.long)
        self._rotary = stack.rotary(self.capacity)  # kept: another session may make the stack replace its table
        sizes = range(1, most_new + 1)
        self._tokens = {size: torch.zeros(rows, size, device=self.device, dtype=torch.long) for size in sizes}
        capture = capture or capture_for(self.device)
        self._steps = {size: capture(partial(self._step, self._tokens[size])) for size in sizes}

    def prefill(self, inputs: Inputs) -> list[int]:
        """As ``ModelSession``'s. InputError for more rows than the cache was laid out for."""
        if inputs.batch > self.rows:
            raise InputError(f"prompts: {inputs.batch} rows; the static cache was laid out for {self.rows}")
        return super().prefill(inputs)

    @torch.inference_mode()
    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """As ``ModelSession``'s. InputError also where a row outgrows the capacity."""
        rows, num_new = tokens.shape
        if num_new not in self._steps:
            return super().extend(tokens)
        lengths = self._lengths_for(rows, num_new, 0, self.num_layers)
        self._reserve(max(lengths) + num_new)
        self._starts.copy_(to_device([*lengths, *[0] * (self.rows - rows)], self.device))
        self._tokens[num_new][:rows].copy_(tokens)
        hidden, logits = self._steps[num_new]()
        self.lengths = [tuple([length + num_new for length in lengths])] * self.num_layers
        self.hidden = hidden[:rows].clone()  # where it lies another step may write
        return logits[:rows].clone()

    def _step(self, tokens: Int[Tensor, "rows n"]) -> tuple[Float[Tensor, "rows n D"], Float[Tensor, "rows n V"]]:
        """Run a pass over fixed memory: hidden states and logits. Nothing in it depends on what a tensor holds."""
        batch, num_new = tokens.shape
        positions = self._starts.unsqueeze(1) + torch.arange(num_new, device=self.device)
        keys, values = self._views(self._laid_out)
        slots = self._laid_out.unbind(0)
        frame = Frame(batch, num_new, None, self.capacity, lambda: positions, keys, values, slots, scatter(positions))
        hidden = self.stack.run(self.stack.embed(tokens, frame), 0, self.num_layers, frame)
        return hidden, self.stack.head(hidden)

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
