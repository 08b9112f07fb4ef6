"""The event simulation against Theorem 4.1, against sequences worked by hand, and against what units can physically do."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import ppd_laws
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ppd_events import Simulation, draw_matches, simulate

from harness.papers.ppd.figure_timeline import algorithm_2
from methods.errors import InputError
from methods.ppd import theory
from methods.ppd.theory import Costs


def spans_of(simulation: Simulation, unit: int) -> list[tuple[str, int, int, int, float, float]]:
    return [
        (span.part, span.first_layer, span.last_layer, span.token, span.start, span.end)
        for span in simulation.spans
        if span.unit == unit
    ]


def test_figure_2_of_the_paper() -> None:
    """Run length 3, k = 3, all matched: d + 2 d-bar in all, four units for 3 (d - d-bar) of it."""
    d, early = 8, 5
    simulation = simulate([1, 3, 2], num_layers=d, early_layer=early, num_candidates=3)
    assert simulation.latency == d + 2 * early
    instants = np.arange(simulation.latency) + 0.5
    busy = np.array([sum(span.start < instant < span.end for span in simulation.spans) for instant in instants])
    assert (busy == 4).sum() == 3 * (d - early)
    assert (busy == 1).sum() == simulation.latency - 3 * (d - early)
    assert simulation.run_lengths == (3,)


def test_a_timeline_by_hand() -> None:
    """Four layers, early head after two, heads of 1 and 0.5, a request takes 0.25, a hand-over 0.125; match, then none."""
    costs = Costs(early_head=1, final_head=0.5, request=0.25, hand_over=0.125)
    simulation = simulate([True, False, True], num_layers=4, early_layer=2, num_candidates=1, costs=costs)
    assert spans_of(simulation, 0) == [
        ("layers", 1, 2, 0, 0, 2),
        ("early_head", 2, 2, 0, 2, 3),
        ("layers", 3, 4, 0, 3, 5),
        ("final_head", 4, 4, 0, 5, 5.5),
        ("hand_over", 2, 2, 1, 5.5, 5.625),
        ("early_head", 2, 2, 1, 5.625, 6.625),
        ("layers", 3, 4, 1, 6.625, 8.625),
        ("final_head", 4, 4, 1, 8.625, 9.125),
        ("layers", 1, 2, 2, 9.125, 11.125),
        ("early_head", 2, 2, 2, 11.125, 12.125),
        ("layers", 3, 4, 2, 12.125, 14.125),
        ("final_head", 4, 4, 2, 14.125, 14.625),
    ]
    assert spans_of(simulation, 1) == [
        ("layers", 1, 2, 1, 3.25, 5.25),
        ("layers", 1, 2, 2, 6.875, 8.875),
        ("layers", 1, 2, 3, 12.375, 14.375),
    ]
    assert (simulation.latency, simulation.num_runs, simulation.run_lengths) == (14.625, 2, (2, 1))
    assert simulation.compute == 14.625 + 6
    assert simulation.compute_per_time_unit == 20.625 / 14.625
    assert simulation.utilisation == 20.625 / 14.625 / 2
    assert simulation.waiting == 0


def test_the_main_process_waits_for_a_late_sub_process() -> None:
    """A request that takes 3 delays every matched token by 3, unless a final head of 2 hides 2 of them."""
    matches = [1] * 5
    late = simulate(matches, num_layers=8, early_layer=5, num_candidates=2, costs=Costs(request=3))
    assert (late.latency, late.waiting) == (8 + 4 * (5 + 3), 4 * 3)
    hidden = simulate(matches, num_layers=8, early_layer=5, num_candidates=2, costs=Costs(request=3, final_head=2))
    assert (hidden.latency, hidden.waiting) == (8 + 2 + 4 * (5 + 2 + 1), 4 * 1)
    taken = simulate(
        matches, num_layers=8, early_layer=5, num_candidates=2, costs=Costs(sub_layer=2, final_head=1), late="take_over"
    )
    # 3 + 1 after the request two layers of 2 are done: the main process runs the third itself instead of waiting 2 for it.
    assert taken.latency == 8 + 1 + 4 * (6 + 1)
    assert taken.waiting == 0


@pytest.mark.parametrize(("num_layers", "early_layer"), [(2, 1), (4, 2), (5, 3), (8, 6), (9, 8)])
@pytest.mark.parametrize("num_candidates", [1, 3])
@pytest.mark.parametrize("late", ["wait", "take_over"])
def test_each_sequence_takes_exactly_what_the_proof_says(num_layers: int, early_layer: int, num_candidates: int, late) -> None:
    generator = np.random.default_rng(num_layers)
    for num_tokens in (1, 2, 5, 12):
        for _ in range(4):
            winners = generator.integers(0, num_candidates + 1, num_tokens)
            simulation = simulate(
                winners, num_layers=num_layers, early_layer=early_layer, num_candidates=num_candidates, late=late
            )
            num_runs = 1 + int((winners[:-1] == 0).sum())
            latency = early_layer * num_tokens + (num_layers - early_layer) * num_runs
            assert simulation.latency == latency
            assert simulation.compute == latency + num_candidates * (num_layers - early_layer) * num_tokens
            assert simulation.num_runs == num_runs
            assert sum(simulation.run_lengths) == num_tokens


SAMPLED = [
    (d, early, tokens, candidates, rate)
    for d, early in ((4, 2), (5, 4), (7, 4))
    for tokens in (2, 8)
    for candidates in (1, 3)
    for rate in (0.2, 0.8)
]
REPLICAS = 60


@pytest.fixture(scope="module")
def sampled_means() -> list[np.ndarray]:
    """Simulated mean latency and compute at each point of the grid, from independent matches."""
    generator, means = np.random.default_rng(0), []
    for d, early, tokens, candidates, rate in SAMPLED:
        runs = [
            simulate(draw_matches(rate, tokens, generator), num_layers=d, early_layer=early, num_candidates=candidates)
            for _ in range(REPLICAS)
        ]
        means.append(np.mean([[run.latency, run.compute] for run in runs], 0))
    return means


def standard_scores(means: list[np.ndarray], formula) -> list[float]:
    scores = []
    for (d, early, tokens, candidates, rate), measured in zip(SAMPLED, means, strict=True):
        error = ppd_laws.latency_std(d, early, tokens, rate) / REPLICAS**0.5
        scores += [*(np.abs(measured - formula(d, early, tokens, candidates, rate)) / error)]
    return scores


def test_bernoulli_matches_give_theorem_4_1_within_sampling_error(sampled_means) -> None:
    """48 standard scores (latency and compute share their noise) below 4.5: false alarm under 4e-4, and the seed is fixed."""
    scores = standard_scores(sampled_means, lambda d, e, n, k, p: (theory.latency(d, e, n, p), theory.compute(d, e, n, k, p)))
    assert len(scores) == 48
    assert max(scores) < 4.5
    # Neither are they too good: this many half-normal scores have a root mean square near 1.
    assert 0.6 < np.sqrt(np.mean(np.square(scores))) < 1.4


def test_sampling_error_is_small_enough_to_reject_near_misses(sampled_means) -> None:
    """The theorem without its "- 1", and sub-processes that skip the last token."""

    def no_minus_1(d: int, e: int, n: int, k: int, p: float) -> tuple[float, float]:
        return d * n - (d - e) * n * p, d * n - (d - e) * n * p + k * (d - e) * n

    def last_skipped(d: int, e: int, n: int, k: int, p: float) -> tuple[float, float]:
        return theory.latency(d, e, n, p), theory.compute(d, e, n, k, p) - k * (d - e)

    assert max(standard_scores(sampled_means, no_minus_1)) > 10
    assert max(standard_scores(sampled_means, last_skipped)) > 10


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    winners=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    layers=st.tuples(st.integers(2, 9), st.floats(0, 1)),
    times=st.tuples(*[st.integers(0, 24)] * 4),
    sub_layer=st.integers(1, 16),
    early_head=st.sampled_from(["main", "sub"]),
)
def test_measured_costs_by_closed_form_equal_the_events(winners, layers, times, sub_layer, early_head) -> None:
    """Times are multiples of 1/8, so that sums are exact. The form's one condition holds: what is discarded ends in time."""
    num_layers = layers[0]
    half = (num_layers + 1) // 2
    early_layer = min(half + int(layers[1] * (num_layers - half)), num_layers - 1)
    early, final, request, hand_over = (time / 8 for time in times)
    costs = Costs(
        sub_layer=min(sub_layer / 8, early_layer),
        early_head=min(early, early_layer),
        final_head=final,
        request=request,
        hand_over=hand_over,
    )
    simulation = simulate(
        winners, num_layers=num_layers, early_layer=early_layer, num_candidates=2, costs=costs, early_head=early_head
    )
    expected = ppd_laws.sequence_latency(np.array(winners) > 0, num_layers, early_layer, costs, early_head)
    assert simulation.latency == pytest.approx(expected, abs=1e-9)


