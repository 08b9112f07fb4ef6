"""Where a decision turns over as one of its uniform numbers grows, found by calling it."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HALVINGS = 36
SPREAD = 2.0 ** (2 - HALVINGS)
LARGEST_UNIFORM = 1 - 2.0**-53  # the largest double below 1

Decisions = Callable[[Float[Tensor, "K"]], Bool[Tensor, "K"]]


def turning_points(holds: Decisions, count: int, guesses: Float[Tensor, "K"] | None = None) -> Float[Tensor, "K"]:
    """Return, for each of ``count`` decisions, the largest number in [0, 1] at which it holds, to 2**-34.

    A decision must hold up to one number and no longer behind it. Where all turn within 2**-34 of ``guesses``, two looks say so
    and bisection begins there.
    """
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    if guesses is not None and bool(turn_at(holds, guesses).all()):
        low, high = (guesses - SPREAD).clamp(min=0), (guesses + SPREAD).clamp(max=1)
    while bool((high - low).amax() > 2.0**-HALVINGS):
        middle = (low + high) / 2
        yes = holds(middle)
        low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
    return (low + high) / 2


def turn_at(holds: Decisions, points: Float[Tensor, "K"]) -> Bool[Tensor, "K"]:
    """Say which decisions turn within 2**-34 of these points, by a look before each and one behind it."""
    before, behind = (holds((points + side).clamp(0, LARGEST_UNIFORM)) for side in (-SPREAD, SPREAD))
    return (before | (points <= SPREAD)) & (~behind | (points >= 1 - SPREAD))
