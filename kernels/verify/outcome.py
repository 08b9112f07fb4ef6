"""What follows the probabilities in kernels that keep whole rows: counting accepted drafts, and the law of the last token."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from kernels.verify.interface import Round
from kernels.verify.reference import inverse_cdf


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


def at(rows: Shaped[Tensor, "B n *rest"], num_accepted: Int[Tensor, "B"]) -> Shaped[Tensor, "B *rest"]:
    """Every batch row's position of the first rejection; the last one where there are fewer positions."""
    return rows[torch.arange(len(rows), device=rows.device), num_accepted.clamp(max=rows.shape[1] - 1)]


def max_norm(
    residual: Float[Tensor, "B V"], total: Float[Tensor, "B 1"], row: Float[Tensor, "B V"], rejected: Bool[Tensor, "B 1"]
) -> Float[Tensor, "B V"]:
    """Eq. 3 where a draft was refused and something is left, else the target's row."""
    return torch.where(rejected & (total != 0), residual / total, row)


def drawn(weights: Float[Tensor, "B V"], uniforms: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """One token a row by inverse CDF; V where the weights do not sum to a number above 0."""
    total = weights.sum(-1)
    return torch.where((total > 0) & total.isfinite(), inverse_cdf(weights, uniforms), weights.shape[-1])
