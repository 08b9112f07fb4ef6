"""Triton: where top-k and top-p cut a row, found by bisection over the logits' bits: no sort, nothing of size V written.

A row keeps tokens above its threshold and, of those equal to it, the ids from ``first tie`` on: transformers' rule for ties,
all of them at the k-th logit; at top-p as many as the nucleus needs, the higher ids first, as a stable ascending sort has them.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.verify.reference import Sampling

TILE = 4096
NUM_WARPS = 8


@triton.jit
@no_type_check
def _ordered(values):
    """Integers in the order of the fp32 numbers (-0 and 0 alike)."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
@no_type_check
def _above(start, vocab_size, key, tie, kept_key, top, inverse_temperature, weighted: tl.constexpr, tile_size: tl.constexpr):
    """How many tokens, or how much exp(scaled - top), lie above (key, id): larger, or equal with an id of at least ``tie``.

    Only tokens of at least ``kept_key`` count.
    """
    total = tl.zeros([1], tl.float64)
    for first in range(0, vocab_size, tile_size):
        columns = first + tl.arange(0, tile_size)
        raw = tl.load(start + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
        keys = _ordered(raw)
        counts = (columns < vocab_size) & (keys >= kept_key) & ((keys > key) | ((keys == key) & (columns >= tie)))
        each = tl.where(counts, 1.0, 0.0)
        if weighted:
            each = tl.where(counts, tl.exp((raw - top) * inverse_temperature), 0.0)
        total += tl.sum(each, 0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
@no_type_check
def find_thresholds(
    logits, thresholds, ties, entry_stride, row_stride, vocab_size, num_rows, inverse_temperature, top_k, top_p,
    by_count: tl.constexpr, by_mass: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """One program a row; thresholds (fp32) and ties (int32) are [B, rows]."""
    row, entry = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    start = logits + entry * entry_stride + row * row_stride
    lowest = tl.full([], -2139095041, tl.int64)  # -inf
    highest = tl.full([], 2139095040, tl.int64)  # +inf
    kept, tie = lowest, tl.full([], 0, tl.int64)
    if by_count:  # the largest key that at least k tokens reach
        low, high = lowest, highest
        for _ in range(32):
            middle = low + (high - low + 1) // 2
            enough = _above(start, vocab_size, middle, 0, lowest, 0.0, 1.0, False, tile_size) >= top_k
            low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
        kept = low
    key = kept
    if by_mass:
        top = tl.full([], float("-inf"), tl.float32)
        for first in range(0, vocab_size, tile_size):
            columns = first + tl.arange(0, tile_size)
            tile = tl.load(start + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)
            top = tl.maximum(top, tl.max(tile, 0))
        mass = top_p * _above(start, vocab_size, lowest, 0, kept, top, inverse_temperature, True, tile_size)
        low, high = lowest, highest  # the smallest key above which there is less than the mass
        for _ in range(32):
            middle = low + (high - low) // 2
            small = _above(start, vocab_size, middle, vocab_size, kept, top, inverse_temperature, True, tile_size) < mass
            low, high = tl.where(small, low, middle + 1), tl.where(small, middle, high)
        key = low
        left, right = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64) + vocab_size
        for _ in range(32):  # the smallest id for which what is above it is still less than the mass
            middle = left + (right - left) // 2
            small = _above(start, vocab_size, key, middle + 1, kept, top, inverse_temperature, True, tile_size) < mass
            left, right = tl.where(small, left, middle + 1), tl.where(small, middle, right)
        tie = left
    bits = key.to(tl.int32)
    value = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    tl.store(thresholds + entry * num_rows + row, value)
    tl.store(ties + entry * num_rows + row, tie.to(tl.int32))


def thresholds(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Threshold and first tie of every row of [B, rows, V] logits, whose columns lie next to each other."""
    batch, num_rows, vocab_size = logits.shape
    limits = torch.empty(batch, num_rows, dtype=torch.float32, device=logits.device)
    ties = torch.empty(batch, num_rows, dtype=torch.int32, device=logits.device)
    by_count = sampling.top_k is not None and sampling.top_k < vocab_size
    find_thresholds[(num_rows, batch)](
        logits, limits, ties, *logits.stride()[:2], vocab_size, num_rows, 1.0 / sampling.temperature,
        sampling.top_k if by_count else 0, 1.0 if sampling.top_p is None else sampling.top_p,
        by_count=by_count, by_mass=sampling.top_p is not None and sampling.top_p < 1, tile_size=TILE, num_warps=NUM_WARPS,
    )  # fmt: skip
    return limits, ties
