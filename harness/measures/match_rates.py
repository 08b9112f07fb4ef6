"""PPD's match rate from records: how often the emitted token is among the k likeliest of an early layer (Section 4.3).

The paper's p_correct, pooled over tokens, with intervals that resample examples. Which tokens matched, in their order, is
there too: matches of one text depend on each other, which Theorem 4.1 leaves out.
"""

from collections.abc import Sequence

from harness.core.records import Record
from harness.measures.pairing import succeeded
from harness.measures.statistics import Estimate, ratio_of_examples


def ranks_of(record: Record, head: str, layer: int) -> list[int] | None:
    """The rank of every emitted token at a layer by "N" (the model's own head) or "Y" (a trained one); None if not measured."""
    for early in record.early:
        if (early.head, early.layer) == (head, layer):
            return early.ranks
    return None


def matches(record: Record, head: str, layer: int, k: int) -> list[bool] | None:
    """Whether each emitted token was among the k likeliest of the layer, in order; None if not measured."""
    ranks = ranks_of(record, head, layer)
    return None if ranks is None else [rank < k for rank in ranks]


def match_rate(records: Sequence[Record], head: str, layer: int, k: int, positions: range | None = None) -> Estimate | None:
    """Matches over tokens in percent, all outputs pooled; ``positions`` (from 0) restricts it to a part of every output.

    None if it was not measured, or no output reaches these positions.
    """
    counted = []
    for record in succeeded(records):
        if (ranks := ranks_of(record, head, layer)) is not None:
            part = ranks if positions is None else ranks[positions.start : positions.stop]
            if not part:
                continue
            counted.append((record.example, 100 * sum(rank < k for rank in part), len(part)))
    return ratio_of_examples(counted, "%")
