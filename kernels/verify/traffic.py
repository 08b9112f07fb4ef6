"""Measure how many bytes the machine can move in a second, and how long an empty launch takes."""

import time
from collections.abc import Callable

import torch

from kernels.verify.sizes import FLOAT


def bandwidth(device: str, num_bytes: int = 2**28, repeats: int = 10) -> float:
    """Measure bytes a second, read and written, of copying a buffer far larger than any cache; the best of the repeats."""
    source = torch.zeros(num_bytes // FLOAT, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / min(seconds_of(lambda: target.copy_(source), device) for _ in range(repeats))


def empty_launch_s(device: str, repeats: int = 200) -> float:
    """Measure the seconds of an operation on one number, the median of the repeats."""
    one = torch.zeros(1, device=device)
    return sorted(seconds_of(lambda: one.add_(0), device) for _ in range(repeats))[repeats // 2]


def seconds_of(call: Callable[[], object], device: str) -> float:
    """Time one call: between two events of the device, which is waited for afterwards, or by the performance counter."""
    if device.startswith("cuda"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        return begin.elapsed_time(end) / 1e3
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
