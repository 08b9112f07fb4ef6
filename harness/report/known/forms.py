"""What the papers' closed forms, the tests of paired examples and the intervals give of numbers that are written here.

Also what audits say of an experiment by the place where it ran, and how far an output may be from another by rounding.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from harness.core.experiment import DrafterSpec, MethodSpec, ModelSpec
from harness.measures import paired_tests, statistics
from harness.measures.statistics import Estimate, Redrawn
from harness.measures.verdicts import as_earned, is_red, key_of, label_of
from harness.models.fit import Models
from harness.report.known.values import folded, hashed, told
from harness.report.pinned import model, plain_decoding
from harness.run.divergence import margin_at
from harness.run.prompts import Prompt, make_prompt
from methods.ppd import theory as pipelined
from methods.speculative import theory
from tasks import get_task
from tasks.sources.read import read_examples

RATES, LAYERS, CANDIDATES = np.array([0.0, 0.3, 1.0]), (40, 30), 3
COSTS = pipelined.Costs(layer=1.0, sub_layer=1.6, early_head=0.5, final_head=0.4, request=2.0, hand_over=0.3)
DIFFERENCES = [3.0, -1.0, 2.0, 2.0, 0.0, -0.5, 4.0, 1.0]
CHANCES = {"a": 0.001, "b": 0.02, "c": 0.03, "d": 0.6}
ROUND = {"ar_s": 0.1, "draft_s": 0.02, "verify_s": 0.13, "round_s": 0.01, "gamma": 4}
SAMPLE = {"samples": 400, "p": 0.3, "tv_at_power_0.9": 0.1}
RANKS, VALUES = np.array([2, 5, 5, 8, 10, 12]), np.array([0.4, np.nan, 0.1, 0.9, 0.2])
COUNTS = np.array([[1.0, 2, 0, 1, 1], [0, 5, 0, 0, 0], [2, 0, 1, 0, 2], [1, 1, 1, 1, 1], [0, 0, 4, 1, 0]])
FEW = np.arange(30.0)
REPLICAS, OWN_EXAMPLES = ("one", "two", "three"), 4


def _predicted() -> dict[str, float]:
    """Return Equations 3 and 5 and Theorem 4.1 of PPD, and Eq. 1, Theorems 3.8 and 3.11 of speculative decoding."""
    depth, early = LAYERS
    forms = {
        "PPD, Eq. 3": pipelined.half_depth_latency_per_token(RATES),
        "PPD, Eq. 5": pipelined.half_depth_compute_per_time_unit(RATES, CANDIDATES),
        "PPD, latency": pipelined.latency(depth, early, 20, RATES),
        "PPD, compute": pipelined.compute(depth, early, 20, CANDIDATES, RATES),
        "PPD, latency a token": pipelined.latency_per_token(depth, early, RATES),
        "PPD, compute a token": pipelined.compute_per_token(depth, early, CANDIDATES, RATES),
        "PPD, compute a time unit": pipelined.compute_per_time_unit(depth, early, CANDIDATES, RATES),
        "PPD, latency by measured costs": pipelined.expected_latency(depth, early, 20, RATES, COSTS),
        "PPD, a token by measured costs": np.array(pipelined.token_latency(depth, early, COSTS)),
        "PPD, the paper's layer 15 of 24": np.array(pipelined.scaled_layer(15, 24)),
        "Eq. 1": theory.expected_tokens(RATES, 4),
        "Theorem 3.8": theory.walltime_factor(RATES, 4, 0.1),
        "Theorem 3.11": theory.operations_factor(RATES[1:], 4),
        "best number of drafts": np.array([theory.optimal_gamma(alpha, 0.05) for alpha in (0.1, 0.6, 0.9)]),
        "an oracle's speed-up": theory.oracle_factor(RATES, 0.1),
        "speed-up by measured costs": theory.predicted_speedup(3.0, **ROUND),
    }
    return {name: folded(values) for name, values in forms.items()}


def _inferred() -> dict[str, float | str]:
    """Return chances of the tests of paired examples, and intervals of differences, shares and replicas."""
    many = [(number % 7) - 2.5 for number in range(paired_tests.EXACT + 11)]
    first, second = _redrawn("x", 1.0), _redrawn("x", 1.3)
    other = _redrawn("y", 1.3)
    apart = statistics.paired_difference(first, other)
    estimates = {
        "a difference of one arm's numbers": statistics.paired_difference(first, second),
        "a difference of two arms' numbers": apart,
        "a share of all": statistics.share_of_examples(1.0, 12, 12, 1.0),
        "a number of three replicas": statistics.ratio_of_examples(
            [
                ((name, f"{row}"), 2.0 + index + row % 3, 1.0 + row % 2)
                for index, name in enumerate(REPLICAS)
                for row in range(8)
            ]
        ),
        "a share of none": _share(40, lambda row: (0.0, 1.0 + row % 3)),
        "a share of all of some": _share(40, lambda row: (2.0 * (row < 9), 2.0 * (row < 9))),
        "a share of examples": _share(40, lambda row: (float(row % 4 == 0), 1.0)),
        "a share of repeats": _share(30, lambda row: (float(row % 30 % 4 == 0), 1.0)),
        "a share of tokens": _share(40, lambda row: (2.0 * (row % 4 == 0), 2.0)),
        "a number that falls": None if apart is None else apart.mapped(lambda value: 1.0 / (2.0 + value)),
        "a difference of names that stand twice": statistics.paired_difference(
            Redrawn(tuple((unit[0], unit[1][:1]) for unit in first.units), first.statistic), second
        ),
        "a difference of nothing shared": statistics.paired_difference(first, Redrawn(tuple("abcdefghijkl"), first.statistic)),
        "a share of two": statistics.share_of_examples(0.5, 1, 2, 1.0),
        "a number that one example holds": statistics.ratio_of_totals(np.where(FEW == 29, 20.0, 2.0 + FEW % 3), 1.0 + FEW % 2),
        "a share that one example holds": statistics.ratio_of_totals(
            np.where(FEW == 29, 1.0, 99.0), np.full(30, 100.0), whole=1.0
        ),
        "a part of a hit": statistics.share_of_examples(0.55, 6.6, 12, 1.0),
        "the best of five": statistics.resampled(5.5, lambda counts: counts @ np.arange(12.0) / 12, 12, among=5),
        "a median of nine": statistics.median(np.array([0.3, 0.1, 0.2, 0.9, 0.4, 0.5, 0.15, 0.66, 0.71])),
        "a median of four": statistics.median(np.array([0.3, 0.1, 0.2, 0.9])),
        "a median": statistics.median(np.array([0.3, 0.1, 0.2, 0.9, 0.4, 0.5])),
        "a sum's metric": statistics.of_sums(
            {"hits": np.array([3.0, 1.0, 2.0, 4.0]), "all": np.array([4.0, 2.0, 2.0, 8.0])},
            lambda sums, n: float(sums["hits"] / sums["all"]),
        ),
    }
    found: dict[str, float | str] = {
        "signed ranks": paired_tests.signed_rank(DIFFERENCES),
        "signed ranks of many": paired_tests.signed_rank(many),
        "as many hits or more": paired_tests.at_least(4, 20, 0.05),
        "what stands out of four": ", ".join(sorted(paired_tests.holm(CHANCES, 0.05))),
        "what is decided of four": str(statistics.holm(list(CHANCES.values()))),
        "Student's 95 % of 2": statistics.student_quantile(2),
        "a chance beyond": statistics.chance_beyond(0.8, 5),
        "a tail among five": statistics.tail_among(5, 30),
        "degrees of freedom of uneven examples": statistics.freedom_of(1.0 / (1.0 + FEW)),
        "no more than 3 of 40": statistics.at_most(3, 40, 0.2),
        "signs that fall one way and the other": folded([paired_tests.all_signs(RANKS, total) for total in (3, 30)]),
        "medians of draws": folded(np.nan_to_num(statistics.medians_drawn(VALUES, COUNTS), nan=-1.0)),
        "a drift": statistics.drift(np.array(DIFFERENCES) + 2.0),
        "independent numbers": folded(np.array(statistics.independent_difference((0.5, 0.6, 0.8), (0.3, 0.35, 0.36)))),
    }
    return found | {name: told(one) for name, one in estimates.items()}


def _belonging() -> dict[str, str]:
    """Return which experiments share a verdict, and which verdict a subject's evidence earns."""
    drafter = DrafterSpec(kind="model", model=model("llama-draft"))
    plain = plain_decoding(0, 1, 1, "text", "llama-target", 1.0)
    exact = plain.replace(method=MethodSpec.of("speculative", drafter=drafter, rule="exact", gamma=3))
    rounded = exact.replace(target=ModelSpec(name=f"int8:{plain.target.name}"))
    coarse = replace(drafter, model=ModelSpec(name=f"int8:{model('llama-draft').name}"))
    nested = DrafterSpec(kind="hierarchical", model=drafter.model, inner=coarse)
    searched = plain.replace(method=MethodSpec.of("beam", num_beams=3), sampling=plain_decoding(0, 1, 1, "text", "x").sampling)
    experiments = {
        "plain": plain,
        "exact": exact,
        "exact on cuda": exact.replace(device="cuda:1"),
        "exact in half precision": exact.replace(dtype="float16"),
        "exact with graphs": exact.replace(graphs=True),
        "exact of rounded weights": rounded,
        "exact of a rounded draft": exact.replace(method=MethodSpec.of("speculative", drafter=coarse, rule="exact", gamma=3)),
        "exact of a draft whose own draft is rounded": exact.replace(method=MethodSpec.of("speculative", drafter=nested)),
        "exact, greedy": exact.replace(sampling=searched.sampling),
        "beams": searched,
    }
    found = {f"verdict of {name}": hashed(_nameless(key_of(one))) for name, one in experiments.items()}
    found |= {f"label of {name}": label_of(experiments[name].method) for name in ("plain", "exact", "beams")}
    unseen: dict[str, Any] = {
        "verdict": "same distribution",
        "declared": "exact",
        "tests": {"ranks at 1": SAMPLE},
        "failed": [],
    }
    rows: dict[str, dict[str, Any]] = {
        "ranks alone": unseen,
        "contexts": unseen | {"tests": {"contexts of 2": SAMPLE}},
        "too few contexts": unseen | {"tests": {"contexts of 2": SAMPLE | {"tv_at_power_0.9": 0.3}}},
        "ranks and a law": unseen | {"largest_deviation": {"cpu": 1e-9}},
        "ranks and ten decisions": unseen | {"replayed": {"decisions": 10}},
        "ranks and eleven decisions": unseen | {"replayed": {"decisions": 11}},
        "lossy, declared exact": {"verdict": "lossy", "declared": "exact"},
    }
    earned = {name: as_earned(row) for name, row in rows.items()}
    return found | {f"earned by {name}": f"{row['verdict']}, red {is_red(row)}" for name, row in earned.items()}


