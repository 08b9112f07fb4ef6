"""Intervals that resample examples, never tokens.

A corpus number is a ratio (or another function) of sums over examples; a bootstrap draws examples with replacement, the
same draw for both sides of a paired comparison. Generation seeds are fixed, so a table re-rendered is the same table.

Percentiles of draws lie too close where examples are few, or where few of them hold most of the variance (a pause, an output
that loops): they are set as far apart as Student's interval of a mean, with the degrees of freedom that so uneven examples
leave (``spread``). What a sample does not hold at all, no interval of it knows; of skewed numbers most misses lie on the side
of the long tail. Alarms, and the best of several, have percentiles alone.

Shares, which lie between 0 and a whole, are two kinds. Of examples that count once each the interval is exact (Clopper and
Pearson 1934). Of tokens it is resampled by example; at 0 and at the whole, where resampling finds no spread, so many examples
bound it as if each counted once: no binomial's own, so that of few it describes these alone. Any other number that is the
same in every example (an identity) has no interval.

Of several replicas (processes, or models trained by several seeds) an interval reaches at least as far as one over their own
estimates, which resampling examples knows nothing of: what they differ by, and with two or three it is known badly (Student).
It is there to hold what another recording of as many replicas prints, whose noise is its own: it reaches ``ANOTHER`` times as
far as Student's, which is for the number itself. Differences, which decide and are not printed, have Student's.
How often each kind contains the truth: ``python -m harness.report.coverage EVIDENCE``, and NOTATION.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from math import atan, ceil, exp, floor, hypot, inf, lgamma, log, pi, sqrt, tan
from statistics import NormalDist
from typing import Any

import numpy as np

from harness.core.records import Unit
from harness.core.text import interval_text

RESAMPLES = 2000
FEW_RESAMPLES = 500  # for the many numbers of tables: they tell an interval's end to about 3 % of its width
CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
DESCRIPTIVE = 30  # of fewer examples a resampled interval misses the truth too often to be shown
ENOUGH = 100  # of fewer, it is marked as approximate
FEWEST = 2.0  # degrees of freedom where one example adds nearly all
LEAST_MEASURED = 5  # single measurements of which a median has an interval, of at most 94 %
ANOTHER = sqrt(2)  # two recordings' numbers differ by twice the variance of one
SAME = 1e-9  # draws that differ by less, relatively, are one number and its rounding


Statistic = Callable[[np.ndarray], np.ndarray]  # [k, n] how often each of n examples counts -> [k] values


Name = str | Unit  # an example's, alone or with its replica's


@dataclass(frozen=True)
class Redrawn:
    """The examples that a number is of, in the order of the ``statistic``'s counts: what a difference is drawn from."""

    units: tuple[Name, ...]
    statistic: Statistic


@dataclass(frozen=True)
class Student:
    """Student's 95 % interval over replicas, for the number itself: half its length, and its degrees of freedom."""

    half: float
    freedom: int

    @property
    def error(self) -> float:
        """The standard error."""
        return self.half / student_quantile(self.freedom)

    def chance(self, gap: float) -> float:
        """Return the chance that what is 0 is measured further from it, to either side, than ``gap``."""
        return chance_beyond(abs(gap) / self.half, self.freedom) if self.half else 0.0


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over ``n`` examples; ``low`` and ``high`` are None where there is no spread.

    ``exact``: the interval is a binomial's own and holds for any ``n``. ``student``: the interval over its replicas, where it
    has some; ``low`` and ``high`` reach further, for another recording (``widened``). ``freedom``: the degrees of freedom that
    its examples leave (``freedom_of``), None where they count alike: n - 1. ``redrawn``: what a difference from another number
    is drawn from.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    unit: str = ""
    exact: bool = False
    student: Student | None = field(default=None, compare=False)
    freedom: float | None = field(default=None, compare=False)
    redrawn: Redrawn | None = field(default=None, compare=False, repr=False)

    @property
    def shown(self) -> "Estimate":
        """The estimate as tables and figures show it: of too few examples without an interval, so that nothing is concluded."""
        return self if self.exact or self.n >= DESCRIPTIVE else replace(self, low=None, high=None)

    @property
    def is_approximate(self) -> bool:
        """Say whether an interval of it is marked as approximate."""
        return not self.exact and self.n < ENOUGH

    def mapped(self, change: Callable[[float], float], unit: str = "") -> "Estimate":
        """A function of it that only rises or only falls: its interval's ends follow."""
        if self.low is None or self.high is None:
            return Estimate(change(self.value), None, None, self.n, unit)
        low, high = sorted((change(self.low), change(self.high)))
        student = self.student
        if student is not None:
            half = abs(change(self.value + student.half) - change(self.value - student.half)) / 2
            student = replace(student, half=half)
        return Estimate(change(self.value), low, high, self.n, unit, self.exact, student, self.freedom)

    def as_text(self, form: str) -> str:
        """Return the value and its interval in a format of numbers."""
        return f"{self.value:{form}}{interval_text(self.low, self.high, form)}"

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Return what JSON tells of it."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n, "unit": self.unit}


