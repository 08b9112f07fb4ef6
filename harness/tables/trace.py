"""The rounds of recorded outputs as a trace, which ui.perfetto.dev and chrome://tracing open.

Trace Event Format (Google's document of that name, the JSON object form): complete events, ``ph`` "X", whose ``ts`` and
``dur`` are microseconds; events of one ``tid`` lie within one another or apart. Examples stand one behind the other as they
were recorded, since the clock of a record begins with its example. Thread 0 is the process that decodes, thread i the i-th
sub-process of a PPD pipeline.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.measures.pairing import succeeded
from methods.steps import PARTS, Steps

PROCESS, MAIN = 1, 0
Event = dict[str, Any]


def trace(experiment: Experiment, records: Sequence[Record]) -> dict[str, Any]:
    """Return the document of the outputs that succeeded.

    Raises:
        UsageError: no output has times, or rows of a batch share theirs.
    """
    if experiment.batch_size > 1:
        raise UsageError(f"trace: the {experiment.batch_size} rows of a batch share their times; expected a run of one row")
    events, now = list[Event](), 0.0
    for record in succeeded(records):
        if record.wall_s is not None:
            found = list(_example(record, now))
            now += found[0]["dur"] / 1e6
            events += found
    if not events:
        raise UsageError("trace: no output of these records has times; expected those of a run that succeeded")
    threads = sorted({event["tid"] for event in events})
    names = [_name("process_name", MAIN, f"foretoken {experiment.method.name}")]
    names += [_name("thread_name", one, f"sub-process {one}" if one else "decoding") for one in threads]
    told = {"signature": experiment.signature, "task": experiment.task, "target": experiment.target.name}
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": told}


def _name(kind: str, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "ts": 0, "args": {"name": name}}


def _span(name: str, begin_s: float, end_s: float, thread: int = MAIN, **args: Any) -> Event:
    """An event from and to whole nanoseconds, so that what touches or lies within in seconds does so in the trace."""
    begin, end = round(1e9 * begin_s), round(1e9 * end_s)
    when = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"name": name, "cat": "decoding", "ph": "X", "pid": PROCESS, "tid": thread, **when, "args": args}


def _example(record: Record, begin_s: float) -> Iterator[Event]:
    """Yield an example, and within it what precedes its rounds, and its rounds with their parts."""
    steps = record.steps or Steps()
    total = sum(steps.round_s)
    end = begin_s + max(record.wall_s or 0.0, total)
    now = end - total
    yield _span(f"example {record.example}", begin_s, end, tokens=len(record.tokens or ()), repeat=record.repeat)
    if steps.round_s and now > begin_s:
        yield _span("prompt, and what else precedes rounds", begin_s, now)
    for index, seconds in enumerate(steps.round_s):
        yield from _round(steps, index, now, min(now + seconds, end))
        now = min(now + seconds, end)


def _round(steps: Steps, index: int, begin: float, end: float) -> Iterator[Event]:
    told: dict[str, Any] = {
        "drafted": len(steps.drafted[index]),
        "accepted": steps.num_accepted[index],
        "emitted": steps.emitted[index],
    }
    if steps.matched:
        told = {"candidates": len(steps.candidates[index]), "matched": steps.matched[index]}
    yield _span(f"round {index + 1}", begin, end, **told)
    now = begin
    for name, seconds in _parts(steps, index, end - begin):
        until = min(now + seconds, end)
        if seconds > 0:
            yield _span(name, now, until)
        now = until
    times = steps.units[index] if steps.units else []
    for unit, (first, last) in enumerate(zip(times[::2], times[1::2], strict=True), start=1):
        yield _span("candidates", min(begin + first, end), min(begin + last, end), thread=unit, round=index + 1)


def _parts(steps: Steps, index: int, round_s: float) -> list[tuple[str, float]]:
    """Name the seconds of a round's parts in their order; plain decoding's round is one run of the target."""
    if steps.parts:
        return [(name.replace("_", " "), seconds) for name, seconds in zip(PARTS, steps.parts[index], strict=True)]
    if not steps.drafted[index]:
        return [("target", round_s)]
    draft_s, verify_s = (times[index] if times else 0.0 for times in (steps.draft_s, steps.verify_s))
    return [("draft", draft_s), ("verify", verify_s), ("other", round_s - draft_s - verify_s)]
