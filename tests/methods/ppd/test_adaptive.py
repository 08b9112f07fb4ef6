"""The adaptive planner finds the plan that is fastest at known ranks and costs, and changes nothing in what is emitted."""

import random
from collections.abc import Callable
from itertools import product

import pytest
import torch
from ppd_events import simulate

from methods.autoregressive import Autoregressive
from methods.cores import num_cores
from methods.errors import InputError
from methods.models.base import Stack
from methods.ppd import plans
from methods.ppd.heads import EarlyHead, OwnHead, TrainedHeads
from methods.ppd.options import EXECUTIONS
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.plans import MOST_CANDIDATES, NUM_OBSERVED, Adaptive, Execution, Plan, measured_costs
from methods.ppd.theory import Costs
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.steps import Step
from methods.types import Generation, Inputs, Stop

DEPTH = 6
LAYERS = (3, 4, 5)
PROMPT = Inputs(((5,),))
Build = Callable[..., Stack]
Ranks = dict[int, list[int]]


def costs_for(count: int, layer: float = 1.0, each: float = 0.3, early_head: float = 0.4) -> Costs:
    """A layer of the sub-process and the early head grow with the number of candidates."""
    return Costs(
        layer=layer, sub_layer=layer * (1 + each * count), early_head=early_head + 0.01 * count, final_head=0.5, request=0.05,
        hand_over=0.02,
    )  # fmt: skip


def round_of(costs: Costs, early: int, count: int, matched: bool) -> Step:
    """A round after a miss, as the pipeline would time it; half of the early head's cost is the request's."""
    ahead = DEPTH - early
    layers, early_head, post = early * costs.layer, costs.early_head / 2, costs.early_head / 2
    begin = layers + early_head + post + costs.request
    parts = [layers, early_head, post, ahead * costs.layer, costs.final_head, 0.0, costs.hand_over if matched else 0.0]
    units = [begin - 0.01, begin + ahead * costs.candidate_layer - 0.02] * (count - 1)
    units += [begin, begin + ahead * costs.candidate_layer]
    step = Step([], 0, 1, candidates=list(range(count)), matched=matched, early_layer=early, parts=parts, units=units)
    step.round_s = sum(parts)
    return step


def generation(length: int, plan: Plan, costs: Callable[[int], Costs] = costs_for) -> Generation:
    count = plan.num_candidates
    steps = [round_of(costs(count), plan.early_layer, count, matched=bool(index % 2)) for index in range(length - 1)]
    return Generation(list(range(length)), [*steps, Step([], 0, 1, early_layer=plan.early_layer)], "length")


def known_ranks(monkeypatch: pytest.MonkeyPatch, texts: list[Ranks]) -> list[list[int]]:
    """One text's ranks after another in place of forward passes; returns what layers were asked for."""
    asked: list[list[int]] = []

    def ranks(session, inputs, output, layers, head) -> torch.Tensor:
        asked.append(list(layers))
        return torch.tensor([[texts[len(asked) - 1][layer] for layer in layers]])

    monkeypatch.setattr(plans, "early_ranks", ranks)
    return asked


def random_texts(seed: int) -> list[Ranks]:
    draw = random.Random(seed)
    spread = {layer: draw.choice([1, 2, 4, 7]) for layer in LAYERS}
    lengths = [draw.randint(4, 9) for _ in range(NUM_OBSERVED)]
    return [{layer: [draw.randrange(spread[layer] + 1) for _ in range(n)] for layer in LAYERS} for n in lengths]


def seconds_by_events(texts: list[Ranks], plan: Plan, costs: Costs) -> float:
    """What these very texts would take by the simulator, which knows no formula."""
    matches = [[rank < plan.num_candidates for rank in text[plan.early_layer]] for text in texts]
    return sum(
        simulate(row, num_layers=DEPTH, early_layer=plan.early_layer, num_candidates=1, costs=costs).latency for row in matches
    )