def _parted() -> dict[str, float]:
    """Return how far an output's first other token is from the target's own, and by how much rounding may move that."""
    found: dict[str, float] = {}
    for temperature in (0.0, 1.0):
        plain = plain_decoding(0, 1, 1, "text", "llama-target", temperature)
        models = Models(device=plain.device, dtype=plain.dtype)
        prompt = _prompt(models)
        margin, bound = margin_at(plain, ([5, 6, 7, 8], [5, 6, 9, 8]), prompt, 0, models)
        short, none = margin_at(plain, ([5, 6, 7], [5, 6]), prompt, 0, models)
        case = f"at temperature {temperature:g}"
        found |= {f"margin {case}": margin, f"its bound {case}": bound, f"margin of an end {case}": short - none}
    return found


def _share(num_examples: int, of: Callable[[int], tuple[float, float]]) -> Estimate | None:
    """Return a share of 40 rows, of which some may be of one example."""
    return statistics.ratio_of_examples([(f"{row % num_examples}", *of(row)) for row in range(40)], whole=1.0)


def _prompt(models: Models) -> Prompt:
    experiment = plain_decoding(0, 1, 1, "text", "llama-target")
    task = get_task("text")
    return make_prompt(task, next(iter(read_examples(task, "toy", "test", 1, 0))), experiment, models.get(experiment.target))


def _redrawn(arm: str, scale: float) -> Redrawn:
    """Make a ratio of examples in three replicas of an arm, as ``paired_difference`` draws it again."""
    units = tuple((f"{arm} {name}", f"{row} of {name}") for name in REPLICAS for row in range(OWN_EXAMPLES))
    above = np.array([scale * (2.0 + index % 5) for index in range(len(units))])
    below = np.array([1.0 + index % 3 for index in range(len(units))])
    return Redrawn(units, lambda counts: (counts @ above) / (counts @ below))


def _nameless(key: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out where the checkouts' models lie."""
    return tuple(part.split(" on ")[-1] for part in key)


GROUPS = (_predicted, _inferred, _belonging, _parted)
