"""Intervals against closed forms, and coverage on data whose truth is known."""

import numpy as np
import pytest

from harness.measures.statistics import drift, of_sums, ratio_of_totals


def test_ratio_is_of_totals_not_mean_of_ratios() -> None:
    estimate = ratio_of_totals(np.array([1.0, 30.0]), np.array([1.0, 10.0]))
    assert estimate is not None
    assert estimate.value == pytest.approx(31 / 11)


def test_one_example_has_no_spread_and_none_no_value() -> None:
    single = ratio_of_totals(np.array([2.0]), np.array([4.0]))
    assert single is not None
    assert (single.value, single.low, single.high, single.n) == (0.5, None, None, 1)
    assert ratio_of_totals(np.array([]), np.array([])) is None
    assert ratio_of_totals(np.array([0.0]), np.array([0.0])) is None


def test_interval_matches_the_normal_one_for_a_mean() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    estimate = ratio_of_totals(values, np.ones(400))
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    half = 1.96 * values.std() / 20
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        denominators = rng.integers(5, 50, 60)
        estimate = ratio_of_totals(rng.binomial(denominators, 0.7), denominators)
        assert estimate is not None
        covered += estimate.low <= 0.7 <= estimate.high  # type: ignore[operator]
    assert 0.88 <= covered / 200 <= 0.99


def test_paired_ratio_is_tighter_than_the_spread_of_either_side() -> None:
    lengths = np.random.default_rng(3).uniform(1, 100, 50)
    estimate = ratio_of_totals(2 * lengths, lengths)
    assert estimate is not None
    assert estimate.low == pytest.approx(2)
    assert estimate.high == pytest.approx(2)


def test_of_sums_agrees_with_ratio_of_totals() -> None:
    rng = np.random.default_rng(4)
    hits, counts = rng.integers(0, 5, 80).astype(float), np.full(80, 5.0)
    a = ratio_of_totals(hits, counts)
    b = of_sums({"hits": hits, "counts": counts}, lambda s, n: s["hits"] / s["counts"])
    assert a is not None
    assert b is not None
    assert a.value == pytest.approx(b.value)
    assert a.low == pytest.approx(b.low, abs=0.02)  # type: ignore[arg-type]


def test_drift() -> None:
    assert drift(np.array([1.0, 1.0, 1.3, 1.3])) == pytest.approx(0.3)
    assert drift(np.array([1.0, 2.0])) == 0.0