UNTOLD = ("redrawn", "student", "freedom")  # of an estimate: what others are compared with it by


def as_told(one: Any) -> dict[str, Any]:
    """Return a dataclass as JSON has it; what its estimates are compared by stays behind."""
    return asdict(one, dict_factory=lambda pairs: {name: own for name, own in pairs if name not in UNTOLD})


@dataclass(frozen=True)
class Missing:
    """The reason why a number, a model or an arm is missing: it cannot be had, or it was recorded and must not be shown."""

    why: str


class Refused(Missing):
    """The reason why a number must not be shown: it was recorded, and something of its records is wrong."""


class NotReached(Missing):
    """The reason why there is nothing to measure: all went well, and no output has what the number is of."""


@lru_cache(maxsize=32)
def weights(n: int, resamples: int = RESAMPLES) -> np.ndarray:
    """[resamples, n] how often each example is drawn."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def interval(draws: np.ndarray, tail: float = TAIL) -> tuple[float | None, float | None]:
    """Return the percentile interval of bootstrap draws, with a share ``tail`` of them beyond each end.

    None where none is finite, or all are one number.
    """
    draws = draws[np.isfinite(draws)]
    if draws.size == 0 or np.ptp(draws) <= SAME * np.abs(draws).max():
        return None, None
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


@cache
def _angles() -> tuple[np.ndarray, np.ndarray]:
    """Return arctan(t / sqrt(degrees of freedom)) from 0 on, and its cosine."""
    angles = np.linspace(0, pi / 2, 100_001)
    return angles, np.cos(angles)


@lru_cache(maxsize=64)
def _student(freedom: int) -> np.ndarray:
    """Return the chance of each of these angles or less to either side."""
    density = _angles()[1] ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return below / below[-1]


@cache
def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors an interval of ``confidence`` reaches to each side with so many degrees of freedom."""
    return sqrt(freedom) * tan(float(np.interp(confidence, _student(freedom), _angles()[0])))


def chance_beyond(reaches: float, freedom: int) -> float:
    """Return the chance that what is 0 is measured further from it, to either side, than so many times its interval reaches."""
    return 1 - float(np.interp(atan(reaches * student_quantile(freedom) / sqrt(freedom)), _angles()[0], _student(freedom)))


def holm(chances: Sequence[float], error: float = 1 - CONFIDENCE) -> list[bool]:
    """Say which of several tests are decided so that any of them is wrongly with a chance of at most ``error`` (Holm 1979)."""
    decided = [False] * len(chances)
    for rank, index in enumerate(sorted(range(len(chances)), key=lambda index: chances[index])):
        if chances[index] > error / (len(chances) - rank):
            break
        decided[index] = True
    return decided


def tail_among(among: int, n: int) -> float:
    """Return the ``tail`` with which the intervals of ``among`` numbers hold at once, so that of the best of them holds too.

    Each has its part of what may be missed (Bonferroni). Percentiles of resampled examples lie too close for few of them:
    these are as far apart as Student's interval of a mean of ``n`` (expanded percentiles, Hesterberg 2015).
    """
    reach = student_quantile(n - 1, 1 - 2 * TAIL / among)
    return NormalDist().cdf(-sqrt(n / (n - 1)) * reach)


