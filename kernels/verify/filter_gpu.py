"""Triton: where top-k and top-p cut a row, found digit by digit in the logits' bits: no sort, nothing of size V written.

A row keeps tokens above its threshold and, of those equal to it, the ids from ``first tie`` on: transformers' rule for ties,
all of them at the k-th logit; at top-p as many as the nucleus needs, the higher ids first, as a stable ascending sort has them.

Top-k is a radix select. A launch of ``count_digits`` for each digit (8 bits) of a key, a program a tile: it counts its tile's
keys by that digit, of those whose earlier digits are the k-th largest key's. A row's counts say what the digit is, to whoever
reads them next. Half-precision keys have two digits, others four. ``find_thresholds`` reads the last one, one program a row,
and bisects the nucleus, over a row that stays in registers where it fits, or else is read at every step, from cache.

Rows of both models share a launch: those of the target, then those of the draft. ``target`` and ``draft`` are (logits,
thresholds (fp32) and first ties (int32), both [B, rows], entry stride, row stride, 1 / temperature, rows, top-k, top-p).
``counts`` has a block for every row and digit: in its first line the earlier digits and the rank that are known, then a line
for every tile.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.verify.reference import Sampling

MOST_TILES = 16  # of a row: every program reads the counts of all of them
LEAST_TILE = 2048  # tokens that a program counts
NUCLEUS_TILE = 8192
FIND_WARPS = {False: 8, True: 16}  # without top-p, and with it
NUM_BINS = tl.constexpr(256)  # of a digit
NUMBERS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}  # that keys are made of; of all others fp32
DIGITS = {tl.bfloat16: 2, tl.float16: 2, tl.float32: 4}
ALIGNED = 16  # bytes that each part of scratch memory begins at a multiple of: for others Triton compiles a kernel apart
NO_TOP_P = 2.0  # a mass that is never reached


@triton.jit
@no_type_check
def _least(numbers: tl.constexpr):
    """The key below every number's, for what is outside of the vocabulary; as bits, -0."""
    return -2147483648 if numbers == tl.float32 else -32768


@triton.jit
@no_type_check
def _flipped(bits, numbers: tl.constexpr):
    """From a number's bits to its key, an int32 in the order of the numbers, or back; -0 and 0 have the key 0."""
    return tl.where(bits < 0, _least(numbers) - bits, bits)


@triton.jit
@no_type_check
def _key(values, numbers: tl.constexpr):
    """The keys of numbers."""
    bits = values.to(numbers).to(tl.int32 if numbers == tl.float32 else tl.int16, bitcast=True)
    return _flipped(bits.to(tl.int32), numbers)


@triton.jit
@no_type_check
def _value(key, numbers: tl.constexpr):
    """The number of a key, in fp32."""
    bits = _flipped(key, numbers).to(tl.int32 if numbers == tl.float32 else tl.int16)
    return bits.to(numbers, bitcast=True).to(tl.float32)


@triton.jit
@no_type_check
def _tile(target, draft, entry, row, columns, vocab_size, numbers: tl.constexpr):
    """The keys of a row's tile."""
    inside = columns < vocab_size
    if row < target[6]:
        start = target[0] + entry * target[3] + row * target[4]
        keys = _key(tl.load(start + columns, mask=inside, other=0.0), numbers)
    else:
        start = draft[0] + entry * draft[3] + (row - target[6]) * draft[4]
        keys = _key(tl.load(start + columns, mask=inside, other=0.0), numbers)
    return tl.where(inside, keys, _least(numbers))


@triton.jit
@no_type_check
def _known(block, top_k, num_tiles, digit: tl.constexpr, digits: tl.constexpr, tiles_padded: tl.constexpr):
    """Of the k-th largest key the digits before this one, all others 0, and its rank among the keys that share them.

    ``block`` is where the counts by the digit before are.
    """
    known, rank = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32) + top_k
    if digit > 1:
        known, rank = tl.load(block), tl.load(block + 1)
    if digit > 0:
        tiles, bins = tl.arange(0, tiles_padded), tl.arange(0, NUM_BINS)
        lines = block + (tiles[:, None] + 1) * NUM_BINS + bins[None, :]
        counts = tl.sum(tl.load(lines, mask=(tiles < num_tiles)[:, None], other=0), 0)
        reached = tl.cumsum(counts, 0, reverse=True)
        known |= (tl.sum((reached >= rank).to(tl.int32), 0) - 1) << 8 * (digits - digit)
        rank -= tl.max(tl.where(reached < rank, reached, 0), 0)
    return known, rank


@triton.jit
@no_type_check
def _top_k(target, draft, row):
    """A row's own."""
    top_k = target[7]
    if row >= target[6]:
        top_k = draft[7]
    return top_k


