"""The columns of Optimized's tables: how each is measured, from which arms, and the paper's number beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness import measures, verification
from harness.catalogue import published
from harness.catalogue.base import Cell, Published, cell_of
from harness.catalogue.optimized_setup import BASELINE, EXACT, LOSSY, PAPER, PLAIN, UNTRAINED, DataSet, Pair, from_zoo
from harness.experiment import Experiment
from harness.pairing import Refused
from harness.records import Record
from harness.sentence_speed import equal_frac
from harness.statistics import Estimate
from tasks import get_task

Known = dict[str, tuple[Experiment, list[Record]]]
Result = Estimate | Refused | None
Measure = Callable[[Known, str], Result]
SPEECH_METRIC, SUMMARY_METRIC = "WER", "ROUGE-1"
OUT_OF_DOMAIN = (
    "out of domain: the zoo's Whisper has heard toy speech only and hears real recordings in chunks; calls, times and "
    "acceptance are what counts here"
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """``metric`` and ``table`` are the paper's for it, if it has them. ``needs`` names arms beside the row's own. A column that
    compares with the baseline has no number in the rows ``excluded``: the baseline's. ``speech``: the tasks (None: both)."""

    measure: Measure
    unit: str = ""
    metric: str | None = None
    table: str = ""
    needs: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    speech: bool | None = None
    note: Callable[[Experiment], str] = lambda experiment: ""

    def has(self, rule: str, is_speech: bool) -> bool:
        return rule not in self.excluded and self.speech in (None, is_speech)


def baseline_of(rule: str) -> str:
    """What a rule is compared with: the baseline with the same draft."""
    return f"{UNTRAINED}{BASELINE}" if rule.startswith(UNTRAINED) else BASELINE


def _of_arm(measure: Callable[[Sequence[Record]], Result]) -> Measure:
    return lambda known, rule: measure(known[rule][1])


def _timed(measure: Callable[[list[Record]], Result]) -> Measure:
    """A time of one arm, refused where its clocks contradict each other."""

    def measured(known: Known, rule: str) -> Result:
        experiment, records = known[rule]
        return verification.contradiction(experiment, records) or measure(records)

    return measured


def _compared(measure: Callable[[list[Record], list[Record]], Result]) -> Measure:
    """A time over the baseline's, refused where the two must not be compared."""

    def measured(known: Known, rule: str) -> Result:
        (experiment, own), (_, base), (_, plain) = known[rule], known[baseline_of(rule)], known[PLAIN]
        return verification.unfair(plain, experiment, base, own) or measure(base, own)

    return measured


def _score(metric: str, scale: float) -> Measure:
    def measured(known: Known, rule: str) -> Result:
        experiment, records = known[rule]
        found = measures.of_task(get_task(experiment.task), records).get(metric)
        if found is None:
            return None
        low, high = (None if bound is None else scale * bound for bound in (found.low, found.high))
        return Estimate(scale * found.value, low, high, found.n)

    return measured


def _alpha(known: Known, rule: str) -> Result:
    drafter = known[rule][0].method.drafter
    return None if drafter is None else measures.alpha_overlap(known[PLAIN][1], drafter.label)


def _domain(experiment: Experiment) -> str:
    return OUT_OF_DOMAIN if from_zoo(experiment.target) and experiment.source != "toy" else ""


FIRST = (BASELINE, f"{UNTRAINED}{BASELINE}")
COLUMNS = {
    SPEECH_METRIC: Column(measure=_score("wer", 1.0), metric="WER", table="table_1", speech=True, note=_domain),
    SUMMARY_METRIC: Column(measure=_score("rouge1", 0.01), metric="ROUGE-1", table="table_1", speech=False),
    "saved": Column(
        measure=_compared(
            lambda base, own: verification.saved_pct(verification.ratio(base, own, verification.profiled_s))
        ),
        unit="%", metric="profiling_time_reduction_pct", table="table_1", needs=(PLAIN,), excluded=FIRST,
    ),
    "profiled": Column(measure=_timed(lambda own: verification.total(own, verification.profiled_ms, "ms")), unit="ms"),
    "calls": Column(measure=_of_arm(lambda own: verification.total(own, verification.num_calls, "calls")), unit="calls"),
    "a call": Column(measure=_timed(verification.call_ms), unit="ms", metric="avg_ms_per_step", table="table_4"),
    "deviation": Column(measure=_timed(verification.call_deviation_ms), unit="ms", metric="std_ms_per_step", table="table_4"),
    "saved a call": Column(
        measure=_compared(lambda base, own: verification.saved_pct(verification.call_ratio(base, own))),
        unit="%", metric="profiling_time_reduction_pct", table="table_4", needs=(PLAIN,), excluded=FIRST,
    ),
    "fewer calls": Column(
        measure=_compared(lambda base, own: verification.ratio(base, own, verification.num_calls)),
        unit="x", metric="implied_calls_ratio", table="derived_call_ratio", needs=(PLAIN,), excluded=FIRST,
    ),
    "faster calls": Column(
        measure=_compared(verification.call_ratio),
        unit="x", metric="per_step_time_ratio_table4", table="derived_call_ratio", needs=(PLAIN,), excluded=FIRST,
    ),
    "accepted": Column(measure=_of_arm(measures.accepted_over_verified)),
    "alpha": Column(measure=_alpha, needs=(PLAIN,)),
    "as baseline": Column(
        measure=lambda known, rule: equal_frac(known[baseline_of(rule)][1], known[rule][1]), unit="%", excluded=FIRST,
    ),
    "wall saved": Column(
        measure=_compared(lambda base, own: verification.saved_pct(verification.ratio(base, own, verification.wall_s))),
        unit="%", metric="wallclock_reduction_pct", table="table_3", needs=(PLAIN,), excluded=FIRST,
    ),
    "wall": Column(measure=_of_arm(lambda own: verification.total(own, verification.wall_s, "s")), unit="s"),
    "over plain": Column(
        measure=lambda known, rule: measures.speedup(known[PLAIN][1], known[rule][1]), unit="x", needs=(PLAIN,),
    ),
}  # fmt: skip


def cell(row: str, name: str, column: Column, rule: str, known: Known, printed: Published) -> Cell:
    """A cell of an arm that can be run."""
    compared = (baseline_of(rule),) if column.excluded else ()
    arms = [known[needed] for needed in dict.fromkeys((rule, *column.needs, *compared))]
    return cell_of(row, name, printed, arms, lambda: column.measure(known, rule), column.unit, note=column.note(known[rule][0]))


def printed_value(table: str, metric: str | None, data: DataSet, pair: Pair, rule: str) -> Published:
    """The paper's number; what it prints of its sigmoid stands beside both of ours."""
    theirs = {BASELINE: "baseline", EXACT: "exact", **dict.fromkeys(LOSSY, "sigmoid")}.get(rule)
    if metric is None or theirs is None:
        return None
    place = (data.name, data.subset, pair.target, theirs)
    for row in published.read(PAPER, table):
        here = (row["dataset"], row["subset"], row["target"], row["method"])
        if here == place and row.get("metric", metric) == metric:
            return published.value(row, "value" if "value" in row else metric)
    return None
