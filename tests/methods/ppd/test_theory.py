"""The closed forms of PPD against enumeration of every match sequence, and against the paper's printed numbers."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import ppd_laws
import pytest

from methods.errors import InputError
from methods.ppd import theory
from methods.ppd.theory import Costs

PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published" / "ppd"
GRID = [
    (num_layers, early_layer, num_tokens, num_candidates, rate)
    for num_layers, early_layer in ((2, 1), (4, 2), (5, 3), (8, 4), (8, 7), (40, 30))
    for num_tokens in (1, 2, 3, 7)
    for num_candidates in (1, 3)
    for rate in (0.0, 0.3, 0.85, 1.0)
]


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def claims() -> dict[str, str]:
    return {row["claim"]: row["value"] for row in rows("text_claims")}


def sequences(num_tokens: int, rate: float) -> Iterator[tuple[tuple[bool, ...], float]]:
    """Every sequence of matches and its probability."""
    for matches in product((False, True), repeat=num_tokens):
        yield matches, prod(rate if match else 1 - rate for match in matches)


def runs_of(matches: tuple[bool, ...]) -> list[int]:
    """Lengths of runs, by walking: a token whose predecessor matched lengthens the run."""
    lengths = [1]
    for match in matches[:-1]:
        if match:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def walk(matches: tuple[bool, ...], num_layers: int, early_layer: int, num_candidates: int) -> tuple[float, float]:
    """Latency and compute by what the proof says of a run: T = d + (X - 1) d-bar; (d - d-bar) X of it on k + 1 units."""
    time = spent = 0
    for length in runs_of(matches):
        run_time = num_layers + (length - 1) * early_layer
        together = (num_layers - early_layer) * length
        time += run_time
        spent += run_time - together + (num_candidates + 1) * together
    return time, spent


def enumerated(num_layers: int, early_layer: int, num_tokens: int, num_candidates: int, rate: float) -> tuple[float, float]:
    """Expected latency and compute over all sequences."""
    totals = np.zeros(2)
    for matches, chance in sequences(num_tokens, rate):
        totals += chance * np.array(walk(matches, num_layers, early_layer, num_candidates))
    return float(totals[0]), float(totals[1])


def test_theorem_4_1_is_the_mean_over_all_match_sequences() -> None:
    for d, early, tokens, candidates, rate in GRID:
        time, spent = enumerated(d, early, tokens, candidates, rate)
        np.testing.assert_allclose(theory.latency(d, early, tokens, rate), time, rtol=1e-12)
        np.testing.assert_allclose(theory.compute(d, early, tokens, candidates, rate), spent, rtol=1e-12)
        np.testing.assert_allclose(ppd_laws.speedup(d, early, tokens, rate), d * tokens / time, rtol=1e-12)
    assert len(GRID) == 192


WRONG: dict[str, Callable[[int, int, int, int, float], tuple[float, float]]] = {
    "the last token's match counts": lambda d, e, n, k, p: (d * n - (d - e) * n * p, d * n - (d - e) * n * p + k * (d - e) * n),
    "d-bar for d - d-bar": lambda d, e, n, k, p: (d * n - e * (n - 1) * p, d * n - e * (n - 1) * p + k * e * n),
    "Equation 3 for short texts": lambda d, e, n, k, p: (d * n * (1 - p / 2), d * n * (2 + k - p) / 2),
    "sub-processes on matches only": lambda d, e, n, k, p: (
        d * n - (d - e) * (n - 1) * p,
        d * n + (k - 1) * (d - e) * (n - 1) * p,
    ),
    "none for the last token": lambda d, e, n, k, p: (
        d * n - (d - e) * (n - 1) * p,
        d * n - (d - e) * (n - 1) * p + k * (d - e) * (n - 1),
    ),
    "k + 1 sub-processes": lambda d, e, n, k, p: (
        d * n - (d - e) * (n - 1) * p,
        d * n - (d - e) * (n - 1) * p + (k + 1) * (d - e) * n,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_enumeration_tells_wrong_forms_apart(name: str) -> None:
    assert any(not np.allclose(WRONG[name](*point), enumerated(*point), rtol=1e-3) for point in GRID)


def test_latency_of_a_sequence_and_its_spread() -> None:
    for d, early, tokens, candidates, rate in GRID:
        mean = square = 0.0
        for matches, chance in sequences(tokens, rate):
            time = walk(matches, d, early, candidates)[0]
            assert ppd_laws.sequence_latency(np.array(matches), d, early) == time
            mean, square = mean + chance * time, square + chance * time**2
        spread = np.sqrt(max(square - mean**2, 0))
        np.testing.assert_allclose(ppd_laws.latency_std(d, early, tokens, rate), spread, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 9])
def test_laws_of_runs_by_enumeration(num_tokens: int, rate: float) -> None:
    number, first, last, counts = (Counter[int]() for _ in range(4))
    for matches, chance in sequences(num_tokens, rate):
        lengths = runs_of(matches)
        number[len(lengths)] += chance
        first[lengths[0]] += chance
        last[lengths[-1]] += chance
        for length in lengths:
            counts[length] += chance
    for law, tally in (
        (ppd_laws.num_runs_probs(num_tokens, rate), number),
        (ppd_laws.run_length_probs(num_tokens, rate), first),
        (ppd_laws.run_length_probs(num_tokens, rate), last),
        (ppd_laws.expected_run_counts(num_tokens, rate), counts),
    ):
        np.testing.assert_allclose(law, [tally[value] for value in range(1, num_tokens + 1)], atol=1e-12)
    mean = sum(value * chance for value, chance in number.items())
    np.testing.assert_allclose(ppd_laws.expected_num_runs(num_tokens, rate), mean)


def test_laws_of_runs_broadcast_and_stand_long_texts() -> None:
    rates = np.linspace(0, 1, 5)
    for law in (ppd_laws.num_runs_probs, ppd_laws.run_length_probs):
        assert law(1500, rates).shape == (5, 1500)
        np.testing.assert_allclose(law(1500, rates).sum(-1), 1)
    np.testing.assert_allclose(ppd_laws.expected_run_counts(1500, rates) @ np.arange(1, 1501), 1500)
    np.testing.assert_allclose(ppd_laws.expected_run_counts(1500, rates).sum(-1), ppd_laws.expected_num_runs(1500, rates))


def test_a_run_is_geometric_only_where_there_is_room() -> None:
    """The paper's E[X] = 1 / (1 - p) is the limit; with 16 tokens and p = 0.9 the first run is shorter."""
    lengths = np.arange(1, 2001)
    np.testing.assert_allclose(ppd_laws.run_length_probs(2000, 0.9) @ lengths, 10)
    np.testing.assert_allclose(ppd_laws.run_length_probs(16, 0.9) @ lengths[:16], (1 - 0.9**16) / 0.1)


