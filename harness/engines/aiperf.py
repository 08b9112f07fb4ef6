"""What AIPerf writes: ``profile_export.jsonl``, a line a request, with the acceptance that any engine told it.

Sources (ai-dynamo/aiperf): ``src/aiperf/common/models/spec_decode_models.py`` at 7bb5f5c (the record and the identities that
it checks), ``src/aiperf/metrics/types/spec_decode_metrics.py`` at 388b4f2 (what AIPerf derives), and
``src/aiperf/analysis/speed_bench_report.py`` at 37b1de4 (the matrix of SPEED-Bench's categories).

Off by one: AIPerf's acceptance length is 1 + accepted / steps, so the bonus token is counted; in its histogram, its counts
and its rates it is not. "Accepted per verified" counts it above and below. Two of its numbers are means over requests,
where the same over all steps has a name of its own.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from harness.engines.entries import Entry, agree, count, count_or_none, counts, left_out, number, over, part, sparse
from harness.engines.vllm import rounds_by_length
from harness.measures.counts import Counted, Counts, Told, added

RECORDS = "AIPerf, profile_export.jsonl"
RECORD = "spec_decode_acceptance"
Request = tuple[Counts, float, str]  # its counts, its mean_acceptance_length, its category ("" without one)


def is_record(value: Any) -> bool:
    return part(value, RECORD) is not None


def read_records(entries: Sequence[Entry]) -> Counted:
    """Read requests. Warm-up, errors and requests without acceptance are left out, as AIPerf's own report leaves them out."""
    found, num_left_out = left_out([entry.made(partial(_record, entry.place)) for entry in entries])
    return Counted(
        format=RECORDS,
        source="src/aiperf/common/models/spec_decode_models.py at 7bb5f5c",
        requests=[one for one, _, _ in found],
        told=[*_totals(found), *_matrix(found)],
        num_left_out=num_left_out,
    )


def _record(place: str, value: Any) -> Request | None:
    metadata = part(value, "metadata")
    if metadata is None:
        raise ValueError("no field 'metadata'; expected a line of profile_export.jsonl")
    block = part(value, RECORD)
    warmup = "warmup" in (metadata.get("benchmark_phase"), metadata.get("phase_kind"))
    if block is None or warmup or value.get("error") is not None:
        return None
    steps, both = count(block, "num_spec_steps"), ("per_step_drafted", "per_step_accepted")
    by_step = [counts(block, name) for name in both if block.get(name) is not None]
    found = Counts(
        request=place,
        accepted=count(block, "num_accepted_draft_tokens"),
        drafted=count(block, "num_draft_tokens"),
        drafting=steps,
        gamma=count_or_none(block, "num_spec_tokens"),
        histogram=sparse(block, "acceptance_histogram"),
        by_length=rounds_by_length(by_step[0], by_step[1], steps) if len(by_step) == 2 else None,
    )
    agree(block, "mean_acceptance_length", 1 + over(found.accepted, steps, 0.0))
    agree(block, "draft_acceptance_rate", over(found.accepted, found.drafted or 0, 0.0))
    category = metadata.get("source_kind")
    return found, number(block, "mean_acceptance_length"), category if isinstance(category, str) else ""


def _sums(found: Sequence[Request]) -> tuple[int, int, int]:
    """Return accepted drafts, drafts made and steps."""
    every = [one for one, _, _ in found]
    return sum(one.accepted for one in every), sum(one.drafted or 0 for one in every), sum(one.drafting or 0 for one in every)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _totals(found: Sequence[Request]) -> list[Told]:
    accepted, drafted, steps = _sums(found)
    each = [(one.accepted, one.drafted or 0, one.drafting or 0) for one, _, _ in found]
    rates = [a / d * 100.0 for a, d, _ in each if d]
    verified = [(a + s) / (d + s) for a, d, s in each if d + s]
    pooled = added([one.histogram for one, _, _ in found if one.histogram is not None])
    return [
        Told("total_spec_decode_steps", steps, "rounds that drafted"),
        Told("total_accepted_draft_tokens", accepted, "accepted drafts, bonus left out"),
        Told("total_draft_tokens", drafted, "drafts made"),
        Told("spec_decode_acceptance_length", _mean([length for _, length, _ in found]), "mean over requests, bonus counted"),
        Told(
            "spec_decode_token_weighted_acceptance_length",
            1 + over(accepted, steps, 0.0),
            "vllm_mean_acceptance_length: over all steps, bonus counted",
        ),
        Told("spec_decode_draft_acceptance_rate", _mean(rates), "percent, mean over requests, bonus left out"),
        Told(
            "spec_decode_overall_draft_acceptance_rate",
            over(accepted, drafted, 0.0) * 100.0,
            "vllm_draft_acceptance_rate, in percent: over all drafts, bonus left out",
        ),
        Told("spec_decode_accepted_per_verified", _mean(verified), "mean over requests, bonus counted above and below"),
        Told(
            "pooled_spec_decode_acceptance_histogram",
            {str(stand): rounds for stand, rounds in enumerate(pooled) if rounds},
            "rounds by accepted drafts, bonus left out",
        ),
    ]


def _matrix(found: Sequence[Request]) -> list[Told]:
    """Return acceptance length and rate by category, and the means of categories that its report calls Overall."""
    told: list[Told] = []
    categories = sorted({category for _, _, category in found if category})
    for name, relation in (("accept_length", "bonus counted"), ("accept_rate", "bonus left out")):
        values = [_cell([one for one in found if one[2] == category], name) for category in categories]
        told += [Told(f"{name}, {category}", value, relation) for category, value in zip(categories, values, strict=True)]
        known = [value for value in values if value is not None]
        if known:
            told.append(Told(f"{name}, Overall", sum(known) / len(known), f"mean of categories, {relation}"))
    return told


def _cell(found: Sequence[Request], name: str) -> float | None:
    accepted, drafted, steps = _sums(found)
    if name == "accept_rate":
        return accepted / drafted if drafted else None
    return 1.0 + accepted / steps if steps else None
