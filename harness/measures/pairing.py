"""What an arm's records hold, and how two arms are paired: by example and repeat, failures left out and counted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from harness.core.records import Key, Record, Unit
from harness.measures.statistics import Missing, Refused, drift
from methods.steps import Step, Steps

# Arms alternate within seconds, so their ratio bears a machine that slows down; beyond this something else happened to it.
MAX_DRIFT = 0.4
MAX_SPREAD = 2.0  # of an arm's typical rounds, the nine-tenths quantile over the one-tenth; alone on a machine it is below 1.5
LEAST_ON_PROCESSOR = 0.7  # of the seconds that an arm decoded; the rest went to other programs
MOST_UNRESOLVED = 0.1  # of an arm's outputs, those that part from plain decoding's where memory did not suffice to tell why
JUDGED = 8  # of fewer examples in one process a drift or a spread says nothing, nor does an example of fewer rounds
REMEDY = "run again with --again, which records the comparison anew"


def succeeded(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.status == "ok"]


def num_failed(records: Sequence[Record]) -> int:
    return len(records) - len(succeeded(records))


def overlap_of(record: Record, drafter: str, lenience: float = 1.0) -> list[float] | None:
    """Return a record's overlap at every output position; None where this drafter or lenience was not asked for."""
    for overlap in record.overlap:
        if overlap.drafter == drafter:
            return overlap.by_lenience.get(repr(float(lenience)))
    return None


def steps_of(record: Record) -> list[Step]:
    """Return a record's rounds as the objects that the methods room works with."""
    return [] if record.steps is None else record.steps.rounds(record.stop_reason)


def rounds_s(record: Record) -> float:
    """Return the seconds of an output's rounds, without encoder and prompt; NaN where they are unknown or those of a batch."""
    if record.steps is None or record.num_rows not in (None, 1):
        return np.nan
    return sum(record.steps.round_s) or np.nan


def disturbed(records: Sequence[Record]) -> Missing | None:
    """Refuse an arm's times if something else had a part in them: another program, a clock rate that moved, a pause.

    Three signs, each enough: the thread that decodes had a processor for too little of the time; the median round of the second
    half of a process is far from that of its first half; rounds of one kind took very different times in different examples.
    A run that went on in another process may be faster or slower as a whole: the arms of every example ran in one.
    """
    good = [record for record in succeeded(records) if record.wall_s]
    watched = [(one.on_processor_frac, one.wall_s) for one in good if one.on_processor_frac is not None and one.wall_s]
    on_processor = sum(frac * wall_s for frac, wall_s in watched) / sum(wall_s for _, wall_s in watched) if watched else 1.0
    if on_processor < LEAST_ON_PROCESSOR:
        return _refused(
            f"decoding had a processor for {on_processor:.0%} of its time (at least {LEAST_ON_PROCESSOR:.0%} is asked)"
        )
    seconds, typical = dict[str, list[float]](), dict[str, list[float]]()
    for record, (round_s, count) in zip(good, _rounds_s(good), strict=True):
        if count:
            seconds.setdefault(record.run, []).append(round_s)
        if count >= JUDGED:
            typical.setdefault(record.run, []).append(round_s)
    judged = [np.array(one) for one in seconds.values() if len(one) >= JUDGED or len(seconds) == 1]
    change = max(map(drift, judged), key=abs, default=0.0)
    if abs(change) > MAX_DRIFT:
        return _refused(f"an arm drifted by {change:+.0%} within the run (at most {MAX_DRIFT:.0%} is allowed)")
    spreads = (float(np.divide(*np.quantile(one, (0.9, 0.1)))) for one in typical.values() if len(one) >= JUDGED)
    apart = max(spreads, default=1.0)
    if apart > MAX_SPREAD:
        return _refused(
            f"slow examples of an arm took {apart:.1f} times as long a round as quick ones (at most {MAX_SPREAD:g})"
        )
    return None


def _refused(why: str) -> Missing:
    return Refused(f"refused: {why}; {REMEDY}")


def wall_s(record: Record) -> float:
    """Seconds of a whole text; NaN where nobody measured them."""
    return record.wall_s or np.nan


def _rounds_s(records: Sequence[Record]) -> list[tuple[float, int]]:
    """Return seconds of each record's typical round, and of how many rounds: those with as many drafts as most of the arm have.

    It is their median. Where a method reports no rounds' times, a round on average stands for one; where it does not count them
    either, a token.
    """
    kinds_of = [None if record.steps is None else _kinds(record.steps) for record in records]
    kinds = Counter[int | None]()
    for own in kinds_of:
        kinds.update(own or ())
    kinds.pop(None, None)
    usual = max(kinds, key=lambda kind: kinds[kind], default=0)
    found: list[tuple[float, int]] = []
    for record, own in zip(records, kinds_of, strict=True):
        steps = record.steps
        if steps is None or own is None or not steps.round_s:
            count = max(1, len(record.tokens or ()) if steps is None else len(steps.drafted))
            found.append((wall_s(record) / count, count))
            continue
        alike = [round_s for round_s, kind in zip(steps.round_s, own, strict=True) if kind == usual]
        found.append((median(alike) if alike else np.nan, len(alike)))
    return found


