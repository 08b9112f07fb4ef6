"""What SGLang writes: ``meta_info`` of requests, dumps of ``/metrics`` and ``/server_info``, ``sglang.bench_serving``.

Sources (sgl-project/sglang): ``python/sglang/srt/managers/tokenizer_manager_components/spec_decoding_meta.py`` at 9155cf0 (and
the names ``spec_num_correct_drafts``, ``spec_num_proposed_drafts``, ``spec_correct_drafts_histogram`` that came after,
``spec_accept_token_num``, ``spec_draft_token_num`` before it), ``python/sglang/bench_serving.py`` at 50a6136. The same fields
stand in ``sglext.spec_tokens_details`` of an OpenAI response that was asked for with ``return_spec_tokens_details`` (pull
request 33518): one object, or of several choices a list of them, where 0 and [] stand for what is absent. The counters of
``/metrics`` are those of ``TokenizerMetricsCollector`` (``python/sglang/srt/observability/metrics_collector.py`` at 016d860),
which counts a request when it has finished: its tokens and its rounds, no drafts.

Off by one, twice: ``spec_accept_length`` is completion_tokens / spec_verify_ct. It counts the bonus token, and also the first
token, which the prompt's pass emits: one token a request more than ``tokens_per_step``. ``spec_accept_rate`` and the histogram
leave both out. A server's ``avg_spec_accept_length`` counts the bonus token only.

Drafts may be a tree (``speculative_eagle_topk`` above 1): then the drafts made are all its nodes, of which those of one path
may stand, and a histogram counts these. A request does not say so; a line with the server's ``/server_info`` in the same file
does. Without it one draft a round is a chain, and of more nothing is known: a tree is grown anew in every round, so that all
its nodes may be one path, and stand, in one round and not in the next. Its n-grams are always a tree: even with a breadth of
1 there is a chain for each suffix of the text that matches.

The drafts that a request tells are rounds times the most drafts of a round. Where the server verifies fewer in some rounds
(``spec_cap_lens_histogram`` of a request, ``speculative_adaptive`` of a server) nothing is known of how many were verified.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from harness.engines.entries import Entry, agree, count, count_or_none, counts, left_out, number, over, part
from harness.engines.prometheus import Dump, read_dump
from harness.measures.counts import START, Counted, Counts, Told, added

METRICS = "SGLang, metrics endpoint"
REQUESTS = "SGLang, meta_info of each request"
SERVER = "SGLang, server info"
BENCH = "SGLang, bench_serving result"
CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")  # newest name first
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
LENGTH = "spec_accept_length"
SAY_SO = "add the server's /server_info as a line of the file"
DETAILS = "spec_tokens_details"
AVERAGE = "avg_spec_accept_length"
VERIFIED, TOKENS, FINISHED = (f"sglang:{name}" for name in ("spec_verify_calls", "generation_tokens", "num_requests"))
COUNTERS = (VERIFIED, TOKENS, FINISHED)


def is_metrics(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(VERIFIED)


def read_metrics(entries: Sequence[Entry]) -> Counted:
    """Read what a server counted since its start."""
    return replace(_metrics(read_dump(entries, COUNTERS)), since=START)


def read_metrics_between(before: Sequence[Entry], after: Sequence[Entry]) -> Counted:
    """Read what a server counted between two dumps. It writes no counter before its first request has finished."""
    return _metrics(read_dump(after, COUNTERS).since(read_dump(before, COUNTERS)))


def _metrics(dump: Dump) -> Counted:
    """Sum the counters over a dump's labels. One token of each request is of its prompt's pass, which is no round.

    A round emits at least a token: where fewer are counted, requests ended without one, and tokens a round are unknown.
    """
    rounds, tokens, requests = (dump.total(name) for name in COUNTERS)
    length = "of sums, of a request spec_accept_length; the gauge of that name is of the last rounds that the server logged"
    told = [
        Told(VERIFIED + "_total", rounds, "rounds of requests that finished"),
        Told(TOKENS + "_total", tokens, "their tokens, the prompt pass's counted"),
        Told(FINISHED + "_total", requests, "requests that finished"),
        Told(LENGTH, over(tokens, rounds, 0.0), length),
    ]
    source = "python/sglang/srt/observability/metrics_collector.py at 016d860"
    length_of = {name: over(tokens - requests, rounds, 0.0) for name in ("tokens_per_step", "eagle_tau")}
    given = length_of if rounds <= tokens - requests else {}
    return Counted(format=METRICS, source=source, told=told if rounds else [], given=given, is_total=True)


def _metas(value: Any) -> list[Mapping[str, Any]]:
    """Return the ``meta_info`` of a response of /generate, or of each choice of an OpenAI response, or the object itself.

    Without ``meta_info`` an OpenAI response may have the details of its choices.
    """
    if not isinstance(value, dict):
        return []
    choices = value.get("choices")
    holders = choices if isinstance(choices, list) else [value]
    found = [meta for one in holders if (meta := part(one, "meta_info")) is not None]
    return found or _details(value) or ([value] if "spec_verify_ct" in value else [])


def _details(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the details of each choice as ``meta_info`` would have them; the usage is that of a choice where there is one."""
    found = (part(value, "sglext") or {}).get(DETAILS)
    each = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
    usage = part(value, "usage")
    tokens = {"completion_tokens": usage.get("completion_tokens")} if usage is not None and len(each) == 1 else {}
    return [
        {name: one for name, one in details.items() if one != [] and (name, one) != (LENGTH, 0)} | tokens for details in each
    ]


