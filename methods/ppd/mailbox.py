"""Memory that processes share: plain arrays, and the requests and answers between a main process and its sub-processes.

A request or an answer counts once its round number is written, last. Another core sees writes in that order on x86; elsewhere
it need not, and the pipeline is refused.
"""

import ctypes
import platform
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from torch import Tensor

LINE_BYTES = 64
ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64", "i686", "i386")


@dataclass
class SharedTensor:
    """A tensor of zeros that a process and its children see alike, handed over by fork or by spawn.

    On a CPU it lies in an anonymous mapping that ends with its last process, however that ends; on CUDA ``raw`` is a tensor
    that torch hands over by IPC.
    """

    raw: Any
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, context: BaseContext) -> "SharedTensor":
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
    """Requests to each sub-process and its answers; every row is a cache line of its own or more.

    ``requests[unit]`` is [round, cached length, number of layers, number of candidates, is the pipeline running],
    ``answers[unit]`` is [round], ``times[unit]`` [begin, end] of its work in seconds of the performance counter, and
    ``hidden[slot]`` the state of that slot's candidate.
    """

    ROUND, LENGTH, LAYERS, COUNT, RUNNING = range(5)

    def __init__(
        self, num_units: int, num_slots: int, width: int, dtype: torch.dtype, device: torch.device, context: BaseContext
    ) -> None:
        host = torch.device("cpu")
        words = LINE_BYTES // 8
        tokens = -(-num_slots // words) * words
        self._requests = SharedTensor.zeros((num_units, words), torch.int64, host, context)
        self._tokens = SharedTensor.zeros((num_units, tokens), torch.int64, host, context)
        self._answers = SharedTensor.zeros((num_units, words), torch.int64, host, context)
        self._times = SharedTensor.zeros((num_units, words), torch.float64, host, context)
        self._hidden = SharedTensor.zeros((num_slots, width), dtype, device, context)

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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.startswith("_")}