def test_equations_3_5_and_6_are_the_theorem_at_half_depth_for_many_tokens() -> None:
    rates, many = np.linspace(0, 1, 11), 10**9
    for candidates in (1, 3, 5):
        time, spent = theory.latency(40, 20, many, rates), theory.compute(40, 20, many, candidates, rates)
        for equation, limit, exact in (
            (theory.half_depth_latency_per_token(rates), theory.latency_per_token(40, 20, rates), time / many / 40),
            (
                theory.half_depth_compute_per_time_unit(rates, candidates),
                theory.compute_per_time_unit(40, 20, candidates, rates),
                spent / time,
            ),
            (
                ppd_laws.half_depth_compute_per_token(rates, candidates),
                theory.compute_per_token(40, 20, candidates, rates),
                spent / many / 40,
            ),
        ):
            np.testing.assert_allclose(equation, limit, rtol=1e-12)
            np.testing.assert_allclose(limit, exact, rtol=1e-8)
    np.testing.assert_allclose(theory.latency_per_token(40, 30, 0.6), 1 - 0.6 / 4)
    np.testing.assert_allclose(theory.compute_per_token(40, 30, 3, 0.6), 1 - 0.6 / 4 + 3 / 4)


def test_figures_3_and_4_to_every_digit() -> None:
    table = rows("figure_3_4_computed")
    assert len(table) == 18
    for row in table:
        rate, candidates = float(row["p_correct"]), int(row["k"])
        assert f"{theory.half_depth_latency_per_token(rate):.5f}" == row["latency_per_token_over_d"]
        assert f"{theory.half_depth_compute_per_time_unit(rate, candidates):.5f}" == row["avg_compute_per_time_unit"]
        assert f"{ppd_laws.half_depth_compute_per_token(rate, candidates):.5f}" == row["compute_per_token_over_d"]


