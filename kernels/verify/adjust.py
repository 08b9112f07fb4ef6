"""From raw logits to the distribution that is sampled: temperature, top-k, top-p (Leviathan 2.2), ties as in transformers."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.inputs import SamplingSpec
from kernels.verify.reference import inverse_cdf


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
        """The same and its probability; for temperatures above 0."""
        probs = self.probs(logits)
        tokens = inverse_cdf(probs, uniforms)
        return tokens, probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
