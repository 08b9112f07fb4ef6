"""Exact tests of two samples: labels that are swapped, shares, signs; each with what it could have missed.

Outputs come in pairs, one of each run. If both runs have one law, the runs of a pair can be swapped and nothing changes. What
shares random numbers, the outputs of one seed, is one unit and is swapped together: engines give the rows of a seed the same
numbers, whatever their prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt

import numpy as np

from harness.exact.fit import POWER, Z_POWER
from harness.measures.statistics import at_most, halvings

RESAMPLES = 2000
ALL_UNITS = 11  # of so many units every way of swapping is tried
SAME = 1e-9


@dataclass(frozen=True)
class Feature:
    """What is compared: counts of ``cells`` kinds in each pair's outputs, or one number.

    ``differences`` are the second run's less the first's. ``totals`` are the counts of both runs, None for a number.
    """

    differences: np.ndarray  # [n, cells]
    totals: np.ndarray | None = None  # [cells]


@dataclass(frozen=True)
class Test:
    """The result for one feature. ``p_value`` is corrected: that all features together have a smaller one, if the laws are one.

    ``missed_tv``: of counts, the total variation from which on such a test finds a difference with a chance of POWER.
    """

    name: str
    p_value: float
    missed_tv: float | None


def swap_tests(features: Mapping[str, Feature], units: np.ndarray, level: float) -> list[Test]:
    """Test features together by swapping units; smallest p-values correct for their number (Westfall and Young 1993, 2.6).

    The statistic of a feature is the sum over cells of (difference)**2 / total. ``units`` [n] numbers the unit of each pair.
    Exact for any number of pairs: of many units RESAMPLES ways of swapping are drawn, and the one that was observed counts.
    """
    count = int(units.max()) + 1
    signs = _signs(count)
    statistics = np.stack([_statistic(one, units, count, signs) for one in features.values()], 1)
    tails = np.stack([_tails(column) for column in statistics.T], 1)
    smallest = np.sort(tails.min(1))
    corrected = np.searchsorted(smallest, tails[0] + SAME, "right") / len(smallest)
    as_small = np.searchsorted(smallest, smallest + SAME, "right") / len(smallest)
    least = smallest[as_small <= level + SAME].max(initial=-1.0)
    tests = []
    for number, (name, feature) in enumerate(features.items()):
        found = statistics[tails[:, number] <= least + SAME, number]
        missed = _missed_tv(feature, statistics[:, number], float(found.min()) if len(found) else None)
        tests.append(Test(name, float(corrected[number]), missed))
    return tests


def drawn_test(name: str, sums: np.ndarray, tokens: int, level: float) -> Test:
    """Test one run against draws from its law: ``sums`` [ways, cells] are what counts are above an even share of ``tokens``.

    The first is the observed one, which counts among the draws, so that the test is exact. The statistic is that of a feature.
    """
    totals = np.full(sums.shape[1], 2 * tokens / sums.shape[1])
    values = (sums**2 / totals).sum(1)
    tails = _tails(values)
    found = values[tails <= level + SAME]
    return Test(name, float(tails[0]), _missed_tv(Feature(sums, totals), values, float(found.min()) if len(found) else None))


def can_reject(num_units: int, level: float) -> bool:
    """Say whether so few units leave any p-value that is at most ``level``: both ways of swapping all of them look alike."""
    return num_units > ALL_UNITS or 2.0 ** (1 - num_units) <= level


def _signs(count: int) -> np.ndarray:
    """Return ways of swapping [ways, units], 1 or -1; the first is the observed one."""
    if count <= ALL_UNITS:
        bits = np.arange(2 ** (count - 1))[:, None] >> np.arange(count)[None]
        return 1.0 - 2.0 * (bits & 1)
    drawn = np.random.default_rng(0).integers(0, 2, (RESAMPLES, count)) * 2.0 - 1
    drawn[0] = 1
    return drawn


def _statistic(feature: Feature, units: np.ndarray, count: int, signs: np.ndarray) -> np.ndarray:
    by_unit = np.zeros((count, feature.differences.shape[1]))
    np.add.at(by_unit, units, feature.differences)
    totals = (by_unit**2).sum(0) if feature.totals is None else feature.totals
    return ((signs @ by_unit) ** 2 / np.where(totals > 0, totals, 1)).sum(1)


def _tails(values: np.ndarray) -> np.ndarray:
    """Return for each value the share of all that are as large, or larger but for rounding."""
    ordered = np.sort(values)
    return 1 - np.searchsorted(ordered, values * (1 - SAME) - SAME, "left") / len(values)


def _missed_tv(feature: Feature, values: np.ndarray, critical: float | None) -> float | None:
    """Return the total variation that is found with a chance of POWER.

    Laws that are ``tv`` apart raise the statistic by at least ``2 N tv**2`` (Cauchy-Schwarz; N tokens a run). What it has
    without a difference, mean and spread, is that of the swapped; a difference adds to its variance as to a noncentral
    chi-squared one's, here replaced by a normal law.
    """
    if feature.totals is None:
        return None
    per_run, mean = feature.totals.sum() / 2, float(values.mean())
    cells = int((feature.totals > 0).sum())
    spread = mean / max(1, cells - 1)
    if critical is None:
        return 1.0

    def is_missed(tv: float) -> bool:
        raised = 2 * per_run * tv**2
        return mean + raised - Z_POWER * sqrt(values.var() + 4 * spread * raised) < critical

    return halvings(is_missed)[1]


def fisher(hits: int, n: int, other_hits: int, other_n: int) -> float:
    """Return the chance of so many hits or more among the first ``n``, if hits fall on both alike (Fisher's exact test)."""
    all_hits = hits + other_hits
    ways = sum(comb(n, k) * comb(other_n, all_hits - k) for k in range(hits, min(n, all_hits) + 1))
    return ways / comb(n + other_n, all_hits)


def sign_test(more: int, less: int) -> float:
    """Return the chance of ``more`` or more heads in ``more + less`` tosses (McNemar's exact test, one-sided)."""
    return 1 - at_most(more - 1, more + less, 0.5) if more else 1.0


def found_share(n: int, level: float, noise: float = 0.0) -> float:
    """Return the share of ``n`` pairs that, if they point one way, ``sign_test`` finds with a chance of POWER; at most 1.

    Of the other pairs a share ``noise`` points, either way alike, and hides some.
    """
    return halvings(lambda share: _found(n, level, share, noise) < POWER, steps=30)[1]


def _found(n: int, level: float, share: float, noise: float) -> float:
    """Return the chance that ``sign_test`` finds a share that points one way."""
    pointing = share + (1 - share) * noise
    right = (share + (1 - share) * noise / 2) / pointing
    chances = _binomial(n, pointing)
    return float(
        sum(chances[k] * _binomial(k, right)[_needed(k, level) :].sum() for k in np.flatnonzero(chances > SAME).tolist())
    )


@lru_cache(maxsize=4096)
def _needed(n: int, level: float) -> int:
    """Return how many of ``n`` pairs must point one way for ``sign_test`` to find it; more than ``n`` if all do not suffice."""
    tails = _binomial(n, 0.5)[::-1].cumsum()[::-1]
    return int((tails > level + SAME).sum())


def _binomial(n: int, share: float) -> np.ndarray:
    """Return the chances of 0 to ``n`` hits."""
    hits, share = np.arange(n + 1), min(max(share, 1e-15), 1 - 1e-15)
    logs = np.concatenate([[0.0], np.log(np.arange(1, n + 1)).cumsum()])
    return np.exp(logs[n] - logs[hits] - logs[n - hits] + hits * np.log(share) + (n - hits) * np.log1p(-share))