def _kinds(steps: Steps) -> list[int | None]:
    """Return each round's number of drafts; of a pipeline that of candidates, and None behind a match, which spared layers."""
    if not steps.early_layer:
        return list(map(len, steps.drafted))
    behind_match = (False, *map(bool, steps.matched[:-1]))
    return [None if spared else len(own) for spared, own in zip(behind_match, steps.candidates, strict=True)]


def incomparable(baseline: Sequence[Record], method: Sequence[Record]) -> Missing | None:
    """Say why no speed may be shown: a wrong output, a disturbed machine, arms in different processes."""
    return wrong(baseline, method) or out_of_turn(baseline, method)


def wrong(baseline: Sequence[Record], method: Sequence[Record]) -> Missing | None:
    """Refuse arms with an output that is not what it must be, and not by rounding, or with many of which nobody could tell."""
    if bugs := _num_diverged(method, "bug"):
        found = {one.divergence.what for one in method if one.divergence is not None and one.divergence.kind == "bug"}
        replayed = ", ".join(sorted(found - {""}))
        what = f"are not what plain decoding or the replay gives ({replayed})" if replayed else "differ from plain decoding's"
        return Refused(f"refused: {bugs} of {len(method)} outputs {what}, and not by rounding")
    if bugs := _num_diverged(baseline, "bug"):
        return Refused(f"refused: {bugs} of {len(baseline)} outputs of the baseline are not the target's, and not by rounding")
    return _unresolved(method) or _unresolved(baseline)


def _unresolved(records: Sequence[Record]) -> Missing | None:
    outputs = succeeded(records)
    unresolved = _num_diverged(outputs, "unresolved")
    if unresolved > MOST_UNRESOLVED * len(outputs):
        return Refused(
            f"refused: {unresolved} of {len(outputs)} outputs part from plain decoding's where memory did not suffice to tell "
            f"why (at most {MOST_UNRESOLVED:.0%} is allowed); run again with more memory free"
        )
    return None


def out_of_turn(baseline: Sequence[Record], method: Sequence[Record]) -> Missing | None:
    """Say why times must be recorded anew to be compared: the machine was disturbed, or the arms ran in different processes."""
    return disturbed(baseline) or disturbed(method) or torn(baseline, method)


def torn(baseline: Sequence[Record], method: Sequence[Record]) -> Missing | None:
    """Refuse times of arms that ran in different processes. What a run tears that is stopped and goes on is only left out."""
    runs = {record.key: record.run for record in succeeded(baseline)}
    shared = [record for record in succeeded(method) if record.key in runs]
    apart = [record for record in shared if record.run != runs[record.key]]
    if shared and len(apart) == len(shared):
        return _refused("the two arms ran in different processes, not interleaved")
    stops = len({*runs.values(), *(record.run for record in shared)}) - 1
    if apart and len(apart) > stops * max((record.num_rows or 1 for record in apart), default=1):
        return _refused(
            f"of {len(shared)} examples {len(apart)} ran in another process in one arm than in the other, more than a run "
            "leaves that is stopped and goes on"
        )
    return None


def num_near_ties(method: Sequence[Record]) -> int:
    return _num_diverged(method, "near-tie")


def _num_diverged(records: Sequence[Record], kind: str) -> int:
    return sum(record.divergence is not None and record.divergence.kind == kind for record in records)


class Paired(NamedTuple):
    """[m, n] sums of m values over n examples in each arm, and the examples, each with its replica."""

    first: np.ndarray
    second: np.ndarray
    units: list[Unit]


def paired(
    baseline: Sequence[Record],
    method: Sequence[Record],
    values: Callable[[Record], tuple[float, ...]],
    run_of: Callable[[Record], str] = lambda record: record.run,
) -> Paired | None:
    """Return sums of each arm's values over the repeats that both arms completed, for the n examples shared in one process.

    Examples that were decoded together share a time, and so are one of the n that an interval resamples.
    ``run_of`` names the process that measured the values, where that is not the one that decoded.
    """
    first, second = ({record.key: record for record in succeeded(records)} for records in (baseline, method))
    keys = [key for key in first if key in second and run_of(first[key]) == run_of(second[key])]
    if not keys:
        return None
    batches = batches_of(baseline)
    members: dict[str, list[Key]] = {}
    for key in keys:
        members.setdefault(batches[key], []).append(key)

    def sums(arm: Mapping[Key, Record]) -> np.ndarray:
        return np.array([np.sum([values(arm[key]) for key in own], axis=0) for own in members.values()], dtype=float).T

    return Paired(sums(first), sums(second), [(first[own[0]].signature, batch) for batch, own in members.items()])


def batches_of(records: Sequence[Record]) -> dict[Key, str]:
    """Return the first example of those that were decoded together, for each of them: their times are equal shares of one."""
    found: dict[Key, str] = {}
    batch: list[Record] = []
    for record in succeeded(records):
        together = bool(batch) and len(batch) < (record.num_rows or 1) and _clocked(batch[0]) == _clocked(record)
        batch = [*batch, record] if together else [record]
        found[record.key] = batch[0].example
    return found


def _clocked(record: Record) -> tuple[str, int, float | None, int | None]:
    return record.run, record.repeat, record.wall_s, record.num_rows
