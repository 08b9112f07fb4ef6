"""What an arm's records hold, and how two arms are paired: by example and repeat, failures left out and counted."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from harness.core.records import Key, Record
from harness.measures.statistics import Missing, drift
from methods.steps import Step

# Arms alternate within seconds, so their ratio bears a machine that slows down; beyond this something else happened to it.
MAX_DRIFT = 0.4


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


def drifted(baseline: Sequence[Record]) -> Missing | None:
    """Refuse times if the machine changed speed while the baseline ran.

    The median round of the second half of each process is held against that of its first half. A run that went on in another
    process may be faster or slower as a whole: the arms of every example ran in one.
    """
    seconds: dict[str, list[float]] = {}
    for record in succeeded(baseline):
        if record.wall_s:
            seconds.setdefault(record.run, []).append(_round_s(record))
    change = max((drift(np.array(one)) for one in seconds.values()), key=abs, default=0.0)
    if abs(change) <= MAX_DRIFT:
        return None
    return Missing(
        f"refused: the baseline drifted by {change:+.0%} within the run (at most {MAX_DRIFT:.0%} is allowed); "
        "run again with --again, which records the comparison anew"
    )


def _round_s(record: Record) -> float:
    """Return seconds of a typical round; of a token on average where a method reports no rounds' times."""
    if record.steps is not None and record.steps.round_s:
        return float(np.median(record.steps.round_s))
    return (record.wall_s or np.nan) / max(1, len(record.tokens or ()))


def incomparable(baseline: Sequence[Record], method: Sequence[Record]) -> Missing | None:
    """Say why no speed may be shown: a wrong output, a drifting machine, arms in different processes."""
    if bugs := sum(record.divergence is not None and record.divergence.kind == "bug" for record in method):
        return Missing(f"refused: {bugs} of {len(method)} outputs differ from plain decoding's, and not by rounding")
    if bugs := sum(record.divergence is not None and record.divergence.kind == "bug" for record in baseline):
        return Missing(f"refused: {bugs} of {len(baseline)} outputs of the baseline are not the target's, and not by rounding")
    return out_of_turn(baseline, method)


def out_of_turn(baseline: Sequence[Record], method: Sequence[Record]) -> Missing | None:
    """Say why times must be recorded anew to be compared: the machine drifted, or the arms ran in different processes."""
    if refusal := drifted(baseline):
        return refusal
    runs = {record.key: record.run for record in succeeded(baseline)}
    shared = [record for record in succeeded(method) if record.key in runs]
    torn = [record for record in shared if record.run != runs[record.key]]
    if shared and len(torn) == len(shared):
        return Missing(
            "refused: the two arms ran in different processes, not interleaved; run again with --again, which records the "
            "comparison anew"
        )
    stops = len({*runs.values(), *(record.run for record in shared)}) - 1
    if torn and len(torn) > stops * max((record.num_rows or 1 for record in torn), default=1):
        return Missing(
            f"refused: of {len(shared)} examples {len(torn)} ran in another process in one arm than in the other, more than a "
            "run leaves that is stopped and goes on; run again with --again, which records the comparison anew"
        )
    return None


def num_near_ties(method: Sequence[Record]) -> int:
    return sum(record.divergence is not None and record.divergence.kind == "near-tie" for record in method)


def paired(
    baseline: Sequence[Record],
    method: Sequence[Record],
    values: Callable[[Record], tuple[float, ...]],
    run_of: Callable[[Record], str] = lambda record: record.run,
) -> tuple[np.ndarray, np.ndarray] | None:
    """[m, n] sums of each arm's values over the repeats that both arms completed, for the n examples shared in one process.

    Examples that were decoded together share a time, and so are one of the n that an interval resamples.
    ``run_of`` names the process that measured the values, where that is not the one that decoded.
    """
    first, second = ({record.key: record for record in succeeded(records)} for records in (baseline, method))
    keys = [key for key in first if key in second and run_of(first[key]) == run_of(second[key])]
    if not keys:
        return None
    batches = _batches(baseline)
    members: dict[str, list[Key]] = {}
    for key in keys:
        members.setdefault(batches[key], []).append(key)

    def sums(arm: Mapping[Key, Record]) -> np.ndarray:
        return np.array([np.sum([values(arm[key]) for key in own], axis=0) for own in members.values()], dtype=float).T

    return sums(first), sums(second)


def _batches(records: Sequence[Record]) -> dict[Key, str]:
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
