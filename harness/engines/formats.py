"""Which engine wrote a log: each format by the fields that no other has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.engines import aiperf, profile, sglang, tensorrt_llm, vllm
from harness.engines.entries import Entry, entries_of, read_entries
from harness.measures.counts import Counted


@dataclass(frozen=True)
class Format:
    """A kind of log: whether an entry has its fields, and how a log of such entries is read.

    ``between`` reads what was counted from one such log to a later one, of counters that go on; every name in them begins with
    ``prefix``.
    """

    name: str
    fits: Callable[[Any], bool]
    read: Callable[[Sequence[Entry]], Counted]
    between: Callable[[Sequence[Entry], Sequence[Entry]], Counted] | None = None
    prefix: str = ""


FORMATS = (
    Format(vllm.METRICS, vllm.is_metrics, vllm.read_metrics, vllm.read_metrics_between, "vllm:"),
    Format(vllm.BENCH, vllm.is_bench, vllm.read_bench),
    Format(vllm.REQUESTS, vllm.is_request, vllm.read_requests),
    Format(sglang.METRICS, sglang.is_metrics, sglang.read_metrics, sglang.read_metrics_between, "sglang:"),
    Format(sglang.REQUESTS, sglang.is_request, sglang.read_requests),
    Format(sglang.SERVER, sglang.is_server, sglang.read_server),
    Format(sglang.BENCH, sglang.is_bench, sglang.read_bench),
    Format(tensorrt_llm.ITERATIONS, tensorrt_llm.is_iteration, tensorrt_llm.read_iterations),
    Format(tensorrt_llm.PERFORMANCE, tensorrt_llm.is_performance, tensorrt_llm.read_performance),
    Format(tensorrt_llm.RESPONSES, tensorrt_llm.is_response, tensorrt_llm.read_responses),
    Format(aiperf.RECORDS, aiperf.is_record, aiperf.read_records),
    Format(profile.PROFILE, profile.is_profile, profile.read_profile),
)


def recognised(path: Path) -> tuple[Format, list[Entry], list[str]] | None:
    """Return the format whose fields an entry of the file has, with its entries and the lines that hold none; None without one.

    Raises:
        UsageError: the file cannot be read.
    """
    entries, torn = read_entries(path)
    for entry in entries:
        for one in FORMATS:
            if one.fits(entry.value):
                return one, entries, torn
    return None


def read(path: Path) -> Counted:
    """Read another engine's log.

    Raises:
        UsageError: no format fits, a line of it does not, its numbers contradict one another, or nothing was drafted in it.
    """
    form, entries, torn = _recognised(path)
    log = replace(form.read(entries), passed_over=torn)
    if log.is_empty:
        raise UsageError(f"log {path}: {form.name}: nothing was drafted in it; expected a log of a run that speculates")
    return log


def read_between(before: Path, after: Path) -> Counted:
    """Read what a server counted between two dumps of its metrics endpoint.

    Raises:
        UsageError: the files are not such dumps of one server that kept running, or nothing was drafted in between.
    """
    form, entries, _ = _recognised(after)
    if form.between is None:
        able = " or ".join(one.name for one in FORMATS if one.between is not None)
        raise UsageError(f"--before {before}: {after} is of another kind ({form.name}); expected a dump of counters: {able}")
    earlier = entries_of(before)
    if not any(isinstance(entry.value, str) and form.prefix in entry.value for entry in earlier):
        raise earlier[0].error(f"no line of {form.prefix} in the file; expected an earlier dump of the server of {after}")
    log = form.between(earlier, entries)
    if log.is_empty:
        raise UsageError(f"log {after}: nothing was drafted since {before}; expected a run that speculates between the dumps")
    return replace(log, since=before.name)


def _recognised(path: Path) -> tuple[Format, list[Entry], list[str]]:
    found = recognised(path)
    if found is None:
        first = entries_of(path)[0]
        tried = "; ".join(one.name for one in FORMATS)
        raise UsageError(
            f"log {path}: {first.place} fits no format; tried: our records (with their .json beside them); {tried}"
        )
    return found
