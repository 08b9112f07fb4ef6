"""Intervals of the chances of block verification, as far as rounding may have moved the laws that they are computed from.

Nothing of the rule's own code is used (Sun et al. 2024, Algorithm 2, said again): what is wrong there is found here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

TINY = 1e-300


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def carried(
    target_probs: Sequence[float], draft_probs: Sequence[float], bounds: Sequence[float], shares: Sequence[float]
) -> list[Interval]:
    """Return p_0 to p_k of k drafted tokens, whose probabilities are off by at most ``bounds``, and by ``shares`` of them."""
    found = [Interval(1.0, 1.0)]
    for target, draft, bound, share in zip(target_probs, draft_probs, bounds, shares, strict=True):
        own, other = min(bound, share * target), min(bound, share * draft)
        low = found[-1].low * max(0.0, target - own) / max(draft + other, TINY)
        most, least = found[-1].high * (target + own), max(0.0, draft - other)
        found.append(Interval(min(1.0, low), 1.0 if most >= least else most / least))
    return found


def stands(
    reached: Interval, target_law: Float[Tensor, "V"] | None, draft_law: Float[Tensor, "V"] | None, bound: float
) -> Interval:
    """Return h of the drafts that led to p = ``reached``, behind which these laws are; p itself behind the last (None)."""
    if target_law is None or draft_law is None:
        return reached
    low, high = (float((p * target_law.double() - draft_law.double()).clamp(min=0).sum()) for p in reached)
    return Interval(_share(max(0.0, low - bound), reached.low), _share(high + bound, reached.high))


def _share(mass: float, reached: float) -> float:
    return 1.0 if reached >= 1 else mass / (mass + 1 - reached)
