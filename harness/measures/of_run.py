"""From records to estimates. Pure: nothing here runs a model, and a failed example never turns into a number.

The acceptance numbers differ by definition (methods/speculative/acceptance.py); each has its own name here and all are
ratios of sums over examples, with intervals that resample examples. Repeats of an example are summed before that.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, MemoryProbe
from harness.core.records import Record, Unit
from harness.measures.pairing import Paired, batches_of, incomparable, overlap_of, paired, rounds_s, steps_of, succeeded, wall_s
from harness.measures.pipelines import Account, account, match_rate, untimed
from harness.measures.statistics import (
    Estimate,
    Missing,
    Redrawn,
    Statistic,
    ratio_of_examples,
    replicas_of,
    resampled,
    share_of_examples,
    spread,
    weights,
    widened,
    without_each,
)
from harness.models.names import num_layers
from methods.speculative import acceptance
from methods.steps import Step
from tasks import get_task
from tasks.base import DataError, Statistics, Task

NUM_CANDIDATES = (1, 3, 5)  # PPD's k
MUCH_REPETITION = 0.5  # a text of which more repeats itself is a loop


def num_tokens(records: Sequence[Record]) -> int:
    """Tokens that were emitted, counted from the returned ids (a stopping EOS included)."""
    return sum(len(record.tokens or ()) for record in succeeded(records))


def alpha_overlap(records: Sequence[Record], drafter: str, lenience: float = 1.0) -> Estimate | None:
    """Mean over output positions of sum min(p / l, q) for a drafter's label (Leviathan, Corollary 3.6 and A.5).

    The paper's alpha, and the only estimator that enters Eq. 1 and Theorem 3.8. None where it was not measured.
    """
    found = [(record.unit, overlap_of(record, drafter, lenience)) for record in succeeded(records)]
    rows = [(example, sum(values), len(values)) for example, values in found if values is not None]
    return ratio_of_examples(rows, whole=1.0)


def alpha_ratio(records: Sequence[Record]) -> Estimate | None:
    """Mean of min(1, p / q) over drafts up to and including the first rejection; lenience is not applied to it."""
    return _accepted(records, acceptance.alpha_ratio, whole=1.0)


def accepted_over_verified(records: Sequence[Record]) -> Estimate | None:
    """Accepted drafts over drafts that were decided on: up to and including the first rejection of a round."""
    return _accepted(records, acceptance.accepted_over_verified, whole=1.0)


def accepted_over_drafted(records: Sequence[Record]) -> Estimate | None:
    """Accepted drafts over all drafts. Not an alpha: 0.538 where alpha is 0.8 and gamma 5."""
    return _accepted(records, acceptance.accepted_over_drafted, whole=1.0)


def accepted_per_step(records: Sequence[Record]) -> Estimate | None:
    """Accepted drafts a round, the bonus token not counted."""
    return _accepted(
        records, acceptance.accepted_per_step, "tokens", ends=(0.0, _longest_round(records, lambda step: step.num_accepted))
    )


def tokens_per_step(records: Sequence[Record]) -> Estimate | None:
    """Emitted tokens a round, the bonus token counted: tokens per run of the target, Eq. 1's left-hand side."""
    return _accepted(
        records, acceptance.tokens_per_step, "tokens", ends=(0.0, 1.0 + _longest_round(records, lambda step: step.emitted - 1))
    )


def _longest_round(records: Sequence[Record], length: Callable[[Step], int]) -> float:
    """Return the most tokens that any round could emit or accept; ``length`` says how many it did."""
    rounds = (step for record in succeeded(records) for step in steps_of(record))
    return float(max((max(length(step), len(step.drafted)) for step in rounds), default=0))


def memory_access_factor(baseline: Sequence[Record], method: Sequence[Record]) -> Estimate | None:
    """Target runs a token of the baseline over those of the method (Section 3.4): each reads weights and cache once.

    The theory's value is Eq. 1 at ``alpha_overlap``. Both arms read the prompt once more; that is left out of both.
    """
    rows = paired(baseline, method, lambda record: (len(steps_of(record)), len(record.tokens or ())), run_of=lambda _: "")
    if rows is None:
        return None
    return _ratio_of_rates(rows)


