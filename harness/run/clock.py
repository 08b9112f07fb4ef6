"""The clock that decoding loops are handed: seconds, after the device has finished what was asked of it."""

import time

import torch

from methods.types import Clock


def clock_for(device: str) -> Clock:
    """On a CPU the performance counter itself; on CUDA the device is synchronised first, once a reading."""
    if not device.startswith("cuda"):
        return time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised
