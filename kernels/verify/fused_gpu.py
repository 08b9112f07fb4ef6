"""Triton: exact verification from raw logits in three launches (README.md, Eqs. 8 to 13), more where tokens are filtered.

``row_sums``: every tile's maximum and sum of exponentials, all rows of both models. ``decide``: combines them, accepts up to
the first rejection, and sums the residual's tiles in that one row. ``draw``: finds the tile, then the token in it. Nothing of
size V is written, and nothing is read back by the host. The number of drafts is no part of what is compiled, so that a round
with fewer of them, as the last one of a text, compiles nothing.

Arguments that belong together are tuples. ``target`` and ``draft`` are (logits, thresholds, first ties, entry stride, row
stride, 1 / temperature, rows); ``given`` is (tokens, lengths, uniforms, log-sum-exp); ``partials`` is (maxima, sums), one of
each for every tile of every row.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.verify.filter_gpu import scratch, thresholds
from kernels.verify.interface import Round, Verdict
from kernels.verify.reference import BELOW_ONE
from kernels.verify.sizes import FUSED_ROW_TILES, FUSED_TILES, NUM_WARPS

NUM_STATS = 4
MOST_PROGRAMS = 640  # of a launch, about what an H200 runs at once; with more, larger tiles take less time
MOST_ROW_TILES = 16  # of small tiles a row: every program of ``decide`` combines them all
LEAST_ROWS = 8  # that ``decide`` is compiled for: fewer cost as much, and each size would be compiled apart


@triton.jit
@no_type_check
def _adjusted(model, entry, row, columns, inside, filtered: tl.constexpr):
    """A row's logits over the temperature in fp32; -inf where left out or not inside. NaN stays, filtered or not.

    One row and a tile of columns, or as many rows as columns.
    """
    start = model[0] + entry * model[3] + row * model[4]
    raw = tl.load(start + columns, mask=inside, other=float("-inf")).to(tl.float32)
    if filtered:
        which = entry * model[6] + tl.minimum(row, model[6] - 1)
        threshold, first_tie = tl.load(model[1] + which), tl.load(model[2] + which)
        keep = (raw > threshold) | ((raw == threshold) & (columns >= first_tie)) | (raw != raw)
        raw = tl.where(keep, raw, float("-inf"))
    return raw * model[5]


@triton.jit(do_not_specialize=("num_rows", "num_tiles"))
@no_type_check
def row_sums(
    target, draft, partials, vocab_size, num_rows, num_tiles, target_filtered: tl.constexpr, draft_filtered: tl.constexpr,
    tile_size: tl.constexpr,
):  # fmt: skip
    """Eq. 8 for one tile of one row; rows are the n + 1 of the target, then those of the draft."""
    tile, row, entry = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    columns = tile * tile_size + tl.arange(0, tile_size)
    if row < target[6]:
        values = _adjusted(target, entry, row, columns, columns < vocab_size, target_filtered)
    else:
        values = _adjusted(draft, entry, row - target[6], columns, columns < vocab_size, draft_filtered)
    top = tl.max(values, 0)
    output = (entry * num_rows + row) * num_tiles + tile
    tl.store(partials[0] + output, top)
    tl.store(partials[1] + output, tl.sum(tl.exp(values - tl.where(top > float("-inf"), top, 0.0)), 0))


@triton.jit
@no_type_check
def _combined(partials, rows, present, num_tiles, tiles_padded: tl.constexpr):
    """Eq. 9: each row's maximum and sum of exponentials below it. A tile of nothing but -inf adds 0."""
    tiles = tl.arange(0, tiles_padded)
    offsets, mask = rows[:, None] * num_tiles + tiles[None, :], present[:, None] & (tiles < num_tiles)[None, :]
    tops = tl.load(partials[0] + offsets, mask=mask, other=float("-inf"))
    totals = tl.load(partials[1] + offsets, mask=mask, other=0.0)
    best = tl.max(tops, 1)
    return best, tl.sum(totals * tl.where(tops > float("-inf"), tl.exp(tops - best[:, None]), 1.0), 1)


