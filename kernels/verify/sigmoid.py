"""The paper's approximation (3.2.2, Eq. 5): an elementwise sigmoid of scaled logits in place of softmax. Lossy.

``alpha`` and ``beta`` are the paper's constants of the scaling; no acceptance rate. A round needs no normaliser, so every tile
is independent; the price: the ratio is about ``1 + 0.38 (z_target - z_draft) / (beta - alpha)`` whatever the models say.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.inputs import InputError
from kernels.verify.interface import Backend, Round, Verdict, refuse_undrawn, use_triton
from kernels.verify.reference import Sampling, adjusted_logits, inverse_cdf, pick
from kernels.verify.whole_rows import at, leading_true, was_rejected

if sys.platform == "linux":  # where Triton is installed
    from kernels.verify import tiles_gpu

LEAST_SUM = 1e-6
LEAST_WEIGHT = 1e-5
MOST_WIDTH = torch.finfo(torch.float32).max  # of beta - alpha


@dataclass(frozen=True)
class Scaling:
    """Eq. 5's constants, alpha < beta, and whose kernel is followed.

    ``as_released`` False is the paper's text. True adds what only the authors' code does: logits below alpha become 0 and above
    beta 1, weights of the last token are at least 1e-5, and the row behind the last draft is never activated, so that the bonus
    token is drawn from raw logits clamped at 1e-5.
    """

    alpha: float = -1e3
    beta: float = 1e3
    as_released: bool = False

    def __post_init__(self) -> None:
        if not self.alpha < self.beta:
            raise InputError(f"alpha {self.alpha!r}, beta {self.beta!r}: expected alpha < beta, such as -1e3 and 1e3")
        if not self.beta - self.alpha <= MOST_WIDTH:
            both = f"alpha {self.alpha!r}, beta {self.beta!r}"
            raise InputError(
                f"rule 'sigmoid', {both}: expected at most {MOST_WIDTH:g} between them, as fp32 holds, such as 2e3"
            )

    def activate(self, logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Eq. 5, each step rounded to the logits' dtype: in fp16 a constant of 1e5 overflows and gives NaN, as in the paper."""
        dtype = logits.dtype
        alpha, width = _constants(self.alpha, self.beta, dtype)
        activated = (logits - alpha).div_(width).to(arithmetic(dtype)).sigmoid_().to(dtype)
        if self.as_released and not self._holds(logits):
            activated.masked_fill_(logits < self.alpha, 0.0).masked_fill_(logits > self.beta, 1.0)
        return activated.to(arithmetic(dtype))

    def _holds(self, logits: Float[Tensor, "*shape"]) -> bool:
        """Whether all lie between alpha and beta, for sure; CUDA tensors are not waited for."""
        return (
            not logits.is_cuda and logits.numel() > 0 and bool(logits.amin() >= self.alpha) and bool(logits.amax() <= self.beta)
        )


