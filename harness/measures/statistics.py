"""Intervals that resample examples, never tokens.

A corpus number is a ratio (or another function) of sums over examples; a bootstrap draws examples with replacement, the
same draw for both sides of a paired comparison. Generation seeds are fixed, so a table re-rendered is the same table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over ``n`` examples; ``low`` and ``high`` are None where one example gives no spread."""

    value: float
    low: float | None
    high: float | None
    n: int
    unit: str = ""

    def mapped(self, change: Callable[[float], float], unit: str = "") -> "Estimate":
        """A function of it that only rises or only falls: percentile intervals follow any such change."""
        if self.low is None or self.high is None:
            return Estimate(change(self.value), None, None, self.n, unit)
        low, high = sorted((change(self.low), change(self.high)))
        return Estimate(change(self.value), low, high, self.n, unit)

    def as_dict(self) -> dict[str, float | int | str | None]:
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n, "unit": self.unit}


@dataclass(frozen=True)
class Missing:
    """The reason why a number, a model or an arm is missing: it cannot be had, or it was recorded and must not be shown."""

    why: str


@lru_cache(maxsize=32)
def weights(n: int, resamples: int = RESAMPLES) -> np.ndarray:
    """[resamples, n] how often each example is drawn."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def interval(draws: np.ndarray) -> tuple[float | None, float | None]:
    """Return the percentile interval of bootstrap draws; None where none is finite."""
    draws = draws[np.isfinite(draws)]
    if draws.size == 0:
        return None, None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def ratio_of_totals(numerators: np.ndarray, denominators: np.ndarray, unit: str = "") -> Estimate | None:
    """sum(numerators) / sum(denominators) over examples with a percentile bootstrap; None where nothing was counted.

    With ``numerators`` the baseline's seconds per example and ``denominators`` the method's, this is the paired speed-up.
    """
    numerators, denominators = np.asarray(numerators, float), np.asarray(denominators, float)
    n, total = len(denominators), denominators.sum()
    if n == 0 or total == 0:
        return None
    value = float(numerators.sum() / total)
    if n == 1:
        return Estimate(value, None, None, 1, unit)
    drawn = weights(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = (drawn @ numerators) / (drawn @ denominators)
    return Estimate(value, *interval(draws), n, unit)


def ratio_of_examples(rows: Sequence[tuple[str, float, float]], unit: str = "") -> Estimate | None:
    """Return the same from (example, numerator, denominator); the repeats of an example are summed before anything is drawn."""
    totals: dict[str, np.ndarray] = {}
    for example, numerator, denominator in rows:
        totals[example] = totals.get(example, np.zeros(2)) + np.array([numerator, denominator])
    if not totals:
        return None
    numerators, denominators = np.array(list(totals.values()), dtype=float).T
    return ratio_of_totals(numerators, denominators, unit)


def of_sums(
    statistics: dict[str, np.ndarray], from_sums: Callable[[dict[str, np.ndarray], float], float], unit: str = ""
) -> Estimate | None:
    """Any metric that is a function of sums of per-example statistics ([n] or [n, m] each) and of how many there are."""
    n = len(next(iter(statistics.values()), ()))
    if n == 0:
        return None
    value = float(from_sums({name: values.sum(0) for name, values in statistics.items()}, n))
    if n == 1:
        return Estimate(value, None, None, 1, unit)
    drawn = weights(n, 500)
    sums = {name: drawn @ values for name, values in statistics.items()}
    draws = np.array([from_sums({name: values[row] for name, values in sums.items()}, n) for row in range(len(drawn))])
    return Estimate(value, *interval(draws), n, unit)


def median(values: np.ndarray, unit: str = "") -> Estimate:
    """Return the median of single measurements with a percentile bootstrap over them."""
    value, n = float(np.median(values)), len(values)
    if n == 1:
        return Estimate(value, None, None, 1, unit)
    draws = np.random.default_rng(0).choice(values, size=(RESAMPLES, n))
    return Estimate(value, *interval(np.median(draws, 1)), n, unit)


def drift(seconds_per_token: np.ndarray) -> float:
    """Say how far the baseline's second half is from its first, as a fraction of the first (medians; 0 is steady)."""
    seconds_per_token = np.asarray(seconds_per_token, float)
    if len(seconds_per_token) < 4:
        return 0.0
    half = len(seconds_per_token) // 2
    return float(np.median(seconds_per_token[half:]) / np.median(seconds_per_token[:half]) - 1)
