"""Logs of drafting and verifying, our records or another engine's counts, and ratios of sums over them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.measures.counts import Counted, Histogram, OfCounts
from harness.measures.pairing import steps_of, succeeded
from harness.measures.statistics import Estimate, ratio_of_examples
from methods.speculative import acceptance
from methods.steps import Step

Statistic = Callable[[Iterable[Step]], acceptance.Statistic]


@dataclass(frozen=True)
class Log:
    """A draft-and-verify arm's description and records, and those of the plain arm over whose output alpha was measured."""

    experiment: Experiment
    records: Sequence[Record]
    plain: Sequence[Record] = ()

    @property
    def drafter(self) -> str:
        return self.experiment.method.drafter.label if self.experiment.method.drafter is not None else ""

    @property
    def gamma(self) -> int | None:
        """Return how many tokens every round may draft; None without a schedule, or with one that changes it."""
        method = self.experiment.method
        return method.gamma if method.schedule is not None and method.has_constant_gamma else None

    @property
    def longest(self) -> int:
        """The most drafts of a round."""
        return max((len(one) for record in succeeded(self.records) if record.steps for one in record.steps.drafted), default=0)

    @property
    def lenience(self) -> float | None:
        return self.experiment.method.values.get("lenience")

    @property
    def rounds_by_drafts(self) -> Counter[int]:
        """How many rounds drafted how many tokens, those left out that drafted none."""
        return Counter(len(step.drafted) for record in succeeded(self.records) for step in steps_of(record) if step.drafted)

    @property
    def histograms(self) -> list[Histogram]:
        """For every example, its repeats together, the rounds that drafted by how many drafts stand."""
        found: dict[str, Counter[int]] = {}
        for record in succeeded(self.records):
            stand = found.setdefault(record.example, Counter())
            stand.update(step.num_accepted for step in steps_of(record) if step.drafted)
        return [tuple(stand[number] for number in range(max(stand, default=0) + 1)) for stand in found.values()]


AnyLog = Log | Counted
Measure = Callable[[AnyLog], Estimate | None]


@dataclass(frozen=True)
class Ratio:
    """A ratio of sums: over a record's rounds, and from another engine's counts, where these have it (None: they do not)."""

    of_steps: Statistic
    of_counts: OfCounts = lambda counts: None


def pooled(ratio: Ratio, whole: float | None = None) -> Measure:
    """Return the ratio of sums over all rounds of all examples; ``whole`` as in ``ratio_of_totals``."""
    return lambda log: ratio_of_examples(rows_of(log, ratio), whole=whole)


def mean_of_means(ratio: Ratio) -> Measure:
    """Return the mean over examples of each one's own ratio (its repeats pooled); examples that count nothing are left out."""

    def measure(log: AnyLog) -> Estimate | None:
        if isinstance(log, Counted) and log.is_total:
            return None
        totals: dict[str, list[float]] = {}
        for example, numerator, denominator in rows_of(log, ratio):
            total = totals.setdefault(example, [0.0, 0.0])
            total[0], total[1] = total[0] + numerator, total[1] + denominator
        return ratio_of_examples([(example, top / bottom, 1.0) for example, (top, bottom) in totals.items() if bottom])

    return measure


def plus_one(measure: Measure) -> Measure:
    """Count the token that the target adds to every round, also to one that a stop has cut."""
    return lambda log: mapped(measure(log), lambda value: value + 1)


def rows_of(log: AnyLog, ratio: Ratio) -> list[tuple[str, float, float]]:
    if isinstance(log, Counted):
        return log.rows(ratio.of_counts) or []
    good = [record for record in succeeded(log.records) if record.steps is not None]
    return [(record.example, *ratio.of_steps(steps_of(record))) for record in good]


def mapped(found: Estimate | None, change: Callable[[float], float]) -> Estimate | None:
    """Change a number and its interval's ends by what only rises."""
    if found is None:
        return None
    return found.mapped(change, found.unit)
