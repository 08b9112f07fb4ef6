"""Tests of values that are paired by example: did they move, or did only rounding flip some of them?

Each is exact: under its null hypothesis the chance of a p-value of at most x is at most x, for any number of examples.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.measures.statistics import SAME, at_most


def signed_rank(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test (1945) of [n] differences; 1 where all are 0.

    The null hypothesis: each difference is as likely to be of one sign as of the other. Zeros are left out, equal sizes share
    their mean rank, and the sum of positive ranks has the law of all 2^n signs: ties and small n need no approximation.
    """
    sizes = np.array([one for one in differences if one != 0])
    if not len(sizes):
        return 1.0
    ranks = _doubled_ranks(np.abs(sizes))
    chances = np.ones(1)  # of each sum of doubled ranks
    for rank in ranks:
        chances = 0.5 * (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0)))
    positive = int(ranks[sizes > 0].sum())
    return float(min(1.0, 2 * min(chances[: positive + 1].sum(), chances[positive:].sum())))


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
    found: set[str] = set()
    for place, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if p_values[name] > false_alarm / (len(p_values) - place):
            break
        found.add(name)
    return found
