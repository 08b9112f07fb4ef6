"""Ours: exact, straight from logits, no probability matrix in memory. The Triton kernels are in ``fused_gpu``; see README.md.

On a CPU rows are evaluated until the first rejection, as many at a time as there are threads, and the last token is found by
sums over blocks before the cumulative sum of one block.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
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

BLOCK = 1024


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
    num_accepted, next_tokens, *probs = zip(*rows, strict=True)
    width = round.tokens.shape[1]
    dtype = torch.float64 if target_logits.dtype == torch.float64 else torch.float32
    padded = [[*row, *[math.nan] * (width - len(row))] for model in probs for row in model]
    target_probs, draft_probs = torch.tensor(padded, dtype=dtype).view(2, len(rows), width).unbind()
    return Decisions(torch.tensor(num_accepted), torch.tensor(next_tokens), target_probs, draft_probs)


def _verify_one(round: Round, entry: int) -> tuple[int, int, list[float], list[float]]:
    """One row of the batch: accepted drafts, next token, and the probabilities of the drafts that were looked at."""
    length, target_probs, draft_probs = round.lengths[entry], list[float](), list[float]()
    tokens, uniforms = round.tokens[entry].tolist(), round.uniforms[entry].tolist()
    known_probs = _known_draft_probs(round, entry)
    position = 0
    for row in _target_rows(round, entry):
        if position == length:
            return length, _token(_draw(row, uniforms[-1]), round, entry, length), target_probs, draft_probs
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
            break
        position += 1
    return position, _redraw(round, entry, position, row, draft_row, uniforms[-1]), target_probs, draft_probs


def _target_rows(round: Round, entry: int) -> Iterator[Float[Tensor, "V"]]:
    """What the target gives each token, position by position; a row is overwritten when as many as threads were taken.

    One buffer for all rows: fresh memory costs about as much as the softmax that fills it.
    """
    logits = round.target_logits[entry, : round.lengths[entry] + 1]
    chunks = logits.split(torch.get_num_threads())
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    buffer = torch.empty(chunks[0].shape, dtype=dtype)
    rows = buffer.unbind()
    for chunk in chunks:
        adjusted_probs(chunk, round.target, out=buffer if len(chunk) == len(rows) else buffer[: len(chunk)])
        yield from rows[: len(chunk)]


def _known_draft_probs(round: Round, entry: int) -> list[float] | None:
    """What the draft gave its tokens, where that takes no pass over its rows."""
    if round.draft_logits is None:
        return [1.0] * round.lengths[entry]
    if round.log_sum_exp is None:
        return None
    drafted = round.draft_logits[entry].gather(-1, round.tokens[entry].unsqueeze(-1)).squeeze(-1).tolist()
    pairs = zip(drafted, round.log_sum_exp[entry].tolist(), strict=True)
    return [math.exp(min(0.0, logit / round.draft.temperature - known)) for logit, known in pairs]


def _redraw(round: Round, entry: int, position: int, row: Tensor, draft_row: Tensor | None, uniform: float) -> int:
    """The token in place of a rejected draft, from max(0, target - draft), which takes the target's ``row``; where draft and
    target are equal it is drawn from the target."""
    if round.draft_logits is None:
        row[round.tokens[entry, position]] = 0
    else:
        row.sub_(_draft_row(round, entry, position) if draft_row is None else draft_row).clamp_(min=0)
    drawn = _draw(row, uniform)
    if drawn is None:
        drawn = _draw(adjusted_probs(round.target_logits[entry, position], round.target, out=row), uniform)
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


def _draw(weights: Float[Tensor, "V"], uniform: float) -> int | None:
    """The first token whose cumulative weight exceeds ``uniform * total``: its block first, then the token in it.

    None where the total is no number above 0. Sums over blocks run in the weights' dtype, those over sums and inside the block
    in fp64.
    """
    size, whole = len(weights), len(weights) // BLOCK * BLOCK
    sums = weights[:whole].view(-1, BLOCK).sum(-1).tolist()
    if whole < size:
        sums.append(weights[whole:].sum().item())
    cumulative = list(accumulate(sums))
    total = cumulative[-1]
    if not 0 < total < math.inf:
        return None
    goal = uniform * (total * BELOW_ONE)
    block = bisect_right(cumulative, goal)
    before = cumulative[block - 1] if block else 0.0
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(0, dtype=torch.float64)
    # The sum of a block rounds apart from its cumulative sum: a goal between the two belongs to the last token that weighs.
    goal = min(goal - before, inside[-1].item() * BELOW_ONE)
    return block * BLOCK + int(torch.searchsorted(inside, goal, right=True))