def rate_of(dataset: str, num_candidates: int, trained: str, layer: int = 20) -> float:
    wanted = (dataset, str(num_candidates), trained, str(layer))
    (row,) = [row for row in rows("table_2") if (row["dataset"], row["k"], row["trained"], row["layer"]) == wanted]
    return float(row["match_rate_pct"]) / 100


def test_the_four_numbers_of_the_text() -> None:
    best, worst = rate_of("SQUAD", 5, "Y"), rate_of("WMT", 1, "N")
    printed = claims()
    assert f"{theory.half_depth_latency_per_token(best):.3f}" == printed["min normalized latency (SQUAD+tr, k=5)"] == "0.629"
    assert (
        f"{theory.half_depth_latency_per_token(worst):.3f}"
        == printed["max normalized latency (WMT, k=1, untrained)"]
        == "0.892"
    )
    assert f"{theory.half_depth_compute_per_time_unit(worst, 1):.3f}" == printed["min compute factor"] == "1.561"
    assert f"{theory.half_depth_compute_per_time_unit(best, 5):.3f}" == printed["max compute factor"] == "4.973"
    savings = [100 * (1 - theory.half_depth_latency_per_token(rate)) for rate in (worst, best)]
    assert "-".join(f"{saving:.1f}" for saving in savings) == printed["latency improvement range pct"]


def test_the_caption_of_figure_3_agrees_in_latency_and_not_in_compute() -> None:
    """ "34 %" is Eq. 3; its "3.2 times" is not Eq. 5, which gives 3.279."""
    rate, printed = rate_of("SQUAD", 3, "Y"), claims()
    assert (
        f"{100 * (1 - theory.half_depth_latency_per_token(rate)):.0f}"
        == printed["Fig 3 caption: SQUAD tr k=3 latency reduction pct"]
    )
    factor = theory.half_depth_compute_per_time_unit(rate, 3)
    assert f"{factor:.3f}" == "3.279"
    assert f"{factor:.1f}" != printed["Fig 3 caption: SQUAD tr k=3 compute factor"] == "3.2"
    exact = theory.compute(40, 20, 16, 3, rate) / theory.latency(40, 20, 16, rate)
    assert f"{exact:.4f}" == "3.2075"
    assert f"{100 * (1 - theory.latency(40, 20, 16, rate) / 640):.1f}" == "32.0"


def test_free_heads_and_communication_give_theorem_4_1() -> None:
    rates = np.linspace(0, 1, 5)
    for d, early, tokens, _, _ in GRID[::8]:
        free = theory.expected_latency(d, early, tokens, rates, Costs())
        np.testing.assert_allclose(free, theory.latency(d, early, tokens, rates), rtol=1e-12)
        saved = d - theory.latency(d, early, tokens, rates) / tokens
        np.testing.assert_allclose(ppd_laws.attainable(d, early, tokens, rates, Costs()), saved, atol=1e-12)