def repetition_frac(records: Sequence[Record]) -> Estimate | None:
    """Share of an output's 4-grams that occurred in it before: a loop inflates every acceptance number."""
    rows = []
    for record in succeeded(records):
        tokens = record.tokens or []
        grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
        rows.append((record.unit, len(grams) - len(set(grams)), len(grams)))
    return ratio_of_examples(rows, "frac", 1.0)


def output_perplexity(records: Sequence[Record]) -> Estimate | None:
    """Return the target's perplexity (temperature 1) of an arm's texts that a replay read: what a lossy method gave up."""
    rows = [(one.unit, one.nats, float(len(one.tokens or ()))) for one in succeeded(records) if one.nats is not None]
    found = ratio_of_examples(rows)
    with np.errstate(over="ignore"):  # infinite: it says so
        return None if found is None else found.mapped(lambda nats: float(np.exp(nats)), "per token")


def operations_factor(records: Sequence[Record]) -> Estimate | None:
    """Target positions computed for one emitted token: the counted form of Theorem 3.11 with a draft that costs nothing."""
    rows = [
        (record.unit, sum(len(drafted) + 1 for drafted in record.steps.drafted), len(record.tokens or ()))
        for record in succeeded(records)
        if record.steps is not None
    ]
    return ratio_of_examples(rows, "x")


def speedup(baseline: Sequence[Record], method: Sequence[Record], among: int | None = None) -> Estimate | Missing | None:
    """Return the baseline's seconds per token over the method's, totals over examples that both arms completed.

    Where both emit the same tokens this is exactly the ratio of total times. With sampling, or a lossy rule, their lengths
    differ and only time per token compares like with like. Refused as pairing.incomparable says. ``among``: of how many
    methods the best is chosen, which widens the interval (``statistics.tail_among``).
    """
    if refusal := incomparable(baseline, method):
        return refusal
    rows = paired(baseline, method, lambda record: (wall_s(record), len(record.tokens or ())))
    if rows is None:
        return None
    return _ratio_of_rates(rows, among)


def decode_speedup(baseline: Sequence[Record], method: Sequence[Record]) -> Estimate | Missing | None:
    """Return the speed-up of the rounds alone: the time of encoders and prompts, a draft's too, is in neither arm's.

    What ``speedup`` tends to as outputs grow, and what theory predicts. None where an arm's rounds were not timed, or were a
    batch's, which end with its last row. Refused as ``speedup`` is.
    """
    if refusal := incomparable(baseline, method):
        return refusal
    rows = paired(baseline, method, lambda record: (rounds_s(record), len(record.tokens or ())))
    if rows is None or not np.isfinite([*rows.first, *rows.second]).all():
        return None
    return _ratio_of_rates(rows)


def _ratio_of_rates(rows: Paired, among: int | None = None) -> Estimate:
    """Return the first arm's sum of its first value over that of its second, over the same of the second arm."""
    (top, below), (other_top, other_below) = rows.first, rows.second

    def rates(counts: np.ndarray) -> np.ndarray:
        return np.asarray((counts @ top / (counts @ below)) / (counts @ other_top / (counts @ other_below)))

    value = float((top.sum() / below.sum()) / (other_top.sum() / other_below.sum()))
    return resampled(value, rates, len(top), "x", rows.units, among=among)


def tokens_per_s(records: Sequence[Record]) -> Estimate | None:
    """Emitted tokens over seconds, totals over examples; in a batch the seconds are its time over its rows, drawn together."""
    rows = [(unit, len(one.tokens or ()), one.wall_s) for unit, one in _timed_together(records) if one.wall_s]
    return ratio_of_examples(rows, "tokens/s")


def ms_per_token(records: Sequence[Record]) -> Estimate | None:
    """Milliseconds an emitted token, totals over examples: what ``tokens_per_s`` says the other way round."""
    rows = [(unit, 1e3 * one.wall_s, len(one.tokens or ())) for unit, one in _timed_together(records) if one.wall_s]
    return ratio_of_examples(rows, "ms")


def _timed_together(records: Sequence[Record]) -> list[tuple[Unit, Record]]:
    """Return what succeeded, each with what an interval draws of it: the batch that its time is a share of."""
    batches = batches_of(records)
    return [((one.signature, batches[one.key]), one) for one in succeeded(records)]


