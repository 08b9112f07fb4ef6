"""Triton: where top-k and top-p cut a row, found by bisection over the logits' bits: no sort, nothing of size V written.

A row keeps tokens above its threshold and, of those equal to it, the ids from ``first tie`` on: transformers' rule for ties,
all of them at the k-th logit; at top-p as many as the nucleus needs, the higher ids first, as a stable ascending sort has them.

One program a row, the rows of both models in one launch. A row that fits into a tile is read once and stays in registers; a
longer one is read at every step, from cache. Half-precision logits differ in their upper bits alone: they take fewer steps.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.verify.reference import Sampling

# Tokens and warps of a program: the larger one for rows that fit, without top-p, whose exponentials need registers, too.
TILES = ((8192, 16), (32_768, 32))
DROPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}  # of an fp32 number: 0 in all that was widened to it
ALIGNED = 16  # bytes that each part of scratch memory begins at a multiple of: for others Triton compiles a kernel apart
NO_TOP_P = 2.0  # a mass that is never reached


@triton.jit
@no_type_check
def _tile(target, draft, entry, row, columns, vocab_size, dropped_bits: tl.constexpr):
    """A tile's keys: integers in the order of the logits (-0 and 0 alike), below every logit's outside of the vocabulary.

    Rows are those of the target, then those of the draft.
    """
    inside = columns < vocab_size
    if row < target[6]:
        values = tl.load(target[0] + entry * target[3] + row * target[4] + columns, mask=inside, other=0.0).to(tl.float32)
    else:
        start = draft[0] + entry * draft[3] + (row - target[6]) * draft[4]
        values = tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(inside, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> dropped_bits, -2147483648)


@triton.jit
@no_type_check
def _value(key, dropped_bits: tl.constexpr):
    """The fp32 number of a key."""
    bits = (key << dropped_bits) | tl.where(key < 0, (1 << dropped_bits) - 1, 0)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def _count(
    keys, target, draft, entry, row, vocab_size, key, resident: tl.constexpr, dropped_bits: tl.constexpr,
    tile_size: tl.constexpr,
):  # fmt: skip
    """How many tokens of a row have a key of at least ``key``."""
    if resident:
        total = tl.sum((keys >= key).to(tl.int32), 0)
    else:
        total = tl.full([], 0, tl.int32)
        for first in range(0, vocab_size, tile_size):
            tile = _tile(target, draft, entry, row, first + tl.arange(0, tile_size), vocab_size, dropped_bits)
            total += tl.sum((tile >= key).to(tl.int32), 0)
    return total


@triton.jit
@no_type_check
def _weights(keys, columns, key, tie, kept, top, inverse_temperature, dropped_bits: tl.constexpr):
    """exp(scaled - top) of a tile's tokens above (key, id): larger, or equal with an id of at least ``tie``; else 0."""
    above = (keys >= kept) & ((keys > key) | ((keys == key) & (columns >= tie)))
    below_top = tl.where(above, _value(keys, dropped_bits), top) - top
    return tl.sum(tl.where(above, tl.exp(below_top * inverse_temperature), 0.0), 0).to(tl.float64)


