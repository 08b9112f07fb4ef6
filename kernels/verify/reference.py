"""The slow truth that every kernel is compared with: from raw logits to a law, draws from it, and speculative verification.

B: rows, n: drafted tokens, V: vocabulary. ``verify`` works in the dtype it is given; fp64 in, fp64 throughout. Temperature,
top-k and top-p are those of Leviathan 2.2, with ties as transformers has them.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.inputs import SamplingSpec

BELOW_ONE = 1 - 2.0**-52  # times a sum: below it, whatever the product's rounding, so that a uniform near 1 draws a token


def adjusted_logits(logits: Float[Tensor, "*batch V"], sampling: SamplingSpec) -> Float[Tensor, "*batch V"]:
    """Divided by the temperature, -inf where a token is left out; fp64 stays fp64, everything else is computed in fp32.

    Ties at the k-th logit are all kept. The token that crosses top_p is kept; of tied ones those with the higher ids stay.
    """
    logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        kth = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, index = scaled.sort(dim=-1, stable=True)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        drop[..., -1] = False
        scaled = scaled.masked_fill(drop.scatter(-1, index, drop), float("-inf"))
    return scaled


def adjusted_probs(
    logits: Float[Tensor, "*batch V"], sampling: SamplingSpec, out: Float[Tensor, "*batch V"] | None = None
) -> Float[Tensor, "*batch V"]:
    """The law that a token is drawn from, in ``out`` where that is given; temperature above 0."""
    return torch.softmax(adjusted_logits(logits, sampling), -1, out=out)


class Sampling(SamplingSpec):
    """How logits become a distribution, and how tokens are drawn from it.

    Ties at the k-th logit are all kept and the token that crosses top_p is kept, as transformers does.
    """

    @classmethod
    def of(cls, spec: SamplingSpec) -> "Sampling":
        """The same settings with what draws by them."""
        return cls(temperature=spec.temperature, top_k=spec.top_k, top_p=spec.top_p)

    def probs(self, logits: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch V"]:
        """The adjusted distribution; fp64 logits stay fp64, everything else is computed in fp32."""
        if self.greedy:
            logits = logits if logits.dtype == torch.float64 else logits.float()
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        return adjusted_probs(logits, self)

    def draw(self, logits: Float[Tensor, "*batch V"], uniforms: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """One token a row; greedy takes the argmax and leaves the uniforms unused."""
        return logits.argmax(-1) if self.greedy else inverse_cdf(self.probs(logits), uniforms)

    def draw_with_prob(
        self, logits: Float[Tensor, "*batch V"], uniforms: Float[Tensor, "*batch"]
    ) -> tuple[Int[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The same and its probability; for temperatures above 0. Of logits that hold NaN it is any token, with NaN."""
        probs = self.probs(logits)
        tokens = inverse_cdf(probs, uniforms).clamp_(max=probs.shape[-1] - 1)
        return tokens, probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


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
    target = pick(target_probs, num_accepted)
    if tokens.shape[1] == 0:
        return target
    num_draft = tokens.shape[1]
    rejected = (num_accepted < (num_draft if lengths is None else lengths)).unsqueeze(-1)
    column = num_accepted.clamp(max=num_draft - 1)
    if draft_probs is None:
        residual = target.scatter(-1, tokens.gather(-1, column.unsqueeze(-1)), 0.0)
    else:
        residual = (target - pick(draft_probs, column)).clamp_(min=0)
    return torch.where(rejected & residual.any(-1, keepdim=True), residual, target)


def pick(probs: Float[Tensor, "B n V"], columns: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
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
