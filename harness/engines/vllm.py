"""What vLLM writes: dumps of its metrics endpoint, ``vllm bench serve --save-result``, acceptance of each request.

Sources (vllm-project/vllm): ``vllm/v1/spec_decode/metrics.py`` at 016a858 (counters and the line that it logs),
``vllm/benchmarks/serve.py`` at 009e6d4 (fields of the result, and how it sums counters over engines),
``docs/features/speculative_decoding/acceptance_metrics.md`` at 02cf515 (``metrics.speculative_decoding``, vllm#48915).

Off by one: vLLM's mean acceptance length is 1 + accepted / rounds that drafted. The bonus token is in the length, never in
``num_accepted_tokens``, the histogram, or the acceptance rate. Rounds without drafts are not counted at all.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from harness.engines.entries import (
    Entry,
    agree,
    count,
    count_or_none,
    counts,
    keyed,
    left_out,
    numbers,
    over,
    part,
)
from harness.engines.prometheus import Dump, read_dump
from harness.measures.counts import LONGEST, START, Counted, Counts, Histogram, Told, added

POSITION = re.compile(r'[{,]position="(\d{1,4})"')
PREFIX = "vllm:spec_decode_"
DRAFTS, DRAFTED, ACCEPTED, BY_POSITION = (
    PREFIX + name for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
)
COUNTERS = (DRAFTS, DRAFTED, ACCEPTED, BY_POSITION)
METRICS = "vLLM, metrics endpoint"
BENCH = "vLLM, bench serve result"
REQUESTS = "vLLM, acceptance of each request"
ENABLED = "start the server with --per-request-spec-decode-metrics summary"


def is_metrics(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(DRAFTS)


def read_metrics(entries: Sequence[Entry]) -> Counted:
    """Read what a server counted since its start."""
    return replace(_metrics(entries, read_dump(entries, COUNTERS)), since=START)


def read_metrics_between(before: Sequence[Entry], after: Sequence[Entry]) -> Counted:
    """Read what a server counted between two dumps. It writes its counters from the start on, so the earlier one has them."""
    earlier = read_dump(before, COUNTERS)
    if not earlier.counts:
        raise before[0].error(f"no {DRAFTS} in the dump; expected one of the same server, which speculates from its start on")
    return _metrics(after, read_dump(after, COUNTERS).since(earlier))


def _metrics(entries: Sequence[Entry], dump: Dump) -> Counted:
    """Sum the counters over a dump's engines and models, as vLLM's own benchmark does."""
    drafts, drafted, accepted = (dump.total(name) for name in _COUNTED)
    whole = Entry(entries[0].path, "its counters", _by_position(dump))
    found = whole.made(lambda places: _server(drafts, drafted, accepted, _dense(places)))
    told = [Told(name + "_total", dump.total(name), relation) for name, relation in _COUNTED.items()]
    return Counted(
        format=METRICS,
        source="vllm/v1/spec_decode/metrics.py at 016a858",
        requests=[found],
        told=[*told, *_rates(found, ("Mean acceptance length", "Avg Draft acceptance rate", "Per-position acceptance rate"))],
        is_total=True,
    )


_COUNTED = {
    DRAFTS: "rounds that drafted",
    DRAFTED: "drafts made",
    ACCEPTED: "accepted drafts, bonus left out",
}


def _by_position(dump: Dump) -> dict[int, int]:
    """Return for each position the rounds in which its draft stands."""
    places: dict[int, int] = {}
    for series, counted in dump.counts.items():
        if series.name == BY_POSITION:
            found = POSITION.search(series.labels)
            if found is None:
                raise dump.lines[series].error(f'{series}: no label position; expected position="0" for the first draft')
            places[int(found[1])] = places.get(int(found[1]), 0) + counted
    return places


def _dense(places: Mapping[int, int]) -> tuple[int, ...]:
    if set(places) != set(range(len(places))):
        raise ValueError(f"{BY_POSITION}: positions {sorted(places)}; expected every one from 0 on")
    return tuple(places[place] for place in range(len(places)))


def _server(drafts: int, drafted: int, accepted: int, by_position: Sequence[int]) -> Counts:
    """Rounds whose first j drafts stand, for every j, are a histogram."""
    stand = (drafts, *by_position, 0)
    if any(after > before for before, after in pairwise(stand)):
        raise ValueError(f"impossible counts: of {drafts} rounds {list(by_position)} reach each position; expected ever fewer")
    histogram = tuple(before - after for before, after in pairwise(stand)) if by_position else None
    return Counts(
        request="server",
        accepted=accepted,
        drafted=drafted,
        drafting=drafts,
        gamma=len(by_position) or None,
        histogram=histogram,
    )


def _rates(found: Counts, names: tuple[str, str, str]) -> list[Told]:
    """Return vLLM's three derived numbers under the names that one of its tools has for them."""
    drafts, drafted = found.drafting or 0, found.drafted or 0
    length, rate, places = names
    reached = [found.joint(place) for place in range(1, (found.gamma or 0) + 1)]
    return [
        Told(length, 1 + over(found.accepted, drafts, 0.0), "vllm_mean_acceptance_length: bonus counted"),
        Told(rate, over(found.accepted, drafted, 0.0) * 100, "vllm_draft_acceptance_rate, in percent: bonus left out"),
        Told(places, [over(*one, 0.0) for one in reached if one is not None], "position 1, joint, and so on"),
    ]


