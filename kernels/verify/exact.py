"""The paper's exact method (3.2.1, Fig. 1): softmax outside, ratio and residual in independent tiles, aggregation after."""

import sys

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.verify.baseline import at, drawn, leading_true, max_norm, was_rejected
from kernels.verify.interface import Backend, Round, Verdict, refuse_undrawn, use_triton
from kernels.verify.reference import adjusted_probs, drafted_probs

if sys.platform == "linux":  # where Triton is installed
    from kernels.verify import tiles_gpu


def decide(round: Round, backend: Backend | None = None) -> Verdict:
    """Fig. 1's ratio, positive part and partial sums for all gamma rows, then acceptance and the draw (README.md, Eqs. 1-4).

    Differs from the paper: probabilities are fp32 for half logits too, a point mass is tiled as a row that is 1 at its
    token, and a draft that equals the target, whose residual is empty, is followed by the target's own row.
    """
    target_probs = adjusted_probs(round.target_logits, round.target)
    draft_probs = _draft_probs(round, target_probs)
    if use_triton(round.target_logits, backend):
        ratio, residual, sums = tiles_gpu.partials(target_probs, draft_probs)
        drafted_ratio = ratio.gather(-1, round.tokens.unsqueeze(-1)).squeeze(-1)
        totals = sums.sum(-1)
    else:
        residual = (target_probs[:, :-1] - draft_probs).clamp_(min=0)
        drafted_ratio, totals = _drafted_ratio(target_probs, draft_probs, round.tokens), residual.sum(-1)
    drafted_target, drafted_draft = drafted_probs(target_probs, draft_probs, round.tokens)
    num_accepted = leading_true((round.uniforms[:, :-1] <= drafted_ratio) & (drafted_target > 0), round)
    row = at(target_probs, num_accepted)
    if round.tokens.shape[1]:
        total = at(totals.unsqueeze(-1), num_accepted)
        row = max_norm(at(residual, num_accepted), total, row, was_rejected(num_accepted, round))
    next_token = drawn(row, round.uniforms[:, -1])
    return refuse_undrawn(Verdict(num_accepted, next_token, drafted_target, drafted_draft), round.vocab_size)


def _draft_probs(round: Round, target_probs: Tensor) -> Float[Tensor, "B n V"]:
    if round.draft_logits is not None:
        return adjusted_probs(round.draft_logits, round.draft)
    return torch.zeros_like(target_probs[:, :-1]).scatter_(-1, round.tokens.unsqueeze(-1), 1.0)


def _drafted_ratio(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor) -> Float[Tensor, "B n"]:
    target, draft = drafted_probs(target_probs, draft_probs, tokens)
    return target / draft
