"""SpecDec at several batch sizes: the arms behind its tables of memory and latency and Figure 5, and what is measured of them.

Memory and time are measured in runs of their own: what reads the one disturbs the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from harness.block_measures import decoded_together, latency_s, peak_mib, timed_together
from harness.catalogue.base import Settings
from harness.catalogue.roles import Absent
from harness.catalogue.specdec_columns import Column, Known, Result, faster_beam, which_beam
from harness.catalogue.specdec_setup import (
    BEAM,
    EFFICIENCY,
    GREEDY,
    HIGH_EFFICIENCY,
    STRICT,
    THEIR_BEAM,
    Arms,
    Setup,
    beam,
    drafter_of,
    gamma_of,
    greedy,
    relaxed,
    strict,
    their_beam,
)
from harness.experiment import Experiment, ModelSpec
from harness.memory import peak_unknown
from harness.models import estimate, scale_of
from harness.pairing import Refused
from harness.records import Record
from harness.sentence_speed import sentence_speedup
from harness.statistics import Estimate, ratio_of_examples

MIB = 2**20
BATCHES = {"toy": (1, 4, 8, 16, 32), "test": (1, 2), "small": (1, 4, 8, 16, 32), "paper": (1, 4, 8, 16, 32)}
LIMIT = {"toy": 192, "test": 4, "small": 64, "paper": 320}
MEMORY_LIMIT = {"toy": 32, "test": 4, "small": 64, "paper": 320}
MIN_BATCHES = 6  # of fewer, what is drawn again and again gives their minimum and maximum: no interval
HELD_ARMS = (GREEDY, BEAM, STRICT, HIGH_EFFICIENCY)
TIMED_ARMS = (GREEDY, BEAM, THEIR_BEAM, STRICT, HIGH_EFFICIENCY)


def at_batch(plain: Experiment | Absent, settings: Settings, batch: int, memory: bool) -> Experiment | Absent:
    """The verifier alone, decoding ``batch`` sentences together, for its times or for its ``memory``."""
    if isinstance(plain, Absent):
        return plain
    limit = settings.limit or (MEMORY_LIMIT if memory else LIMIT)[settings.profile]
    repeats = 1 if memory else settings.repeats or 1
    return plain.replace(batch_size=batch, limit=limit, repeats=repeats, memory=memory)


def arms_at(settings: Settings, setup: Setup, batch: int, *, memory: bool = False) -> Arms:
    """AT by both searches, SpecDec and its efficient relaxed setting, decoding ``batch`` sentences together.

    Where time is measured, transformers' beam search too: the faster of the two is what speeds are measured against.
    """
    plain = at_batch(greedy(settings, setup, "batches"), settings, batch, memory)
    if isinstance(plain, Absent):
        return dict.fromkeys(HELD_ARMS if memory else TIMED_ARMS, plain)
    drafter, gamma = drafter_of(settings, setup.drafter), gamma_of(settings, setup)
    return {
        GREEDY: plain,
        BEAM: beam(plain),
        **({} if memory else {THEIR_BEAM: their_beam(plain)}),
        STRICT: strict(plain, drafter, gamma),
        HIGH_EFFICIENCY: relaxed(plain, drafter, gamma, EFFICIENCY),
    }


def weights_mib(experiment: Experiment) -> Estimate | Refused:
    """What verifier and drafter weigh, from recipes, configurations or file headers alone."""
    drafter = experiment.method.drafter
    specs = [experiment.target, *([drafter.model] if drafter is not None and drafter.model is not None else [])]
    sizes = [_memory_bytes(spec, experiment.dtype, experiment.profile, experiment.source) for spec in specs]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return Refused("unknown: the size of a model's weights cannot be had without loading it")
    return Estimate(sum(known) / MIB, None, None, 1, "MiB")


@lru_cache(maxsize=32)
def _memory_bytes(spec: ModelSpec, dtype: str, profile: str, source: str) -> int | None:
    return estimate(spec, dtype, scale_of(profile), source).memory_bytes


def total_peak_mib(experiment: Experiment, records: Sequence[Record]) -> Estimate | Refused:
    """Weights and the most that any batch took above the loaded models. A maximum has no interval."""
    weights, peaks = weights_mib(experiment), peaks_mib(experiment, records)
    if isinstance(weights, Refused) or isinstance(peaks, Refused):
        return weights if isinstance(weights, Refused) else peaks  # type: ignore[return-value]
    return Estimate(weights.value + max(peaks), None, None, len(peaks), "MiB")


def peaks_mib(experiment: Experiment, records: Sequence[Record]) -> list[float] | Refused:
    """Per batch the most that was held above the loaded models."""
    batches = decoded_together(records, experiment.batch_size)
    peaks = [rows[0].peak_bytes / MIB for rows in batches if rows[0].peak_bytes is not None]
    if len(peaks) < len(batches):
        return Refused(f"unknown: {peak_unknown(experiment.device) or 'the records hold no peak of memory'}")
    return peaks


def batch_speedup(known: Known, baseline: str, name: str) -> Result:
    """Seconds of the baseline over the arm's; what is drawn for the interval is batches."""
    arms = (_as_wholes(*known[arm]) for arm in (GREEDY, baseline, name))
    return with_spread(sentence_speedup(*arms))