def is_bench(value: Any) -> bool:
    return isinstance(value, dict) and "spec_decode_num_drafts" in value


def read_bench(entries: Sequence[Entry]) -> Counted:
    """Read the result of one benchmark: differences of the server's counters between its begin and its end."""
    found = [entry.made(_bench) for entry in entries]
    if len(found) > 1:
        entries[1].made(_second)
    return Counted(
        format=BENCH, source="vllm/benchmarks/serve.py at 009e6d4", requests=found, told=_bench_told(found[0]), is_total=True
    )


def _second(value: Any) -> None:
    raise ValueError("a second result; give the results of several benchmarks as files of their own")


def _bench(value: Any) -> Counts:
    if not is_bench(value):
        raise ValueError("no field 'spec_decode_num_drafts'; the server of this benchmark did not speculate")
    drafts, name = count(value, "spec_decode_num_drafts"), "spec_decode_per_position_acceptance_rates"
    rates = numbers(value, name) if value.get(name) is not None else []
    by_position = [round(rate * drafts) for rate in rates]
    if any(abs(rate * drafts - reached) > 1e-6 * max(1, drafts) for rate, reached in zip(rates, by_position, strict=True)):
        raise ValueError(f"field {name!r}: {rates}; expected rounds over {drafts}")
    found = _server(drafts, count(value, "spec_decode_draft_tokens"), count(value, "spec_decode_accepted_tokens"), by_position)
    for told in _bench_told(found)[3:5]:
        agree(value, told.name, float(told.value))  # type: ignore[arg-type]
    return found


def _bench_told(found: Counts) -> list[Told]:
    rates = ("spec_decode_acceptance_length", "spec_decode_acceptance_rate", "spec_decode_per_position_acceptance_rates")
    return [
        Told("spec_decode_num_drafts", found.drafting, _COUNTED[DRAFTS]),
        Told("spec_decode_draft_tokens", found.drafted, _COUNTED[DRAFTED]),
        Told("spec_decode_accepted_tokens", found.accepted, _COUNTED[ACCEPTED]),
        *_rates(found, rates),
    ]


def _block(value: Any) -> Mapping[str, Any] | None:
    """Return ``metrics.speculative_decoding`` of a response, or the object itself."""
    block = part(value, "metrics", "speculative_decoding")
    block = value if block is None and isinstance(value, dict) else block
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    whole = block is not None and isinstance(block.get("acceptance_histogram"), list) and all(name in block for name in names)
    return block if whole else None


