"""CUDA graphs: work of fixed shapes on fixed memory, launched as one. On a CPU the same work runs as it is.

All that captures is here. What is captured must not wait for the device, nor choose by what a tensor holds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from kernels.inputs import InputError

Made = TypeVar("Made")
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]  # from work to what does it from now on
WARM_UP = 2  # runs before a capture: the first ones make handles, workspaces and compiled kernels, which a graph cannot


def capture_for(device: torch.device) -> Capture:
    """Return what captures work on a device; on a CPU it returns the work itself.

    All graphs that it makes share memory: what one of them returns holds until another is launched.
    """
    if device.type != "cuda":
        return lambda work: work
    return partial(capture, stream=torch.cuda.Stream(device), pool=torch.cuda.graph_pool_handle())


def capture(work: Callable[[], Made], stream: Any, pool: Any = None) -> Callable[[], Made]:
    """Capture some work on a CUDA stream of its own; return the launch of that graph, whose results stay where they are.

    ``pool``: memory that it shares with other graphs of this stream; None: it has its own.

    Raises:
        InputError: the work cannot be captured.
    """
    try:
        with torch.cuda.device(stream.device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                made = work()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"graphs: the device could not capture this work ({first}); turn graphs off") from error

    def launch() -> Made:
        graph.replay()
        return made

    return launch
