"""Speed as SpecDec (Xia et al. 5.1) reports it: seconds a sentence, over beam search, and over greedy decoding beside it."""

from collections.abc import Sequence

import numpy as np

from harness.core.records import Record
from harness.measures.pairing import incomparable, paired, succeeded
from harness.measures.statistics import Estimate, Missing, ratio_of_examples, ratio_of_totals


def sentence_speedup(
    greedy: Sequence[Record], baseline: Sequence[Record], method: Sequence[Record]
) -> Estimate | Missing | None:
    """The baseline's seconds over the method's, totals over the sentences that both completed.

    Outputs of beam search, of a lossy rule and of a drafter alone differ in length: the sentence is what each of them delivers,
    so time is not divided by tokens (``measures.speedup`` does that). Refused as pairing.incomparable says of the method beside
    ``greedy`` or the baseline; ``greedy`` also shows whether the machine drifted, since not every beam search records rounds.
    """
    if refusal := incomparable(greedy, method) or incomparable(baseline, method):
        return refusal
    rows = paired(baseline, method, lambda record: (record.wall_s or np.nan,))
    return None if rows is None else ratio_of_totals(rows[0][0], rows[1][0], "x")


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


def equal_frac(greedy: Sequence[Record], method: Sequence[Record]) -> Estimate | None:
    """Percent of outputs that are greedy decoding's, token for token."""
    outputs = {record.key: record.tokens for record in succeeded(greedy)}
    shared = [record for record in succeeded(method) if record.key in outputs]
    return ratio_of_examples([(record.example, 100.0 * (record.tokens == outputs[record.key]), 1.0) for record in shared], "%")
