"""Two kernels that keep whole rows of probabilities: transformers' eager operations, and the paper's exact method.

Every row of both models goes through softmax and stays in memory.
"""

import sys

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from kernels.verify.interface import Backend, Round, Verdict, refuse_undrawn, use_triton
from kernels.verify.reference import adjusted_probs, drafted_probs, inverse_cdf

if sys.platform == "linux":  # where Triton is installed
    from kernels.verify import tiles_gpu


def decide_eagerly(round: Round) -> Verdict:
    """Leviathan's Algorithm 1 (the paper's Eqs. 1 to 3) as transformers' ``_speculative_sampling`` has it, for any batch.

    Ratio, comparison, difference, clamp and division are one operation each. What the other kernels are timed against.

    Differs from transformers: the uniforms are inputs, the last token is drawn by inverting the cumulative sum instead of
    ``multinomial``, no host decision is made between (rows of a batch accept different numbers of drafts), and where draft
    and target are equal, so that no residual is left, the target row stands in. As in transformers, a draft that the target
    never says stands at a uniform of exactly 0 (one in 2^53), where the exact kernels reject it.
    """
    target_probs = adjusted_probs(round.target_logits, round.target)
    draft_probs = None if round.draft_logits is None else adjusted_probs(round.draft_logits, round.draft)
    drafted_target, drafted_draft = drafted_probs(target_probs, draft_probs, round.tokens)
    num_accepted = leading_true(round.uniforms[:, :-1] <= drafted_target / drafted_draft, round)
    row = at(target_probs, num_accepted)
    if round.tokens.shape[1]:
        residual = _residual(row, draft_probs, round, num_accepted)
        row = _max_norm(residual, residual.sum(-1, keepdim=True), row, was_rejected(num_accepted, round))
    next_token = _drawn(row, round.uniforms[:, -1])
    return refuse_undrawn(Verdict(num_accepted, next_token, drafted_target, drafted_draft), round.vocab_size)


def decide_in_tiles(round: Round, backend: Backend | None = None) -> Verdict:
    """Ratio, positive part and partial sums for all gamma rows in independent tiles (3.2.1, Fig. 1; README.md, Eqs. 1 to 4).

    Acceptance and the draw follow. Differs from the paper: probabilities are fp32 for half logits too, a point mass is tiled as
    a row that is 1 at its token, and a draft that equals the target, whose residual is empty, is followed by the target's row.
    """
    target_probs = adjusted_probs(round.target_logits, round.target)
    if round.draft_logits is None:
        draft_probs = torch.zeros_like(target_probs[:, :-1]).scatter_(-1, round.tokens.unsqueeze(-1), 1.0)
    else:
        draft_probs = adjusted_probs(round.draft_logits, round.draft)
    drafted_target, drafted_draft = drafted_probs(target_probs, draft_probs, round.tokens)
    if use_triton(round.target_logits, backend):
        ratio, residual, sums = tiles_gpu.partials(target_probs, draft_probs)
        drafted_ratio, totals = ratio.gather(-1, round.tokens.unsqueeze(-1)).squeeze(-1), sums.sum(-1)
    else:
        residual = (target_probs[:, :-1] - draft_probs).clamp_(min=0)
        drafted_ratio, totals = drafted_target / drafted_draft, residual.sum(-1)
    num_accepted = leading_true((round.uniforms[:, :-1] <= drafted_ratio) & (drafted_target > 0), round)
    row = at(target_probs, num_accepted)
    if round.tokens.shape[1]:
        total = at(totals.unsqueeze(-1), num_accepted)
        row = _max_norm(at(residual, num_accepted), total, row, was_rejected(num_accepted, round))
    next_token = _drawn(row, round.uniforms[:, -1])
    return refuse_undrawn(Verdict(num_accepted, next_token, drafted_target, drafted_draft), round.vocab_size)


def _residual(
    row: Float[Tensor, "B V"], draft_probs: Float[Tensor, "B n V"] | None, round: Round, num_accepted: Int[Tensor, "B"]
) -> Float[Tensor, "B V"]:
    """max(0, target - draft) in the row of the first rejection; without the drafted token where the draft is a point mass."""
    if draft_probs is not None:
        return torch.clamp(row - at(draft_probs, num_accepted), min=0)
    return row.scatter(-1, at(round.tokens.unsqueeze(-1), num_accepted), 0.0)


def leading_true(accepted: Bool[Tensor, "B n"], round: Round) -> Int[Tensor, "B"]:
    """How many drafts stand before the first that does not: transformers' ``(~accepted).cumsum(-1) < 1``."""
    lengths = round.ragged_lengths()
    if lengths is not None:
        accepted = accepted & (torch.arange(accepted.shape[1], device=accepted.device) < lengths.unsqueeze(-1))
    return ((~accepted).cumsum(-1) < 1).sum(-1)


def was_rejected(num_accepted: Int[Tensor, "B"], round: Round) -> Bool[Tensor, "B 1"]:
    """Whether a draft was refused, so that the last token comes from the residual."""
    lengths = round.ragged_lengths()
    return (num_accepted < (round.tokens.shape[1] if lengths is None else lengths)).unsqueeze(-1)


def at(rows: Shaped[Tensor, "B n *rest"], num_accepted: Int[Tensor, "B"]) -> Shaped[Tensor, " B *rest"]:
    """Every batch row's position of the first rejection; the last one where there are fewer positions."""
    return rows[torch.arange(len(rows), device=rows.device), num_accepted.clamp(max=rows.shape[1] - 1)]


def _max_norm(
    residual: Float[Tensor, "B V"], total: Float[Tensor, "B 1"], row: Float[Tensor, "B V"], rejected: Bool[Tensor, "B 1"]
) -> Float[Tensor, "B V"]:
    """Eq. 3 where a draft was refused and something is left, else the target's row."""
    return torch.where(rejected & (total != 0), residual / total, row)


def _drawn(weights: Float[Tensor, "B V"], uniforms: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """One token a row by inverse CDF; V where the weights do not sum to a number above 0."""
    total = weights.sum(-1)
    return torch.where((total > 0) & total.isfinite(), inverse_cdf(weights, uniforms), weights.shape[-1])
