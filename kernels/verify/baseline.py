"""The eager operations of transformers' ``_speculative_sampling``, for any batch and with the uniforms as inputs.

Every row of both models goes through softmax and stays in memory; ratio, comparison, difference, clamp and division are one
operation each. What the other kernels are timed against.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.verify.adjust import Sampling, adjusted_probs
from kernels.verify.interface import Proposal, Round, RoundUniforms, TargetLogits, Verdict, checked, refuse_undrawn
from kernels.verify.outcome import at, drawn, leading_true, max_norm, was_rejected
from kernels.verify.reference import drafted_probs


def verify(proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
    """Leviathan's Algorithm 1 (the paper's Eqs. 1 to 3), operation by operation.

    Differs from transformers: the uniforms are inputs, the last token is drawn by inverting the cumulative sum instead of
    ``multinomial``, no host decision is made between (rows of a batch accept different numbers of drafts), and where draft
    and target are equal, so that no residual is left, the target row stands in.
    """
    round = checked(proposal, target_logits, sampling, uniforms)
    target_probs = adjusted_probs(target_logits, sampling)
    draft_probs = None if round.draft_logits is None else adjusted_probs(round.draft_logits, round.draft)
    drafted_target, drafted_draft = drafted_probs(target_probs, draft_probs, round.tokens)
    num_accepted = leading_true(uniforms[:, :-1] <= drafted_target / drafted_draft, round)
    row = at(target_probs, num_accepted)
    if round.tokens.shape[1]:
        residual = _residual(row, draft_probs, round, num_accepted)
        row = max_norm(residual, residual.sum(-1, keepdim=True), row, was_rejected(num_accepted, round))
    return refuse_undrawn(Verdict(num_accepted, drawn(row, uniforms[:, -1]), drafted_target, drafted_draft), round.vocab_size)


def _residual(
    row: Float[Tensor, "B V"], draft_probs: Float[Tensor, "B n V"] | None, round: Round, num_accepted: Int[Tensor, "B"]
) -> Float[Tensor, "B V"]:
    """max(0, target - draft) in the row of the first rejection; without the drafted token where the draft is a point mass."""
    if draft_probs is not None:
        return torch.clamp(row - at(draft_probs, num_accepted), min=0)
    return row.scatter(-1, at(round.tokens.unsqueeze(-1), num_accepted), 0.0)
