"""What an arm's records hold, and how two arms are paired: by example and repeat, failures left out and counted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from harness.records import Record
from harness.statistics import drift
from methods.types import Step, StopReason

# Arms alternate within seconds, so their ratio bears a machine that slows down; beyond this something else happened to it.
MAX_DRIFT = 0.4


@dataclass(frozen=True)
class Refused:
    """A number that was recorded but must not be shown, and why."""

    reason: str


def succeeded(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.status == "ok"]


def num_failed(records: Sequence[Record]) -> int:
    return len(records) - len(succeeded(records))


def overlap_of(record: Record, drafter: str, lenience: float = 1.0) -> list[float] | None:
    """A record's overlap at every output position; None where this drafter or lenience was not asked for."""
    for overlap in record.overlap:
        if overlap.drafter == drafter:
            return overlap.by_lenience.get(repr(float(lenience)))
    return None


def steps_of(record: Record) -> list[Step]:
    """A record's rounds as the objects that the methods room works with."""
    if record.steps is None:
        return []
    columns = {field.name: getattr(record.steps, field.name) for field in fields(record.steps)}
    filled = {name: values for name, values in columns.items() if values}
    steps = [Step(**{name: values[i] for name, values in filled.items()}) for i in range(len(record.steps.drafted))]
    if steps and record.stop_reason in ("eos", "length"):
        steps[-1].stop_reason = cast(StopReason, record.stop_reason)
    return steps


def drifted(baseline: Sequence[Record]) -> Refused | None:
    """Whether the machine changed speed while the baseline ran: the median round of its second half against its first."""
    change = drift(np.array([_round_s(record) for record in succeeded(baseline) if record.wall_s]))
    if abs(change) <= MAX_DRIFT:
        return None
    return Refused(
        f"refused: the baseline drifted by {change:+.0%} within the run (at most {MAX_DRIFT:.0%} is allowed); "
        "run again with --again, which records the comparison anew"
    )


def _round_s(record: Record) -> float:
    """Seconds of a typical round; of a token on average where a method reports no rounds' times."""
    if record.steps is not None and record.steps.round_s:
        return float(np.median(record.steps.round_s))
    return (record.wall_s or np.nan) / max(1, len(record.tokens or ()))


def incomparable(baseline: Sequence[Record], method: Sequence[Record]) -> Refused | None:
    """Why no speed may be shown: a wrong output, memory measured meanwhile, a drifting machine, arms in different processes."""
    if bugs := sum(record.divergence is not None and record.divergence.kind == "bug" for record in method):
        return Refused(f"refused: {bugs} of {len(method)} outputs differ from plain decoding's, and not by rounding")
    if any(record.peak_bytes is not None for record in (*baseline, *method)):
        return Refused("refused: memory was measured, which takes time; run the arms again without it")
    return out_of_turn(baseline, method)


def out_of_turn(baseline: Sequence[Record], method: Sequence[Record]) -> Refused | None:
    """Why times cannot be compared that could be, were both arms recorded anew: a drifting machine, different processes."""
    if refusal := drifted(baseline):
        return refusal
    runs = {record.key: record.run for record in succeeded(baseline)}
    shared = [record for record in succeeded(method) if record.key in runs]
    if shared and not any(record.run == runs[record.key] for record in shared):
        return Refused(
            "refused: the two arms ran in different processes, not interleaved; run again with --again, which records the "
            "comparison anew"
        )
    return None


def num_near_ties(method: Sequence[Record]) -> int:
    return sum(record.divergence is not None and record.divergence.kind == "near-tie" for record in method)


def paired(
    baseline: Sequence[Record], method: Sequence[Record], values: Callable[[Record], tuple[float, ...]]
) -> tuple[np.ndarray, np.ndarray] | None:
    """[m, n] sums of each arm's values over the repeats that both arms completed, for the n examples shared in one process."""
    first, second = ({record.key: record for record in succeeded(records)} for records in (baseline, method))
    keys = [key for key in first if key in second and first[key].run == second[key].run]
    if not keys:
        return None
    examples = list(dict.fromkeys(example for example, _ in keys))

    def sums(arm: Mapping[tuple[str, int], Record]) -> np.ndarray:
        rows = {example: [values(arm[key]) for key in keys if key[0] == example] for example in examples}
        return np.array([np.sum(rows[example], axis=0) for example in examples], dtype=float).T

    return sums(first), sums(second)