def equal_frac(greedy: Sequence[Record], method: Sequence[Record]) -> Estimate | None:
    """Percent of outputs that are greedy decoding's, token for token; of itself all are, an identity without interval."""
    outputs = {record.key: record.tokens for record in succeeded(greedy)}
    shared = [record for record in succeeded(method) if record.key in outputs]
    rows = [(record.unit, 100.0 * (record.tokens == outputs[record.key]), 1.0) for record in shared]
    found = ratio_of_examples(rows, "%", 100.0)
    return Estimate(found.value, None, None, found.n, "%") if found is not None and method is greedy else found


def peak_mib(records: Sequence[Record], batch_size: int = 1) -> Estimate | None:
    """Mean over batches of the most MiB that one held, above what was held before; None where none was measured."""
    batches = decoded_together(records, batch_size)
    measured = [(rows[0].unit, rows[0].peak_bytes) for rows in batches]
    return ratio_of_examples([(example, peak / 2**20, 1.0) for example, peak in measured if peak is not None], "MiB")


def decoded_together(records: Sequence[Record], batch_size: int) -> list[list[Record]]:
    """Return the records that succeeded, batch by batch: the runner takes a replica's examples of each repeat in turn.

    A batch is whole or left out: of one that a smaller limit cuts, or that a larger one went on with, the rows were decoded
    with others than these.
    """
    found = []
    for part in dict.fromkeys((record.signature, record.repeat) for record in records):
        rows = [record for record in records if (record.signature, record.repeat) == part]
        found += [succeeded(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    return [batch for batch in found if batch and {row.num_rows for row in batch} <= {None, len(batch)}]


def _accepted(
    records: Sequence[Record],
    definition: Callable[[Sequence[Step]], tuple[float, float]],
    unit: str = "",
    whole: float | None = None,
    ends: tuple[float, float | None] = (0.0, None),
) -> Estimate | None:
    counted = [(record.unit, *definition(steps_of(record))) for record in succeeded(records) if record.steps is not None]
    return ratio_of_examples(counted, unit, whole, ends)


def of_task(task: Task, records: Sequence[Record]) -> dict[str, Estimate]:
    """Return the task's own metrics over the examples that succeeded (first repeat), resampled from their stored statistics.

    A percentage of examples that are right or wrong (exact match) has its exact interval.
    """
    counted = [record for record in succeeded(records) if record.repeat == 0 and record.statistics is not None]
    statistics = [record.statistics for record in counted if record.statistics is not None]
    if not statistics:
        return {}
    if odd := next((one for one in counted if _shape(one.statistics or {}) != _shape(statistics[0])), None):
        raise UsageError(
            f"record {odd.signature}, example {odd.example!r}: its statistics are not those of example "
            f"{counted[0].example!r}; remove the line that was edited, and it is run again"
        )
    n, found, units = len(statistics), {}, tuple(record.unit for record in counted)
    try:
        metrics = task.aggregate(statistics)
    except DataError as error:  # all have the first one's shape
        raise UsageError(f"record {counted[0].signature}, example {counted[0].example!r}: {error}") from error

    def of_all(counts: np.ndarray) -> np.ndarray:
        values = task.resample(statistics, counts)
        return np.stack([values[name] for name in metrics], 1)

    draws, without = (of_all(weights(n)), without_each(of_all, n)) if n > 1 else (np.empty((0, 0)), np.empty((0, 0)))
    for place, (name, metric) in enumerate(metrics.items()):
        statistic, whole = _resampled(task, statistics, name), 100.0 if metric.unit in ("%", "BLEU") else None
        hits = [one.get(name) for one in statistics]
        if n > 1 and metric.unit == "%" and all(hit in (0.0, 1.0) for hit in hits):
            one = share_of_examples(metric.value, hits.count(1.0), n, 100.0, metric.unit)
        elif n > 1:
            one = spread(metric.value, draws[:, place], without[:, place], metric.unit, most=whole)
        else:
            one = Estimate(metric.value, None, None, n, metric.unit)
        one = widened(one, replicas_of(units), statistic, whole)
        found[name] = replace(one, redrawn=Redrawn(units, statistic))
    return found


def _shape(statistics: Statistics) -> dict[str, int | None]:
    """Return how many numbers each statistic has; None of a single one."""
    return {name: len(value) if isinstance(value, list) else None for name, value in statistics.items()}


def _resampled(task: Task, statistics: Sequence[Statistics], name: str) -> Statistic:
    """Return what gives [k] a metric of the task from [k, n] how often each example counts."""
    return lambda counts: task.resample(statistics, counts)[name]


def of_decoding(records: Sequence[Record]) -> dict[str, Estimate | None]:
    """Return every acceptance number of a draft-and-verify arm."""
    measures = (alpha_ratio, accepted_over_verified, accepted_over_drafted, accepted_per_step, tokens_per_step)
    return {measure.__name__: measure(records) for measure in measures}


def failed_frac(records: Sequence[Record]) -> Estimate | None:
    """Runs that failed, of all: no other number hides them."""
    return ratio_of_examples([(record.unit, float(record.status != "ok"), 1.0) for record in records], "frac", 1.0)


def all_metrics(task: Task, records: Sequence[Record]) -> dict[str, Estimate]:
    """Compute an arm's metrics: acceptance if it drafted, alpha if it was measured, length, and the task's own."""
    found: dict[str, Estimate | None] = {"failed_frac": failed_frac(records)}
    good = succeeded(records)
    if any(record.steps is not None and any(record.steps.drafted) for record in good):
        found |= of_decoding(records)
    elif any(record.steps is not None and any(record.steps.num_accepted) for record in good):
        found["tokens_per_step"] = tokens_per_step(records)  # beams share no draft: the accepted steps alone are counted
    for drafter in dict.fromkeys(overlap.drafter for record in good for overlap in record.overlap):
        for lenience in dict.fromkeys(key for record in good for one in record.overlap for key in one.by_lenience):
            suffix = "" if lenience == "1.0" else f"_at_lenience_{lenience}"
            found[f"alpha_overlap[{drafter}]{suffix}"] = alpha_overlap(records, drafter, float(lenience))
    lengths = [(record.unit, float(len(record.tokens or ())), 1.0) for record in good]
    found["tokens_per_example"] = ratio_of_examples(lengths, "tokens")
    found["output_perplexity"] = output_perplexity(records)
    return {name: value for name, value in found.items() if value is not None} | of_task(task, records)


def measure_run(comparison: Comparison, records: Sequence[list[Record]]) -> dict[str, Estimate]:
    """Return the metrics of ``foretoken run``: the method's, with alpha and the speed-up over the plain arm beside them.

    ``alpha_overlap`` is of the method's own drafter; of any others that the plain arm measured it names them.
    """
    experiment = comparison.arms[-1]
    task = get_task(experiment.task)
    found: dict[str, Estimate | None] = {}
    plain = comparison.arms[0]
    drafters = plain.overlap
    own = experiment.method.drafter if experiment.method.drafter in drafters else next(iter(drafters), None)
    for drafter in drafters:
        name = "alpha_overlap" if drafter == own else f"alpha_overlap[{drafter.label}]"
        found[name] = alpha_overlap(records[0], drafter.label)
        lenience = experiment.method.values.get("lenience", 1.0)
        if lenience != 1.0:
            found[f"{name}_lenient"] = alpha_overlap(records[0], drafter.label, lenience)
        factor = memory_access_factor(records[0], records[-1]) if len(comparison.arms) > 1 else None
        if drafter == own and factor is not None and found["alpha_overlap"] is not None:
            found["memory_access_factor"] = factor
    for early in plain.early:
        for layer, k in product(early.layers, NUM_CANDIDATES):
            found[f"match_rate[{early.label}, layer {layer}, k = {k}]"] = match_rate(records[0], early.label, layer, k)
    if experiment.method.is_pipeline:
        depth, simulated = num_layers(experiment.target, experiment.profile), experiment.method.options.execution == "simulated"
        pipeline = account(records[:-1], records[-1], depth, simulated)
        found |= pipeline.estimates if isinstance(pipeline, Account) else untimed(records[-1], depth)
    elif len(comparison.arms) > 1:
        speed = speedup(records[0], records[-1])
        found["speedup"] = speed if isinstance(speed, Estimate) else None
    found |= {name: value for name, value in all_metrics(task, records[-1]).items() if not name.startswith("alpha_overlap")}
    found["baseline_output_perplexity"] = output_perplexity(records[0]) if len(comparison.arms) > 1 else None
    if MemoryProbe() in experiment.probes:
        found["peak_mib"] = peak_mib(records[-1], experiment.batch_size)
        found["baseline_peak_mib"] = peak_mib(records[0], plain.batch_size) if len(comparison.arms) > 1 else None
    return {name: value for name, value in found.items() if value is not None}