def with_spread(found: Result) -> Result:
    """Without its interval where that is of fewer than MIN_BATCHES batches."""
    if isinstance(found, Estimate) and found.n < MIN_BATCHES:
        return replace(found, low=None, high=None)
    return found


def _over_beam(known: Known, name: str) -> Result:
    return batch_speedup(known, faster_beam(known), name)


def _as_wholes(experiment: Experiment, records: Sequence[Record]) -> list[Record]:
    """A record a batch: its first row's with the time of all, and any wrong output among them."""
    wholes = []
    for rows in timed_together(records, experiment.batch_size):
        divergences = [row.divergence for row in rows if row.divergence is not None]
        worst = next((one for one in divergences if one.kind == "bug"), divergences[0] if divergences else None)
        wholes.append(replace(rows[0], wall_s=sum(row.wall_s or 0.0 for row in rows), divergence=worst))
    return wholes


def _sentence_s(records: Sequence[Record], batch_size: int) -> Estimate | None:
    """Mean seconds a sentence; batches are drawn."""
    batches = timed_together(records, batch_size)
    times = [(rows[0].example, sum(row.wall_s or 0.0 for row in rows), len(rows)) for rows in batches]
    return ratio_of_examples(times, "s")


def _milliseconds(seconds: Callable[[Sequence[Record], int], Estimate | None]) -> Callable[[Known, str], Result]:
    """A time of an arm's batches, which is refused where a speed over greedy decoding is."""

    def measured(known: Known, name: str) -> Result:
        experiment, records = known[name]
        over_greedy, found = batch_speedup(known, GREEDY, name), with_spread(seconds(records, experiment.batch_size))
        if isinstance(over_greedy, Refused) or not isinstance(found, Estimate):
            return over_greedy if isinstance(over_greedy, Refused) else found
        low, high = (None if bound is None else 1e3 * bound for bound in (found.low, found.high))
        return Estimate(1e3 * found.value, low, high, found.n, "ms")

    return measured


def decoding_mib(experiment: Experiment, records: Sequence[Record]) -> Result:
    """Mean over batches of what one held above the loaded models."""
    return with_spread(peak_mib(records, experiment.batch_size))


TIMES = {
    "latency": Column(measure=_milliseconds(latency_s), unit="ms", needs=(GREEDY,), metric="latency_s"),
    "a sentence": Column(measure=_milliseconds(_sentence_s), unit="ms", needs=(GREEDY,)),
    "speed": Column(measure=_over_beam, unit="x", needs=(GREEDY, BEAM, THEIR_BEAM), note=which_beam),
    "over greedy": Column(measure=lambda known, name: batch_speedup(known, GREEDY, name), unit="x", needs=(GREEDY, BEAM)),
}
MEMORY = {
    "peak": Column(measure=lambda known, name: total_peak_mib(*known[name]), unit="MiB", metric="memory_GB"),
    "weights": Column(measure=lambda known, name: weights_mib(known[name][0]), unit="MiB"),
    "decoding": Column(measure=lambda known, name: decoding_mib(*known[name]), unit="MiB"),
}