def test_expected_latency_is_the_mean_over_sequences_and_attainable_its_best() -> None:
    costs = Costs(layer=2.0, sub_layer=3.0, early_head=1.5, final_head=2.5, request=4.0, hand_over=0.5)
    for early_head in ("main", "sub"):
        mean = sum(
            chance * ppd_laws.sequence_latency(np.array(matches), 10, 6, costs, early_head)
            for matches, chance in sequences(6, 0.7)
        )
        np.testing.assert_allclose(ppd_laws.expected_latency(10, 6, 6, 0.7, costs, early_head), mean)
    np.testing.assert_allclose(theory.expected_latency(10, 6, 6, 0.7, costs), ppd_laws.expected_latency(10, 6, 6, 0.7, costs))
    by_hand = {"first": 10 * 2 + 1.5 + 2.5, "matched": 6 * 2 + 1.5 + 2.5}
    ppd = (by_hand["first"] + 5 * (0.7 * by_hand["matched"] + 0.3 * by_hand["first"])) / 6
    np.testing.assert_allclose(ppd_laws.attainable(10, 6, 6, 0.7, costs), 10 * 2 + 2.5 - ppd)
    np.testing.assert_allclose(ppd_laws.greedy_latency_per_token(10, costs), 22.5)
    lost = theory.expected_latency(10, 6, 6, 0.7, costs) / 6 - ppd
    np.testing.assert_allclose(lost, (5 / 6) * 0.7 * ((4 + 4 * 3 - 4 * 2 - 2.5) + 0.5))
    assert ppd_laws.attainable(10, 6, 6, 0.0, costs) == pytest.approx(-1.5)


def test_an_early_head_beside_the_main_process_is_hidden_by_the_final_one() -> None:
    costs = Costs(early_head=3.0, final_head=3.0)
    assert ppd_laws.token_latency(20, 10, costs, "sub") == (23.0, 10.0)
    assert ppd_laws.token_latency(20, 10, costs, "main") == theory.token_latency(20, 10, costs) == (26.0, 10.0)
    assert ppd_laws.token_latency(20, 10, Costs(early_head=4.0, final_head=3.0), "sub") == (23.0, 9.0)


def test_measured_lengths_enter_by_their_mean() -> None:
    """Useful rate and mean length of generations that differ give the exact total."""
    generator = np.random.default_rng(0)
    generations = [generator.random(length) < 0.6 for length in (3, 9, 20)]
    costs = Costs(early_head=0.5, final_head=0.5)
    total = sum(ppd_laws.sequence_latency(matches, 12, 8, costs) for matches in generations)
    useful = np.concatenate([matches[:-1] for matches in generations]).mean()
    np.testing.assert_allclose(3 * theory.expected_latency(12, 8, 32 / 3, useful, costs), total)


def test_below_half_the_theorem_is_refused_with_the_reason() -> None:
    with pytest.raises(
        InputError, match=r"early_layer 10: expected at least half of the 40 layers.*30 layers.*k \+ 1 units.*20"
    ):
        theory.latency(40, 10, 16, 0.06)
    with pytest.raises(InputError, match="use 3 or more"):
        theory.latency_per_token(5, 2, 0.5)
    assert theory.latency(5, 3, 1, 0.5) == 5


@pytest.mark.parametrize("early_layer", [-1, 0, 8, 9])
def test_layers_outside_the_model_are_refused(early_layer: int) -> None:
    with pytest.raises(InputError, match=f"early_layer {early_layer}: expected 1 to 7"):
        theory.compute(8, early_layer, 4, 1, 0.5)


@pytest.mark.parametrize("rate", [-0.01, 1.01, float("nan")])
def test_rates_outside_0_to_1_are_refused(rate: float) -> None:
    for form in (
        lambda: theory.latency(8, 4, 4, [0.5, rate]),
        lambda: theory.half_depth_latency_per_token(rate),
        lambda: theory.half_depth_compute_per_time_unit(rate, 1),
    ):
        with pytest.raises(InputError, match="match_rate"):
            form()


def test_counts_below_1_and_impossible_costs_are_refused() -> None:
    with pytest.raises(InputError, match="num_candidates 0"):
        theory.compute(8, 4, 4, 0, 0.5)
    with pytest.raises(InputError, match="num_candidates 0"):
        theory.half_depth_compute_per_time_unit(0.5, 0)
    with pytest.raises(InputError, match="num_tokens 0"):
        theory.latency(8, 4, 0, 0.5)
    with pytest.raises(InputError, match="num_tokens 0"):
        ppd_laws.sequence_latency(np.zeros((3, 0), dtype=bool), 8, 4)
    with pytest.raises(InputError, match="hand_over -1"):
        Costs(hand_over=-1)
    with pytest.raises(InputError, match="layer nan"):
        Costs(layer=float("nan"))