@triton.jit
@no_type_check
def _mass(
    keys, target, draft, entry, row, vocab_size, key, tie, kept, top, inverse_temperature, resident: tl.constexpr,
    dropped_bits: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """The sum of these weights over a row."""
    if resident:
        total = _weights(keys, tl.arange(0, tile_size), key, tie, kept, top, inverse_temperature, dropped_bits)
    else:
        total = tl.full([], 0, tl.float64)
        for first in range(0, vocab_size, tile_size):
            columns = first + tl.arange(0, tile_size)
            tile = _tile(target, draft, entry, row, columns, vocab_size, dropped_bits)
            total += _weights(tile, columns, key, tie, kept, top, inverse_temperature, dropped_bits)
    return total


@triton.jit
@no_type_check
def _kth(
    keys, target, draft, entry, row, vocab_size, top_k, lowest, highest, resident: tl.constexpr, dropped_bits: tl.constexpr,
    tile_size: tl.constexpr,
):  # fmt: skip
    """The largest key that at least k tokens reach."""
    low, high = lowest, highest
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        reached = _count(keys, target, draft, entry, row, vocab_size, middle.to(tl.int32), resident, dropped_bits, tile_size)
        low, high = tl.where(reached >= top_k, middle, low), tl.where(reached >= top_k, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
@no_type_check
def _nucleus(
    keys, target, draft, entry, row, vocab_size, top_p, kept, lowest, highest, inverse_temperature, resident: tl.constexpr,
    dropped_bits: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """The smallest key above which there is less than the mass, and of its tokens the smallest id for which that holds."""
    largest = tl.max(keys, 0)
    if not resident:
        for first in range(tile_size, vocab_size, tile_size):
            tile = _tile(target, draft, entry, row, first + tl.arange(0, tile_size), vocab_size, dropped_bits)
            largest = tl.maximum(largest, tl.max(tile, 0))
    top = _value(largest, dropped_bits)
    mass = top_p * _mass(
        keys, target, draft, entry, row, vocab_size, kept, 0, kept, top, inverse_temperature, resident, dropped_bits, tile_size
    )
    low, high = lowest, highest
    while low < high:
        middle = low + ((high - low) >> 1)
        above = _mass(
            keys, target, draft, entry, row, vocab_size, middle.to(tl.int32), vocab_size, kept, top, inverse_temperature,
            resident, dropped_bits, tile_size,
        )  # fmt: skip
        low, high = tl.where(above < mass, low, middle + 1), tl.where(above < mass, middle, high)
    key = tl.maximum(low.to(tl.int32), kept)
    left = tl.full([], 0, tl.int32)
    right = left
    alike = _count(keys, target, draft, entry, row, vocab_size, key, resident, dropped_bits, tile_size)
    alike -= _count(keys, target, draft, entry, row, vocab_size, key + 1, resident, dropped_bits, tile_size)
    if alike > 1:
        right = left + vocab_size
    while left < right:
        middle = left + ((right - left) >> 1)
        above = _mass(
            keys, target, draft, entry, row, vocab_size, key, middle + 1, kept, top, inverse_temperature, resident,
            dropped_bits, tile_size,
        )  # fmt: skip
        left, right = tl.where(above < mass, left, middle + 1), tl.where(above < mass, middle, right)
    return key, left


@triton.jit
@no_type_check
def find_thresholds(
    target, draft, vocab_size, by_count: tl.constexpr, by_mass: tl.constexpr, resident: tl.constexpr,
    dropped_bits: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """One program a row. ``target`` and ``draft``: (logits, thresholds (fp32) and first ties (int32), both [B, rows], entry
    stride, row stride, 1 / temperature, rows, top-k, top-p)."""
    row, entry = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    inverse_temperature, top_k, top_p = target[5], target[7], target[8]
    if row >= target[6]:
        inverse_temperature, top_k, top_p = draft[5], draft[7], draft[8]
    keys = _tile(target, draft, entry, row, tl.arange(0, tile_size), vocab_size, dropped_bits)
    lowest = tl.full([], -2139095041, tl.int64) >> dropped_bits  # -inf
    highest = tl.full([], 2139095040, tl.int64) >> dropped_bits  # +inf
    key, tie = lowest.to(tl.int32), tl.full([], 0, tl.int32)
    if by_count:
        key = _kth(keys, target, draft, entry, row, vocab_size, top_k, lowest, highest, resident, dropped_bits, tile_size)
    if by_mass:
        key, tie = _nucleus(
            keys, target, draft, entry, row, vocab_size, top_p, key, lowest, highest, inverse_temperature, resident,
            dropped_bits, tile_size,
        )  # fmt: skip
    if row < target[6]:
        output = entry * target[6] + row
        tl.store(target[1] + output, _value(key, dropped_bits))
        tl.store(target[2] + output, tie)
    else:
        output = entry * draft[6] + row - target[6]
        tl.store(draft[1] + output, _value(key, dropped_bits))
        tl.store(draft[2] + output, tie)


def scratch(dtype: torch.dtype, device: torch.device, *counts: int) -> tuple[Tensor, ...]:
    """Allocate at least so many numbers each, not filled, at once: a host takes longer to allocate than a device to decide."""
    whole = ALIGNED // dtype.itemsize
    padded = [triton.cdiv(count, whole) * whole for count in counts]
    return torch.empty(sum(padded), dtype=dtype, device=device).split(padded)


def thresholds(*models: tuple[Tensor, Sampling]) -> list[tuple[Tensor, Tensor]]:
    """Threshold and first tie of every row, [B, rows] both, of one or two models' logits [B, rows, V] with their sampling.

    Columns lie next to each other.
    """
    batch, _, vocab_size = models[0][0].shape
    device, counts = models[0][0].device, [logits.shape[1] for logits, _ in models]
    limits, ties = (scratch(dtype, device, *(batch * count for count in counts)) for dtype in (torch.float32, torch.int32))
    given = [
        (
            logits, limit, tie, *logits.stride()[:2], 1.0 / sampling.temperature, logits.shape[1],
            min(sampling.top_k or vocab_size, vocab_size),
            NO_TOP_P if sampling.top_p is None or sampling.top_p >= 1 else sampling.top_p,
        )
        for (logits, sampling), limit, tie in zip(models, limits, ties, strict=True)
    ]  # fmt: skip
    by_mass = any(sampling.top_p is not None and sampling.top_p < 1 for _, sampling in models)
    tile_size, num_warps = TILES[vocab_size <= TILES[1][0] and not by_mass]
    find_thresholds[(sum(counts), batch)](
        given[0], given[-1], vocab_size,
        by_count=any(sampling.top_k is not None and sampling.top_k < vocab_size for _, sampling in models),
        by_mass=by_mass,
        resident=vocab_size <= tile_size, dropped_bits=min(DROPPED_BITS.get(logits.dtype, 0) for logits, _ in models),
        tile_size=tile_size, num_warps=num_warps,
    )  # fmt: skip
    return [
        (limit[: batch * count].view(batch, count), tie[: batch * count].view(batch, count))
        for limit, tie, count in zip(limits, ties, counts, strict=True)
    ]
