"""Ours: exact, straight from logits, no probability matrix in memory. The Triton kernels are in ``fused_gpu``; see README.md.

On a CPU rows are evaluated until the first rejection, as many at a time as there are threads, and the last token is found by
sums over blocks before the cumulative sum of one block.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.verify.adjust import adjusted_probs
from kernels.verify.interface import (
    Adjusting,
    Backend,
    Decisions,
    Proposed,
    Round,
    checked,
    refuse_token,
    refuse_undrawn,
    use_triton,
)
from kernels.verify.reference import BELOW_ONE

BLOCK = 256


def verify(
    proposal: Proposed,
    target_logits: Float[Tensor, "B n_plus_1 V"],
    sampling: Adjusting,
    uniforms: Float[Tensor, "B n_plus_1"],
    backend: Backend | None = None,
) -> Decisions:
    """Algorithm 1's decisions and Eq. 3's draw (README.md, Eqs. 8 to 13).

    Logits that no decision depends on are not read: rows behind the first rejection (on CUDA they are, but do not count).
    """
    round = checked(proposal, target_logits, sampling, uniforms)
    if use_triton(target_logits, backend):
        from kernels.verify import fused_gpu

        return refuse_undrawn(fused_gpu.verify(round), round.vocab_size)
    rows = [_verify_one(round, entry) for entry in range(len(round.lengths))]
    num_accepted, next_tokens, target_probs, draft_probs = zip(*rows, strict=True)
    width = round.tokens.shape[1]
    dtype = torch.float64 if target_logits.dtype == torch.float64 else torch.float32
    return Decisions(
        torch.tensor(num_accepted),
        torch.tensor(next_tokens),
        torch.tensor([_padded(probs, width) for probs in target_probs], dtype=dtype).view(len(rows), width),
        torch.tensor([_padded(probs, width) for probs in draft_probs], dtype=dtype).view(len(rows), width),
    )


def _padded(probs: Sequence[float], width: int) -> list[float]:
    return [*probs, *[math.nan] * (width - len(probs))]


def _verify_one(round: Round, entry: int) -> tuple[int, int, list[float], list[float]]:
    """One row of the batch: accepted drafts, next token, and the probabilities of the drafts that were looked at."""
    length, target_probs, draft_probs = round.lengths[entry], list[float](), list[float]()
    tokens, uniforms = round.tokens[entry].tolist(), round.uniforms[entry].tolist()
    known_probs = _known_draft_probs(round, entry)
    at_once = min(torch.get_num_threads(), length + 1)
    # One buffer for all rows: fresh memory costs about as much as the softmax that fills it.
    buffer = _fresh(round.target_logits, at_once)
    for first in range(0, length + 1, at_once):
        logits = round.target_logits[entry, first : min(first + at_once, length + 1)]
        rows = adjusted_probs(logits, round.target, out=buffer[: len(logits)])
        for position, row in enumerate(rows, first):
            if position == length:
                return length, _draw(row, uniforms[-1], entry, length), target_probs, draft_probs
            token, draft_row = tokens[position], None
            target_prob = row[token].item()
            if known_probs is not None:
                draft_prob = known_probs[position]
            else:
                draft_row = _draft_row(round, entry, position)
                draft_prob = draft_row[token].item()
            target_probs.append(target_prob)
            draft_probs.append(draft_prob)
            if not (target_prob > 0 and uniforms[position] * draft_prob <= target_prob):
                _subtract_draft(round, entry, position, row, draft_row)
                return position, _draw(row, uniforms[-1], entry, position), target_probs, draft_probs
    raise AssertionError("unreachable: the row behind the last draft ends the walk")


def _known_draft_probs(round: Round, entry: int) -> list[float] | None:
    """What the draft gave its tokens, where that takes no pass over its rows."""
    if round.draft_logits is None:
        return [1.0] * round.lengths[entry]
    if round.log_sum_exp is None:
        return None
    drafted = round.draft_logits[entry].gather(-1, round.tokens[entry].unsqueeze(-1)).squeeze(-1).tolist()
    pairs = zip(drafted, round.log_sum_exp[entry].tolist(), strict=True)
    return [math.exp(min(0.0, logit / round.draft.temperature - known)) for logit, known in pairs]


def _fresh(like: Tensor, num_rows: int) -> Float[Tensor, "num_rows V"]:
    return torch.empty(num_rows, like.shape[-1], dtype=torch.float64 if like.dtype == torch.float64 else torch.float32)


def _subtract_draft(round: Round, entry: int, position: int, row: Tensor, draft_row: Tensor | None) -> None:
    """Turns the target's row into max(0, target - draft); where draft and target are equal it stays the target's."""
    if round.draft_logits is None:
        row[round.tokens[entry, position]] = 0
    else:
        row.sub_(_draft_row(round, entry, position) if draft_row is None else draft_row).clamp_(min=0)
    if row.amax().item() == 0:
        adjusted_probs(round.target_logits[entry, position], round.target, out=row)


def _draft_row(round: Round, entry: int, position: int) -> Float[Tensor, "V"]:
    assert round.draft_logits is not None
    return adjusted_probs(round.draft_logits[entry, position], round.draft)


def _draw(weights: Float[Tensor, "V"], uniform: float, entry: int, position: int) -> int:
    """The first token whose cumulative weight exceeds ``uniform * total``: its block first, then the token in it.

    Sums over blocks run in the weights' dtype, those over sums and inside the block in fp64.
    """
    vocab_size = len(weights)
    whole = vocab_size // BLOCK * BLOCK
    sums = weights[:whole].view(-1, BLOCK).sum(-1)
    if whole < vocab_size:
        sums = torch.cat((sums, weights[whole:].sum().unsqueeze(0)))
    cumulative = sums.cumsum(0, dtype=torch.float64)
    total = cumulative[-1].item()
    if not 0 < total < math.inf:
        refuse_token(entry, vocab_size, vocab_size, position)
    goal = uniform * (total * BELOW_ONE)
    block = int(torch.searchsorted(cumulative, goal, right=True))
    before = cumulative[block - 1].item() if block else 0.0
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(0, dtype=torch.float64)
    # The sum of a block rounds apart from its cumulative sum: a goal between the two belongs to the last token that weighs.
    goal = min(goal - before, inside[-1].item() * BELOW_ONE)
    return block * BLOCK + int(torch.searchsorted(inside, goal, right=True))
