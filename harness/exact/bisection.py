"""Where a decision turns over as one of its uniform numbers grows, found by calling it."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HALVINGS = 36
SPREAD = 2.0 ** (2 - HALVINGS)
LARGEST_UNIFORM = 1 - 2.0**-53  # the largest double below 1


def turning_points(holds: Callable[[Float[Tensor, "K"]], Bool[Tensor, "K"]], count: int) -> Float[Tensor, "K"]:
    """Return, for each of ``count`` decisions, the largest number in [0, 1] at which it holds, to 2**-34.

    A decision must hold up to one number and no longer behind it.
    """
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        yes = holds(middle)
        low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
    return (low + high) / 2
