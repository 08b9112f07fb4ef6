"""Weights in fewer bytes: bfloat16, or int8 with a scale for each output channel; a pass reads half or a quarter as much.

``rounded`` gives the numbers in fp32 that can be stored so, and ``narrow`` stores them: ``narrow(rounded(w)).widened()`` is
``rounded(w)`` to the bit, and rounding twice changes nothing. A scale has 16 significant bits, so that its products with 7-bit
whole numbers are exact in fp32: who multiplies by the numbers and who by the storage compute the same function.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.inputs import Rounding

LARGEST = 127  # of the whole numbers: symmetric about zero
SCALE_BITS = 16
SMALLEST_SCALE = 2.0**-126  # the smallest normal number: a channel of zeros has it too


@dataclass(frozen=True)
class Narrow:
    """A weight's numbers in bfloat16, or in int8 to be multiplied by the scales of their columns (output channels)."""

    numbers: Tensor  # [d_in, d_out]
    scales: Float[Tensor, " d_out"] | None

    def widened(self) -> Float[Tensor, "d_in d_out"]:
        wide = self.numbers.float()
        return wide if self.scales is None else wide * self.scales


def narrow(weight: Float[Tensor, "d_in d_out"], rounding: Rounding) -> Narrow:
    """Store an fp32 weight in the nearest numbers that the rounding has."""
    if rounding == "bf16":
        return Narrow(weight.to(torch.bfloat16).contiguous(), None)
    exact, exponents = torch.frexp(weight.abs().amax(0).double() / LARGEST)
    steps = 2.0**SCALE_BITS
    scales = torch.ldexp(exact.mul_(steps).ceil_().div_(steps), exponents).clamp_(min=SMALLEST_SCALE).float()
    return Narrow(weight.div(scales).round_().to(torch.int8).contiguous(), scales)


def rounded(weight: Float[Tensor, "d_in d_out"], rounding: Rounding) -> Float[Tensor, "d_in d_out"]:
    """Return the nearest numbers that the rounding has, in fp32."""
    return narrow(weight, rounding).widened()
