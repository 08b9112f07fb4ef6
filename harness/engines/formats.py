"""Which engine wrote a log: each format by the fields that no other has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.engines import aiperf, profile, sglang, tensorrt_llm, vllm
from harness.engines.entries import Entry, entries_of
from harness.measures.counts import Counted


@dataclass(frozen=True)
class Format:
    """A kind of log: whether an entry has its fields, and how a log of such entries is read."""

    name: str
    fits: Callable[[Any], bool]
    read: Callable[[Sequence[Entry]], Counted]


FORMATS = (
    Format(vllm.METRICS, vllm.is_metrics, vllm.read_metrics),
    Format(vllm.BENCH, vllm.is_bench, vllm.read_bench),
    Format(vllm.REQUESTS, vllm.is_request, vllm.read_requests),
    Format(sglang.REQUESTS, sglang.is_request, sglang.read_requests),
    Format(sglang.SERVER, sglang.is_server, sglang.read_server),
    Format(sglang.BENCH, sglang.is_bench, sglang.read_bench),
    Format(tensorrt_llm.ITERATIONS, tensorrt_llm.is_iteration, tensorrt_llm.read_iterations),
    Format(tensorrt_llm.PERFORMANCE, tensorrt_llm.is_performance, tensorrt_llm.read_performance),
    Format(tensorrt_llm.RESPONSES, tensorrt_llm.is_response, tensorrt_llm.read_responses),
    Format(aiperf.RECORDS, aiperf.is_record, aiperf.read_records),
    Format(profile.PROFILE, profile.is_profile, profile.read_profile),
)


def recognised(path: Path) -> tuple[Format, list[Entry]] | None:
    """Return the format whose fields an entry of the file has, with its entries; None if there is none.

    Raises:
        UsageError: the file cannot be read.
    """
    entries = entries_of(path)
    for entry in entries:
        for one in FORMATS:
            if one.fits(entry.value):
                return one, entries
    return None


def read(path: Path) -> Counted:
    """Read another engine's log.

    Raises:
        UsageError: no format fits, a line of it does not, its numbers contradict one another, or nothing was drafted in it.
    """
    found = recognised(path)
    if found is None:
        first = entries_of(path)[0]
        tried = "; ".join(one.name for one in FORMATS)
        raise UsageError(
            f"log {path}: {first.place} fits no format; tried: our records (with their .json beside them); {tried}"
        )
    form, entries = found
    log = form.read(entries)
    if log.is_empty:
        raise UsageError(f"log {path}: {form.name}: nothing was drafted in it; expected a log of a run that speculates")
    return log
