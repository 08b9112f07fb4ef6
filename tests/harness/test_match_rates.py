"""Match rates from records against a brute-force count; intervals resample examples."""

import random
from types import SimpleNamespace

import pytest

from harness.core.experiment import EarlyProbe
from harness.core.records import EarlyRanks, Record
from harness.measures.pipelines import match_rate, ranks_of

LAYERS = (10, 20, 37)
HEADS = ("N", "Y")


@pytest.fixture
def records(synthetic: SimpleNamespace) -> list[Record]:
    """Outputs of different lengths, one of them empty, one failure, random ranks."""
    experiment = synthetic.plain_experiment(probes=(EarlyProbe(layers=LAYERS),))
    source, made = random.Random(5), []
    for number, length in enumerate((16, 3, 128, 40, 0, 7)):
        record = synthetic.plain(experiment, f"e{number}", length)
        record.early = [
            EarlyRanks(head=head, layer=layer, ranks=[source.randrange(8) for _ in range(length)])
            for head in HEADS
            for layer in LAYERS
        ]
        made.append(record)
    return [*made, synthetic.failed(experiment, "broken")]


def brute(records: list[Record], head: str, layer: int, k: int, positions: list[int]) -> tuple[int, int]:
    """Matches and tokens, counted one at a time."""
    hits = tokens = 0
    for record in records:
        for early in record.early:
            for position, rank in enumerate(early.ranks):
                if early.head == head and early.layer == layer and position in positions:
                    tokens += 1
                    hits += rank < k
    return hits, tokens


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("layer", LAYERS)
def test_rates_equal_a_brute_force_count(records: list[Record], head: str, layer: int) -> None:
    for k in (1, 3, 5):
        for positions in (None, range(0, 2), range(14, 16), range(16, 32), range(112, 128)):
            hits, tokens = brute(records, head, layer, k, list(positions or range(1000)))
            estimate = match_rate(records, head, layer, k, positions)
            assert estimate is not None
            assert estimate.value == pytest.approx(100 * hits / tokens, abs=1e-12)
            texts = [ranks_of(record, head, layer) or [] for record in records]
            reached = sum(bool(ranks if positions is None else ranks[positions.start :]) for ranks in texts)
            assert (estimate.unit, estimate.n) == ("%", reached), "texts without a token there are not counted"
            assert estimate.low is None if reached == 1 else estimate.low is None or estimate.low <= estimate.value
            assert estimate.low is None or estimate.low <= estimate.value <= estimate.high


def test_ranks_are_those_of_one_text_in_order(records: list[Record]) -> None:
    found = [ranks_of(record, "Y", 20) or [] for record in records[:-1]]
    assert [len(ranks) for ranks in found] == [len(record.tokens or ()) for record in records[:-1]]
    assert any(rank < 3 for ranks in found for rank in ranks)


def test_what_was_not_measured_is_unknown(records: list[Record]) -> None:
    assert match_rate(records, "N", 11, 1) is None
    assert match_rate(records, "Z", 10, 1) is None
    assert ranks_of(records[0], "N", 11) is None
    assert ranks_of(records[-1], "N", 10) is None
    assert match_rate(records[-1:], "N", 10, 1) is None
    assert match_rate([], "N", 10, 1) is None
    assert match_rate(records, "N", 10, 1, range(128, 200)) is None


def test_repeats_of_an_example_are_one_example(records: list[Record]) -> None:
    """Repeating everything narrows no interval."""
    once = match_rate(records, "N", 20, 3)
    for record in records[:-1]:
        twin = Record(**{**vars(record), "repeat": 1})
        records.append(twin)
    twice = match_rate(records, "N", 20, 3)
    assert (once.value, once.low, once.high, once.n) == (twice.value, twice.low, twice.high, twice.n)


def test_the_interval_covers_the_rate_of_independent_examples(synthetic: SimpleNamespace) -> None:
    """A 95 % interval misses the truth in about 5 % of samples: more than 16 of 150 has a chance below 1e-3."""
    source, experiment, rate = random.Random(0), synthetic.plain_experiment(), 0.3
    missed = 0
    for _ in range(150):
        sample = []
        for number in range(60):
            own = min(1.0, max(0.0, rate + source.uniform(-0.3, 0.3)))
            record = synthetic.plain(experiment, f"e{number}", 8)
            ranks = [0 if source.random() < own else 1 for _ in range(8)]
            record.early = [EarlyRanks(head="N", layer=20, ranks=ranks)]
            sample.append(record)
        estimate = match_rate(sample, "N", 20, 1)
        missed += not estimate.low <= 100 * rate <= estimate.high
    assert missed <= 16