@lru_cache(maxsize=64)
def _constants(alpha: float, beta: float, dtype: torch.dtype) -> tuple[float, float]:
    """alpha and beta - alpha, as numbers of this dtype."""
    low, high = torch.tensor(alpha, dtype=dtype), torch.tensor(beta, dtype=dtype)
    return low.item(), (high - low).item()


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """fp64 stays; everything else is computed in fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


DEFAULT = Scaling()


def decide(round: Round, scaling: Scaling = DEFAULT, backend: Backend | None = None) -> Verdict:
    """Accept where uniform <= sigmoid ratio, else draw from max_norm of the sigmoids' difference (README.md, Eqs. 5 to 7).

    The probabilities in the decisions are the sigmoids: they do not sum to 1. Where Eq. 5 has overflowed, nothing is left to
    draw from and every token is as likely, which is what the released clamp at 1e-5 gives.

    Differs from the paper: a point mass drafts with sigmoid 1 at its token and 0 elsewhere; the paper has model drafts only.
    Differs from the released code: sums are fp32 also for half logits, and whole where the last tile is no power of two.
    """
    target, draft = warped(round)
    drafted_target = scaling.activate(_gathered(target[:, :-1], round))
    drafted_draft = torch.ones_like(drafted_target) if draft is None else scaling.activate(_gathered(draft, round))
    if use_triton(round.target_logits, backend) and draft is not None and round.tokens.shape[1]:
        mode = 2 if scaling.as_released else 1
        ratio, residual, sums = tiles_gpu.partials(target, draft, mode, scaling.alpha, scaling.beta)
        num_accepted = leading_true(round.uniforms[:, :-1] <= _gathered(ratio, round), round)
        row = pick(target, num_accepted)
        left, total = at(residual, num_accepted), at(sums.sum(-1, keepdim=True), num_accepted)
    else:
        ratio = (drafted_target / drafted_draft).to(target.dtype)
        num_accepted = leading_true(round.uniforms[:, :-1] <= ratio, round)
        row = pick(target, num_accepted)
        left = _residual(round, row, draft, num_accepted, scaling)
        total = left.sum(-1, keepdim=True)
    weights = _last_token_weights(row, left, total, was_rejected(num_accepted, round), scaling)
    refused = row.amax(-1).isnan()  # a NaN logit, not Eq. 5's overflow
    next_token = torch.where(refused, round.vocab_size, inverse_cdf(weights, round.uniforms[:, -1]))
    return refuse_undrawn(Verdict(num_accepted, next_token, drafted_target, drafted_draft), round.vocab_size)


def warped(round: Round) -> tuple[Tensor, Tensor | None]:
    """Both models' logits after temperature and filters, in the dtype they came in."""
    pairs = ((round.target_logits, round.target), (round.draft_logits, round.draft))
    target, draft = (None if logits is None else _warp(logits, sampling) for logits, sampling in pairs)
    assert target is not None
    return target, draft


def _warp(logits: Tensor, sampling: Sampling) -> Tensor:
    if sampling.temperature == 1 and not sampling.filters:
        return logits
    return adjusted_logits(logits, sampling).to(logits.dtype)


def _gathered(rows: Tensor, round: Round) -> Tensor:
    return rows.gather(-1, round.tokens.unsqueeze(-1)).squeeze(-1)


def _residual(
    round: Round, row: Float[Tensor, "B V"], draft: Tensor | None, num_accepted: Int[Tensor, "B"], scaling: Scaling
) -> Float[Tensor, "B V"]:
    """The sigmoids' positive difference in the ``row`` of the first rejection alone; NaN where Eq. 5 has overflowed."""
    own = scaling.activate(row)
    if not round.tokens.shape[1]:
        return own
    column = num_accepted.clamp(max=round.tokens.shape[1] - 1)
    if draft is None:
        return own.scatter_(-1, round.tokens.gather(-1, column.unsqueeze(-1)), 0.0)
    return own.sub_(scaling.activate(pick(draft, column))).clamp_(min=0)


def _last_token_weights(
    row: Float[Tensor, "B V"],
    left: Float[Tensor, "B V"],
    total: Float[Tensor, "B 1"],
    rejected: Bool[Tensor, "B 1"],
    scaling: Scaling,
) -> Float[Tensor, "B V"]:
    """max_norm of the sigmoids' difference at a rejection, else the target's ``row``; all alike where all are 0."""
    if scaling.as_released:
        some = _not_nan(total) + LEAST_SUM
        return _either(rejected, lambda: _not_nan(left) / some, lambda: row.to(left.dtype)).clamp(min=LEAST_WEIGHT)
    # As described, the target's own sigmoids stand in where no difference is above 0.
    weights = _either(rejected & (total > 0), lambda: left / total, lambda: _not_nan(scaling.activate(row)))
    return weights.add_(weights.sum(-1, keepdim=True) <= 0)


def _not_nan(values: Tensor) -> Tensor:
    return values.nan_to_num(nan=0.0)


def _either(condition: Bool[Tensor, "B 1"], yes: Callable[[], Tensor], no: Callable[[], Tensor]) -> Float[Tensor, "B V"]:
    """``torch.where``, which on a CPU is not asked, nor what it leaves out made, where all rows agree."""
    if not condition.is_cuda and condition.all():
        return yes()
    if not condition.is_cuda and not condition.any():
        return no()
    return torch.where(condition, yes(), no())
