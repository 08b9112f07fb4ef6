"""What SpecDec's tables measure, from synthetic records, against arithmetic done by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from harness.core.records import Record
from harness.measures import of_run
from harness.measures.of_run import speedup
from harness.measures.statistics import Estimate, Missing
from harness.papers.specdec import measures


def value(estimate: Estimate | Missing | None) -> float:
    assert isinstance(estimate, Estimate)
    return estimate.value


def together(*rows: Record, encode_s: float = 0.004, draft_encode_s: float = 0.002, fixed_s: float = 0.001) -> list[Record]:
    """Records of one batch: the row with the most rounds saw all of its times, and wall clock is shared."""
    longest = max((row.steps for row in rows if row.steps is not None), key=lambda steps: len(steps.round_s))
    wall_s = encode_s + draft_encode_s + sum(longest.round_s) + fixed_s
    for row in rows:
        row.wall_s, row.encode_s, row.draft_encode_s = (part / len(rows) for part in (wall_s, encode_s, draft_encode_s))
    return list(rows)


def test_iterations_are_rounds_a_sentence(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    drafted = [
        synthetic.drafted(arms.drafted, "a", 8, accepted=(2, 0, 3)),
        synthetic.drafted(arms.drafted, "b", 4, accepted=(0,)),
    ]
    assert value(measures.iterations(drafted)) == pytest.approx((3 + 4) / 2)
    assert value(measures.iterations([synthetic.plain(arms.plain, "a", 6)])) == 6
    twice = [synthetic.drafted(arms.drafted, "a", 8, accepted=(2, 0, 3), repeat=repeat) for repeat in (0, 1)]
    assert value(measures.iterations([*twice, synthetic.failed(arms.drafted, "b")])) == 3
    assert measures.iterations([]) is None


@pytest.mark.parametrize(
    ("tokens", "repeated"), [([5, 5, 5, 2], 2), ([5, 6, 5, 6], 0), ([7], 0), ([7, 7], 1), ([], 0), ([1, 1, 2, 2, 1], 2)]
)
def test_repeated_tokens_follow_themselves(
    synthetic: SimpleNamespace, arms: SimpleNamespace, tokens: list[int], repeated: int
) -> None:
    one, other = synthetic.plain(arms.plain, "a"), synthetic.plain(arms.plain, "b", 10)
    one.tokens = tokens
    assert value(measures.repeated_pct([one, other])) == pytest.approx(100 * repeated / (len(tokens) + 10))


def test_shares_of_modules_add_up(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    """Sentences of 3 and 4 rounds, each round 6 ms of drafting, 12 of verifying and 1 of the rest; 1 ms outside of rounds."""
    rows = [
        *together(synthetic.drafted(arms.drafted, "a", 8, accepted=(2, 0, 3))),
        *together(synthetic.drafted(arms.drafted, "b", 4, accepted=(0,)), encode_s=0.008),
    ]
    total = 0.004 + 0.008 + 2 * 0.002 + 7 * 0.019 + 2 * 0.001
    expected = {
        "AT encoder": 0.012,
        "NAT encoder": 0.004,
        "NAT decoder": 7 * 0.006,
        "AT decoder": 7 * 0.012,
        "others": 7 * 0.001 + 0.002,
    }
    shares = measures.module_shares(rows)
    assert tuple(shares) == measures.MODULES
    assert {name: value(share) for name, share in shares.items()} == pytest.approx(
        {name: 100 * seconds / total for name, seconds in expected.items()}
    )
    assert sum(map(value, shares.values())) == pytest.approx(100)
    assert measures.module_shares([synthetic.plain(arms.plain, "a")]) == {}


def test_a_batch_has_the_rounds_of_its_longest_row(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    """The same times, but of two rows decoded together: 4 rounds in all, and an odd row left for a batch of its own."""
    pair = together(
        synthetic.drafted(arms.drafted, "a", 8, accepted=(2, 0, 3)), synthetic.drafted(arms.drafted, "b", 4, accepted=(0,))
    )
    last = together(synthetic.drafted(arms.drafted, "c", 1, accepted=(0,)))
    total = [0.004 + 0.002 + rounds * 0.019 + 0.001 for rounds in (4, 1)]
    assert value(measures.latency_s([*pair, *last], batch_size=2)) == pytest.approx(sum(total) / 2)
    assert value(measures.latency_s(last)) == pytest.approx(total[1])


def test_batches_are_consecutive_examples_of_a_repeat(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    records = [synthetic.plain(arms.plain, name, repeat=repeat) for repeat in (0, 1) for name in "abcde"]
    records[1] = synthetic.failed(arms.plain, "b")
    found = [[(row.example, row.repeat) for row in batch] for batch in of_run.decoded_together(records, 2)]
    assert found == [
        [("a", 0)], [("c", 0), ("d", 0)], [("e", 0)], [("a", 1), ("b", 1)], [("c", 1), ("d", 1)], [("e", 1)]
    ]  # fmt: skip


def test_a_batch_of_two_processes_has_no_time(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    """Its first row is what a killed process left; the other is of the run that took it up, whose batch took twice as long."""
    batches = [
        together(*(synthetic.drafted(arms.drafted, name, 4, accepted=(0,)) for name in names), fixed_s=fixed_s)
        for names, fixed_s in (("ab", 0.001), ("cd", 0.083))
    ]
    torn = [batches[0][0], replace(batches[1][1], example="b", run="later"), *batches[1]]
    whole_s = 0.004 + 0.002 + 4 * 0.019 + 0.083
    assert value(measures.latency_s(torn, batch_size=2)) == pytest.approx(whole_s)
    assert value(measures.iterations(torn)) == 4
    assert len(of_run.decoded_together(torn, 2)) == 2
    assert measures.latency_s(torn[:2], batch_size=2) is None


def test_speedups_sentence_by_sentence(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    """The repeats of a sentence are summed; sentences that an arm failed are left out."""
    plain = [synthetic.plain(arms.plain, name, length) for name, length in (("a", 12), ("b", 20), ("c", 8))]
    drafted = [synthetic.drafted(arms.drafted, name, length) for name, length in (("a", 12), ("b", 20))]
    plain[0].wall_s, plain[1].wall_s, drafted[0].wall_s, drafted[1].wall_s = 0.6, 0.5, 0.2, 0.25
    found = measures.sentence_speedups(plain, [*drafted, synthetic.failed(arms.drafted, "c")])
    np.testing.assert_allclose(found, [3.0, 2.0])
    again = [synthetic.plain(arms.plain, "a", repeat=1), synthetic.drafted(arms.drafted, "a", repeat=1)]
    again[0].wall_s, again[1].wall_s = 0.2, 0.2
    np.testing.assert_allclose(measures.sentence_speedups([*plain, again[0]], [*drafted, again[1]]), [2.0, 2.0])
    assert measures.sentence_speedups(plain, []) is None


def test_peaks_are_of_whole_batches(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    plain = [synthetic.plain(arms.plain, name) for name in "abcd"]
    assert of_run.peak_mib(plain) is None
    for record, peak in zip(plain, (3, 3, 9, 9), strict=True):
        record.peak_bytes = peak * 2**20
    assert value(of_run.peak_mib(plain, batch_size=2)) == 6
    assert of_run.peak_mib(plain, batch_size=2).n == 2
    for record, rows in zip(plain, (2, 2, 4, 4), strict=True):  # of a batch of four, a smaller limit shows two
        record.num_rows = rows
    assert value(of_run.peak_mib(plain, batch_size=2)) == 3
    assert measures.latency_s(plain, batch_size=2).n == 1


def test_a_baseline_without_rounds_is_seen_to_drift(synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    """transformers' generate reports no rounds: its seconds a token stand for them."""
    plain = [synthetic.plain(arms.plain, str(i), 10, ar_s=0.01 if i < 10 else 0.02) for i in range(20)]
    for record in plain:
        record.steps.round_s = []
    drafted = [synthetic.drafted(arms.drafted, str(i), 10) for i in range(20)]
    refused = speedup(plain, drafted)
    assert isinstance(refused, Missing)
    assert "drifted by +100%" in refused.why
    assert isinstance(speedup(plain[:10], drafted[:10]), Estimate)
