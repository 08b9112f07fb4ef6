"""Records of Optimized's arms whose every number follows from a few parameters."""

from collections.abc import Callable, Iterable
from functools import cache

from harness.core.experiment import Comparison, Experiment, MemoryProbe, RuleTimesProbe
from harness.core.records import Overlap, Record, RuleTimes
from harness.papers.optimized.setup import BASELINE, EXACT, FUSED, RELEASED, RULES, SIGMOID
from methods.steps import Steps
from tasks import get_task
from tasks.base import Example

TOKEN_S, DRAFT_S, VERIFY_S, OTHER_S = 0.004, 0.001, 0.005, 0.0005
CALL_S = {BASELINE: 0.0008, EXACT: 0.0006, FUSED: 0.0004, SIGMOID: 0.0005, RELEASED: 0.00045}
ALPHA, FRESH_ALPHA = 0.7, 0.1
WORDS = ["a", "fire", "destroyed", "the", "old", "factory", "by", "night"]
NAMES = {rule: name for name, rule in RULES.items()}
MIB = 2**20


def call_seconds(experiment: Experiment, number: int, call: int) -> float:
    """Calls of an example differ by up to 20 %."""
    return CALL_S[NAMES[experiment.method.values.get("rule")]] * (1 + 0.1 * ((number + call) % 3))


def num_calls(experiment: Experiment, number: int) -> int:
    """The sigmoid checks less, and so needs fewer; an untrained draft more."""
    draft = experiment.method.drafter
    fresh = draft is not None and draft.model is not None and draft.model.untrained
    count = (5 + number % 3) * (2 if fresh else 1)
    return count - 3 if experiment.method.values.get("rule", "").startswith("sigmoid") else count


def output(experiment: Experiment, number: int) -> list[int]:
    """Exact rules say the same."""
    lossy = experiment.method.values.get("rule", "").startswith("sigmoid")
    return [20 + number + (index if not lossy or index < 4 else 0) for index in range(12)]


@cache
def statistics(task: str, number: int, lossy: bool) -> dict:
    """The approximation gets a word wrong."""
    reference = [WORDS[(number + index) % len(WORDS)] for index in range(6)]
    text = " ".join(["wrong", *reference[1:]] if lossy else reference)
    example = Example(f"e{number}", {"article": "a", "audio": "a"}, (" ".join(reference),))
    return dict(get_task(task).statistics(example, text))


def record(experiment: Experiment, number: int) -> Record:
    plain = experiment.method.name == "autoregressive"
    count = 12 if plain else num_calls(experiment, number)
    round_s = TOKEN_S if plain else DRAFT_S + VERIFY_S + OTHER_S
    accepted = [0 if plain else 1 + (number + index) % 3 for index in range(count)]
    steps = Steps(
        drafted=[[] if plain else [1, 2, 3] for _ in range(count)],
        num_accepted=accepted,
        emitted=[stood + 1 for stood in accepted],
        target_probs=[[] if plain else [0.5] * 3 for _ in range(count)],
        draft_probs=[[] if plain else [0.5] * 3 for _ in range(count)],
        round_s=[round_s] * count,
    )
    times = [0.0] * 0 if plain else [call_seconds(experiment, number, call) for call in range(count)]
    overlaps = [
        Overlap(drafter=spec.label, by_lenience={"1.0": [FRESH_ALPHA if spec.model and spec.model.untrained else ALPHA] * 12})
        for spec in experiment.overlap
    ]
    is_profiled = RuleTimesProbe() in experiment.probes
    return Record(
        signature=experiment.signature,
        example=f"e{number}",
        repeat=0,
        status="ok",
        tokens=output(experiment, number),
        text="",
        stop_reason="eos",
        wall_s=round_s * count,
        peak_bytes=MIB * (3 + number + experiment.method.gamma) if MemoryProbe() in experiment.probes else None,
        steps=steps,
        statistics=statistics(experiment.task, number, experiment.method.values.get("rule", "").startswith("sigmoid")),
        overlap=overlaps,
        nats=(0.25 + number / 64) * len(output(experiment, number)),
        rule_times=RuleTimes(profiled_s=times, wall_s=[1.01 * one for one in times]) if is_profiled and times else None,
        run="one process",
    )


def records(experiment: Experiment) -> list[Record]:
    return [record(experiment, number) for number in range(experiment.limit)]


def run_all(plan: Iterable[Comparison]) -> Callable[[Experiment], list[Record]]:
    known = {arm: records(arm) for comparison in plan for arm in comparison.arms}
    return lambda experiment: known.get(experiment, [])
