"""A device that captures, played in two ways: what a graph may do and what it may not, and what it keeps of its capture."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class Replays:
    """Stands for a device that captures: a launch repeats the operations of the capture on the very tensors, no Python runs.

    So what a step took from the host, a number or a list, stays as it was when it was captured.
    """

    def __init__(self) -> None:
        self.captured, self.launched = 0, 0
        self.results: list[tuple[torch.Tensor, ...]] = []

    def __call__(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.captured += 1
        work()  # warms up
        with Recorded() as recorded:
            made = work()
        self.results.append(made)

        def launch() -> Any:
            self.launched += 1
            for tensor in (tensor for other in self.results if other is not made for tensor in other):
                tensor.fill_(float("nan") if tensor.is_floating_point() else RUBBISH)
            for operation, args, kwargs, places in recorded.steps:
                for place, new in zip(places, tensors_of(operation(*args, **kwargs)), strict=False):
                    if place is not new and place.data_ptr() != new.data_ptr():
                        place.copy_(new)
            return made

        return launch


class Recorded(TorchDispatchMode):
    """Keeps the operations that run, with what they read and where their results lie; views are there anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        assert name not in WAITS, f"{name} waits for the device"
        read = {tensor.untyped_storage().data_ptr() for tensor in tensors_of((args, kwargs)) if tensor.numel()}
        is_view = all(tensor.untyped_storage().data_ptr() in read or not tensor.numel() for tensor in tensors_of(made))
        if operation._schema.is_mutable:
            self.steps.append((operation, args, kwargs, []))
        elif not is_view:
            self.steps.append((operation, args, kwargs, tensors_of(made)))
        return made


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
