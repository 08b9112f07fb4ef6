"""Ours: exact, straight from logits, no probability matrix in memory. See README.md.

The Triton kernels are in ``fused_gpu``, the compiled loop for CPUs in ``fused_cpu``. Where nothing can compile it, PyTorch's
operations decide, here: rows are evaluated until the first rejection, as many at a time as there are threads, and the last
token is found by sums over parts of the vocabulary, then in one of them. At V = 32,000 a softmax of one row takes as long as
three or four other operations, so it is their number that is kept small.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.inputs import InputError
from kernels.verify import fused_cpu
from kernels.verify.interface import Backend, Round, Verdict, refuse_token, refuse_undrawn, use_triton
from kernels.verify.reference import BELOW_ONE, adjusted_probs

if sys.platform == "linux":  # where Triton is installed
    from kernels.verify import fused_gpu

PARTS = 32  # of the vocabulary, summed over before any token in them is looked at
Known = tuple[list[list[float]], list[float]]  # a row's drafted tokens: their logits (each in a list), and log-sum-exps


def decide(round: Round, backend: Backend | None = None) -> Verdict:
    """Algorithm 1's decisions and Eq. 3's draw (README.md, Eqs. 8 to 13).

    Logits that no decision depends on are not read: rows behind the first rejection (on CUDA they are, but do not count).
    """
    if use_triton(round.target_logits, backend):
        return refuse_undrawn(fused_gpu.verify(round), round.vocab_size)
    library = None if backend == "torch" else fused_cpu.library()
    if library is not None:
        return fused_cpu.verify(round, library)
    if backend == "native":
        raise InputError("backend 'native': nothing compiled the loop here; install a C++ compiler, or use backend 'torch'")
    return _decide_by_operations(round)


def decided_by() -> str:
    """What decides on this machine's CPU: it belongs into the description of where numbers were made."""
    return "PyTorch's operations" if fused_cpu.library() is None else "the compiled loop"


def _decide_by_operations(round: Round) -> Verdict:
    told = zip(round.tokens.tolist(), round.uniforms.tolist(), _known(round), strict=True)
    rows = [_verify_one(round, entry, *row) for entry, row in enumerate(told)]
    dtype = torch.float64 if round.target_logits.dtype == torch.float64 else torch.float32
    if not rows:
        none = round.tokens.new_empty(0)
        return Verdict(none, none, round.tokens.to(dtype), round.tokens.to(dtype))
    num_accepted, next_tokens, *probs = zip(*rows, strict=True)
    return Verdict(*torch.tensor((num_accepted, next_tokens)).unbind(), *torch.tensor(probs, dtype=dtype).unbind())


def _verify_one(
    round: Round, entry: int, tokens: list[int], uniforms: list[float], known: Known | None
) -> tuple[int, int, list[float], list[float]]:
    """One row of the batch: accepted drafts, next token, and the drafts' probabilities, NaN where nobody looked."""
    length, temperature, draft_row = round.lengths[entry], round.draft.temperature, None
    target_probs, draft_probs = [math.nan] * len(tokens), [math.nan] * len(tokens)
    step = torch.get_num_threads()
    for position in range(length + 1):
        place = position % step
        if place == 0:
            rows = adjusted_probs(round.target_logits[entry, position : min(position + step, length + 1)], round.target)
        if position == length:
            drawn = drawn_from(rows[place], uniforms[-1])
            return length, _token(drawn, round, entry, length), target_probs, draft_probs
        token = tokens[position]
        target_prob = rows[place, token].item()
        if known is not None:
            [logit], log_sum_exp = known[0][position], known[1][position]
            draft_prob = math.exp(min(0.0, logit / temperature - log_sum_exp))
        elif round.draft_logits is None:
            draft_prob = 1.0
        else:
            draft_row = _draft_row(round, entry, position)
            draft_prob = draft_row[token].item()
        target_probs[position], draft_probs[position] = target_prob, draft_prob
        if not (target_prob > 0 and uniforms[position] * draft_prob <= target_prob):
            break
    return position, _redraw(round, entry, position, rows[place], draft_row, uniforms[-1]), target_probs, draft_probs


def _known(round: Round) -> Iterable[Known | None]:
    """What tells each row's draft probabilities; None where the draft is a point mass, or it takes a pass over its rows."""
    if round.draft_logits is None or round.log_sum_exp is None:
        return [None] * len(round.lengths)
    return zip(round.draft_logits.gather(-1, round.tokens.unsqueeze(-1)).tolist(), round.log_sum_exp.tolist(), strict=True)


def _redraw(round: Round, entry: int, position: int, row: Tensor, draft_row: Tensor | None, uniform: float) -> int:
    """The token in place of a rejected draft, from max(0, target - draft), which takes the target's ``row``; where draft and
    target are equal it is drawn from the target."""
    if round.draft_logits is None:
        row[round.tokens[entry, position]] = 0
    else:
        row.sub_(_draft_row(round, entry, position) if draft_row is None else draft_row).clamp_(min=0)
    drawn = drawn_from(row, uniform)
    if drawn is None and not row.isnan().any():
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
    """The first token whose cumulative weight exceeds ``uniform * total``: its part of the vocabulary first, then the token.

    None where the total is no number above 0. Sums over parts run in the weights' dtype, all others in fp64.
    """
    size = -(-len(weights) // PARTS)
    cumulative = list(accumulate(_part_sums(weights, size)))
    total = cumulative[-1] * BELOW_ONE
    if not 0 < total < math.inf:
        return None
    goal = uniform * total
    part = bisect_right(cumulative, min(goal, total))
    within = weights[part * size : (part + 1) * size].cumsum(0, dtype=torch.float64)
    goal -= cumulative[part - 1] if part else 0.0
    token = int(torch.searchsorted(within, goal, right=True))
    # A part's sum rounds apart from the sum of its tokens: a goal between the two belongs to the last of them that weighs.
    if token == len(within):
        token = int(torch.searchsorted(within, within[-1]))
    return part * size + token


def _part_sums(weights: Float[Tensor, "V"], size: int) -> list[float]:
    """One number a part; the last may be shorter."""
    whole = len(weights) // size * size
    if whole == len(weights):
        return weights.view(-1, size).sum(-1).tolist()
    return [*weights[:whole].view(-1, size).sum(-1).tolist(), weights[whole:].sum().item()]
