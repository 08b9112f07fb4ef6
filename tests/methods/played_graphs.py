"""A device that captures, played: what a graph may do and what it may not."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

RUBBISH = 10**9  # no token, no place, no count
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal")  # of the host, or for how large a result is


class Graphs:
    """Stands for a device that captures.

    Work is done once when it is captured, its results lie at fixed places from then on, and a launch of one graph leaves
    rubbish in those of the others. All launches of a graph run the same operations on the same shapes, and none waits; unless
    it is not ``strict``, for work that does otherwise on a CPU alone.
    """

    def __init__(self, strict: bool = True) -> None:
        self.captured, self.launched, self.strict = 0, 0, strict
        self.results: list[tuple[torch.Tensor, ...]] = []

    def __call__(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.captured += 1
        with Operations(self.strict) as captured:
            made = work()
        self.results.append(made)

        def launch() -> Any:
            self.launched += 1
            with Operations(self.strict) as launched:
                now = work()
            assert not self.strict or launched.seen == captured.seen
            for other in self.results:
                for tensor in other:
                    tensor.fill_(float("nan") if tensor.is_floating_point() else RUBBISH)
            for place, new in zip(made, now, strict=True):
                place.copy_(new)
            return made

        return launch


class Operations(TorchDispatchMode):
    """Lists the operations that run, with the shapes of what they read and make. One that waits is an error, if it is to be."""

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict
        self.seen: list[tuple[str, ...]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        assert not self.strict or name not in WAITS, f"{name} waits for the device"
        self.seen.append((name, *(_shapes(one) for one in (*args, made))))
        return made


def _shapes(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype}"
    return str([_shapes(one) for one in value]) if isinstance(value, (list, tuple)) else str(value)
