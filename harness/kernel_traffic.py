"""What a verification kernel moves through memory, counted from what it does, and what the machine can move, measured."""

import time
from collections.abc import Callable

import torch

from kernels.verify.check import DTYPES

FLOAT, DOUBLE = 4, 8


def bytes_moved(kernel: str, batch: int, gamma: int, vocab_size: int, dtype: str) -> int:
    """Bytes read and written by one call where every draft is looked at; caches are taken to hold nothing between operations.

    The last token's row is counted once for each pass over it. Sizes that do not grow with the vocabulary are left out. The
    PyTorch path of "fused" reads fewer rows where a draft is refused: this is its upper bound.
    """
    size = DTYPES[dtype].itemsize
    logits, rows = (2 * gamma + 1) * size, (2 * gamma + 1) * FLOAT
    draw = 2 * FLOAT + 2 * DOUBLE  # weights summed and read again; the cumulative sum written and searched
    eager = 3 * FLOAT + 3 * FLOAT + draw  # difference and clamp of one row, its division, the draw
    tiles = 2 * gamma * FLOAT  # ratio and residual written
    per_token = {
        "transformers": logits + rows + eager,
        "baseline": logits + rows + eager,
        "exact": logits + rows + 2 * gamma * FLOAT + tiles + FLOAT + draw,
        "sigmoid": 2 * gamma * size + tiles + size + FLOAT + draw,
        "sigmoid-released": 2 * gamma * size + tiles + size + FLOAT + draw,
        "fused": logits + 2 * size,  # all rows once, then the two rows that decide
    }
    return batch * vocab_size * per_token[kernel]


def bandwidth(device: str, num_bytes: int = 2**28, repeats: int = 10) -> float:
    """Bytes a second of copying a buffer far larger than any cache, read and write both counted; the best of the repeats."""
    source = torch.zeros(num_bytes // FLOAT, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / min(_seconds(lambda: target.copy_(source), device) for _ in range(repeats))


def empty_launch_s(device: str, repeats: int = 200) -> float:
    """Seconds of an operation on one number, the median."""
    one = torch.zeros(1, device=device)
    return sorted(_seconds(lambda: one.add_(0), device) for _ in range(repeats))[repeats // 2]


def _seconds(call: Callable[[], object], device: str) -> float:
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
