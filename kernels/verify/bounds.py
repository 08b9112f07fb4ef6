"""Where rounding may turn a decision over: README.md's bound (Eqs. 14 to 17), evaluated in fp64 on the logits themselves.

Half logits are converted exactly, so it is the arithmetic's unit roundoff that counts: 2**-24 for all dtypes but fp64's 2**-53.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kernels.verify.interface import Round
from kernels.verify.reference import Sampling, adjusted_logits, verify

EXP = 10.0  # roundoffs of a fast exponential (measured: PyTorch's softmax 9, ex2.approx 4) and of the division behind it
DISTANCE = 3.0  # of the distance below the row's maximum: its subtraction and the exponential's change of base
SCALING = 2.0  # of the logit where a temperature divides it: the reciprocal and the product
LANES = 8  # numbers that the widest vector adds side by side at least, so V / 8 is the deepest sum
TINY = 2.0**-126


def roundoff(dtype: torch.dtype) -> float:
    return 2.0**-53 if dtype == torch.float64 else 2.0**-24


class _Law:
    """A model's fp64 probabilities with their relative errors: each token's own, and its row's common one, the normaliser's."""

    def __init__(self, logits: Float[Tensor, "B n V"], sampling: Sampling, unit: float, known_sum: bool = False) -> None:
        self.scaled = adjusted_logits(logits.double(), sampling)
        self.probs = self.scaled.softmax(-1)
        top = self.scaled.amax(-1, keepdim=True)
        reached = self.scaled.isfinite()
        distance = torch.where(reached, top - self.scaled, 0.0)
        each = EXP + DISTANCE * distance
        if sampling.temperature != 1:
            each = each + SCALING * torch.where(reached, self.scaled.abs() + top.abs(), 0.0)
        self.each = unit * each
        depth = 16 + logits.shape[-1] / LANES
        self.common = (self.probs * self.each).sum(-1) + unit * depth
        if known_sum:
            self.common = self.common + unit * 2 * (self.scaled.logsumexp(-1).abs() + top.squeeze(-1).abs())
        self.near_cut = _near_cut(logits.double(), sampling, unit)


def _near_cut(logits: Tensor, sampling: Sampling, unit: float) -> Bool[Tensor, "B n"]:
    """Rows in which rounding may move the filters' cut: a near-tie at the k-th logit, or a nucleus that ends at top_p."""
    near = torch.zeros(logits.shape[:-1], dtype=torch.bool)
    vocab_size = logits.shape[-1]
    if sampling.top_k is not None and sampling.top_k < vocab_size:
        ordered = (logits / sampling.temperature).sort(-1, descending=True).values
        kth, after = ordered[..., sampling.top_k - 1], ordered[..., sampling.top_k]
        near |= (kth > after) & (kth - after <= 2 * SCALING * unit * (kth.abs() + after.abs()))
    if sampling.top_p is not None and sampling.top_p < 1:
        # The cut itself is at an end of some token's mass: mass above it, over tokens that top-k keeps.
        scaled = adjusted_logits(logits, replace(sampling, top_p=None))
        terms = scaled.isfinite().sum(-1, keepdim=True)  # of the sum: the zeros of what top-k leaves out add no error
        mass = scaled.sort(-1, descending=True).values.softmax(-1).cumsum(-1)
        near |= ((mass - sampling.top_p).abs() <= unit * (64 + 2 * terms)).any(-1)
    return near


def reference_decisions(round: Round) -> tuple[Tensor, Tensor, Bool[Tensor, "B"]]:
    """The fp64 reference's accepted counts and next tokens, and which rows are inside the bound, where a kernel may differ."""
    unit = roundoff(round.target_logits.dtype)
    target = _Law(round.target_logits, round.target, unit)
    draft = None
    if round.draft_logits is not None:
        draft = _Law(round.draft_logits, round.draft, unit, known_sum=round.log_sum_exp is not None)
    num_accepted, next_token = verify(
        target.probs, None if draft is None else draft.probs, round.tokens, torch.tensor(round.lengths), round.uniforms
    )
    inside = [_inside(round, target, draft, entry, *pair) for entry, pair in enumerate(_pairs(num_accepted, next_token))]
    return num_accepted, next_token, torch.tensor(inside)


def _pairs(num_accepted: Tensor, next_token: Tensor) -> list[tuple[int, int]]:
    return list(zip(num_accepted.tolist(), next_token.tolist(), strict=True))


def _inside(round: Round, target: _Law, draft: _Law | None, entry: int, accepted: int, token: int) -> bool:
    looked_at = min(accepted + 1, round.lengths[entry])
    near = bool(target.near_cut[entry, : accepted + 1].any())
    if draft is not None:
        near |= bool(draft.near_cut[entry, :looked_at].any())
    return (
        near
        or any(_acceptance_inside(round, target, draft, entry, position) for position in range(looked_at))
        or _draw_inside(round, target, draft, entry, accepted, token)
    )


def _acceptance_inside(round: Round, target: _Law, draft: _Law | None, entry: int, position: int) -> bool:
    """Eq. 15: |uniform * draft - target| within what their relative errors make of the larger."""
    drafted = int(round.tokens[entry, position])
    target_prob = float(target.probs[entry, position, drafted])
    error = float(target.each[entry, position, drafted] + target.common[entry, position])
    offered = float(round.uniforms[entry, position])
    if draft is not None:
        offered *= float(draft.probs[entry, position, drafted])
        error += float(draft.each[entry, position, drafted] + draft.common[entry, position])
    return abs(offered - target_prob) <= error * max(offered, target_prob) + TINY


def _draw_inside(round: Round, target: _Law, draft: _Law | None, entry: int, accepted: int, token: int) -> bool:
    """Eqs. 16 and 17: the goal within reach of either end of the drawn token's stretch of the cumulative weights."""
    unit = roundoff(round.target_logits.dtype)
    row, errors = target.probs[entry, accepted], target.each[entry, accepted] * target.probs[entry, accepted]
    common = [(float(target.common[entry, accepted]), row)]
    weights = row.clone()
    if accepted < round.lengths[entry]:
        if draft is None:
            weights[round.tokens[entry, accepted]] = 0
            errors = torch.where(weights > 0, errors, 0.0)
        else:
            own = draft.probs[entry, accepted]
            errors = errors + draft.each[entry, accepted] * own
            common.append((float(draft.common[entry, accepted]), own))
            slack = errors + sum(factor * probs for factor, probs in common)
            counts = weights - own > -slack
            weights = (weights - own).clamp(min=0)
            errors = torch.where(counts, errors, 0.0)
            common = [(factor, torch.where(counts, probs, 0.0)) for factor, probs in common]
            if float(weights.sum()) <= float(slack.sum()):
                return True
    errors = errors + unit * 48 * weights
    uniform = float(round.uniforms[entry, -1])
    goal = uniform * float(weights.sum())
    cumulative = weights.cumsum(-1)
    for end in range(max(token - 1, 0), token + 1):
        at = float(cumulative[end])
        reach = float((1 - uniform) * errors[: end + 1].sum() + uniform * errors[end + 1 :].sum())
        for factor, probs in common:
            reach += factor * abs(float(probs[: end + 1].sum()) - uniform * float(probs.sum()))
        # Behind the last token that weighs, and where nothing before weighs even with its error, there is no other to fall to.
        last = not bool((weights[end + 1 :] + errors[end + 1 :] > 0).any())
        if not last and reach > 0 and abs(goal - at) <= reach + TINY:
            return True
    return False
