"""The columns of Optimized's tables: the time of a verify rule's calls, their number, what each saved, and what was decoded.

Total time is calls times time a call, so a rule saves by faster calls or by fewer of them: both ratios are given, and their
product is that of the totals.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from harness.core.experiment import Experiment
from harness.core.records import Record, Unit
from harness.measures import of_run as measures
from harness.measures.pairing import incomparable, paired, succeeded, wall_s
from harness.measures.statistics import (
    RESAMPLES,
    Estimate,
    Missing,
    Refused,
    ratio_of_examples,
    resampled,
)
from harness.papers.optimized.setup import BASELINE, EXACT, LOSSY, PAPER, PLAIN, UNTRAINED, Case, from_zoo
from harness.tables import published
from harness.tables.base import TIME_SHARE
from harness.tables.engine import PERPLEXITY, Arm, Column, Known, Result, Row, of_records
from harness.tables.published import Published
from tasks import get_task

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


def total(records: Sequence[Record], value: Value, unit: str) -> Estimate | None:
    """The sum over all generations; its interval is that of as many others. None where one was not measured."""
    rows: dict[Unit, float] = {}
    for record in succeeded(records):
        rows[record.unit] = rows.get(record.unit, 0.0) + value(record)
    return _estimate(np.array(list(rows.values()))[:, None], lambda sums: sums[..., 0], unit, list(rows))


def call_ms(records: Sequence[Record]) -> Estimate | None:
    """Mean milliseconds a call."""
    return ratio_of_examples([(one.unit, profiled_ms(one), num_calls(one)) for one in _profiled(records)], "ms")


def call_deviation_ms(records: Sequence[Record]) -> Estimate | None:
    """Standard deviation over all calls, in milliseconds."""
    moments: dict[Unit, np.ndarray] = {}
    for record in _profiled(records):
        times = 1e3 * np.array(record.rule_times.profiled_s if record.rule_times else [])
        own = np.array([len(times), times.sum(), (times**2).sum()])
        moments[record.unit] = moments.get(record.unit, np.zeros(3)) + own

    def deviation(sums: np.ndarray) -> np.ndarray:
        count, first, second = np.moveaxis(sums, -1, 0)
        return np.sqrt(np.maximum(0.0, second / count - (first / count) ** 2))

    return _estimate(np.array(list(moments.values())), deviation, "ms", list(moments))


def ratio(baseline: Sequence[Record], method: Sequence[Record], value: Value) -> Estimate | None:
    """The method's total over the baseline's, of the examples that both completed; of times, in one process."""
    by_clock: dict[Value, Callable[[Record], str]] = {profiled_s: _clocked_by, num_calls: lambda record: ""}
    run_of = by_clock.get(value, lambda record: record.run)
    return _compare(baseline, method, (value,), lambda sums: sums[..., 1] / sums[..., 0], run_of)


def call_ratio(baseline: Sequence[Record], method: Sequence[Record]) -> Estimate | None:
    """The method's mean time a call over the baseline's."""

    def quotient(sums: np.ndarray) -> np.ndarray:
        base_s, base_calls, own_s, own_calls = np.moveaxis(sums, -1, 0)
        return (own_s / own_calls) / (base_s / base_calls)

    return _compare(baseline, method, (profiled_s, num_calls), quotient, _clocked_by)


def saved_pct(of: Estimate | None) -> Estimate | None:
    """A ratio as the paper prints it: percent less than the baseline; below 0 is more."""
    return None if of is None else of.mapped(lambda value: 100 * (1 - value), "%")


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
        return Refused("refused: the profiler saw no work in the calls of the verify rule")
    if any(one.event_s for one in times):
        bounds = {"CUDA events": events, "the clock": wall}
    else:
        bounds = {"the clock": wall * experiment.num_threads} if experiment.num_threads else {}
    for name, bound in bounds.items():
        if profiled > SLACK * bound:
            return Refused(f"refused: the profiler has {profiled:.4g} s for the verify rule, {name} only {bound:.4g} s")
    if events > SLACK * wall:
        return Refused(f"refused: CUDA events have {events:.4g} s for the verify rule, the clock only {wall:.4g} s")
    return None


def _profiled(records: Sequence[Record]) -> list[Record]:
    return [record for record in succeeded(records) if record.rule_times is not None]


def _compare(
    baseline: Sequence[Record],
    method: Sequence[Record],
    values: tuple[Value, ...],
    quotient: OfSums,
    run_of: Callable[[Record], str],
) -> Estimate | None:
    """``quotient`` of sums [..., 2 m]: the m values of the baseline, then those of the method."""
    rows = paired(baseline, method, lambda record: tuple(value(record) for value in values), run_of)
    if rows is None:
        return None
    return _estimate(np.concatenate((rows.first, rows.second)).T, quotient, "x", rows.units)


def _estimate(rows: np.ndarray, of_sums: OfSums, unit: str, units: Sequence[Unit]) -> Estimate | None:
    """A function of sums over the examples of [n, m], with its bootstrap; None where something was not measured."""
    n = len(rows)
    if n == 0 or not np.isfinite(rows).all():
        return None

    def of_as_many(counts: np.ndarray) -> np.ndarray:
        return of_sums(counts @ rows * (n / counts.sum(1))[:, None])

    return resampled(float(of_sums(rows.sum(0))), of_as_many, n, unit, units, resamples=RESAMPLES)


# Columns

Measure = Callable[[Known, Row], Result]
FIRST = (BASELINE, f"{UNTRAINED}{BASELINE}")  # the rows that others are compared with


def baseline_of(rule: str) -> str:
    """The rule that another is compared with: the baseline with the same draft."""
    return f"{UNTRAINED}{BASELINE}" if rule.startswith(UNTRAINED) else BASELINE


def _refused(known: Known, row: Row) -> Missing | None:
    """Why the row's times must not be shown, its own or over the baseline's: all of a row are refused together."""
    return known.once(_unfair_over, PLAIN, baseline_of(row.arm), row.arm)


def _unfair_over(plain: Arm, base: Arm, own: Arm) -> Missing | None:
    return unfair(plain[1], own[0], base[1], own[1])


def _beside(rule: str) -> tuple[str, ...]:
    return PLAIN, baseline_of(rule)


def _timed(
    title: str,
    measure: Callable[[list[Record]], Result],
    unit: str = "ms",
    published: tuple[str, str] | None = None,
    note: str = "",
) -> Column:
    """A column of times of one arm, refused where those over the baseline's are."""

    def measured(known: Known, row: Row) -> Result:
        return _refused(known, row) or measure(known[row.arm][1])

    return Column(title, measured, unit, note=note, published=published, reads=_beside)


