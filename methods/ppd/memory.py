"""The memory that a pipeline's processes share: requests and answers, and the cache of one row with slots for candidates.

A request or an answer counts once its round number is written, last. Another core sees writes in that order on x86; elsewhere
it need not, and the pipeline is refused.

One-token slots lie in front of the row's history. Attention does not care where in the cache a key lies, only which keys a
query may see: a candidate in a slot sees itself and the history behind all slots, [slot | other slots, hidden | history]. So
nothing is copied to look ahead, and a candidate that proves right costs the copy of one token.
"""

import ctypes
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from methods.errors import InputError
from methods.models.base import Frame, Stack
from methods.session import ModelSession

Storage = Float[Tensor, "L 1 slots_and_capacity H2 head_dim"]

LINE_BYTES = 64
ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64", "i686", "i386")


@dataclass
class _SharedTensor:
    """A tensor of zeros that a process and its children see alike, handed over by fork or by spawn.

    On a CPU it lies in an anonymous mapping that ends with its last process, however that ends; on CUDA ``raw`` is a tensor
    that torch hands over by IPC.
    """

    raw: Any
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, context: BaseContext) -> "_SharedTensor":
        if device.type != "cpu":
            return cls(torch.zeros(shape, dtype=dtype, device=device), shape, dtype)
        count = int(np.prod(shape))
        return cls(context.RawArray(ctypes.c_byte, count * dtype.itemsize + LINE_BYTES), shape, dtype)

    @cached_property
    def tensor(self) -> Tensor:
        """Begins on a cache line, so that no two processes write to one."""
        if isinstance(self.raw, Tensor):
            return self.raw
        offset = -ctypes.addressof(self.raw) % LINE_BYTES
        count = int(np.prod(self.shape))
        return torch.frombuffer(self.raw, dtype=self.dtype, count=count, offset=offset).view(self.shape)

    def __getstate__(self) -> dict[str, Any]:
        """Without the cached view: a child makes its own."""
        return {"raw": self.raw, "shape": self.shape, "dtype": self.dtype}


class Mailbox:
    """Requests to each sub-process and its answers, every row a cache line of its own or more; and the cache that they share.

    ``requests[unit]`` is [round, cached length, number of layers, number of candidates, is the pipeline running],
    ``answers[unit]`` is [round], ``times[unit]`` [begin, end] of its work in seconds of the performance counter, and
    ``hidden[slot]`` the state of that slot's candidate. ``storage`` is the cache, with its slots in front.
    """

    ROUND, LENGTH, LAYERS, COUNT, RUNNING = range(5)

    def __init__(self, stack: Stack, capacity: int, num_slots: int, num_units: int, context: BaseContext) -> None:
        host, width = torch.device("cpu"), stack.width
        words = LINE_BYTES // 8
        tokens = -(-num_slots // words) * words
        self._requests = _SharedTensor.zeros((num_units, words), torch.int64, host, context)
        self._tokens = _SharedTensor.zeros((num_units, tokens), torch.int64, host, context)
        self._answers = _SharedTensor.zeros((num_units, words), torch.int64, host, context)
        self._times = _SharedTensor.zeros((num_units, words), torch.float64, host, context)
        self._hidden = _SharedTensor.zeros((num_slots, width), stack.dtype, stack.device, context)
        shape = (stack.num_layers, 1, num_slots + capacity, 2 * stack.num_kv_heads, stack.head_dim)
        self._storage = _SharedTensor.zeros(shape, stack.dtype, stack.device, context)

    @cached_property
    def requests(self) -> np.ndarray:
        return self._requests.tensor.numpy()

    @cached_property
    def tokens(self) -> np.ndarray:
        return self._tokens.tensor.numpy()

    @cached_property
    def answers(self) -> np.ndarray:
        return self._answers.tensor.numpy()

    @cached_property
    def times(self) -> np.ndarray:
        return self._times.tensor.numpy()

    @property
    def hidden(self) -> Tensor:
        return self._hidden.tensor

    @property
    def storage(self) -> Tensor:
        return self._storage.tensor

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.startswith("_")}


class PipelineSession(ModelSession):
    """The main process's session: layers may be ahead of others, and a token that waits in a slot can be taken over."""

    def __init__(self, stack: Stack, storage: Storage, num_slots: int) -> None:
        super().__init__(stack)
        self._storage, self._num_slots = storage, num_slots

    @torch.inference_mode()
    def adopt(self, slot: int, num_layers: int) -> None:
        """Take the token in a slot over as the next one of layers 0..num_layers-1."""
        length = self.lengths[0][0]
        self._storage[:num_layers, 0, self._num_slots + length].copy_(self._storage[:num_layers, 0, slot])
        self.lengths[:num_layers] = [(length + 1,)] * num_layers

    def _empty_cache(self, batch: int) -> Float[Tensor, "L 1 capacity H2 head_dim"]:
        if batch != 1:
            raise InputError(f"batch {batch}: a pipeline decodes one row; give it one prompt at a time")
        self._storage[:, :, : self._num_slots].zero_()  # a mask does not hide what is NaN in another candidate's slot
        return self._storage[:, :, self._num_slots :]

    def select(self, rows: Sequence[int]) -> None:
        if len(rows) != 1:
            raise InputError(f"rows {list(rows)}: a pipeline decodes one row; give it one prompt at a time")

    def _reserve(self, end: int) -> None:
        if end > self._cache.shape[2]:
            raise InputError(f"pipeline cache: {end} tokens exceed its capacity of {self._cache.shape[2]}; make a larger one")


class Candidates:
    """A sub-process's view of the cache: candidates for the next token, each in a slot of ``slots``, run side by side."""

    def __init__(self, stack: Stack, storage: Storage, num_slots: int, slots: range) -> None:
        self.stack, self._storage, self._num_slots, self._slots = stack, storage, num_slots, slots
        self._masks: dict[int, Float[Tensor, "n S"] | None] = {}

    @torch.inference_mode()
    def run(self, tokens: Sequence[int], length: int, num_layers: int) -> Float[Tensor, "n D"]:
        """Run layers 0..num_layers-1 on candidates for the position behind ``length`` cached tokens; their hidden states."""
        new = torch.tensor(tokens, device=self.stack.device).unsqueeze(1)
        frame = self._frame(len(tokens), length, num_layers)
        return self.stack.run(self.stack.embed(new, frame), 0, num_layers, frame)[:, 0]

    def _frame(self, count: int, length: int, num_layers: int) -> Frame:
        """Candidates are rows that share one text, each with a slot of its own."""
        first = self._slots.start
        visible = self._storage[:num_layers, 0, first : self._num_slots + length]
        slots, text = visible[:, :count].unsqueeze(2), visible.unsqueeze(1).expand(-1, count, -1, -1, -1)
        history = text[:, :, self._num_slots - first :]
        mask = self._mask(count)
        allowed = None if mask is None else mask[:, : text.shape[2]]

        def positions() -> Tensor:
            return torch.full((count, 1), length, device=self.stack.device)

        return Frame(count, 1, length, length + 1, positions, text, slots, allowed=allowed, history=history)

    def _mask(self, count: int) -> Float[Tensor, "n S"] | None:
        """Return a mask that hides every slot but the candidate's own; None where there is no other."""
        if count not in self._masks:
            first, total = self._slots.start, self._storage.shape[2]
            others = self._num_slots - first
            mask = None
            if others > 1:
                mask = torch.zeros(count, total - first, dtype=self.stack.dtype, device=self.stack.device)
                mask[:, :others] = float("-inf")
                mask[:, :count].fill_diagonal_(0)
            self._masks[count] = mask
        return self._masks[count]
