"""What AIPerf writes: ``profile_export.jsonl``, a line a request, with the acceptance that any engine told it.

Sources (ai-dynamo/aiperf): ``src/aiperf/common/models/spec_decode_models.py`` at 7bb5f5c (the record and the identities that
it checks), ``src/aiperf/metrics/types/spec_decode_metrics.py`` at 388b4f2 (what AIPerf derives), and
``src/aiperf/analysis/speed_bench_report.py`` at 37b1de4 (the matrix of SPEED-Bench's categories).

Off by one: AIPerf's acceptance length is 1 + accepted / steps, so the bonus token is counted; in its histogram, its counts
and its rates it is not. "Accepted per verified" counts it above and below. Two of its numbers are means over requests,
where the same over all steps has a name of its own.

llama.cpp tells only tokens drafted, accepted and emitted. AIPerf's adapter for it
(``src/aiperf/spec_decode/llamacpp_adapter.py`` at 5850dd4) takes emitted less accepted tokens for steps, rounds without drafts
and the prompt's pass among them, and spreads the accepted drafts evenly over these. Such steps are in AIPerf's own numbers
alone; rounds and histogram are unknown here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness.engines.entries import Entry, agree, count, count_or_none, counts, left_out, number, over, part, sparse
from harness.engines.vllm import rounds_by_length
from harness.measures.counts import Counted, Counts, Told, added

RECORDS = "AIPerf, profile_export.jsonl"
RECORD = "spec_decode_acceptance"
SINGLE = 1e-6  # rounding of rates that an engine told as single precision
LLAMA_CPP = "llamacpp"
INVENTED = "; of llama.cpp AIPerf derives the steps and invents the histogram"


@dataclass(frozen=True)
class Request:
    """A request as it was counted, and what AIPerf's own numbers are made of; ``category`` is "" without one."""

    counts: Counts
    steps: int
    length: float
    category: str

    @property
    def drafted(self) -> int:
        return self.counts.drafted or 0


def is_record(value: Any) -> bool:
    return part(value, RECORD) is not None


def read_records(entries: Sequence[Entry]) -> Counted:
    """Read requests. Warm-up, errors and requests without acceptance are left out, as AIPerf's own report leaves them out."""
    found, num_left_out = left_out([entry.made(partial(_record, entry.place)) for entry in entries])
    return Counted(
        format=RECORDS,
        source="src/aiperf/common/models/spec_decode_models.py at 7bb5f5c",
        requests=[one.counts for one in found],
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
    measured = block.get("engine") != LLAMA_CPP
    found = Counts(
        request=place,
        accepted=count(block, "num_accepted_draft_tokens"),
        drafted=count(block, "num_draft_tokens"),
        drafting=steps if measured else None,
        gamma=count_or_none(block, "num_spec_tokens"),
        histogram=sparse(block, "acceptance_histogram") if measured else None,
        by_length=rounds_by_length(by_step[0], by_step[1], steps) if len(by_step) == 2 else None,
    )
    agree(block, "mean_acceptance_length", 1 + over(found.accepted, steps, 0.0), SINGLE)
    agree(block, "draft_acceptance_rate", over(found.accepted, found.drafted or 0, 0.0), SINGLE)
    category = metadata.get("source_kind")
    length = number(block, "mean_acceptance_length")
    return Request(found, steps, length, category if isinstance(category, str) else "")


def _sums(found: Sequence[Request]) -> tuple[int, int, int]:
    """Return accepted drafts, drafts made and steps."""
    return sum(one.counts.accepted for one in found), sum(one.drafted for one in found), sum(one.steps for one in found)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _totals(found: Sequence[Request]) -> list[Told]:
    accepted, drafted, steps = _sums(found)
    each = [(one.counts.accepted, one.drafted, one.steps) for one in found]
    rates = [over(a, d, 0.0) * 100.0 for a, d, _ in each]
    verified = [(a + s) / (d + s) for a, d, s in each if d + s]
    histograms = [one.counts.histogram for one in found if one.counts.histogram is not None]
    pooled = added(histograms) if len(histograms) == len(found) else None
    derived = INVENTED if pooled is None else ""
    return [
        Told("total_spec_decode_steps", steps, f"rounds that drafted{derived}"),
        Told("total_accepted_draft_tokens", accepted, "accepted drafts, bonus left out"),
        Told("total_draft_tokens", drafted, "drafts made"),
        Told("spec_decode_acceptance_length", _mean([one.length for one in found]), "mean over requests, bonus counted"),
        Told(
            "spec_decode_token_weighted_acceptance_length",
            1 + over(accepted, steps, 0.0),
            "vllm_mean_acceptance_length: over all steps, bonus counted",
        ),
        Told(
            "spec_decode_draft_acceptance_rate", _mean(rates), "percent, mean over requests, 0 without drafts, bonus left out"
        ),
        Told(
            "spec_decode_overall_draft_acceptance_rate",
            over(accepted, drafted, 0.0) * 100.0,
            "vllm_draft_acceptance_rate, in percent: over all drafts, bonus left out",
        ),
        Told("spec_decode_accepted_per_verified", _mean(verified), "mean over requests, bonus counted above and below"),
        Told(
            "pooled_spec_decode_acceptance_histogram",
            None if pooled is None else {str(stand): rounds for stand, rounds in enumerate(pooled) if rounds},
            f"rounds by accepted drafts, bonus left out{derived}",
        ),
    ]


def _matrix(found: Sequence[Request]) -> list[Told]:
    """Return acceptance length and rate by category, and the means of categories that its report calls Overall."""
    told: list[Told] = []
    categories = sorted({one.category for one in found if one.category})
    for name, relation in (("accept_length", "bonus counted"), ("accept_rate", "bonus left out")):
        values = [_cell([one for one in found if one.category == category], name) for category in categories]
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
