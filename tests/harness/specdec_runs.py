"""Records of SpecDec's arms whose every number follows from a few parameters, in the order in which the runner makes them."""

from collections.abc import Callable, Iterable
from functools import cache

from harness.core.experiment import Comparison, Experiment, MemoryProbe
from harness.core.records import Record
from methods.steps import Steps
from tasks import get_task
from tasks.base import Example

# Seconds a token of a batch of one; a larger batch takes longer, but less than in proportion.
TOKEN_S = {"autoregressive": 0.004, "beam": 0.012, "transformers": 0.015, "drafter-alone": 0.001}
DRAFT_S, VERIFY_S, ROUND_S, ENCODE_S, DRAFT_ENCODE_S = 0.003, 0.004, 0.0075, 0.002, 0.001
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
EOS = 1
MIB = 2**20


def batch_factor(size: int) -> float:
    return 1 + 0.2 * (size - 1)


def sentence(number: int) -> list[int]:
    """Token ids of an output, its end included; examples differ in length."""
    return [10 + (number + i) % 7 for i in range(11 + number % 4)] + [EOS]


def drafted_steps(experiment: Experiment, number: int) -> Steps:
    """Of a block the first (number + round) % (k + 1) stand; relaxed rules let the next stand too, beside another choice."""
    tokens, gamma, steps, done = sentence(number), experiment.method.gamma, Steps(), 0
    while done < len(tokens):
        right = tokens[done : done + gamma + 1] + [99] * gamma
        firm = (number + len(steps.drafted)) % (gamma + 1)
        drafted = [token if i < firm else 50 + i for i, token in enumerate(right[:gamma])]
        choices, stood = right[: gamma + 1], firm
        if experiment.method.values.get("rule") == "top-beta" and firm < gamma and right[firm] != EOS:
            drafted[firm], stood = right[firm], firm + 1
            choices = [*choices[:firm], 77, *choices[firm + 1 :]]
        emitted = min(stood + 1, len(tokens) - done)
        steps.drafted.append(drafted)
        steps.choices.append(choices)
        steps.num_accepted.append(min(stood, emitted))
        steps.emitted.append(emitted)
        done += emitted
    count = len(steps.drafted)
    steps.draft_s, steps.verify_s, steps.round_s = [DRAFT_S] * count, [VERIFY_S] * count, [ROUND_S] * count
    return steps


def row_seconds(experiment: Experiment, number: int) -> tuple[float, Steps | None]:
    """Of a sentence alone."""
    name = experiment.method.name
    if name == "speculative":
        steps = drafted_steps(experiment, number)
        return ENCODE_S + DRAFT_ENCODE_S + ROUND_S * len(steps.drafted), steps
    count = len(sentence(number))
    empty: list[list[int]] = [[] for _ in range(count)]
    steps = Steps(drafted=empty, num_accepted=[0] * count, emitted=[1] * count, round_s=[TOKEN_S[name]] * count)
    return TOKEN_S[name] * count, None if name == "transformers" else steps


def peak_mib(experiment: Experiment, first: int) -> float:
    """Of the batch that begins with an example."""
    return 3.0 * experiment.batch_size + first / 10 + (1.5 if experiment.method.name == "speculative" else 0.0)


def records(experiment: Experiment) -> list[Record]:
    found = []
    for repeat in range(experiment.repeats):
        for first in range(0, experiment.limit, experiment.batch_size):
            numbers = range(first, min(first + experiment.batch_size, experiment.limit))
            whole_s = max(row_seconds(experiment, number)[0] for number in numbers) * batch_factor(len(numbers))
            found += [_record(experiment, number, repeat, whole_s / len(numbers), first) for number in numbers]
    return found


@cache
def statistics(task: str, number: int, rule: str) -> dict:
    """A relaxed rule gets a word wrong in some sentences."""
    reference = " ".join(WORDS[(number + i) % len(WORDS)] for i in range(9))
    text = reference.replace("drei", "falsch") if rule == "top-beta" else reference
    return dict(get_task(task).statistics(Example(f"e{number}", {"source": "s", "article": "a"}, (reference,)), text))


def _record(experiment: Experiment, number: int, repeat: int, wall_s: float, first: int) -> Record:
    speculative = experiment.method.name == "speculative"
    return Record(
        signature=experiment.signature,
        example=f"e{number}",
        repeat=repeat,
        status="ok",
        tokens=sentence(number),
        text="",
        stop_reason="eos",
        wall_s=wall_s,
        encode_s=ENCODE_S if speculative else None,
        draft_encode_s=DRAFT_ENCODE_S if speculative else None,
        peak_bytes=round(peak_mib(experiment, first) * MIB) if MemoryProbe() in experiment.probes else None,
        steps=row_seconds(experiment, number)[1],
        statistics=statistics(experiment.task, number, experiment.method.values.get("rule")),
        nats=(0.25 + number / 64) * len(sentence(number)),
    )


def run_all(plan: Iterable[Comparison]) -> Callable[[Experiment], list[Record]]:
    known = {arm: records(arm) for comparison in plan for arm in comparison.arms}
    return lambda experiment: known.get(experiment, [])