def _compared(
    title: str, measure: Callable[[list[Record], list[Record]], Result], unit: str, published: tuple[str, str], note: str = ""
) -> Column:
    """A column of times over the baseline's, refused where the two must not be compared."""

    def measured(known: Known, row: Row) -> Result:
        return _refused(known, row) or measure(known[baseline_of(row.arm)][1], known[row.arm][1])

    return Column(title, measured, unit, note=note, published=published, reads=_beside, applies=_not_first)


def _not_first(arm: Experiment | Missing | None, row: Row) -> bool:
    return row.arm not in FIRST


def _saved(measure: Callable[[list[Record], list[Record]], Estimate | None]) -> Callable[[list[Record], list[Record]], Result]:
    return lambda base, own: saved_pct(measure(base, own))


def _score(metric: str, scale: float) -> Measure:
    def measured(known: Known, row: Row) -> Result:
        experiment, records = known[row.arm]
        found = measures.of_task(get_task(experiment.task), records).get(metric)
        return None if found is None else found.mapped(lambda value: scale * value)

    return measured


def _alpha(known: Known, row: Row) -> Result:
    drafter = known[row.arm][0].method.drafter
    return None if drafter is None else measures.alpha_overlap(known[PLAIN][1], drafter.label)


OUT_OF_DOMAIN = (
    "out of domain: the zoo's Whisper has heard toy speech only and hears real recordings in chunks; calls, times and "
    "acceptance are what counts here"
)


def _domain(known: Known, row: Row) -> str:
    experiment = known[row.arm][0]
    return OUT_OF_DOMAIN if from_zoo(experiment.target) and experiment.source != "toy" else ""


