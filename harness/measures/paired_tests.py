"""Tests of values that are paired by example: did they move, or did only rounding flip some of them?

Each is exact: under its null hypothesis the chance of a p-value of at most x is at most x. Only signed ranks of more than
EXACT examples follow a normal law.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from harness.measures import statistics
from harness.measures.statistics import SAME, at_most

EXACT = 200  # differences: the law of their signed ranks takes n^3 steps, of 1,000 some seconds, and is normal by then


def signed_rank(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test (1945) of [n] differences; 1 where all are 0.

    The null hypothesis: each difference is as likely to be of one sign as of the other. Zeros are left out, equal sizes share
    their mean rank. Of up to EXACT differences the sum of positive ranks has the law of all 2^n signs, ties or not; of more a
    normal one, whose far tails are heavier: a p-value of 1e-4 is a tenth too large.
    """
    sizes = np.array([one for one in differences if one != 0])
    if not len(sizes):
        return 1.0
    ranks = _doubled_ranks(np.abs(sizes))
    positive = int(ranks[sizes > 0].sum())
    return min(1.0, 2 * (all_signs(ranks, positive) if len(ranks) <= EXACT else normal_tail(ranks, positive)))


def all_signs(ranks: np.ndarray, positive: int) -> float:
    """Return the chance that random signs give [n] whole ranks a sum of the positive ones as far out on its side."""
    chances = np.ones(1)  # of each sum
    for rank in ranks:
        chances = 0.5 * (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0)))
    return float(min(chances[: positive + 1].sum(), chances[positive:].sum()))


def normal_tail(ranks: np.ndarray, positive: int) -> float:
    """Return the same by a normal law of the sum's own mean and variance, half a step of the sum nearer to the mean."""
    off, step = abs(positive - ranks.sum() / 2), np.gcd.reduce(ranks)
    return NormalDist().cdf(-max(0.0, off - step / 2) / (np.sqrt((ranks.astype(float) ** 2).sum()) / 2))


def _doubled_ranks(sizes: np.ndarray) -> np.ndarray:
    """[n] twice the mean rank of each size, an integer; sizes that differ by rounding alone are equal."""
    order = np.argsort(sizes)
    in_order, ranks = sizes[order], np.empty(len(sizes), dtype=int)
    begins = np.flatnonzero(np.diff(in_order, prepend=-1.0) > SAME * in_order)
    for first, end in zip(begins, [*begins[1:], len(sizes)], strict=True):
        ranks[order[first:end]] = first + 1 + end
    return ranks


def at_least(hits: int, n: int, share: float) -> float:
    """Return the chance of so many hits or more among ``n`` examples, of which each is hit with the chance ``share``."""
    return min(1.0, at_most(n - hits, n, 1.0 - share))  # as many or fewer are not hit: small chances keep their digits


def holm(p_values: Mapping[str, float], false_alarm: float) -> set[str]:
    """Return the names that stand out (Holm 1979): with a chance of at most ``false_alarm`` any of them does so by chance."""
    stand_out = statistics.holm(list(p_values.values()), false_alarm)
    return {name for name, stands in zip(p_values, stand_out, strict=True) if stands}
