"""The tests of captured outputs against enumeration, hand-worked tables and simulated laws."""

from itertools import product

import numpy as np
import pytest
import torch

from harness.exact.captured import replayed
from harness.exact.captured.capture import Output
from harness.exact.captured.features import features_of
from harness.exact.captured.two_samples import Feature, can_reject, drawn_test, fisher, found_share, sign_test, swap_tests
from methods.sampling import Sampling

LEVEL = 0.01


def test_a_p_value_is_the_share_of_all_ways_of_swapping() -> None:
    differences = np.array([[2.0, -1], [1, 0], [3, -2], [-1, 1], [0, 2]])
    totals = np.array([9.0, 8])
    [test] = swap_tests({"counts": Feature(differences, totals)}, np.arange(5), LEVEL)
    ways = [((np.array(signs) @ differences) ** 2 / totals).sum() for signs in product((1, -1), repeat=5)]
    observed = ((differences.sum(0)) ** 2 / totals).sum()
    assert test.p_value == np.mean([way >= observed - 1e-9 for way in ways])


def test_tests_by_hand() -> None:
    assert fisher(4, 4, 0, 4) == pytest.approx(1 / 70)  # the lady tasting tea
    assert fisher(0, 5, 5, 5) == 1
    assert sign_test(7, 0) == pytest.approx(2**-7)
    assert sign_test(0, 3) == 1
    assert found_share(6, LEVEL) == 1
    assert found_share(20, LEVEL) < 0.5 < found_share(10, LEVEL)
    assert found_share(20, LEVEL, 1.0) > 0.5 > found_share(50, LEVEL, 1.0)
    assert not can_reject(7, LEVEL)
    assert can_reject(8, LEVEL)


def test_a_share_among_noise_is_found_as_often_as_stated() -> None:
    """Where the control parts too, at every prompt and as early as not, a fault hides among these."""
    generator, n = np.random.default_rng(4), 40
    share = found_share(n, LEVEL, 1.0)
    sure = generator.binomial(n, share, 400)
    earlier = sure + generator.binomial(n - sure, 0.5)
    found = np.mean([sign_test(int(one), n - int(one)) <= LEVEL for one in earlier])
    assert 0.85 < found < 0.95


def outputs(tokens: np.ndarray) -> list[Output]:
    sampling = Sampling(temperature=1.0)
    return [Output(0, "", None, None, tuple(row), None, sampling, ()) for row in tokens.tolist()]


def rejected(first: np.ndarray, second: np.ndarray, units: np.ndarray | None = None) -> bool:
    pairs = list(zip(outputs(first), outputs(second), strict=True))
    units = np.arange(len(pairs)) if units is None else units
    return any(one.p_value <= LEVEL for one in swap_tests(features_of(pairs, True, [0] * len(pairs)), units, LEVEL))


def test_equal_laws_are_seldom_called_different() -> None:
    generator = np.random.default_rng(1)
    law = generator.dirichlet(np.ones(20))
    alarms = sum(rejected(*generator.choice(20, (2, 40, 6), p=law)) for _ in range(60))
    assert alarms <= 3  # 0.6 expected; 4 or more have a chance of 3e-3


def test_a_law_as_far_off_as_stated_is_found() -> None:
    generator = np.random.default_rng(2)
    law, size = np.full(10, 0.1), (150, 4)
    pairs = list(zip(*(outputs(generator.choice(10, size, p=law)) for _ in range(2)), strict=True))
    tests = swap_tests(features_of(pairs, True, [0] * len(pairs)), np.arange(len(pairs)), LEVEL)
    missed = next(one.missed_tv for one in tests if one.name == "tokens")
    assert missed is not None
    assert 0.05 < missed < 0.3
    other = law + np.where(np.arange(10) < 5, 1, -1) * missed / 5
    found = sum(rejected(generator.choice(10, size, p=law), generator.choice(10, size, p=other)) for _ in range(12))
    assert found >= 8  # 11 expected


def test_rows_of_one_seed_are_swapped_together() -> None:
    """Thirty prompts that share the random numbers of ten seeds: to swap each alone finds a difference where there is none."""
    generator = np.random.default_rng(3)
    alone = together = 0
    for _ in range(10):
        first, second = (np.tile(generator.integers(0, 5, (10, 1)), (30, 1)) for _ in range(2))
        alone += rejected(first, second)
        together += rejected(first, second, np.tile(np.arange(10), 30))
    assert alone > 5
    assert together <= 1


def test_honest_draws_of_peaked_laws_are_seldom_called_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 tokens, each of a law with one likely token: 2 alarms of 200 are expected, 8 or more have a chance of 1e-3.

    Fault: signs were swapped, as if the likely token's small difference lay as often on the other side.
    """
    monkeypatch.setattr(replayed, "RESAMPLES", 500)
    generator, alarms, swapped, found = np.random.default_rng(5), 0, 0, 0
    for trial in range(200):
        for first, is_biased in ((0.985, False), *([(0.94, True)] if trial < 40 else [])):
            law = [first, *[(1 - first) / 3] * 3]
            tokens = torch.from_numpy(generator.choice(4, 200, p=law))
            probs = torch.tensor([0.985, *[0.005] * 3], dtype=torch.float64).expand(200, 4)
            sums = replayed._unevenness(probs, tokens, np.random.default_rng(trial))
            is_off = drawn_test("law", sums, 200, LEVEL).p_value <= LEVEL
            if is_biased:
                found += is_off
                continue
            alarms += is_off
            if trial >= 60:
                continue
            place = tokens[:, None].numpy()
            own, start = np.where(place == 0, 0.985, 0.005), np.where(place == 0, 0, 0.98 + 0.005 * place)
            cells = np.diff(np.clip((np.linspace(0, 1, 9) - start) / own, 0, 1), axis=1) - 1 / 8
            assert cells.sum(0) == pytest.approx(sums[0], abs=1e-9)
            swapped += swap_tests({"law": Feature(cells, np.full(8, 50.0))}, np.arange(200), LEVEL)[0].p_value <= LEVEL
    assert alarms < 8
    assert swapped > 4  # of 60
    assert found > 35