@triton.jit(do_not_specialize=("num_tiles",))
@no_type_check
def count_digits(
    target, draft, counts, vocab_size, num_tiles, digit: tl.constexpr, digits: tl.constexpr, numbers: tl.constexpr,
    tiles_padded: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """One tile of one row. Digits are those of key - least. Keys that do not count are counted as 0, which nobody looks at:
    the k-th largest has the digit 0 where those from 1 on do not reach it."""
    tile, row, entry = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    size = (num_tiles + 1) * NUM_BINS
    block = counts + ((entry * tl.num_programs(1) + row) * digits + digit) * size
    columns = tile * tile_size + tl.arange(0, tile_size)
    keys = _tile(target, draft, entry, row, columns, vocab_size, numbers) - _least(numbers)
    known, rank = _known(block - size, _top_k(target, draft, row), num_tiles, digit, digits, tiles_padded)
    shift: tl.constexpr = 8 * (digits - 1 - digit)
    bins = (keys >> shift) & (NUM_BINS - 1)
    if digit > 0:
        bins = tl.where((keys ^ known) >> shift + 8 == 0, bins, 0)
        tl.store(block, known)
        tl.store(block + 1, rank)
    tl.store(block + (tile + 1) * NUM_BINS + tl.arange(0, NUM_BINS), tl.histogram(bins, NUM_BINS))


@triton.jit
@no_type_check
def _count(
    keys, target, draft, entry, row, vocab_size, key, resident: tl.constexpr, numbers: tl.constexpr,
    tile_size: tl.constexpr,
):  # fmt: skip
    """How many tokens of a row have a key of at least ``key``."""
    if resident:
        total = tl.sum((keys >= key).to(tl.int32), 0)
    else:
        total = tl.full([], 0, tl.int32)
        for first in range(0, vocab_size, tile_size):
            tile = _tile(target, draft, entry, row, first + tl.arange(0, tile_size), vocab_size, numbers)
            total += tl.sum((tile >= key).to(tl.int32), 0)
    return total


@triton.jit
@no_type_check
def _weights(keys, columns, key, tie, kept, top, inverse_temperature, numbers: tl.constexpr):
    """exp(scaled - top) of a tile's tokens above (key, id): larger, or equal with an id of at least ``tie``; else 0."""
    above = (keys >= kept) & ((keys > key) | ((keys == key) & (columns >= tie)))
    below_top = tl.where(above, _value(keys, numbers), top) - top
    return tl.sum(tl.where(above, tl.exp(below_top * inverse_temperature), 0.0), 0).to(tl.float64)


@triton.jit
@no_type_check
def _mass(
    keys, target, draft, entry, row, vocab_size, key, tie, kept, top, inverse_temperature, resident: tl.constexpr,
    numbers: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """The sum of these weights over a row."""
    if resident:
        total = _weights(keys, tl.arange(0, tile_size), key, tie, kept, top, inverse_temperature, numbers)
    else:
        total = tl.full([], 0, tl.float64)
        for first in range(0, vocab_size, tile_size):
            columns = first + tl.arange(0, tile_size)
            tile = _tile(target, draft, entry, row, columns, vocab_size, numbers)
            total += _weights(tile, columns, key, tie, kept, top, inverse_temperature, numbers)
    return total


@triton.jit
@no_type_check
def _nucleus(
    keys, target, draft, entry, row, vocab_size, top_p, kept, lowest, highest, inverse_temperature, resident: tl.constexpr,
    numbers: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """The smallest key above which there is less than the mass, and of its tokens the smallest id for which that holds."""
    largest = tl.max(keys, 0)
    if not resident:
        for first in range(tile_size, vocab_size, tile_size):
            tile = _tile(target, draft, entry, row, first + tl.arange(0, tile_size), vocab_size, numbers)
            largest = tl.maximum(largest, tl.max(tile, 0))
    top = _value(largest, numbers)
    mass = top_p * _mass(
        keys, target, draft, entry, row, vocab_size, kept, 0, kept, top, inverse_temperature, resident, numbers, tile_size
    )
    low, high = lowest, highest
    while low < high:
        middle = low + ((high - low) >> 1)
        above = _mass(
            keys, target, draft, entry, row, vocab_size, middle.to(tl.int32), vocab_size, kept, top, inverse_temperature,
            resident, numbers, tile_size,
        )  # fmt: skip
        low, high = tl.where(above < mass, low, middle + 1), tl.where(above < mass, middle, high)
    key = tl.maximum(low.to(tl.int32), kept)
    left = tl.full([], 0, tl.int32)
    right = left
    alike = _count(keys, target, draft, entry, row, vocab_size, key, resident, numbers, tile_size)
    alike -= _count(keys, target, draft, entry, row, vocab_size, key + 1, resident, numbers, tile_size)
    if alike > 1:
        right = left + vocab_size
    while left < right:
        middle = left + ((right - left) >> 1)
        above = _mass(
            keys, target, draft, entry, row, vocab_size, key, middle + 1, kept, top, inverse_temperature, resident,
            numbers, tile_size,
        )  # fmt: skip
        left, right = tl.where(above < mass, left, middle + 1), tl.where(above < mass, middle, right)
    return key, left


@triton.jit(do_not_specialize=("num_tiles",))
@no_type_check
def find_thresholds(
    target, draft, counts, vocab_size, num_tiles, by_count: tl.constexpr, by_mass: tl.constexpr, resident: tl.constexpr,
    digits: tl.constexpr, numbers: tl.constexpr, tiles_padded: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """One row: its k-th largest logit, -inf at least and +inf at most whatever is NaN, then its nucleus."""
    row, entry = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    inverse_temperature, top_p = target[5], target[8]
    if row >= target[6]:
        inverse_temperature, top_p = draft[5], draft[8]
    highest = _key(tl.full([], float("inf"), tl.float32), numbers)
    key, tie = -highest, tl.full([], 0, tl.int32)
    if by_count:
        size = (num_tiles + 1) * NUM_BINS
        last = counts + ((entry * tl.num_programs(0) + row) * digits + digits - 1) * size
        known, _ = _known(last, _top_k(target, draft, row), num_tiles, digits, digits, tiles_padded)
        key = tl.minimum(tl.maximum(known + _least(numbers), -highest), highest)
    if by_mass:
        keys = _tile(target, draft, entry, row, tl.arange(0, tile_size), vocab_size, numbers)
        key, tie = _nucleus(
            keys, target, draft, entry, row, vocab_size, top_p, key, -highest.to(tl.int64), highest.to(tl.int64),
            inverse_temperature, resident, numbers, tile_size,
        )  # fmt: skip
    if row < target[6]:
        output = entry * target[6] + row
        tl.store(target[1] + output, _value(key, numbers))
        tl.store(target[2] + output, tie)
    else:
        output = entry * draft[6] + row - target[6]
        tl.store(draft[1] + output, _value(key, numbers))
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
    device, rows = models[0][0].device, [logits.shape[1] for logits, _ in models]
    by_count = any(sampling.top_k is not None and sampling.top_k < vocab_size for _, sampling in models)
    by_mass = any(sampling.top_p is not None and sampling.top_p < 1 for _, sampling in models)
    kinds = {NUMBERS.get(logits.dtype, tl.float32) for logits, _ in models}
    numbers = kinds.pop() if len(kinds) == 1 else tl.float32
    digits = DIGITS[numbers]
    tile_size, num_warps = count_tile_for(vocab_size)
    num_tiles = triton.cdiv(vocab_size, tile_size)
    limits = scratch(torch.float32, device, *(batch * count for count in rows))
    num_counts = batch * sum(rows) * digits * (num_tiles + 1) * NUM_BINS.value if by_count else 0
    *ties, counts = scratch(torch.int32, device, *(batch * count for count in rows), num_counts)
    given = [
        (
            logits, limit, tie, *logits.stride()[:2], 1.0 / sampling.temperature, logits.shape[1],
            min(sampling.top_k or vocab_size, vocab_size),
            NO_TOP_P if sampling.top_p is None or sampling.top_p >= 1 else sampling.top_p,
        )
        for (logits, sampling), limit, tie in zip(models, limits, ties, strict=True)
    ]  # fmt: skip
    common = {"digits": digits, "numbers": numbers, "tiles_padded": triton.next_power_of_2(num_tiles)}
    for digit in range(digits if by_count else 0):
        count_digits[(num_tiles, sum(rows), batch)](
            given[0], given[-1], counts, vocab_size, num_tiles, digit=digit, tile_size=tile_size,
            num_warps=num_warps, **common,
        )  # fmt: skip
    find_thresholds[(sum(rows), batch)](
        given[0], given[-1], counts, vocab_size, num_tiles, by_count=by_count, by_mass=by_mass,
        resident=vocab_size <= NUCLEUS_TILE, tile_size=NUCLEUS_TILE, num_warps=FIND_WARPS[by_mass], **common,
    )  # fmt: skip
    return [
        (limit[: batch * count].view(batch, count), tie[: batch * count].view(batch, count))
        for limit, tie, count in zip(limits, ties, rows, strict=True)
    ]


def count_tile_for(vocab_size: int) -> tuple[int, int]:
    """Return the tokens that a program counts, so many that a row has few tiles, and its warps."""
    size = max(LEAST_TILE, triton.next_power_of_2(triton.cdiv(vocab_size, MOST_TILES)))
    return size, min(size // 256, 16)