@pytest.mark.parametrize("seed", range(12))
def test_it_settles_on_the_plan_of_least_time(deep: Build, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Every plan of the grid by discrete events; costs are linear in k here, so interpolation is exact."""
    draw, stack = random.Random(100 + seed), deep()
    texts = random_texts(seed)
    shape = {"each": draw.choice([0.0, 0.05, 0.3]), "early_head": draw.choice([0.0, 0.4, 2.0])}

    def costs(count: int) -> Costs:
        return costs_for(count, **shape)

    asked = known_ranks(monkeypatch, texts)
    planner, plans = Adaptive(OwnHead(), None, None, "batched"), []
    for text in texts:
        plans.append(planner.plan(stack))
        planner.observe(stack, PROMPT, generation(len(text[3]), plans[-1], costs))
    assert [(plan.early_layer, plan.num_candidates) for plan in plans[:2]] == [(3, 1), (3, MOST_CANDIDATES)]
    assert asked == [[3, 4, 5]] * NUM_OBSERVED
    grid = [Plan(early_layer=layer, num_candidates=count) for layer, count in product(LAYERS, range(1, MOST_CANDIDATES + 1))]
    times = {plan: seconds_by_events(texts, plan, costs(plan.num_candidates)) for plan in grid}
    assert times[planner.plan(stack)] == pytest.approx(min(times.values()))


def test_different_costs_make_different_plans(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates 1 to 5 right in turn: worth a batch of five where that is free, one where each costs half a layer."""
    stack, texts = deep(), [{layer: [0, 1, 2, 3, 4] * 4 for layer in LAYERS}] * 2
    chosen = []
    for each in (0.0, 0.5):
        known_ranks(monkeypatch, texts)
        planner = Adaptive(OwnHead(), None, None, "batched")
        for _ in range(2):
            seen = planner.plan(stack)
            planner.observe(stack, PROMPT, generation(20, seen, lambda count, each=each: costs_for(count, each=each)))
        chosen.append(planner.plan(stack).num_candidates)
    assert chosen == [5, 1]


def test_the_last_tokens_match_is_worth_nothing(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of two tokens: a match helps one token of two, and what only the last token would match counts for nothing."""
    stack = deep()

    def costs(count: int) -> Costs:
        return Costs(layer=1.0, early_head=0.5 * (count - 1))

    for first, chosen in ((4, 1), (0, 1), (1, 2)):
        known_ranks(monkeypatch, [{3: [first, 9], 4: [9, 0], 5: [9, 0]}] * 2)
        planner = Adaptive(OwnHead(), None, None, "batched")
        for _ in range(2):
            planner.observe(stack, PROMPT, generation(2, planner.plan(stack), costs))
        plan = planner.plan(stack)
        assert (plan.early_layer, plan.num_candidates) == (3, chosen)


def test_a_given_layer_or_number_is_kept(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, texts = deep(), random_texts(1)
    for layer, count in ((4, None), (None, 3), (5, 2)):
        asked = known_ranks(monkeypatch, texts)
        planner = Adaptive(OwnHead(), layer, count, "batched")
        assert planner.most_candidates == (count or MOST_CANDIDATES)
        for text in texts:
            plan = planner.plan(stack)
            assert plan.early_layer == layer or layer is None
            assert plan.num_candidates == count or count is None
            planner.observe(stack, PROMPT, generation(len(text[3]), plan))
        assert asked == [[4]] * 3 if layer == 4 else asked == [[layer] if layer else list(LAYERS)] * 3


def test_only_layers_with_a_trained_head_are_chosen(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, texts = deep(), random_texts(2)
    weight = stack.head_weight.t().clone()
    asked = known_ranks(monkeypatch, texts)
    planner = Adaptive(TrainedHeads({1: weight, 4: weight, 5: weight}, stack), None, None, "batched")
    planner.check(stack)
    for text in texts:
        plan = planner.plan(stack)
        assert plan.early_layer in (4, 5)
        planner.observe(stack, PROMPT, generation(len(text[3]), plan))
    assert asked == [[4, 5]] * 3
    with pytest.raises(InputError, match=r"trained heads: none from layer 3 on; expected one there"):
        Adaptive(TrainedHeads({2: weight}, stack), None, None, "batched").check(stack)


def test_what_the_model_cannot_run_is_refused(deep: Build) -> None:
    stack = deep()
    for layer, count, message in ((2, None, "early layer 2 of 6"), (6, 1, "early layer 6"), (4, 99, "candidates 99")):
        with pytest.raises(InputError, match=message):
            Adaptive(OwnHead(), layer, count, "batched").check(stack)


def test_the_first_generations_decide(deep: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones cost no forward pass, and one without a successor to predict tells nothing."""
    stack, texts = deep(), random_texts(3)
    asked = known_ranks(monkeypatch, texts)
    planner = Adaptive(OwnHead(), None, None, "batched")
    for length in (0, 1):
        planner.observe(stack, PROMPT, Generation(list(range(length)), [], "eos"))
    assert asked == []
    for text in texts:
        planner.observe(stack, PROMPT, generation(len(text[3]), planner.plan(stack)))
    plan = planner.plan(stack)
    for _ in range(3):
        planner.observe(stack, PROMPT, generation(40, Plan(early_layer=5, num_candidates=5), lambda k: costs_for(k, layer=9.0)))
    assert len(asked) == NUM_OBSERVED
    assert planner.plan(stack) == plan


def test_processes_take_one_core_each() -> None:
    assert Adaptive(OwnHead(), None, None, "process").most_candidates == max(1, min(num_cores() - 1, MOST_CANDIDATES))
    assert Adaptive(OwnHead(), None, None, "batched").most_candidates == MOST_CANDIDATES
    assert Adaptive(OwnHead(), None, 4, "process").most_candidates == 4


def test_costs_are_those_of_the_rounds() -> None:
    """Medians per number of candidates, interpolated between them and held beyond; the slowest unit counts."""
    steps = [round_of(costs_for(count), early, count, hit) for count in (2, 4) for early in (3, 4) for hit in (True, False)]
    steps.append(Step([], 0, 1, early_layer=3))
    for count, like in ((1, 2), (2, 2), (3, 3), (4, 4), (9, 4)):
        found, expected = measured_costs(steps, DEPTH, count), costs_for(like)
        for name in plans.COSTS:
            assert getattr(found, name) == pytest.approx(getattr(expected, name)), (name, count)


def test_one_odd_round_does_not_matter() -> None:
    steps = [round_of(costs_for(1), 3, 1, matched=True) for _ in range(9)]
    steps.append(round_of(costs_for(1, layer=50.0), 3, 1, matched=True))
    found = measured_costs(steps, DEPTH, 1)
    assert (found.layer, found.sub_layer) == pytest.approx((1.0, 1.3))


def test_quick_units_of_rounds_that_did_not_wait_are_no_measure() -> None:
    """A miss keeps the times only of units that had finished by its end: here four quick ones in ten."""
    steps = [round_of(costs_for(1), 3, 1, matched=True) for _ in range(3)]
    quick = [round_of(costs_for(1, each=0.0), 3, 1, matched=False) for _ in range(4)]
    late = [round_of(costs_for(1), 3, 1, matched=False) for _ in range(3)]
    for step in late:
        step.units = []
    assert measured_costs(steps + quick + late, DEPTH, 1).sub_layer == pytest.approx(1.3)
    assert measured_costs(quick + late, DEPTH, 1).sub_layer == pytest.approx(1.0), "all there is"
    assert measured_costs(late, DEPTH, 1).candidate_layer == pytest.approx(1.0), "a layer of the main process"
    assert measured_costs(late, DEPTH, 1).hand_over == 0


def test_without_times_the_papers_costs_hold() -> None:
    untimed = Step([], 0, 1, candidates=[3], matched=True, early_layer=3)
    assert measured_costs([untimed], DEPTH, 1) == measured_costs([], DEPTH, 3) == Costs()


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("head", ["N", "Y"])
def test_output_is_plain_decodings_while_the_plan_changes(deep: Build, execution: Execution, head: str) -> None:
    stack = deep()
    prompts = tuple((token,) for token in range(5, 11))
    early: EarlyHead = OwnHead() if head == "N" else TrainedHeads({4: stack.head_weight.t(), 5: stack.head_weight.t()}, stack)
    planner = Adaptive(early, None, None, execution)
    method = PredictivePipelinedDecoding(stack, early, planner, execution)
    ticks = iter(range(10**9))

    def run(by, clock=None) -> list[Generation]:
        uniforms, stop = Uniforms(range(11, 17), 14), Stop(max_new_tokens=14)
        return by.generate(ModelSession(stack), Inputs(prompts), Sampling(), uniforms, stop, clock)

    try:
        found = run(method, lambda: float(next(ticks)))
    finally:
        method.close()
    assert [generation.tokens for generation in found] == [generation.tokens for generation in run(Autoregressive())]
    plans = {(step.early_layer, len(step.candidates)) for each in found for step in each.steps if step.candidates}
    first = (4 if head == "Y" else 3, 1)
    assert {(step.early_layer, len(step.candidates)) for step in found[0].steps[:-1]} == {first}
    assert len(plans) > 1 or planner.most_candidates == 1
    assert all(layer >= first[0] and count <= planner.most_candidates for layer, count in plans)
