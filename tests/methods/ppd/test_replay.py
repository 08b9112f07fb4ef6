"""Measured matches: what dependence changes and what it does not, exactly."""

import numpy as np
import pytest
from ppd_events import simulate
from ppd_replay import replay, run_lengths

from methods.errors import InputError
from methods.ppd import theory
from methods.ppd.theory import Costs

FREE = Costs()


def sticky(num_generations: int, num_tokens: int, rate: float, stay: float, seed: int = 0) -> list[np.ndarray]:
    """A stationary chain with the given mean: with probability ``stay`` a token repeats its predecessor's match."""
    generator = np.random.default_rng(seed)
    fresh = generator.random((num_generations, num_tokens)) < rate
    kept = generator.random((num_generations, num_tokens)) < stay
    for token in range(1, num_tokens):
        fresh[:, token] = np.where(kept[:, token], fresh[:, token - 1], fresh[:, token])
    return list(fresh)


@pytest.mark.parametrize("stay", [0.0, 0.8])
def test_the_mean_does_not_depend_on_dependence(stay: float) -> None:
    """Any lengths: the theorem at the useful rate is the replay; at the rate of all tokens it errs by the last tokens."""
    generations = [row[: 2 + index % 30] for index, row in enumerate(sticky(200, 40, 0.6, stay))]
    found = replay(generations, 12, 8, FREE)
    at_useful = sum(theory.latency(12, 8, len(row), found.useful_rate) for row in generations)
    np.testing.assert_allclose(at_useful, found.latency)
    last_rate = np.mean([row[-1] for row in generations])
    np.testing.assert_allclose(found.latency - found.theorem, 4 * (last_rate - found.match_rate) * 200)
    assert found.num_tokens == sum(map(len, generations))


def test_a_rising_rate_makes_the_theorem_pessimistic_or_optimistic_by_the_last_token_only() -> None:
    easy_end, easy_start = np.array([0, 0, 0, 1], dtype=bool), np.array([1, 0, 0, 0], dtype=bool)
    for row, saved in ((easy_end, 0), (easy_start, 1)):
        found = replay([row], 8, 4, FREE)
        assert found.match_rate == 0.25
        assert found.theorem == 8 * 4 - 4 * 3 * 0.25
        assert found.latency == 8 * 4 - 4 * saved


def test_rates_by_hand() -> None:
    """Two generations: match, match, none, match | none, none, match. Pairs after a match: 1 of 2, after none: 2 of 3."""
    found = replay([np.array([1, 1, 0, 1], dtype=bool), np.array([0, 0, 1], dtype=bool)], 8, 4, FREE)
    assert (found.num_generations, found.num_tokens) == (2, 7)
    assert (found.match_rate, found.useful_rate) == (4 / 7, 2 / 5)
    assert (found.after_match_rate, found.after_miss_rate) == (1 / 2, 2 / 3)
    assert found.run_counts.tolist() == [4, 0, 1, 0]
    # Matches that count: 2 of 3 and 0 of 2; at a rate of 2 / 5 expect 1.2 and 0.8, variance 5 * 0.24.
    assert found.dispersion == pytest.approx((0.8**2 + 0.8**2) * 2 / 1.2)


def test_dependence_widens_the_spread_and_the_run_lengths() -> None:
    free, bound = (replay(sticky(3000, 32, 0.6, stay), 12, 8, FREE) for stay in (0.0, 0.7))
    assert free.dispersion == pytest.approx(1, abs=0.1)
    # A chain that keeps its state with probability s has correlation s^n at distance n, so 1 + 2 sum (1 - n / 31) s^n.
    distance = np.arange(1, 31)
    assert bound.dispersion == pytest.approx(1 + 2 * ((1 - distance / 31) * 0.7**distance).sum(), rel=0.1)
    assert free.after_match_rate == pytest.approx(0.6, abs=0.01)
    assert free.after_miss_rate == pytest.approx(0.6, abs=0.01)
    assert bound.after_match_rate == pytest.approx(0.7 + 0.3 * 0.6, abs=0.01)
    assert bound.after_miss_rate == pytest.approx(0.3 * 0.6, abs=0.01)
    spread = np.sqrt(free.independent_run_counts)
    assert np.all(np.abs(free.run_counts - free.independent_run_counts) <= 5 * spread + 1)
    assert np.any(np.abs(bound.run_counts - bound.independent_run_counts) > 20 * spread)
    # Same tokens and mean, hence as many runs, however they are arranged.
    np.testing.assert_allclose(bound.run_counts.sum(), bound.independent_run_counts.sum(), rtol=1e-9)


def test_counts_and_costs_agree_with_the_events() -> None:
    costs = Costs(sub_layer=1.25, early_head=0.5, final_head=0.25, request=1.0, hand_over=0.5)
    generations = [row[: 1 + index] for index, row in enumerate(sticky(12, 16, 0.6, 0.5))]
    found = replay(generations, 10, 6, costs)
    events = [simulate(row, num_layers=10, early_layer=6, num_candidates=1, costs=costs) for row in generations]
    np.testing.assert_allclose(found.with_costs, sum(event.latency for event in events))
    np.testing.assert_allclose(found.greedy_with_costs, found.num_tokens * 10.25)
    for row, event in zip(generations, events, strict=True):
        assert tuple(run_lengths(row)) == event.run_lengths
    every = np.concatenate([event.run_lengths for event in events])
    np.testing.assert_array_equal(found.run_counts, np.bincount(every, minlength=13)[1:])


def test_what_cannot_be_known_is_none() -> None:
    single = replay([np.array([True])], 8, 4, FREE)
    assert (single.useful_rate, single.after_match_rate, single.dispersion) == (None, None, None)
    assert (single.latency, single.theorem, single.match_rate) == (8, 8, 1.0)
    assert replay([np.ones(4, dtype=bool)] * 3, 8, 4, FREE).dispersion is None


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="generations"):
        replay([], 8, 4, FREE)
    with pytest.raises(InputError, match="num_tokens 0"):
        replay([np.array([], dtype=bool)], 8, 4, FREE)
    with pytest.raises(InputError, match="at least half"):
        replay([np.ones(3, dtype=bool)], 8, 3, FREE)