def _is_piece(value: Any) -> bool:
    """Say whether this is a streamed piece of an OpenAI response that has no details: whole ones have their usage."""
    is_open = isinstance(value, dict) and isinstance(value.get("choices"), list) and part(value, "error") is None
    return is_open and (str(value.get("object", "")).endswith("chunk") or part(value, "usage") is None)


def is_request(value: Any) -> bool:
    return any("spec_verify_ct" in meta for meta in _metas(value))


def read_requests(entries: Sequence[Entry]) -> Counted:
    """Read responses, whole or streamed. What verified nothing is left out and counted."""
    found: list[Counts | None] = []
    for entry in entries:
        found += entry.made(partial(_requests, entry.place))
    kept, num_left_out = left_out(found)
    branches = [one for entry in entries for one in entry.made(_branches)]
    is_tree = True if any(branches) else None if None in branches or not branches else False
    kept = [replace(one, is_tree=False if one.gamma == 1 else is_tree) for one in kept]
    servers = [server for entry in entries if is_server(entry.value) for server in _servers(entry.value)]
    if any(server.get("speculative_adaptive") for server in servers):
        kept = [replace(one, gamma=None, drafted=None) for one in kept]
    return Counted(
        format=REQUESTS,
        source="python/sglang/srt/managers/tokenizer_manager_components/spec_decoding_meta.py at 9155cf0",
        requests=kept,
        told=_requests_told(kept),
        num_left_out=num_left_out,
        remedy=SAY_SO,
    )


def _requests(place: str, value: Any) -> list[Counts | None]:
    """Return the counts of each choice; a streamed piece before its last has none yet, nor has a server's description."""
    found = _metas(value)
    choices = (
        len(value.get("choices") or found) if isinstance(value, dict) and part(value, "sglext") is not None else len(found)
    )
    if len(found) != choices:
        raise ValueError(
            f"field 'sglext.{DETAILS}': of {len(found)} choices; expected {choices}, as return_spec_tokens_details gives"
        )
    if not found and (is_server(value) or _is_piece(value)):
        return []
    if not found and part(value, "error") is None:
        raise ValueError("no meta_info with spec_verify_ct; expected a response of a server that speculates")
    ended = [meta for meta in found if meta.get("finish_reason", True) is not None]
    return [_request(f"{place}, {choice}", meta) for choice, meta in enumerate(ended, start=1)]


def _request(name: str, meta: Mapping[str, Any]) -> Counts | None:
    rounds = count_or_none(meta, "spec_verify_ct")
    correct, proposed = (_first(meta, names) for names in (CORRECT, PROPOSED))
    if not rounds or correct is None or proposed is None:
        return None
    drafted = count(meta, proposed)
    if drafted % rounds:
        raise ValueError(f"impossible counts: {proposed} is {drafted}, no multiple of spec_verify_ct {rounds}")
    histogram, tokens = _first(meta, HISTOGRAM), count_or_none(meta, "completion_tokens")
    is_capped = bool(meta.get("spec_cap_lens_histogram"))
    found = Counts(
        request=name,
        accepted=count(meta, correct),
        drafted=None if is_capped else drafted,
        rounds=rounds,
        drafting=rounds,
        gamma=None if is_capped else drafted // rounds,
        histogram=None if histogram is None else counts(meta, histogram),
        emitted=None if tokens is None else max(0, tokens - 1),
    )
    agree(meta, "spec_accept_rate", over(found.accepted, drafted, 0.0))
    if tokens is not None:
        agree(meta, LENGTH, tokens / rounds)
    return found


def _branches(value: Any) -> list[bool | None]:
    """Say of each server that is described whether it drafts trees, None where it does not say; empty for anything else."""
    return [_has_branches(one) for one in _servers(value)] if is_server(value) else []