def is_request(value: Any) -> bool:
    return _block(value) is not None


def read_requests(entries: Sequence[Entry]) -> Counted:
    """Read responses, whole or streamed, or the objects alone. What has no counts (an error, n > 1) is left out and counted."""
    whole = [entry for entry in entries if not _is_chunk(entry.value)]
    found, num_left_out = left_out([entry.made(partial(_request, entry.place)) for entry in whole])
    sums = {
        "num_spec_steps": (sum(one.drafting or 0 for one in found), DRAFTS),
        "num_draft_tokens": (sum(one.drafted or 0 for one in found), DRAFTED),
        "num_accepted_draft_tokens": (sum(one.accepted for one in found), ACCEPTED),
    }
    told = [Told(name, value, f"{_COUNTED[counter]}; summed as {counter}_total is") for name, (value, counter) in sums.items()]
    histogram = added([one.histogram for one in found if one.histogram is not None])
    return Counted(
        format=REQUESTS,
        source="docs/features/speculative_decoding/acceptance_metrics.md at 02cf515",
        requests=found,
        told=[*told, Told("acceptance_histogram", histogram, "rounds by accepted drafts, bonus left out; summed")],
        num_left_out=num_left_out,
    )


def _is_chunk(value: Any) -> bool:
    """Say whether this is a streamed piece of a response before its last, which alone has the metrics."""
    return isinstance(value, dict) and str(value.get("object", "")).endswith("chunk") and value.get("metrics") is None


def _request(place: str, value: Any) -> Counts | None:
    block = _block(value)
    if block is None:
        metrics = part(value, "metrics")
        if (isinstance(value, dict) and value.get("error")) or (
            metrics is not None and metrics.get("speculative_decoding", 0) is None
        ):
            return None
        raise ValueError(f"no metrics.speculative_decoding; {ENABLED}")
    histogram, steps = counts(block, "acceptance_histogram"), count(block, "num_spec_steps")
    gamma = count_or_none(block, "num_spec_tokens")
    if gamma is not None and len(histogram) != gamma + 1:
        raise ValueError(f"field 'acceptance_histogram': {len(histogram)} places; expected num_spec_tokens + 1 = {gamma + 1}")
    found = Counts(
        request=place,
        accepted=count(block, "num_accepted_draft_tokens"),
        drafted=count(block, "num_draft_tokens"),
        drafting=steps,
        gamma=gamma,
        histogram=histogram,
        by_length=_by_length(block, steps),
    )
    agree(block, "mean_acceptance_length", 1 + over(found.accepted, steps, 0.0))
    agree(block, "draft_acceptance_rate", over(found.accepted, found.drafted or 0, 0.0))
    return found


def _by_length(block: Mapping[str, Any], steps: int) -> dict[int, Histogram] | None:
    """Return histograms by drafted length: as written, or of the arrays of ``detailed``, one number a round."""
    name = "acceptance_histogram_by_draft_length"
    if block.get(name) is not None:
        return {length: counts({name: row}, name) for length, row in keyed(block, name).items()}
    if block.get("per_step_accepted") is None or block.get("per_step_drafted") is None:
        return None
    return rounds_by_length(counts(block, "per_step_drafted"), counts(block, "per_step_accepted"), steps)


def rounds_by_length(drafted: Sequence[int], accepted: Sequence[int], steps: int) -> dict[int, Histogram]:
    """Return histograms by drafted length of rounds that are told one by one."""
    if not len(drafted) == len(accepted) == steps:
        raise ValueError(
            f"impossible counts: {len(drafted)} rounds drafted, {len(accepted)} accepted, num_spec_steps is {steps}"
        )
    found: dict[int, list[int]] = {}
    for length, stand in zip(drafted, accepted, strict=True):
        if not stand <= length <= LONGEST:
            raise ValueError(f"impossible counts: {stand} drafts stand in a round of {length}")
        found.setdefault(length, [0] * (length + 1))[stand] += 1
    return {length: tuple(row) for length, row in found.items()}
