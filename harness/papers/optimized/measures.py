"""Measures of a verify rule for Optimized's tables: the time of its calls, their number, and what each saved.

Total time is calls times time a call, so a rule saves by faster calls or by fewer of them: both ratios are given, and their
product is that of the totals.
"""

from collections.abc import Callable, Sequence

import numpy as np

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.measures.pairing import incomparable, paired, succeeded
from harness.measures.statistics import Estimate, Missing, interval, ratio_of_examples, weights

SLACK = 1.05  # clocks that measure the same differ by less
Value = Callable[[Record], float]
OfSums = Callable[[np.ndarray], np.ndarray]  # of sums [..., m] to [...]


def profiled_s(record: Record) -> float:
    """Seconds that a generation's calls took; NaN where they were not profiled."""
    return sum(record.rule_times.profiled_s) if record.rule_times else np.nan


def profiled_ms(record: Record) -> float:
    return 1e3 * profiled_s(record)


def num_calls(record: Record) -> float:
    return float(len(record.rule_times.profiled_s)) if record.rule_times else np.nan


def _clocked_by(record: Record) -> str:
    """The process that timed the calls of the rule."""
    return record.rule_times.run if record.rule_times else ""


def _decoded_by(record: Record) -> str:
    return record.run


def wall_s(record: Record) -> float:
    return record.wall_s or np.nan


def total(records: Sequence[Record], value: Value, unit: str) -> Estimate | None:
    """The sum over all generations; its interval is that of as many others. None where one was not measured."""
    rows: dict[str, float] = {}
    for record in succeeded(records):
        rows[record.example] = rows.get(record.example, 0.0) + value(record)
    return _estimate(np.array(list(rows.values()))[:, None], lambda sums: sums[..., 0], unit)


def call_ms(records: Sequence[Record]) -> Estimate | None:
    """Mean milliseconds a call."""
    return ratio_of_examples([(one.example, profiled_ms(one), num_calls(one)) for one in _profiled(records)], "ms")


def call_deviation_ms(records: Sequence[Record]) -> Estimate | None:
    """Standard deviation over all calls, in milliseconds."""
    moments: dict[str, np.ndarray] = {}
    for record in _profiled(records):
        times = 1e3 * np.array(record.rule_times.profiled_s if record.rule_times else [])
        own = np.array([len(times), times.sum(), (times**2).sum()])
        moments[record.example] = moments.get(record.example, np.zeros(3)) + own

    def deviation(sums: np.ndarray) -> np.ndarray:
        count, first, second = np.moveaxis(sums, -1, 0)
        return np.sqrt(np.maximum(0.0, second / count - (first / count) ** 2))

    return _estimate(np.array(list(moments.values())), deviation, "ms")


def ratio(baseline: Sequence[Record], method: Sequence[Record], value: Value) -> Estimate | None:
    """The method's total over the baseline's, of the examples that both completed in one process."""
    run_of = _clocked_by if value in (profiled_s, num_calls) else _decoded_by
    return _compared(baseline, method, (value,), lambda sums: sums[..., 1] / sums[..., 0], run_of)


def call_ratio(baseline: Sequence[Record], method: Sequence[Record]) -> Estimate | None:
    """The method's mean time a call over the baseline's."""

    def quotient(sums: np.ndarray) -> np.ndarray:
        base_s, base_calls, own_s, own_calls = np.moveaxis(sums, -1, 0)
        return (own_s / own_calls) / (base_s / base_calls)

    return _compared(baseline, method, (profiled_s, num_calls), quotient, _clocked_by)


def saved_pct(of: Estimate | None) -> Estimate | None:
    """A ratio as the paper prints it: percent less than the baseline; below 0 is more."""
    if of is None:
        return None
    low, high = (None if bound is None else 100 * (1 - bound) for bound in (of.high, of.low))
    return Estimate(100 * (1 - of.value), low, high, of.n, "%")


def unfair(plain: Sequence[Record], experiment: Experiment, *arms: Sequence[Record]) -> Missing | None:
    """Why times of rules must not be compared: as pairing.incomparable says beside plain decoding, whose rounds are alike, or
    clocks that contradict each other."""
    for arm in arms:
        if refusal := incomparable(plain, arm) or contradiction(experiment, arm):
            return refusal
    return None


def contradiction(experiment: Experiment, records: Sequence[Record]) -> Missing | None:
    """On CUDA the device was busy no longer than between the events around a call, and these are no further apart than the
    clock says; a CPU's threads work no longer than the clock runs."""
    times = [record.rule_times for record in _profiled(records) if record.rule_times]
    profiled, events, wall = (sum(sum(getattr(one, name)) for one in times) for name in ("profiled_s", "event_s", "wall_s"))
    if not times:
        return None
    if profiled <= 0:
        return Missing("refused: the profiler saw no work in the calls of the verify rule")
    if any(one.event_s for one in times):
        bounds = {"CUDA events": events, "the clock": wall}
    else:
        bounds = {"the clock": wall * experiment.num_threads} if experiment.num_threads else {}
    for name, bound in bounds.items():
        if profiled > SLACK * bound:
            return Missing(f"refused: the profiler has {profiled:.4g} s for the verify rule, {name} only {bound:.4g} s")
    if events > SLACK * wall:
        return Missing(f"refused: CUDA events have {events:.4g} s for the verify rule, the clock only {wall:.4g} s")
    return None


def _profiled(records: Sequence[Record]) -> list[Record]:
    return [record for record in succeeded(records) if record.rule_times is not None]


def _compared(
    baseline: Sequence[Record],
    method: Sequence[Record],
    values: tuple[Value, ...],
    quotient: OfSums,
    run_of: Callable[[Record], str],
) -> Estimate | None:
    """``quotient`` of sums [..., 2 m]: the m values of the baseline, then those of the method."""
    rows = paired(baseline, method, lambda record: tuple(value(record) for value in values), run_of)
    return None if rows is None else _estimate(np.concatenate(rows).T, quotient, "x")


def _estimate(rows: np.ndarray, of_sums: OfSums, unit: str) -> Estimate | None:
    """A function of sums over the examples of [n, m], with its bootstrap; None where something was not measured."""
    n = len(rows)
    if n == 0 or not np.isfinite(rows).all():
        return None
    bounds = interval(of_sums(weights(n) @ rows)) if n > 1 else (None, None)
    return Estimate(float(of_sums(rows.sum(0))), *bounds, n, unit)
