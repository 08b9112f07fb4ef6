"""What SpecDec's tables measure beside acceptance (Xia et al.), by sentence and by batch.

Speed is in seconds a sentence, over beam search and over greedy decoding beside it (5.1). Times of rows that are decoded
together belong to their batch, so measures of time take the experiment's ``batch_size``.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from harness.core.records import Record
from harness.measures.of_run import decoded_together
from harness.measures.pairing import incomparable, paired, steps_of, succeeded, wall_s
from harness.measures.statistics import Estimate, Missing, ratio_of_examples, ratio_of_totals

MODULES = ("AT encoder", "NAT encoder", "NAT decoder", "AT decoder", "others")


def sentence_speedup(
    greedy: Sequence[Record], baseline: Sequence[Record], method: Sequence[Record]
) -> Estimate | Missing | None:
    """Return the baseline's seconds over the method's, totals over the sentences that both completed.

    Outputs of beam search, of a lossy rule and of a drafter alone differ in length: the sentence is what each of them delivers,
    so time is not divided by tokens (``of_run.speedup`` does that). Refused as pairing.incomparable says of the method beside
    ``greedy`` or the baseline; ``greedy`` also shows whether the machine drifted, since not every beam search records rounds.
    """
    if refusal := incomparable(greedy, method) or incomparable(baseline, method):
        return refusal
    rows = paired(baseline, method, lambda record: (wall_s(record),))
    return None if rows is None else ratio_of_totals(rows.first[0], rows.second[0], "x", units=rows.units)


def heaviest_example(baseline: Sequence[Record], method: Sequence[Record]) -> str | None:
    """The sentence that the two take most unequal seconds for, over all repeats; None where none was completed by both."""
    by_key = {record.key: record.wall_s or 0.0 for record in succeeded(baseline)}
    apart: dict[str, float] = {}
    for record in succeeded(method):
        if record.key in by_key:
            apart[record.example] = apart.get(record.example, 0.0) + by_key[record.key] - (record.wall_s or 0.0)
    return max(apart, key=lambda example: abs(apart[example]), default=None)


def mean_s(records: Sequence[Record]) -> float:
    """Mean seconds of the completed runs; infinite where none was."""
    times = [record.wall_s for record in succeeded(records) if record.wall_s is not None]
    return sum(times) / len(times) if times else float("inf")


def iterations(records: Sequence[Record]) -> Estimate | None:
    """Mean rounds a sentence (Xia et al. 4.1: the average number of decoding iterations).

    Plain decoding's are its tokens, beam search's the steps of the search, a drafter's alone its blocks.
    """
    rows = [(record.unit, len(record.steps.drafted), 1.0) for record in succeeded(records) if record.steps is not None]
    return ratio_of_examples(rows, "rounds")


def repeated_pct(records: Sequence[Record]) -> Estimate | None:
    """Percent of tokens that equal the one before them: the token repetition ratio (Xia et al. B.3, Table 9).

    Differs from the paper: it prints no definition; this is the one of the models that it compares with (Ghazvininejad et al.
    2019: consecutive repeats). Tokens are subwords, a stopping EOS included.
    """
    rows = []
    for record in succeeded(records):
        tokens = record.tokens or []
        repeats = sum(one == other for one, other in pairwise(tokens))
        rows.append((record.unit, 100.0 * repeats, len(tokens)))
    return ratio_of_examples(rows, "%", 100.0)


def module_shares(records: Sequence[Record]) -> dict[str, Estimate]:
    """Percent of all time by module at batch 1 (Xia et al., Table 18).

    It is empty where no times of a drafter and a verifier are recorded.
    "AT encoder" is the verifier's prefill and "NAT encoder" the drafter's begin, each with the keys and values that its decoder
    reads; beside each other, the drafter's is what it took longer. "AT decoder" is verification, the rule included; "others"
    is what is left: caches cut back, texts and schedules kept, tokens taken over.
    """
    timed = [(record.unit, _module_seconds(record), record.wall_s) for record in succeeded(records) if _is_timed(record)]
    shares = {
        name: ratio_of_examples(
            [(example, 100.0 * parts[index], wall_s or 0.0) for example, parts, wall_s in timed], "%", 100.0
        )
        for index, name in enumerate(MODULES)
    }
    return {name: share for name, share in shares.items() if share is not None}


def latency_s(records: Sequence[Record], batch_size: int = 1) -> Estimate | None:
    """Mean seconds until a batch is done, sources encoded: what a user waits. ``wall_s`` is a row's share of it."""
    batches = timed_together(records, batch_size)
    return ratio_of_examples([(rows[0].unit, _seconds(rows), 1.0) for rows in batches], "s")


def sentence_speedups(baseline: Sequence[Record], method: Sequence[Record]) -> np.ndarray | Missing | None:
    """[n] the baseline's seconds over the method's, sentence by sentence (Xia et al., Figure 4), an example's repeats summed.

    Refused as pairing.incomparable says; None where the arms share no example.
    """
    if refusal := incomparable(baseline, method):
        return refusal
    rows = paired(baseline, method, lambda record: (wall_s(record),))
    return None if rows is None else rows.first[0] / rows.second[0]


def timed_together(records: Sequence[Record], batch_size: int) -> list[list[Record]]:
    """Return the batches that one process decoded: one that was killed meanwhile is run again, and its rows are of two."""
    return [rows for rows in decoded_together(records, batch_size) if len({row.run for row in rows}) == 1]


def _is_timed(record: Record) -> bool:
    times = (record.wall_s, record.encode_s, record.draft_encode_s)
    return None not in times and record.steps is not None and bool(record.steps.draft_s) and bool(record.steps.verify_s)


def _seconds(rows: Sequence[Record]) -> float:
    return sum(record.wall_s or 0.0 for record in rows)


def _module_seconds(record: Record) -> tuple[float, ...]:
    """Return the seconds of each module, in the order of MODULES."""
    encode_s, draft_encode_s, steps = record.encode_s or 0.0, record.draft_encode_s or 0.0, steps_of(record)
    draft_s, verify_s = sum(step.draft_s for step in steps), sum(step.verify_s for step in steps)
    return encode_s, draft_encode_s, draft_s, verify_s, _seconds([record]) - encode_s - draft_encode_s - draft_s - verify_s