def _has_branches(server: Mapping[str, Any]) -> bool | None:
    names = ("speculative_eagle_topk", "speculative_num_steps", "speculative_num_draft_tokens")
    if str(server.get("speculative_algorithm", "")).upper() == "NGRAM":
        return True
    topk, steps, nodes = (count_or_none(server, name) for name in names)
    if topk is not None:
        return topk > 1
    return True if steps is not None and nodes is not None and nodes > steps + 1 else None


def _first(meta: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the newest name that is there; ValueError if an older one, kept beside it, says something else."""
    known = [name for name in names if meta.get(name) is not None]
    for older in known[1:]:
        if meta[older] != meta[known[0]]:
            raise ValueError(f"field {older!r}: {meta[older]}, but {known[0]} is {meta[known[0]]}; expected the same")
    return known[0] if known else None


def _requests_told(found: Sequence[Counts]) -> list[Told]:
    rounds, accepted = sum(one.rounds or 0 for one in found), sum(one.accepted for one in found)
    told = [
        Told("spec_verify_ct", rounds, "rounds; summed"),
        Told(CORRECT[0], accepted, "accepted drafts, bonus left out; summed"),
    ]
    if all(one.drafted is not None for one in found):
        drafted = sum(one.drafted or 0 for one in found)
        told += [
            Told(PROPOSED[0], drafted, "drafts made, the same number in every round; summed"),
            Told("spec_accept_rate", over(accepted, drafted, 0.0), "sglang_accept_rate: of sums, bonus left out"),
        ]
    if all(one.emitted is not None for one in found):
        tokens = sum((one.emitted or 0) + 1 for one in found)
        relation = "of sums; tokens_per_step + 1 / rounds of a request: the prompt pass's token is counted"
        told += [Told("completion_tokens", tokens, "summed"), Told(LENGTH, over(tokens, rounds, 0.0), relation)]
    if all(one.histogram is not None for one in found):
        summed = added([one.histogram for one in found if one.histogram is not None])
        told.append(Told(HISTOGRAM[0], summed, "rounds by accepted drafts, bonus left out; summed"))
    return told


def _servers(value: Any) -> list[Mapping[str, Any]]:
    """Return the description of a server; behind a router those of its decoding servers."""
    decode = value.get("decode") if isinstance(value, dict) else None
    return [one for one in (decode if isinstance(decode, list) else [value]) if isinstance(one, dict)]


def _states(value: Any) -> list[Mapping[str, Any]]:
    """Return the schedulers' states of all servers."""
    states = [one.get("internal_states") for one in _servers(value)]
    return [state for some in states if isinstance(some, list) for state in some if isinstance(state, dict)]


def is_server(value: Any) -> bool:
    return bool(_states(value))


def read_server(entries: Sequence[Entry]) -> Counted:
    """Read the average that each scheduler of a server keeps since its start; it says no counts, so several have no average.

    Beside requests it only says how they were drafted.
    """
    if any(is_request(entry.value) for entry in entries):
        return read_requests(entries)
    found = [average for entry in entries for average in entry.made(_averages)]
    return _averaged(SERVER, "python/sglang/bench_serving.py at 50a6136", found, "of one scheduler since the server's start")


def _averages(value: Any) -> list[float]:
    return [_average(state, AVERAGE) for state in _states(value) if state.get(AVERAGE) is not None]


def _average(values: Mapping[str, Any], name: str) -> float:
    average = number(values, name)
    if average < 1:
        raise ValueError(f"impossible counts: {name} is {average}; a round emits at least the target's token")
    return average


def is_bench(value: Any) -> bool:
    return isinstance(value, dict) and "accept_length" in value and "completed" in value


def read_bench(entries: Sequence[Entry]) -> Counted:
    """Read results of benchmarks: each is the server's average since its start, not since the benchmark's."""
    found = [entry.made(_bench) for entry in entries]
    averages = [one for one in found if one is not None]
    return _averaged(BENCH, "python/sglang/bench_serving.py at 50a6136", averages, "of one scheduler since the server's start")


def _bench(value: Any) -> float | None:
    if not is_bench(value):
        raise ValueError("no field 'accept_length'; expected a result of sglang.bench_serving")
    return None if value["accept_length"] is None else _average(value, "accept_length")


def _averaged(form: str, source: str, averages: Sequence[float], relation: str) -> Counted:
    name = AVERAGE if form == SERVER else "accept_length"
    told = [Told(name, average, f"sglang_accept_length: bonus counted; {relation}") for average in averages]
    given = {"sglang_accept_length": averages[0]} if len(set(averages)) == 1 else {}
    return Counted(format=form, source=source, told=told, given=given, is_total=True)
