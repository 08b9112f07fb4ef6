"""What TensorRT-LLM writes: statistics of each iteration, ``/perf_metrics``, and acceptance in a response.

Sources (NVIDIA/TensorRT-LLM): ``cpp/include/tensorrt_llm/executor/types.h`` at a98a906 (``SpecDecodingStats``) and
``tests/integration/defs/accuracy/accuracy_core.py`` at 3e906a0 (the acceptance length of its tests);
``tensorrt_llm/serve/openai_server.py`` at e7f7345 (``/perf_metrics``). The block in a response is of pull request 19311, not
merged when this was written; its fields are those that ``src/aiperf/spec_decode/trtllm_adapter.py`` of ai-dynamo/aiperf at
37f9db3 reads.

Off by one: ``acceptanceLength`` counts the bonus token. ``TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS``, which replays a
length, does not: it takes the length minus 1. An iteration is a batch of requests, so iterations are no examples to resample.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from harness.engines.entries import Entry, agree, count, count_or_none, counts, left_out, over, part
from harness.measures.counts import Counted, Counts, Told, added

ITERATIONS = "TensorRT-LLM, iteration statistics"
PERFORMANCE = "TensorRT-LLM, perf_metrics of each request"
RESPONSES = "TensorRT-LLM, acceptance in responses"
SINGLE = 1e-6  # rounding of a rate that it keeps in single precision


def is_iteration(value: Any) -> bool:
    return part(value, "specDecodingStats") is not None


def read_iterations(entries: Sequence[Entry]) -> Counted:
    """Sum iterations that drafted; others, which have an ``iter`` but no drafts, tell nothing."""
    found = [one for entry in entries if (one := entry.made(_iteration)) is not None]
    accepted, drafted, rounds = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    length = over(accepted + rounds, rounds, 0.0)
    return Counted(
        format=ITERATIONS,
        source="cpp/include/tensorrt_llm/executor/types.h at a98a906",
        requests=[Counts(request="server", accepted=accepted, drafted=drafted, drafting=rounds)],
        told=[
            Told("numAcceptedTokens", accepted, "accepted drafts, bonus left out; summed"),
            Told("numDraftTokens", drafted, "drafts made; summed"),
            Told("numRequestsWithDraftTokens", rounds, "rounds that drafted: requests of each iteration; summed"),
            Told("compute_acceptance_length", length, "vllm_mean_acceptance_length: bonus counted, plain rounds left out"),
            Told("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", over(accepted, rounds, 0.0), "to replay it: that length - 1"),
        ],
        is_total=True,
    )


def _iteration(value: Any) -> tuple[int, int, int] | None:
    stats = part(value, "specDecodingStats")
    if stats is None and isinstance(value, dict) and "iter" in value:
        return None
    if stats is None:
        raise ValueError("no field 'specDecodingStats' or 'iter'; expected the statistics of an iteration")
    names = ("numAcceptedTokens", "numDraftTokens", "numRequestsWithDraftTokens")
    accepted, drafted, rounds = (count(stats, name) for name in names)
    if not drafted:
        return None
    Counts(request="iteration", accepted=accepted, drafted=drafted, drafting=rounds)
    if rounds:
        agree(stats, "acceptanceLength", (accepted + rounds) / rounds, SINGLE)
    return accepted, drafted, rounds


def is_performance(value: Any) -> bool:
    return isinstance(value, dict) and "request_id" in value and part(value, "perf_metrics") is not None


def read_performance(entries: Sequence[Entry]) -> Counted:
    """Read requests; those without drafts have no ``speculative_decoding`` and are left out and counted."""
    found, num_left_out = left_out([entry.made(partial(_performance, entry.place)) for entry in entries])
    return Counted(
        format=PERFORMANCE,
        source="tensorrt_llm/serve/openai_server.py at e7f7345",
        requests=found,
        told=_totals(found),
        num_left_out=num_left_out,
    )


def _performance(place: str, value: Any) -> Counts | None:
    if not is_performance(value):
        raise ValueError("no fields 'request_id' and 'perf_metrics'; expected an element of /perf_metrics")
    block = part(value, "perf_metrics", "speculative_decoding")
    if block is None:
        return None
    accepted, drafted = _drafts(block)
    return Counts(request=place, accepted=accepted, drafted=drafted)


def _drafts(block: Mapping[str, Any]) -> tuple[int, int]:
    """Return accepted drafts and drafts made, whose ratio the block states too."""
    accepted, drafted = count(block, "total_accepted_draft_tokens"), count(block, "total_draft_tokens")
    agree(block, "acceptance_rate", over(accepted, drafted, 0.0), SINGLE)
    return accepted, drafted


def _totals(found: Sequence[Counts]) -> list[Told]:
    accepted, drafted = sum(one.accepted for one in found), sum(one.drafted or 0 for one in found)
    return [
        Told("total_accepted_draft_tokens", accepted, "accepted drafts, bonus left out; summed"),
        Told("total_draft_tokens", drafted, "drafts made; summed"),
        Told("acceptance_rate", over(accepted, drafted, 0.0), "vllm_draft_acceptance_rate: of sums, bonus left out"),
    ]


def _blocks(value: Any) -> list[Mapping[str, Any]]:
    choices = value.get("choices") if isinstance(value, dict) else None
    blocks = [part(choice, "speculative_decoding") for choice in choices] if isinstance(choices, list) else []
    return [block for block in blocks if block is not None]


def is_response(value: Any) -> bool:
    return any("total_accepted_draft_tokens" in block for block in _blocks(value))


def read_responses(entries: Sequence[Entry]) -> Counted:
    """Read responses, whole or streamed, a request for each choice; what has no block is left out and counted."""
    read = [entry.made(partial(_responses, entry.place)) for entry in entries]
    found = [one for some in read for one in some]
    told = _totals(found)
    steps = sum(one.drafting or 0 for one in found)
    histogram = added([one.histogram for one in found if one.histogram is not None])
    told += [
        Told("num_spec_steps", steps, "rounds that drafted; summed"),
        Told("acceptance_histogram", histogram, "rounds by accepted drafts, bonus left out; summed"),
    ]
    return Counted(
        format=RESPONSES,
        source="src/aiperf/spec_decode/trtllm_adapter.py of ai-dynamo/aiperf at 37f9db3",
        requests=found,
        told=told,
        num_left_out=sum(
            not some and not str(entry.value.get("object", "")).endswith("chunk")
            for some, entry in zip(read, entries, strict=True)
        ),
    )


def _responses(place: str, value: Any) -> list[Counts]:
    if not isinstance(value, dict) or (not isinstance(value.get("choices"), list) and part(value, "error") is None):
        raise ValueError("no field 'choices'; expected a response of trtllm-serve")
    return [_response(block, f"{place}, {number}") for number, block in enumerate(_blocks(value), start=1)]


def _response(block: Mapping[str, Any], name: str) -> Counts:
    accepted, drafted = _drafts(block)
    return Counts(
        request=name,
        accepted=accepted,
        drafted=drafted,
        drafting=count(block, "num_spec_steps"),
        gamma=count_or_none(block, "num_spec_tokens"),
        histogram=counts(block, "acceptance_histogram"),
    )
