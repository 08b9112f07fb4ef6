"""Speculative verification on probabilities: the slow truth that every kernel is compared with.

B: rows, n: drafted tokens, V: vocabulary. Works in the dtype it is given; fp64 in, fp64 throughout.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BELOW_ONE = 1 - 2.0**-52


def verify(
    target_probs: Float[Tensor, "B n_plus_1 V"],
    draft_probs: Float[Tensor, "B n V"] | None,
    tokens: Int[Tensor, "B n"],
    lengths: Int[Tensor, "B"] | None,
    uniforms: Float[Tensor, "B n_plus_1"],
    lenience: float = 1.0,
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """Algorithm 1 of Leviathan et al., lines 3 to 5, for rows that drafted ``lengths`` tokens: (num_accepted, next_token).

    ``uniforms`` are n acceptance numbers and the one that draws the next token by inverse CDF. ``draft_probs=None`` is a
    point mass on each drafted token, ``lengths=None`` says that every row drafted all n. A draft stands where
    ``uniform * lenience * draft_prob <= target_prob`` (A.5; lenience 1 is the lossless rule).

    Differs from the paper: a token of target probability 0 never stands. The printed ``r > ratio`` would let it pass at
    r = 0, which floating-point generators do return.
    """
    drafted_target_probs, drafted_draft_probs = drafted_probs(target_probs, draft_probs, tokens)
    accepted = (uniforms[:, :-1] * (lenience * drafted_draft_probs) <= drafted_target_probs) & (drafted_target_probs > 0)
    num_accepted = count_accepted(accepted, lengths)
    weights = next_token_weights(target_probs, draft_probs, tokens, lengths, num_accepted)
    return num_accepted, inverse_cdf(weights, uniforms[:, -1])


def drafted_probs(
    target_probs: Float[Tensor, "B n_plus_1 V"], draft_probs: Float[Tensor, "B n V"] | None, tokens: Int[Tensor, "B n"]
) -> tuple[Float[Tensor, "B n"], Float[Tensor, "B n"]]:
    """What the target and the draft gave each drafted token."""
    index = tokens.unsqueeze(-1)
    target = target_probs[:, :-1].gather(-1, index).squeeze(-1)
    return target, torch.ones_like(target) if draft_probs is None else draft_probs.gather(-1, index).squeeze(-1)


def count_accepted(accepted: Bool[Tensor, "B n"], lengths: Int[Tensor, "B"] | None) -> Int[Tensor, "B"]:
    """How many drafts stand before the first that does not; columns past a row's length are padding."""
    if lengths is not None:
        accepted = accepted & (torch.arange(accepted.shape[1], device=accepted.device) < lengths.unsqueeze(-1))
    return accepted.cumprod(-1).sum(-1)


def next_token_weights(
    target_probs: Float[Tensor, "B n_plus_1 V"],
    draft_probs: Float[Tensor, "B n V"] | None,
    tokens: Int[Tensor, "B n"],
    lengths: Int[Tensor, "B"] | None,
    num_accepted: Int[Tensor, "B"],
) -> Float[Tensor, "B V"]:
    """Unnormalised law of the round's last token: ``max(0, target - draft)`` at the first rejection, the target at the bonus.

    Only the row of the first rejection is looked at. A draft that equals the target up to rounding leaves no residual
    although rounding let it be rejected; the target row then stands in, which is its limit.
    """
    target = _pick(target_probs, num_accepted)
    if tokens.shape[1] == 0:
        return target
    num_draft = tokens.shape[1]
    rejected = (num_accepted < (num_draft if lengths is None else lengths)).unsqueeze(-1)
    column = num_accepted.clamp(max=num_draft - 1)
    if draft_probs is None:
        residual = target.scatter(-1, tokens.gather(-1, column.unsqueeze(-1)), 0.0)
    else:
        residual = (target - _pick(draft_probs, column)).clamp_(min=0)
    return torch.where(rejected & residual.any(-1, keepdim=True), residual, target)


def _pick(probs: Float[Tensor, "B n V"], columns: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
    """One row of each batch entry; selecting is several times faster than indexing where there is one entry."""
    if len(columns) == 1:
        return probs[0].index_select(0, columns)
    return probs[torch.arange(len(columns), device=columns.device), columns]


def inverse_cdf(weights: Float[Tensor, "*batch V"], uniforms: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """The first token at which the cumulative weight exceeds ``uniform * total``.

    Weights need not be normalised; the sum runs in fp64 so that it adds no bias at large V. A token of weight 0 is never
    drawn: at uniform 0 the strict inequality skips it, and rounding at the top is held back below the total.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    goal = uniforms.double().unsqueeze(-1) * (cumulative[..., -1:] * BELOW_ONE)
    return torch.searchsorted(cumulative, goal, right=True).squeeze(-1)