@triton.jit
@no_type_check
def _residual(draft, entry, row, columns, inside, probs, best, total, token, point_mass: tl.constexpr, filtered: tl.constexpr):
    """Eq. 12 on one tile: max(0, target - draft); NaN stays."""
    if point_mass:
        return tl.where(columns == token, 0.0, probs)
    difference = probs - tl.exp(_adjusted(draft, entry, row, columns, inside, filtered) - best) / total
    return tl.where(difference <= 0, 0.0, difference)


@triton.jit(do_not_specialize=("num_draft", "num_rows", "num_row_tiles", "num_tiles"))
@no_type_check
def decide(
    target, draft, given, partials, decisions, stats, target_sums, residual_sums, vocab_size, num_draft, num_rows,
    num_row_tiles, num_tiles, ragged: tl.constexpr, point_mass: tl.constexpr, sum_given: tl.constexpr,
    target_filtered: tl.constexpr, draft_filtered: tl.constexpr, rows_padded: tl.constexpr, row_tiles_padded: tl.constexpr,
    tile_size: tl.constexpr,
):  # fmt: skip
    """Eqs. 10 to 12: every program of a batch row takes the same decisions, then sums its own tile of the row that decides.

    A drafted token outside the vocabulary makes the row's sums NaN, which ``draw`` turns into no token. The last rows of the
    batch come first: ``row_sums`` read them last, so that the cache may still hold them.
    """
    tile, entry = tl.program_id(0), (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    rows = tl.arange(0, rows_padded).to(tl.int64)
    length = num_draft
    if ragged:
        length = tl.load(given[1] + entry)
    drafted = rows < length
    token = tl.load(given[0] + entry * num_draft + rows, mask=drafted, other=0)
    known = drafted & (token >= 0) & (token < vocab_size)
    best, total = _combined(partials, entry * num_rows + rows, rows <= num_draft, num_row_tiles, row_tiles_padded)
    target_prob = tl.exp(_adjusted(target, entry, rows, token, known, target_filtered) - best) / total
    own_best, own_total = tl.zeros([rows_padded], tl.float32), tl.full([rows_padded], 1.0, tl.float32)
    draft_prob = own_total
    if not point_mass:
        if sum_given:
            own_best = tl.load(given[3] + entry * num_draft + rows, mask=drafted, other=0.0).to(tl.float32)
        else:
            own_rows = entry * num_rows + num_draft + 1 + rows
            own_best, own_total = _combined(partials, own_rows, rows < num_draft, num_row_tiles, row_tiles_padded)
        draft_prob = tl.exp(_adjusted(draft, entry, rows, token, known, draft_filtered) - own_best) / own_total
    uniform = tl.load(given[2] + entry * (num_draft + 1) + rows, mask=drafted, other=1.0).to(tl.float64)
    stands = drafted & (uniform * draft_prob.to(tl.float64) <= target_prob.to(tl.float64)) & (target_prob > 0)
    accepted = tl.min(tl.where(stands, rows_padded, rows), 0)
    here = rows == accepted
    target_best, target_total = tl.sum(tl.where(here, best, 0.0), 0), tl.sum(tl.where(here, total, 0.0), 0)
    target_total = tl.where(tl.max((drafted != known).to(tl.int32), 0) > 0, float("nan"), target_total)
    draft_best, draft_total = tl.sum(tl.where(here, own_best, 0.0), 0), tl.sum(tl.where(here, own_total, 0.0), 0)
    columns = tile * tile_size + tl.arange(0, tile_size)
    inside = columns < vocab_size
    probs = tl.exp(_adjusted(target, entry, accepted, columns, inside, target_filtered) - target_best) / target_total
    tl.store(target_sums + entry * num_tiles + tile, tl.sum(probs, 0))
    if accepted < length:
        refused = tl.sum(tl.where(here, token, 0), 0)
        weights = _residual(
            draft, entry, accepted, columns, inside, probs, draft_best, draft_total, refused, point_mass, draft_filtered
        )
        tl.store(residual_sums + entry * num_tiles + tile, tl.sum(weights, 0))
    if tile == 0:
        tl.store(decisions[0] + entry, accepted)
        tl.store(decisions[1] + entry * num_draft + rows, target_prob, mask=rows < num_draft)
        tl.store(decisions[2] + entry * num_draft + rows, draft_prob, mask=rows < num_draft)
        tl.store(stats + entry * 4, target_best)
        tl.store(stats + entry * 4 + 1, target_total)
        tl.store(stats + entry * 4 + 2, draft_best)
        tl.store(stats + entry * 4 + 3, draft_total)


@triton.jit(do_not_specialize=("num_draft", "num_tiles"))
@no_type_check
def draw(
    target, draft, given, num_accepted, stats, target_sums, residual_sums, next_token, vocab_size, num_draft, num_tiles,
    below_one: tl.constexpr, ragged: tl.constexpr, point_mass: tl.constexpr, target_filtered: tl.constexpr,
    draft_filtered: tl.constexpr, tiles_padded: tl.constexpr, tile_size: tl.constexpr,
):  # fmt: skip
    """Eq. 13: the first token whose cumulative weight exceeds uniform * total; V where the total is NaN or 0."""
    entry = tl.program_id(0).to(tl.int64)
    accepted = tl.load(num_accepted + entry)
    length = num_draft
    if ragged:
        length = tl.load(given[1] + entry)
    tiles = tl.arange(0, tiles_padded)
    offsets, mask = entry * num_tiles + tiles, tiles < num_tiles
    sums = tl.load(target_sums + offsets, mask=mask, other=0.0).to(tl.float64)
    from_residual = accepted < length
    if from_residual:  # else nothing was stored there
        residual = tl.load(residual_sums + offsets, mask=mask, other=0.0).to(tl.float64)
        from_residual = tl.sum(residual, 0) != 0
        sums = tl.where(from_residual, residual, sums)
    total = tl.sum(sums, 0)
    uniform = tl.load(given[2] + entry * (num_draft + 1) + num_draft).to(tl.float64)
    goal = uniform * (total * below_one)
    chosen = tl.sum((tl.cumsum(sums, 0) <= goal).to(tl.int32), 0)
    chosen = tl.minimum(chosen, tl.max(tl.where(sums > 0, tiles, 0), 0))
    goal -= tl.sum(tl.where(tiles < chosen, sums, 0.0), 0)
    columns = chosen * tile_size + tl.arange(0, tile_size)
    inside = columns < vocab_size
    best, row_total = tl.load(stats + entry * 4), tl.load(stats + entry * 4 + 1)
    weights = tl.exp(_adjusted(target, entry, accepted, columns, inside, target_filtered) - best) / row_total
    if from_residual:
        best, row_total = tl.load(stats + entry * 4 + 2), tl.load(stats + entry * 4 + 3)
        refused = tl.load(given[0] + entry * num_draft + accepted)
        weights = _residual(
            draft, entry, accepted, columns, inside, weights, best, row_total, refused, point_mass, draft_filtered
        )
    weights = weights.to(tl.float64)
    passed = tl.sum((tl.cumsum(weights, 0) <= goal).to(tl.int32), 0)
    last = tl.max(tl.where(weights > 0, columns, 0), 0)
    token = tl.minimum(chosen * tile_size + passed, last)
    tl.store(next_token + entry, tl.where(total > 0, token, vocab_size).to(tl.int64))


def verify(round: Round) -> Verdict:
    """Allocates the partial results, a few numbers a tile, and launches."""
    batch, num_draft = round.tokens.shape
    device, vocab_size = round.target_logits.device, round.vocab_size
    tile_size = tile_for(batch, vocab_size)
    # Without a draft there are no rows of it to point at, filtered or not.
    point_mass = round.draft_logits is None or num_draft == 0
    sum_given = round.log_sum_exp is not None
    num_rows = num_draft + 1 + (0 if point_mass or sum_given else num_draft)
    row_tile_size = row_tile_for(batch * num_rows, vocab_size)
    num_tiles, num_row_tiles = triton.cdiv(vocab_size, tile_size), triton.cdiv(vocab_size, row_tile_size)
    target, draft = _models(round, point_mass)
    lengths = round.ragged_lengths()
    tokens, uniforms = round.tokens.contiguous(), round.uniforms.contiguous()
    given = (tokens, tokens if lengths is None else lengths, uniforms, _or(round.log_sum_exp, uniforms))
    rows, tiles, drafts = batch * num_rows * num_row_tiles, batch * num_tiles, batch * num_draft
    maxima, sums, stats, target_sums, residual_sums, target_probs, draft_probs = scratch(
        torch.float32, device, rows, rows, batch * NUM_STATS, tiles, tiles, drafts, drafts
    )
    num_accepted, next_token = scratch(torch.int64, device, batch, batch)
    partials, decisions = (maxima, sums), (num_accepted, target_probs, draft_probs)
    common = {"target_filtered": round.target.filters, "draft_filtered": not point_mass and round.draft.filters}
    tiled = {**common, "tile_size": tile_size, "num_warps": NUM_WARPS, "ragged": lengths is not None, "point_mass": point_mass}
    row_sums[(num_row_tiles, num_rows, batch)](
        target, draft, partials, vocab_size, num_rows, num_row_tiles, tile_size=row_tile_size,
        num_warps=FUSED_ROW_TILES[row_tile_size], **common,
    )  # fmt: skip
    decide[(num_tiles, batch)](
        target, draft, given, partials, decisions, stats, target_sums, residual_sums, vocab_size, num_draft, num_rows,
        num_row_tiles, num_tiles, sum_given=sum_given, rows_padded=max(LEAST_ROWS, triton.next_power_of_2(num_draft + 1)),
        row_tiles_padded=triton.next_power_of_2(num_row_tiles), **tiled,
    )  # fmt: skip
    draw[(batch,)](
        target, draft, given, num_accepted, stats, target_sums, residual_sums, next_token, vocab_size, num_draft, num_tiles,
        below_one=BELOW_ONE, tiles_padded=triton.next_power_of_2(num_tiles), **tiled,
    )  # fmt: skip
    probs = (part[:drafts].view(batch, num_draft) for part in (target_probs, draft_probs))
    return Verdict(num_accepted[:batch], next_token[:batch], *probs)


def tile_for(batch: int, vocab_size: int) -> int:
    """Return the tokens of a program of ``decide``, and of ``draw``'s last step."""
    few = [size for size in FUSED_TILES if batch * triton.cdiv(vocab_size, size) <= MOST_PROGRAMS]
    return few[0] if few else FUSED_TILES[-1]


def row_tile_for(num_rows: int, vocab_size: int) -> int:
    """Return the tokens of a program of ``row_sums``, over so many rows in all."""
    small, large = FUSED_ROW_TILES
    num_tiles = triton.cdiv(vocab_size, small)
    return small if num_tiles <= MOST_ROW_TILES and num_rows * num_tiles <= MOST_PROGRAMS else large


def _models(round: Round, point_mass: bool) -> list[tuple[Any, ...]]:
    """The tuples that kernels take, of the target and of the draft (the target's where there is none)."""
    models = [(round.target_logits, round.target)]
    if round.draft_logits is not None and not point_mass:
        models.append((round.draft_logits, round.draft))
    models = [(logits if logits.stride(-1) == 1 else logits.contiguous(), sampling) for logits, sampling in models]
    filtered = [model for model in models if model[1].filters]
    limits = iter(thresholds(*filtered)) if filtered else iter(())
    told = [
        (
            logits, *(next(limits) if sampling.filters else (logits, logits)), *logits.stride()[:2], 1.0 / sampling.temperature,
            logits.shape[1],
        )
        for logits, sampling in models
    ]  # fmt: skip
    return [told[0], told[-1]]


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Kernels take a pointer also where they never follow it."""
    return other if tensor is None else tensor.contiguous()