WER, ROUGE = "WER", "ROUGE-1"
CALLS, CALL_TIME = "calls, ratio", "time a call, ratio"
CALLS_RATIO = "of calls"  # a unit: a ratio of counts, which no machine changes
# ``published`` is a published file and the metric there.
COLUMNS = (
    Column(
        WER, _score("wer", 1.0), published=("table_1", "WER"), remark=_domain,
        note="WER, ROUGE-1: fractions, as the paper prints them. saved: percent of the baseline's profiled time, which is "
        "summed over all calls and examples.",
    ),
    Column(ROUGE, _score("rouge1", 0.01), published=("table_1", "ROUGE-1")),
    _compared("saved", _saved(partial(ratio, value=profiled_s)), TIME_SHARE, ("table_1", "profiling_time_reduction_pct")),
    _timed("profiled", partial(total, value=profiled_ms, unit="ms")),
    Column("calls", of_records(partial(total, value=num_calls, unit="calls")), "calls"),
    _timed(
        "a call", call_ms, published=("table_4", "avg_ms_per_step"),
        note="a call, deviation: mean and standard deviation of the profiled time over all calls. saved a call: percent of the "
        "baseline's mean, as the paper's last columns.",
    ),
    _timed("deviation", call_deviation_ms, published=("table_4", "std_ms_per_step")),
    _compared("saved a call", _saved(call_ratio), TIME_SHARE, ("table_4", "profiling_time_reduction_pct")),
    Column(
        CALLS, lambda known, row: ratio(known[baseline_of(row.arm)][1], known[row.arm][1], num_calls), CALLS_RATIO,
        published=("derived_call_ratio", "implied_calls_ratio"), reads=lambda rule: (baseline_of(rule),), applies=_not_first,
        note=f"{CALLS}, {CALL_TIME}: the number of calls, and the mean time of one, over the baseline's: below 1 is less. "
        "Their product is the ratio of profiled times. Derived: what the paper's Tables 1 and 4 imply; of its sigmoid's "
        "gain in speech most is fewer calls, not faster ones.",
    ),
    _compared(CALL_TIME, call_ratio, "x", ("derived_call_ratio", "per_step_time_ratio_table4")),
    Column(
        "accepted", of_records(measures.accepted_over_verified),
        note="accepted: of the drafts up to and including a round's first rejection. alpha: mean over plain decoding's output "
        "of the sum of min(target, draft), what an exact rule accepts of the pair; a rule that accepts more does not "
        "check. untrained: a draft of the same shape with seeded random weights: what stands of it is what a rule lets pass.",
    ),
    Column("alpha", _alpha, reads=(PLAIN,)),
    Column(
        "as baseline", lambda known, row: measures.equal_frac(known[baseline_of(row.arm)][1], known[row.arm][1]), "%",
        reads=lambda rule: (baseline_of(rule),), applies=_not_first,
        note="as baseline: percent of outputs that are the baseline's with the same draft, token for token. Exact rules are "
        "given the same random numbers, so theirs are, but for decisions that rounding turns over.",
    ),
    PERPLEXITY,
    _compared(
        "wall saved", _saved(partial(ratio, value=wall_s)), TIME_SHARE, ("table_3", "wallclock_reduction_pct"),
        "wall saved: percent of the baseline's wall-clock seconds of all examples, models included. wall: these seconds, "
        "features of recordings excluded. over plain: speed over plain decoding, seconds a token; it needs no draft.",
    ),
    _timed("wall", partial(total, value=wall_s, unit="s"), "s"),
    Column(
        "over plain", lambda known, row: measures.speedup(known[PLAIN][1], known[row.arm][1]), "x", reads=(PLAIN,),
    ),
)  # fmt: skip
BY_TITLE = {column.title: column for column in COLUMNS}


def columns_for(case: Case, columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """The columns of a data set: speech has no ROUGE, summaries have no WER."""
    foreign = ROUGE if case.data.is_speech else WER
    return [column for column in columns if column.title != foreign]


def printed_value(key: tuple[Case, str], column: tuple[str, str]) -> Published:
    """The paper's number; what it prints of its sigmoid stands beside both of ours."""
    (case, rule), (name, metric) = key, column
    method = {BASELINE: "baseline", EXACT: "exact", **dict.fromkeys(LOSSY, "sigmoid")}.get(rule)
    place = (case.data.name, case.data.subset, case.pair.target, method)
    for row in published.read(PAPER, name):
        here = (row["dataset"], row["subset"], row["target"], row["method"])
        if here == place and row.get("metric", metric) == metric:
            return published.value(row, "value" if "value" in row else metric)
    return None