def without_each(statistic: Statistic, n: int) -> np.ndarray:
    """Return [n] or [n, m] values of a statistic, or of m, each of all examples but one (the jackknife's)."""
    parts = np.array_split(np.arange(n), ceil(n / FEW_RESAMPLES))
    return np.concatenate([statistic((np.arange(n) != part[:, None]).astype(np.float64)) for part in parts])


def freedom_of(without: np.ndarray) -> float:
    """Return the degrees of freedom of a number's variance, from its [n] values ``without_each`` example.

    n - 1 where what examples add is normal, or less spread; two where a single one adds nearly all. They are those of a chi
    square that varies as much as the variance of so uneven numbers does, 2 n / (kurtosis - (n - 3) / (n - 1)) (O'Neill 2014).
    """
    n = len(without)
    if not np.isfinite(without).all():
        return FEWEST  # all hangs on an example without which there is no number
    added = without - without.mean()
    if n < 3 or not added.any():
        return float(max(1, n - 1))
    squares = (added / np.abs(added).max()) ** 2
    kurtosis = float(np.mean(squares**2) / np.mean(squares) ** 2)
    return max(1.0, min(n - 1.0, 2 * n / (kurtosis - (n - 3) / (n - 1))))


def spread(
    value: float,
    draws: np.ndarray,
    without: np.ndarray,
    unit: str = "",
    least: float | None = 0.0,
    most: float | None = None,
) -> Estimate:
    """Give a number an interval over its examples from its bootstrap ``draws`` and its values ``without_each`` example.

    Its ends are percentiles, and as much further from ``value`` as Student's interval with ``freedom_of`` these examples is
    wider than that with n - 1: the lower one by a factor of what it is above ``least``, so that it stays above. ``most`` ends
    it. None where nothing differs.
    """
    n = len(without)
    low, high = interval(draws, tail_among(1, n)) if n > 1 else (None, None)
    if low is None or high is None:
        return Estimate(value, None, None, n, unit)
    freedom = freedom_of(without)
    below = student_quantile(floor(freedom))
    further = (below + freedom % 1 * (student_quantile(ceil(freedom)) - below)) / student_quantile(n - 1)
    lower, upper = (value + further * (end - value) for end in (low, high))
    if least is not None and least <= min(low, value):
        lower = least + (value - least) * ((low - least) / (value - least)) ** further if least < value else least
    upper = upper if most is None else min(most, upper)
    return Estimate(value, min(low, lower), max(high, upper), n, unit, freedom=freedom)


def replicas_of(units: Sequence[Name]) -> list[str]:
    """Return each unit's replica, of those that have one."""
    return [unit[0] for unit in units if not isinstance(unit, str)]


def widened(
    found: Estimate,
    replicas: Sequence[str],
    statistic: Statistic,
    whole: float | None = None,
    least: float | None = 0.0,
    reach: float = ANOTHER,
) -> Estimate:
    """Return the estimate with an interval that holds what replicas differ by, too; ``replicas`` names each example's.

    It goes at least ``reach`` times as far as Student's: 1 for the number itself, ANOTHER for that of another recording of as
    many replicas (a prediction interval for a future mean, Hahn and Meeker 1991). Their variance is that of squares about
    the estimate, weighted by their shares of the examples, for equal shares that of a mean. ``least`` and ``whole`` end it: 0
    for times, counts, ratios and shares, None for differences, which may be negative in other replicas.
    """
    if len(set(replicas)) < 2:
        return found
    counts = np.array([[float(one == name) for one in replicas] for name in dict.fromkeys(replicas)])
    estimates, shares = statistic(counts), counts.mean(1)
    known = np.isfinite(estimates)
    freedom = int(known.sum()) - 1
    if freedom < 1:
        return found
    variance = (freedom + 1) / freedom * float(np.sum((shares * (estimates - found.value))[known] ** 2))
    half = student_quantile(freedom) * sqrt(variance)
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    floor, most = -inf if least is None else min(least, low), inf if whole is None else whole
    low, high = max(floor, min(low, found.value - reach * half)), min(most, max(high, found.value + reach * half))
    return found if high - low <= SAME * abs(high) else replace(found, low=low, high=high, student=Student(half, freedom))


