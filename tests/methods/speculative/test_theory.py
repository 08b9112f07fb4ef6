"""The closed forms against the paper's printed digits, Monte Carlo and brute force."""

import csv
from pathlib import Path

import numpy as np
import pytest
import theory_laws

from methods.errors import InputError
from methods.speculative import theory

PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published" / "leviathan"


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def random_laws(count: int, vocab_size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.full(vocab_size, 0.5), count), generator.dirichlet(np.full(vocab_size, 0.5), count)


def test_table_1_to_the_printed_digit() -> None:
    table = rows("table_1")
    assert len(table) == 6
    for row in table:
        alpha, gamma = float(row["alpha"]), int(row["gamma"])
        assert f"{theory.expected_tokens(alpha, gamma):.2f}" == row["speed_x"]
        assert f"{theory.operations_factor(alpha, gamma):.2f}" == f"{float(row['operations_x']):.2f}"


def test_table_4_within_the_rounding_of_alpha_and_c() -> None:
    table = rows("table_4")
    assert len(table) == 12
    for row in table:
        alpha, gamma, cost, printed = float(row["alpha"]), int(row["gamma"]), float(row["c"]), float(row["exp_x"])
        low = theory.walltime_factor(alpha - 0.005, gamma, cost + 0.005)
        high = theory.walltime_factor(alpha + 0.005, gamma, cost - 0.005)
        assert low - 0.05 <= printed <= high + 0.05
        if row["check"] == "agrees":
            assert f"{theory.walltime_factor(alpha, gamma, cost):.1f}" == f"{printed:.1f}"


def test_section_3_6_and_a_5_by_their_numbers() -> None:
    assert f"{theory.expected_tokens(0.2, 3):.2f}" == "1.25"
    speeds = theory.walltime_factor(np.array([0.75, 0.75, 0.8, 0.87]), 8, 0.015)
    assert [f"{speed:.1f}" for speed in speeds] == ["3.3", "3.3", "3.9", "4.9"]


def test_expected_tokens_is_the_mean_of_a_capped_geometric() -> None:
    for alpha in (0.0, 0.3, 0.8, 0.999999, 1.0):
        for gamma in (0, 1, 5, 10):
            direct = sum(alpha**i for i in range(gamma + 1))
            np.testing.assert_allclose(theory.expected_tokens(alpha, gamma), direct, rtol=1e-12)
    generator = np.random.default_rng(0)
    accepted = (generator.random((200_000, 5)) < 0.7).cumprod(1).sum(1)
    np.testing.assert_allclose(theory.expected_tokens(0.7, 5), (accepted + 1).mean(), rtol=0.01)
    with pytest.raises(InputError, match="alpha"):
        theory.expected_tokens(1.1, 3)


def test_operations_by_counting() -> None:
    """gamma + 1 target tokens a round, over the tokens that it yields."""
    generator = np.random.default_rng(1)
    tokens = (generator.random((200_000, 4)) < 0.6).cumprod(1).sum(1) + 1
    np.testing.assert_allclose(theory.operations_factor(0.6, 4), 5 / tokens.mean(), rtol=0.01)


def test_divergence_and_acceptance() -> None:
    """Lemma 3.3, Corollary 3.4, Theorem 3.5 and A.5 in each of their printed forms."""
    target, draft = random_laws(300, 8)
    divergence, rate = theory_laws.divergence(target, draft), theory_laws.acceptance_rate(target, draft)
    np.testing.assert_allclose(rate, 1 - divergence)
    np.testing.assert_allclose(rate, (draft * np.minimum(1, target / draft)).sum(-1))
    np.testing.assert_allclose(divergence, theory_laws.divergence(draft, target))
    assert theory_laws.divergence([0.5, 0.5, 0], [0, 0, 1]) == 1
    assert theory_laws.divergence([0.5, 0.5], [0.5, 0.5]) == 0
    for lenience in (0.1, 0.5, 1.0):
        lenient = theory_laws.acceptance_rate(target, draft, lenience)
        np.testing.assert_allclose(lenient, (target * draft / np.maximum(target, lenience * draft)).sum(-1))
        assert np.all(lenient >= rate - 1e-12)


def test_rejection_sampling_is_never_better() -> None:
    """A.2, with M = max target / draft."""
    target, draft = random_laws(300, 8)
    rate = theory_laws.rejection_sampling_rate(target, draft)
    np.testing.assert_allclose(rate, 1 / (target / draft).max(-1))
    assert np.all(rate <= theory_laws.acceptance_rate(target, draft) + 1e-12)
    assert theory_laws.rejection_sampling_rate([0.5, 0.5], [1.0, 0.0]) == 0


def test_optimal_gamma_is_the_exhaustive_maximum() -> None:
    compared = 0
    for row in rows("figure_3_computed"):
        alpha, cost, gamma = float(row["alpha"]), float(row["c"]), int(row["optimal_gamma"])
        assert theory.optimal_gamma(alpha, cost, 256) == gamma
        np.testing.assert_allclose(theory.walltime_factor(alpha, gamma, cost), float(row["speed_at_optimum"]), atol=1e-6)
        compared += 1
    assert compared > 50
    assert theory.optimal_gamma(0.3, 0.3) == 0
    assert theory.optimal_gamma(1.0, 0.1, 7) == 7


def test_corollary_3_9_and_the_oracle() -> None:
    for alpha in np.linspace(0, 0.99, 34):
        for cost in (0.0, 0.02, 0.2, 0.9):
            best = theory.walltime_factor(alpha, theory.optimal_gamma(alpha, cost, 400), cost)
            guaranteed = theory_laws.guaranteed_factor(alpha, cost)
            assert best >= guaranteed - 1e-12
            assert (guaranteed > 1) == (alpha > cost)
            assert theory.oracle_factor(alpha, cost) >= best - 1e-9
    generator = np.random.default_rng(2)
    drafts = generator.geometric(1 - 0.8, 200_000) - 1
    np.testing.assert_allclose(theory.oracle_factor(0.8, 0.05), (drafts + 1).mean() / (1 + 0.05 * drafts).mean(), rtol=0.01)
    gains = [
        theory.oracle_factor(a, 0.01) / theory.walltime_factor(a, theory.optimal_gamma(a, 0.01, 400), 0.01) for a in (0.9, 0.99)
    ]
    assert gains[0] < gains[1] < 1.6


def test_predicted_speedup_is_theorem_3_8_where_its_assumptions_hold() -> None:
    predicted = theory.predicted_speedup(theory.expected_tokens(0.8, 5), 0.1, 0.1 * 0.05, 0.1, 0.0, 5)
    np.testing.assert_allclose(predicted, theory.walltime_factor(0.8, 5, 0.05))


def test_an_unknown_alpha_gives_an_unknown_number() -> None:
    assert np.isnan(theory.expected_tokens(np.nan, 3))
    assert np.isnan(theory.walltime_factor(np.nan, 3, 0.1))