def check_physics(simulation: Simulation, winners: Sequence[int], num_layers: int) -> None:
    """One thing at a time; a token's layers once each on the winning path, after the layer below and after the token before."""
    for unit in range(simulation.num_units):
        spans = [span for span in simulation.spans if span.unit == unit]
        assert all(after.start >= before.end for before, after in pairwise(spans))
    ready: dict[tuple[int, int], float] = {}
    for token in range(len(winners)):
        winner = winners[token - 1] if token else 0
        path = [span for span in simulation.spans if span.part == "layers" and span.token == token and span.unit in {0, winner}]
        covered = sorted((layer, span) for span in path for layer in range(span.first_layer, span.last_layer + 1))
        assert [layer for layer, _ in covered] == list(range(1, num_layers + 1))
        for layer, span in covered:
            pace = (span.end - span.start) / (span.last_layer - span.first_layer + 1)
            end = span.start + (layer - span.first_layer + 1) * pace
            assert end - pace >= ready.get((token, layer - 1), 0) - 1e-9
            assert end - pace >= ready.get((token - 1, layer), 0) - 1e-9
            ready[token, layer] = end


@pytest.mark.parametrize("early_layer", [1, 3, 4, 6])
@pytest.mark.parametrize("late", ["wait", "take_over"])
@pytest.mark.parametrize("early_head", ["main", "sub"])
def test_timelines_are_possible(early_layer: int, late, early_head) -> None:
    generator = np.random.default_rng(early_layer)
    dear = Costs(sub_layer=1.5, early_head=0.75, final_head=0.5, request=0.25, hand_over=0.5)
    for costs in (Costs(), dear):
        for _ in range(10):
            winners = generator.integers(0, 4, 9).tolist()
            simulation = simulate(
                winners, num_layers=8, early_layer=early_layer, num_candidates=3, costs=costs, early_head=early_head, late=late
            )
            check_physics(simulation, winners, 8)
            assert 0 < simulation.utilisation <= 1
            assert max(span.end for span in simulation.spans) == simulation.latency


