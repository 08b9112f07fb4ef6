"""Ours: exact, straight from logits, no probability matrix in memory. The Triton kernels are in ``fused_gpu``; see README.md.

On a CPU rows are evaluated until the first rejection, as many at a time as there are threads, and the last token is found by
sums over blocks, then over smaller blocks of one, then among the tokens of one of those. At V = 32,000 a softmax of one row
takes as long as three or four other operations, so it is their number that is kept small.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

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

BLOCKS = (1024, 32, 1)  # tokens that are summed over before any of them is looked at


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
    told = zip(round.tokens.tolist(), round.uniforms.tolist(), _known_draft_probs(round), strict=True)
    rows = [_verify_one(round, entry, *row) for entry, row in enumerate(told)]
    num_accepted, next_tokens, *probs = zip(*rows, strict=True)
    unseen = [math.nan] * round.tokens.shape[1]
    padded = [[(row + unseen)[: len(unseen)] for row in model] for model in probs]
    dtype = torch.float64 if target_logits.dtype == torch.float64 else torch.float32
    counts, drafted = torch.tensor((num_accepted, next_tokens)), torch.tensor(padded, dtype=dtype)
    return Decisions(*counts.unbind(), *drafted.unbind())


def _verify_one(
    round: Round, entry: int, tokens: list[int], uniforms: list[float], known_probs: list[float] | None
) -> tuple[int, int, list[float], list[float]]:
    """One row of the batch: accepted drafts, next token, and the probabilities of the drafts that were looked at."""
    length, logits, draft_row = round.lengths[entry], round.target_logits[entry], None
    target_probs: list[float] = []
    draft_probs: list[float] = []
    step = torch.get_num_threads()
    for position in range(length + 1):
        place = position % step
        if place == 0:
            rows = adjusted_probs(logits[position : min(position + step, length + 1)], round.target)
        if position == length:
            drawn = drawn_from(rows[place], uniforms[-1])
            return length, _token(drawn, round, entry, length), target_probs, draft_probs
        token = tokens[position]
        target_prob = rows[place, token].item()
        if known_probs is not None:
            draft_prob = known_probs[position]
        else:
            draft_row = _draft_row(round, entry, position)
            draft_prob = draft_row[token].item()
        target_probs.append(target_prob)
        draft_probs.append(draft_prob)
        if not (target_prob > 0 and uniforms[position] * draft_prob <= target_prob):
            break
    return position, _redraw(round, entry, position, rows[place], draft_row, uniforms[-1]), target_probs, draft_probs


def _known_draft_probs(round: Round) -> Sequence[list[float] | None]:
    """What the draft gave its tokens, for each row of the batch; None where that takes a pass over the draft's rows."""
    if round.draft_logits is None:
        return [[1.0] * length for length in round.lengths]
    if round.log_sum_exp is None:
        return [None] * len(round.lengths)
    temperature, drafted = round.draft.temperature, round.draft_logits.gather(-1, round.tokens.unsqueeze(-1)).tolist()
    pairs = zip(drafted, round.log_sum_exp.tolist(), strict=True)
    return [[math.exp(min(0.0, logit / temperature - known)) for [logit], known in zip(*row, strict=True)] for row in pairs]


def _redraw(round: Round, entry: int, position: int, row: Tensor, draft_row: Tensor | None, uniform: float) -> int:
    """The token in place of a rejected draft, from max(0, target - draft), which takes the target's ``row``; where draft and
    target are equal it is drawn from the target."""
    if round.draft_logits is None:
        row[round.tokens[entry, position]] = 0
    else:
        row.sub_(_draft_row(round, entry, position) if draft_row is None else draft_row).clamp_(min=0)
    drawn = drawn_from(row, uniform)
    if drawn is None:
        drawn = drawn_from(adjusted_probs(round.target_logits[entry, position], round.target, out=row), uniform)
    return _token(drawn, round, entry, position)


def _token(drawn: int | None, round: Round, entry: int, position: int) -> int:
    """What was drawn; InputError where nothing could be."""
    if drawn is None:
        refuse_token(entry, round.vocab_size, round.vocab_size, position)
        raise AssertionError("unreachable: no token is as large as the vocabulary")
    return drawn


def _draft_row(round: Round, entry: int, position: int) -> Float[Tensor, "V"]:
    assert round.draft_logits is not None
    return adjusted_probs(round.draft_logits[entry, position], round.draft)


def drawn_from(weights: Float[Tensor, "V"], uniform: float) -> int | None:
    """The first token whose cumulative weight exceeds ``uniform * total``: its block first, then the token in it.

    None where the total is no number above 0. Sums over blocks run in the weights' dtype, sums of those in fp64.
    """
    token, goal = 0, math.nan
    for block in BLOCKS:
        cumulative = list(accumulate(_block_sums(weights, block)))
        total = cumulative[-1]
        if block == BLOCKS[0]:
            if not 0 < total < math.inf:
                return None
            goal = uniform * (total * BELOW_ONE)
        # A block's sum rounds apart from the sum of its parts: a goal between the two belongs to the last part that weighs.
        index = bisect_right(cumulative, min(goal, total * BELOW_ONE))
        goal -= cumulative[index - 1] if index else 0.0
        token += index * block
        weights = weights[index * block : (index + 1) * block]
    return token


def _block_sums(weights: Float[Tensor, "V"], block: int) -> list[float]:
    """One number a block; the last block may be shorter."""
    if block == 1:
        return weights.tolist()
    size, whole = len(weights), len(weights) // block * block
    sums = weights[:whole].view(-1, block).sum(-1).tolist() if whole else []
    return [*sums, weights[whole:].sum().item()] if whole < size else sums
