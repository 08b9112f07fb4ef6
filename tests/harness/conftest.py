"""Synthetic records whose every number follows from a few parameters, for tests of what is derived from records."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from harness.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.records import Overlap, Record, Steps
from methods.sampling import Sampling

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:t5-small"))
ALPHAS = {"unigram": 0.08, "bigram": 0.2, "t5-small": 0.6, "t5-base": 0.7, "t5-large": 0.75}
DRAFT_S = {"t5-small": 0.002, "t5-base": 0.003, "t5-large": 0.005}


def plain_experiment(**changes: object) -> Experiment:
    base = Experiment(
        task="wmt-en-de",
        target=ModelSpec(name="zoo:t5-xxl"),
        method=MethodSpec(name="autoregressive"),
        overlap=(DRAFT,),
        limit=8,
    )
    return base.replace(**changes)


def drafted_experiment(plain: Experiment, gamma: int = 3) -> Experiment:
    return plain.replace(method=MethodSpec(name="speculative", drafter=DRAFT, gamma=gamma), overlap=())


def plain_record(
    experiment: Experiment,
    example: str,
    num_tokens: int = 12,
    ar_s: float = 0.01,
    overlap: dict[str, list[float]] | None = None,
    repeat: int = 0,
    start_s: float = 0.0,
) -> Record:
    """The target alone: one token a round, each ``ar_s`` long. ``overlap`` is at lenience 1 and grows as lenience falls."""
    values = [
        Overlap(
            drafter=label, by_lenience={repr(value): [min(1.0, x / value**0.3) for x in row] for value in experiment.leniences}
        )
        for label, row in (overlap or {}).items()
    ]
    empty: list[list[float]] = [[] for _ in range(num_tokens)]
    return Record(
        signature=experiment.signature,
        example=example,
        repeat=repeat,
        status="ok",
        tokens=list(range(10, 10 + num_tokens)),
        text="",
        stop_reason="length",
        wall_s=start_s + ar_s * num_tokens,
        overlap=values,
        steps=Steps(
            drafted=[[] for _ in range(num_tokens)],
            num_accepted=[0] * num_tokens,
            emitted=[1] * num_tokens,
            target_probs=empty,
            draft_probs=empty,
            draft_s=[0.0] * num_tokens,
            verify_s=[ar_s] * num_tokens,
            round_s=[ar_s] * num_tokens,
        ),
    )


def drafted_record(
    experiment: Experiment,
    example: str,
    num_tokens: int = 12,
    accepted: Sequence[int] = (2,),
    draft_s: float = 0.002,
    verify_s: float = 0.012,
    fixed_s: float = 0.001,
    repeat: int = 0,
    start_s: float = 0.0,
) -> Record:
    """Draft and verify: round i accepts ``accepted[i]`` (in turn) of gamma drafts, until ``num_tokens`` are emitted.

    An accepted draft has target and draft probability 0.5, any other 0.1 and 0.5.
    """
    gamma, tokens, steps, done = experiment.method.gamma, list(range(10, 10 + num_tokens)), Steps(), 0
    while done < num_tokens:
        stood = min(accepted[len(steps.drafted) % len(accepted)], gamma)
        steps.drafted.append([tokens[done + i] if i < stood and done + i < num_tokens else 900 + i for i in range(gamma)])
        steps.num_accepted.append(stood)
        steps.emitted.append(min(stood + 1, num_tokens - done))
        steps.target_probs.append([0.5 if i < stood else 0.1 for i in range(gamma)])
        steps.draft_probs.append([0.5] * gamma)
        steps.draft_s.append(gamma * draft_s)
        steps.verify_s.append(verify_s)
        steps.round_s.append(gamma * draft_s + verify_s + fixed_s)
        done += steps.emitted[-1]
    return Record(
        signature=experiment.signature,
        example=example,
        repeat=repeat,
        status="ok",
        tokens=tokens,
        text="",
        stop_reason="length",
        wall_s=start_s + sum(steps.round_s),
        steps=steps,
    )


def failed_record(experiment: Experiment, example: str, repeat: int = 0) -> Record:
    return Record(signature=experiment.signature, example=example, repeat=repeat, status="failed", error="RuntimeError: broken")


def run(experiment: Experiment) -> list[Record]:
    """All records of an experiment of the catalogue, as if it had been run; examples differ in length and acceptance."""
    label = experiment.method.drafter.label if experiment.method.drafter else ""
    cooler = 0.04 if experiment.sampling == Sampling(temperature=1.0) else 0.0
    records = []
    for repeat in range(experiment.repeats):
        for number in range(experiment.limit):
            length = 18 + 5 * (number % 3)
            if experiment.method.name == "autoregressive":
                rows = {
                    spec.label: [max(0.0, ALPHAS.get(spec.label, 0.5) - cooler + 0.02 * (number % 5 - 2))] * length
                    for spec in experiment.overlap
                }
                records.append(plain_record(experiment, f"e{number}", length, overlap=rows, repeat=repeat, start_s=0.02))
            else:
                most = round(experiment.method.gamma * ALPHAS.get(label, 0.5))
                turn = [(number + i) % (most + 2) for i in range(5)]
                seconds = DRAFT_S.get(label, 0.002)
                records.append(
                    drafted_record(experiment, f"e{number}", length, turn, draft_s=seconds, repeat=repeat, start_s=0.02)
                )
    return records


def run_all(plan: Sequence[Comparison]) -> Callable[[Experiment], list[Record]]:
    """``records_of`` for a plan that has been run whole; experiments that are not in it have no records."""
    known = {arm.signature: run(arm) for comparison in plan for arm in comparison.arms}
    return lambda experiment: known.get(experiment.signature, [])


@pytest.fixture
def synthetic() -> SimpleNamespace:
    return SimpleNamespace(
        plain_experiment=plain_experiment,
        drafted_experiment=drafted_experiment,
        plain=plain_record,
        drafted=drafted_record,
        failed=failed_record,
        run=run,
        run_all=run_all,
    )