def below_half(num_layers: int, early_layer: int, runs: Sequence[int], late: str) -> float:
    """Layers, by run: d for the first token, d-bar for the second, then the successor's sub-process is behind."""
    time = 0
    for length in runs:
        time += num_layers
        for matched in range(1, length):
            quick = matched == 1 or (late == "take_over" and matched % 2 == 1)
            time += early_layer if quick else num_layers - early_layer
    return time


@pytest.mark.parametrize("late", ["wait", "take_over"])
def test_below_half_the_theorem_would_promise_too_much(late) -> None:
    generator = np.random.default_rng(3)
    for num_layers, early_layer in ((8, 3), (8, 1), (9, 4), (40, 10)):
        matches = draw_matches(0.7, 30, generator)
        simulation = simulate(matches, num_layers=num_layers, early_layer=early_layer, num_candidates=1, late=late)
        assert simulation.latency == below_half(num_layers, early_layer, simulation.run_lengths, late)
        promised = early_layer * 30 + (num_layers - early_layer) * simulation.num_runs
        assert simulation.latency > promised


def test_below_half_taking_over_tends_to_half() -> None:
    all_matched = simulate([1] * 101, num_layers=8, early_layer=2, num_candidates=1, late="take_over")
    assert all_matched.latency == 8 + 100 * 4
    waiting = simulate([1] * 101, num_layers=8, early_layer=2, num_candidates=1, late="wait")
    assert waiting.latency == 8 + 2 + 99 * 6
    rate, share = 0.6, 2 / 8
    matches = draw_matches(rate, 2000, np.random.default_rng(4))
    sampled = simulate(matches, num_layers=8, early_layer=2, num_candidates=1, late="take_over")
    limit = 1 - rate * (1 - (1 - rate) * share) / (1 + rate)
    assert sampled.latency / 8 / 2000 == pytest.approx(limit, abs=0.015)
    assert theory.half_depth_latency_per_token(rate) - limit > 0.03
    assert limit - (1 - (1 - share) * rate) > 0.1


def test_layers_are_not_cut_short_and_units_start_late_if_busy() -> None:
    """A sub-process's long layer outlasts the miss and the main process's next two layers: the next request waits for it."""
    simulation = simulate([0, 0], num_layers=4, early_layer=2, num_candidates=1, costs=Costs(sub_layer=10))
    assert simulation.latency == 8
    assert spans_of(simulation, 1) == [("layers", 1, 1, 1, 2, 8)]
    longer = simulate([0, 0, 0], num_layers=4, early_layer=2, num_candidates=1, costs=Costs(sub_layer=7))
    assert spans_of(longer, 1) == [("layers", 1, 1, 1, 2, 9), ("layers", 1, 1, 3, 10, 12)]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="early_layer 8: expected 1 to 7"):
        simulate([1], num_layers=8, early_layer=8, num_candidates=1)
    with pytest.raises(InputError, match=r"matches\[1\] 2: expected 0 \(none\) or a candidate from 1 to 1"):
        simulate([1, 2], num_layers=8, early_layer=4, num_candidates=1)
    with pytest.raises(InputError, match="num_tokens 0"):
        simulate([], num_layers=8, early_layer=4, num_candidates=1)
    with pytest.raises(InputError, match="num_candidates 0"):
        simulate([0], num_layers=8, early_layer=4, num_candidates=0)


@pytest.mark.parametrize(("num_layers", "early_layer"), [(2, 1), (5, 3), (8, 3), (8, 1), (9, 8)])
def test_figure_2_draws_what_the_events_are(num_layers: int, early_layer: int) -> None:
    """The figure's recursion against the simulation of one token more, whose candidates are not drawn."""
    for hits in product((0, 1), repeat=5):
        spans = simulate([*hits, 0], num_layers=num_layers, early_layer=early_layer, num_candidates=1).spans
        expected = {
            (span.unit, span.token - span.unit, span.first_layer, span.last_layer, span.start, span.end)
            for span in spans
            if span.token - span.unit < len(hits)
        }
        drawn = {(*stretch, stretch[4] + stretch[3] - stretch[2] + 1) for stretch in algorithm_2(hits, num_layers, early_layer)}
        assert drawn == expected
