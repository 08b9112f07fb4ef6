"""From raw logits to the distribution that is sampled: temperature, top-k, top-p (Leviathan 2.2), ties as in transformers."""

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.verify.interface import Adjusting


def adjusted_logits(logits: Float[Tensor, "*batch V"], sampling: Adjusting) -> Float[Tensor, "*batch V"]:
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
    logits: Float[Tensor, "*batch V"], sampling: Adjusting, out: Float[Tensor, "*batch V"] | None = None
) -> Float[Tensor, "*batch V"]:
    """The law that a token is drawn from, in ``out`` where that is given; temperature above 0."""
    return torch.softmax(adjusted_logits(logits, sampling), -1, out=out)