@lru_cache(maxsize=4096)
def exact_interval(hits: float, n: int, tail: float = TAIL) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share of ``n`` examples; ``hits`` of them, a part of one counts either way.

    The lower end is the share at which so many hits or more have a chance of ``tail``, the upper one that of so many or fewer.
    """
    fewest, most = floor(hits + SAME), ceil(hits - SAME)
    low = 0.0 if fewest <= 0 else halved(lambda share: 1 - at_most(fewest - 1, n, share) < tail)
    high = 1.0 if most >= n else halved(lambda share: at_most(most, n, share) > tail)
    return low, high


def at_most(hits: int, n: int, share: float) -> float:
    """Return the chance of at most so many hits among ``n`` that each are one with a chance of ``share``."""
    if not 0 < share < 1:
        return float(share <= 0)
    terms = (
        lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(share) + (n - k) * log(1 - share) for k in range(hits + 1)
    )
    return sum(map(exp, terms))


def halved(is_below: Callable[[float], bool], high: float = 1.0, steps: int = 40) -> float:
    """Return where ``is_below`` turns false between 0 and ``high``: the middle of what ``steps`` halvings leave."""
    return sum(halvings(is_below, high, steps)) / 2


def halvings(is_below: Callable[[float], bool], high: float = 1.0, steps: int = 40) -> tuple[float, float]:
    """Return the last number at which ``is_below`` was true and the first at which it was not; the ends count as tried."""
    low = 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


def share_of_examples(value: float, hits: float, n: int, whole: float, unit: str = "") -> Estimate:
    """Return a share of ``n`` examples that count once each with its exact interval; ``whole`` is the value of all of them."""
    low, high = exact_interval(hits, n)
    return Estimate(value, whole * low, whole * high, n, unit, exact=True)


def bounded(found: Estimate, whole: float, counted: int) -> Estimate:
    """Give a share of tokens that is 0 or the ``whole`` the interval of as many examples that count once each.

    ``counted`` of the examples have tokens at all; of a single one there is no interval. It is not ``exact``: tokens are not
    drawn as examples are, so of few examples it is shown as any resampled number is.
    """
    for hits, at in ((0, 0.0), (counted, whole)):
        if found.n > 1 and abs(found.value - at) <= SAME * whole:
            alone = Estimate(found.value, None, None, counted, found.unit)
            once = share_of_examples(found.value, hits, counted, whole, found.unit)
            return replace(once, exact=False) if counted > 1 else alone
    return found


def ratio_of_totals(
    numerators: np.ndarray,
    denominators: np.ndarray,
    unit: str = "",
    whole: float | None = None,
    units: Sequence[Name] = (),
    once: bool | None = None,
    ends: tuple[float | None, float | None] = (0.0, None),
) -> Estimate | None:
    """sum(numerators) / sum(denominators) over examples, resampled by example; None where nothing was counted.

    With ``numerators`` the baseline's seconds per example and ``denominators`` the method's, this is the paired speed-up. Of a
    share, ``whole`` is what it is where everything counts: 1, or 100 for percent. ``units`` names the examples. ``once``: it is
    a share of examples, not of tokens; by default where every denominator is 1. ``ends``: the least and the most that it can
    be, as far as it has them; of a share they are 0 and ``whole``.
    """
    numerators, denominators = np.asarray(numerators, float), np.asarray(denominators, float)
    n, total = len(denominators), denominators.sum()
    if n == 0 or total == 0:
        return None
    value = float(numerators.sum() / total)
    if n == 1:
        return Estimate(value, None, None, 1, unit)
    ends = ends if whole is None else (0.0, whole)

    def ratios(counts: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((counts @ numerators) / (counts @ denominators))

    hits = numerators / (whole * denominators[0]) if whole is not None and denominators[0] else np.array(np.nan)
    once = bool((denominators == 1).all()) if once is None else once
    if once and (denominators == denominators[0]).all() and np.isin(hits, (0.0, 1.0)).all() and whole is not None:
        found = share_of_examples(value, hits.sum(), n, whole, unit)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            without = (numerators.sum() - numerators) / (total - denominators)
        found = spread(value, ratios(weights(n)), without, unit, *ends)
        found = found if whole is None else bounded(found, whole, int(np.count_nonzero(denominators)))
    return _with_units(widened(found, replicas_of(units), ratios, ends[1], ends[0]), units, ratios)


def _with_units(found: Estimate, units: Sequence[Name], statistic: Statistic) -> Estimate:
    return replace(found, redrawn=Redrawn(tuple(units), statistic)) if units else found


def ratio_of_examples(
    rows: Sequence[tuple[Name, float, float]],
    unit: str = "",
    whole: float | None = None,
    ends: tuple[float | None, float | None] = (0.0, None),
) -> Estimate | None:
    """Return the ratio of totals of (example, numerator, denominator) rows; an example's repeats are summed before drawing.

    An example that is named as a record's ``unit`` belongs to a replica.
    """
    totals: dict[Name, tuple[float, float]] = {}
    for example, numerator, denominator in rows:
        above, below = totals.get(example, (0.0, 0.0))
        totals[example] = above + numerator, below + denominator
    if not totals:
        return None
    numerators, denominators = np.array(list(totals.values()), dtype=float).T
    once = all(row[2] == 1 for row in rows)
    return ratio_of_totals(numerators, denominators, unit, whole, list(totals), once, ends)


@lru_cache(maxsize=1024)
def paired_difference(first: Redrawn, second: Redrawn) -> Estimate | None:
    """Return a number minus another of the same examples, each draw for both; None where they share none.

    The examples may be of two arms: one of the same name is the same. One arm may lack some, as late tokens of short outputs or
    what failed. A replica is then a pair of replicas, one of each arm. ``n`` counts the examples of which the numbers differ.
    """
    parts = _shared_names(first.units, second.units)
    names = {name: row for row, name in enumerate(dict.fromkeys([*parts[0], *parts[1]]))}
    if len(names) == len(parts[0]) + len(parts[1]):
        return None
    rows = [np.array([names[name] for name in part]) for part in parts]
    of_parts = list(zip((first, second), rows, strict=True))
    everyone = np.arange(len(names))

    def values(counts: np.ndarray) -> list[np.ndarray]:
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = [counts if np.array_equal(own, everyone) else counts[:, own] for own in rows]
            return [np.asarray(one.statistic(part)) for one, part in zip((first, second), drawn, strict=True)]

    def differences(counts: np.ndarray) -> np.ndarray:
        above, below = values(counts)
        return np.asarray(above - below)

    alone = values(np.eye(len(names)))
    is_other = ~((alone[0] == alone[1]) | (np.isnan(alone[0]) & np.isnan(alone[1])))
    value = float(differences(np.ones((1, len(names))))[0])
    drawn, without = differences(weights(len(names))), without_each(differences, len(names))
    found = replace(spread(value, drawn, without, least=None), n=int(is_other.sum()))
    owners = [["" for _ in names], ["" for _ in names]]
    for owner, (one, own) in zip(owners, of_parts, strict=True):
        for row, unit in zip(own, one.units, strict=True):
            owner[row] = "" if isinstance(unit, str) else unit[0]
    return widened(found, [" ".join(pair) for pair in zip(*owners, strict=True)], differences, least=None, reach=1.0)


def _shared_names(*arms: Sequence[Name]) -> Sequence[Sequence[Name]]:
    """Return the names by which examples of two arms are the same: their own, or if none is shared those without replicas."""
    names = [[unit if isinstance(unit, str) else unit[1] for unit in arm] for arm in arms]
    is_one_arm, is_clear = bool(set(arms[0]) & set(arms[1])), all(len(set(own)) == len(own) for own in names)
    return arms if is_one_arm or not is_clear else names


def independent_difference(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float]:
    """Return the interval of a number minus another that it does not depend on, from (low, value, high) of each.

    What each end is off its value by is squared and added (Zou and Donner 2008), as variances are.
    """
    (low, value, high), (other_low, other, other_high) = first, second
    gap = value - other
    return gap - hypot(value - low, other_high - other), gap + hypot(high - value, other - other_low)


def independent_students(first: Student | None, second: Student | None) -> Student | None:
    """Return Student's interval of a number minus another that it does not depend on; None where neither has replicas.

    Of the fewer degrees of freedom, for fewer are known of the sum than Welch's formula says where one is far the wider.
    """
    known = [one for one in (first, second) if one is not None]
    if not known:
        return None
    freedom = min(one.freedom for one in known)
    return Student(student_quantile(freedom) * hypot(*(one.error for one in known)), freedom)


def of_sums(
    statistics: dict[str, np.ndarray],
    from_sums: Callable[[dict[str, np.ndarray], float], float],
    unit: str = "",
    units: Sequence[Name] = (),
) -> Estimate | None:
    """Any metric that is a function of sums of per-example statistics ([n] or [n, m] each) and of how many there are.

    ``units`` names the examples.
    """
    n = len(next(iter(statistics.values()), ()))
    if n == 0:
        return None
    value = float(from_sums({name: values.sum(0) for name, values in statistics.items()}, n))

    def metrics(counts: np.ndarray) -> np.ndarray:
        sums = {name: counts @ values for name, values in statistics.items()}
        return np.array(
            [from_sums({name: values[row] for name, values in sums.items()}, counts[row].sum()) for row in range(len(counts))]
        )

    return resampled(value, metrics, n, unit, units)


def resampled(
    value: float,
    statistic: Statistic,
    n: int,
    unit: str = "",
    units: Sequence[Name] = (),
    whole: float | None = None,
    least: float | None = 0.0,
    among: int | None = None,
    resamples: int = FEW_RESAMPLES,
) -> Estimate:
    """Give the ``value`` of a statistic of ``n`` examples an interval; ``units`` names them.

    Of a share, ``whole`` is what it is where everything counts. ``least``: see ``widened``. ``among``: it is one of so many
    values of which the best is chosen, and its interval holds with theirs (``tail_among``). So few examples that all favour one
    side by chance more often than such an interval may miss have none: no resampling shows it.
    """
    if n == 1 or (among is not None and 0.5**n > TAIL / among):
        return Estimate(value, None, None, n, unit)
    draws = statistic(weights(n, resamples if among is None else RESAMPLES * among))
    if among is None:
        found = spread(value, draws, without_each(statistic, n), unit, least, whole)
    else:
        found = Estimate(value, *interval(draws, tail_among(among, n)), n, unit)
    found = widened(found if whole is None else bounded(found, whole, n), replicas_of(units), statistic, whole, least)
    return _with_units(found, units, statistic)


def median(values: np.ndarray, unit: str = "") -> Estimate:
    """Return the median of single measurements with a percentile bootstrap over them, of fewer than LEAST_MEASURED without one.

    All of four lie on one side of the true median with a chance of one in eight, and no interval of them reaches beyond them.
    """
    value, n = float(np.median(values)), len(values)
    if n < LEAST_MEASURED:
        return Estimate(value, None, None, n, unit)
    draws = np.random.default_rng(0).choice(values, size=(RESAMPLES, n))
    return Estimate(value, *interval(np.median(draws, 1)), n, unit)


def medians_drawn(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return [k] medians of [n] examples' values, each counted [k, n] times. NaN does not count; where all are, it is NaN."""
    counts = np.where(np.isnan(values), 0.0, counts)
    order = np.argsort(values)
    reached, half = counts[:, order].cumsum(1), counts.sum(1, keepdims=True) / 2
    sides = ((reached < half).sum(1), (reached <= half).sum(1))
    low, high = (values[order[np.minimum(side, len(values) - 1)]] for side in sides)
    return np.where(half[:, 0] > 0, (low + high) / 2, np.nan)


def drift(seconds_per_token: np.ndarray) -> float:
    """Say how far the baseline's second half is from its first, as a fraction of the first (medians; 0 is steady)."""
    seconds_per_token = np.asarray(seconds_per_token, float)
    if len(seconds_per_token) < 4:
        return 0.0
    half = len(seconds_per_token) // 2
    return float(np.median(seconds_per_token[half:]) / np.median(seconds_per_token[:half]) - 1)
