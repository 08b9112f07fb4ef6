"""Tests of pairs against enumeration of all signs, a published example and hand-worked numbers."""

import time
from itertools import product

import numpy as np
import pytest

from harness.measures.paired_tests import _doubled_ranks, all_signs, at_least, holm, normal_tail, signed_rank
from harness.report.baseline import FALSE_ALARM

# Hollander & Wolfe (1973), p. 29: depression scores of nine patients before and after; one-sided exact p 0.01953 (V = 40)
BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]


def enumerated(differences: list[float]) -> float:
    """The same from its definition: how many of all 2^n choices of signs give a sum of ranks as extreme as this."""
    sizes = np.abs([one for one in differences if one != 0])
    ranks = np.array([(sizes < one).sum() + ((sizes == one).sum() + 1) / 2 for one in sizes])
    signs = np.array([one > 0 for one in differences if one != 0])
    sums = np.array([ranks[np.array(chosen)].sum() for chosen in product([False, True], repeat=len(sizes))])
    seen = ranks[signs].sum()
    return min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))


def test_the_published_example() -> None:
    assert signed_rank([a - b for a, b in zip(BEFORE, AFTER, strict=True)]) == pytest.approx(2 * 0.01953125, abs=1e-12)


@pytest.mark.parametrize(
    "differences",
    [[1.0], [0.5, -0.5], [1, 1, 1, -1, 2, 2, -3], [0, 0, 3, 1, -2, 1], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, -0.05]],
)
def test_it_is_the_share_of_all_signs(differences: list[float]) -> None:
    assert signed_rank(differences) == pytest.approx(enumerated(differences), abs=1e-12)


def test_nothing_that_differs_is_no_sign() -> None:
    assert signed_rank([]) == signed_rank([0.0, 0.0]) == 1.0


def test_of_all_signs_no_more_than_the_stated_share_alarm() -> None:
    """The null hypothesis itself, whole: every choice of signs is as likely. A one-sided p-value would fail it."""
    sizes = [1.0, 1.0, 2.0, 2.5, 3.0, 3.0, 4.0, 7.0, 8.0]
    found = [
        signed_rank([size * sign for size, sign in zip(sizes, signs, strict=True)]) for signs in product([-1, 1], repeat=9)
    ]
    for level in (0.004, 0.01, 0.05, 0.2):
        assert np.mean(np.array(found) <= level) <= level


@pytest.mark.parametrize(("n", "within"), [(50, 0.003), (200, 0.001)])
@pytest.mark.parametrize("num_sizes", [1, 7, 200])
def test_beyond_a_number_of_differences_their_law_is_normal(n: int, within: float, num_sizes: int) -> None:
    """Ties or none, against the law of all signs. Faults: no half step, or half a rank with one size, which is off by 0.05."""
    generator = np.random.default_rng(n + num_sizes)
    ranks = _doubled_ranks(generator.integers(1, num_sizes + 1, n).astype(float))
    for share in np.linspace(0.3, 0.5, 20):
        positive = int(ranks[generator.random(n) < share].sum())
        exact, normal = all_signs(ranks, positive), normal_tail(ranks, positive)
        assert normal == pytest.approx(min(0.5, exact), abs=within)  # the middle sum counts on both sides
        assert normal > 0.98 * min(0.5, exact)


def test_many_differences_take_no_time() -> None:
    """3,000 differences: the law of all signs would add up 2.7e10 numbers, a minute. Fault: no limit to it."""
    differences = np.random.default_rng(2).standard_normal(3000)
    before = time.process_time()
    assert 0.0 < signed_rank(differences.tolist()) <= 1.0
    assert signed_rank((differences + 1).tolist()) < 1e-100
    assert time.process_time() - before < 2.0


def test_examples_that_all_move_one_way_stand_out_at_the_rate_that_baselines_state() -> None:
    others = {f"m{i}": 1.0 for i in range(31)}
    assert holm({"moved": signed_rank([0.1] * 16), **others}, FALSE_ALARM) == {"moved"}
    assert not holm({"moved": signed_rank([0.1] * 15), **others}, FALSE_ALARM)


def test_hits_by_hand() -> None:
    assert at_least(0, 5, 0.1) == 1.0
    assert at_least(1, 3, 0.5) == pytest.approx(7 / 8)
    assert at_least(3, 3, 0.5) == pytest.approx(1 / 8)


def test_holm_by_hand() -> None:
    """Limits 0.05 / 4, / 3, / 2, / 1; after the first that stands behind its limit none counts."""
    assert holm({"a": 0.01, "b": 0.016, "c": 0.03, "d": 0.04}, 0.05) == {"a", "b"}
    assert holm({"a": 0.02, "b": 0.001}, 0.05) == {"a", "b"}
    assert holm({"a": 0.03, "b": 0.03}, 0.05) == set()
