"""Triton: the paper's tiling (Figs. 1 and 2): one program a tile of a draft position's row, no exchange between tiles."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.verify.sizes import NUM_WARPS, TILE


@triton.jit
@no_type_check
def _activated(logits, alpha, beta, released: tl.constexpr):
    """Eq. 5 with every step rounded to the logits' dtype."""
    dtype = logits.dtype
    value = logits.to(tl.float32)
    low = tl.full(value.shape, alpha, tl.float32).to(dtype).to(tl.float32)
    high = tl.full(value.shape, beta, tl.float32).to(dtype).to(tl.float32)
    width = (high - low).to(dtype).to(tl.float32)
    shifted = (value - low).to(dtype).to(tl.float32)
    scaled = (shifted / width).to(dtype).to(tl.float32)
    sigmoid = (1.0 / (1.0 + tl.exp(-scaled))).to(dtype).to(tl.float32)
    if released:
        sigmoid = tl.where(value < alpha, 0.0, tl.where(value > beta, 1.0, sigmoid))
    return sigmoid


@triton.jit(do_not_specialize=("num_draft", "num_tiles"))
@no_type_check
def tile_kernel(
    target,
    draft,
    ratio,
    residual,
    sums,
    target_entry_stride,
    target_row_stride,
    draft_entry_stride,
    draft_row_stride,
    num_draft,
    vocab_size,
    num_tiles,
    alpha,
    beta,
    mode: tl.constexpr,
    tile_size: tl.constexpr,
):
    """Fig. 1 (mode 0: probabilities in) or Fig. 2 (1: logits in, Eq. 5 as described; 2: as released).

    ratio, residual: [B, n, V] outputs; sums: [B, n, K] the partial sums of the residual.
    """
    tile, row, entry = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    columns = tile * tile_size + tl.arange(0, tile_size)
    inside = columns < vocab_size
    of_target = tl.load(target + entry * target_entry_stride + row * target_row_stride + columns, mask=inside, other=0.0)
    of_draft = tl.load(draft + entry * draft_entry_stride + row * draft_row_stride + columns, mask=inside, other=0.0)
    if mode == 0:
        target_value, draft_value = of_target.to(tl.float32), of_draft.to(tl.float32)
    else:
        target_value = _activated(of_target, alpha, beta, mode == 2)
        draft_value = _activated(of_draft, alpha, beta, mode == 2)
    difference = target_value - draft_value
    positive = tl.where(difference > 0, difference, 0.0)
    output = (entry * num_draft + row) * vocab_size + columns
    quotient = target_value / draft_value
    if mode != 0:
        quotient = quotient.to(of_target.dtype).to(tl.float32)
    tl.store(ratio + output, quotient, mask=inside)
    tl.store(residual + output, positive, mask=inside)
    tl.store(sums + (entry * num_draft + row) * num_tiles + tile, tl.sum(tl.where(inside, positive, 0.0), 0))


def partials(
    target: Tensor, draft: Tensor, mode: int = 0, alpha: float = 0.0, beta: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """tau and a of every token [B, n, V], b of every tile [B, n, K]; ``mode`` and Eq. 5's constants as in ``tile_kernel``.

    Args:
        target: [B, n + 1, V], the last row unused. draft: [B, n, V].
    """
    batch, num_draft, vocab_size = draft.shape
    num_tiles = triton.cdiv(vocab_size, TILE)
    target, draft = (rows if rows.stride(-1) == 1 else rows.contiguous() for rows in (target, draft))
    ratio, residual = (torch.empty(draft.shape, dtype=torch.float32, device=draft.device) for _ in range(2))
    sums = torch.empty(batch, num_draft, num_tiles, dtype=torch.float32, device=draft.device)
    if num_draft:
        tile_kernel[(num_tiles, num_draft, batch)](
            target,
            draft,
            ratio,
            residual,
            sums,
            *target.stride()[:2],
            *draft.stride()[:2],
            num_draft,
            vocab_size,
            num_tiles,
            alpha,
            beta,
            mode=mode,
            tile_size=TILE,
            num_warps=NUM_WARPS,
        )
    return ratio, residual, sums
