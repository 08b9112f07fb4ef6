"""Synthetic records whose every number follows from a few parameters, for tests of what is derived from records."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from probed import write_records

from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.records import EarlyRanks, Overlap, Record
from harness.run import record as recording
from methods.sampling import Sampling
from methods.steps import Steps

DRAFT = DrafterSpec(kind="model", model=ModelSpec(name="zoo:t5-small"))
ALPHAS = {"unigram": 0.08, "bigram": 0.2, "t5-small": 0.6, "t5-base": 0.7, "t5-large": 0.75}
DRAFT_S = {"t5-small": 0.002, "t5-base": 0.003, "t5-large": 0.005}


@pytest.fixture(scope="session", autouse=True)
def _unwatched() -> Iterator[None]:
    """Tests share their machine: how much of it a run had is not recorded, or every speed would be refused there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "on_processor", lambda *_: None)
        yield


def plain_experiment(**changes: object) -> Experiment:
    base = Experiment(
        task="wmt-en-de",
        target=ModelSpec(name="zoo:t5-xxl"),
        method=MethodSpec(name="autoregressive"),
        probes=(OverlapProbe(drafter=DRAFT),),
        limit=8,
    )
    return base.replace(**changes)


def drafted_experiment(plain: Experiment, gamma: int = 3) -> Experiment:
    return plain.replace(method=MethodSpec.of("speculative", drafter=DRAFT, gamma=gamma), probes=())


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
    leniences = next((one.leniences for one in experiment.probes if isinstance(one, OverlapProbe)), (1.0,))
    values = [
        Overlap(drafter=label, by_lenience={repr(value): [min(1.0, x / value**0.3) for x in row] for value in leniences})
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


def piped_record(
    experiment: Experiment,
    example: str,
    num_tokens: int = 12,
    hits: Sequence[bool] = (True, False, True),
    depth: int = 8,
    early: int = 5,
    num_candidates: int = 1,
    layer_s: float = 1.3e-3,
    early_head_s: float = 7e-4,
    post_s: float = 1e-4,
    head_s: float = 6e-4,
    wait_s: float = 3e-4,
    adopt_s: float = 2e-4,
    sub_layer_s: float = 1.4e-3,
    num_units: int = 1,
    repeat: int = 0,
    start_s: float = 0.0,
) -> Record:
    """A PPD pipeline: token i is among the candidates where ``hits`` (in turn) says so; none are begun behind the last one.

    A match spares the next token's first ``depth - early`` layers, and costs the waiting and the hand-over of its own round.
    """
    tokens, steps, ahead, carried = list(range(10, 10 + num_tokens)), Steps(), depth - early, False
    for index, token in enumerate(tokens):
        last = index + 1 == num_tokens
        hit = not last and hits[index % len(hits)]
        guesses = [] if last else [900 + slot for slot in range(num_candidates)]
        if hit:
            guesses[index % num_candidates] = token
        parts = [(early - ahead * carried) * layer_s, 0.0 if last else early_head_s, 0.0 if last else post_s]
        begin = sum(parts) + 5e-5
        parts += [ahead * layer_s, head_s, wait_s if hit else 0.0, adopt_s if hit else 0.0]
        steps.candidates.append(guesses)
        steps.matched.append(None if last else hit)
        steps.early_layer.append(early)
        steps.parts.append(parts)
        steps.units.append([begin, begin + ahead * sub_layer_s] * (0 if last else num_units))
        steps.round_s.append(sum(parts))
        carried = hit
    steps.drafted, steps.num_accepted, steps.emitted = [[] for _ in tokens], [0] * num_tokens, [1] * num_tokens
    steps.target_probs, steps.draft_probs = [[] for _ in tokens], [[] for _ in tokens]
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


def early_ranks(experiment: Experiment, number: int, length: int) -> list[EarlyRanks]:
    """Deeper layers and trained heads are right more often; which tokens they are differs from example to example."""
    found = []
    for spec in experiment.early:
        for index, layer in enumerate(spec.layers):
            spread = 12 - 2 * index - 2 * (spec.label == "Y")
            ranks = [(7 * position + 3 * number + position // 3) % max(spread, 2) for position in range(length)]
            found.append(EarlyRanks(head=spec.label, layer=layer, ranks=ranks))
    return found


def run(experiment: Experiment) -> list[Record]:
    """All records of an experiment of the catalogue, as if it had been run; examples differ in length and acceptance."""
    label = experiment.method.drafter.label if experiment.method.drafter else ""
    cooler = 0.04 if experiment.sampling == Sampling(temperature=1.0) else 0.0
    records = []
    for repeat in range(experiment.repeats):
        for number in range(experiment.limit):
            length = experiment.max_new_tokens if experiment.ignore_eos else 18 + 5 * (number % 3)
            if experiment.method.name == "autoregressive":
                rows = {
                    spec.label: [max(0.0, ALPHAS.get(spec.label, 0.5) - cooler + 0.02 * (number % 5 - 2))] * length
                    for spec in experiment.overlap
                }
                ar_s = 0.009 if experiment.num_threads == 1 else 0.01
                record = plain_record(experiment, f"e{number}", length, ar_s, rows, repeat=repeat, start_s=0.02)
                record.early = early_ranks(experiment, number, length)
                records.append(record)
            elif experiment.method.name == "ppd":
                records.append(_piped(experiment, number, length, repeat))
            else:
                most = round(experiment.method.gamma * ALPHAS.get(label, 0.5))
                turn = [(number + i) % (most + 2) for i in range(5)]
                seconds = DRAFT_S.get(label, 0.002)
                records.append(
                    drafted_record(experiment, f"e{number}", length, turn, draft_s=seconds, repeat=repeat, start_s=0.02)
                )
    return records


def _piped(experiment: Experiment, number: int, length: int, repeat: int) -> Record:
    """Of 40 layers; trained heads and more candidates hit more often, examples differ."""
    method = experiment.method
    early, count = method.values.get("early_layer") or 25, method.values.get("candidates") or 2
    period = 3 + number % 3
    hits = [bool((index + number) % period) or (count > 1 and index % 2 == 0) for index in range(7)]
    if method.heads is None:
        hits = [hit and index % 3 != 1 for index, hit in enumerate(hits)]
    times = {"layer_s": 2.4e-4, "sub_layer_s": 2.6e-4, "early_head_s": 3e-4, "head_s": 2.5e-4, "post_s": 5e-5, "wait_s": 2e-4}
    units = count if method.options.execution == "process" else 1
    return piped_record(
        experiment,
        f"e{number}",
        length,
        hits,
        40,
        early,
        count,
        **times,
        adopt_s=4e-5,
        num_units=units,
        repeat=repeat,
        start_s=0.02,
    )


def run_all(plan: Sequence[Comparison]) -> Callable[[Experiment], list[Record]]:
    """``records_of`` for a plan that has been run whole; experiments that are not in it have no records."""
    known = {arm: run(arm) for comparison in plan for arm in comparison.arms}
    return lambda experiment: known.get(experiment, [])


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    return SimpleNamespace(
        plain_experiment=plain_experiment,
        drafted_experiment=drafted_experiment,
        plain=plain_record,
        drafted=drafted_record,
        piped=piped_record,
        failed=failed_record,
        run=run,
        run_all=run_all,
        write=write_records,
    )


@pytest.fixture
def arms(synthetic: SimpleNamespace) -> SimpleNamespace:
    """Plain decoding and the same with a draft of three tokens."""
    plain = synthetic.plain_experiment()
    return SimpleNamespace(plain=plain, drafted=synthetic.drafted_experiment(plain, gamma=3))


@pytest.fixture
def steps_of() -> Callable[..., Any]:
    """The zoo's training loop without the average at its end, which may be interrupted before a step, as by a kill."""
    from harness.zoo.loop import course_of, run_steps
    from harness.zoo.networks import depth_switch
    from harness.zoo.state import Checkpoints, build_optimizer

    def run(recipe: Any, network: Any, objective: Any, folder: Path, *, before: int | None = None, grown: Any = None) -> Any:
        """Evaluations; None where it was interrupted, with a checkpoint of the last whole step."""

        def batch(step: int) -> Any:
            if step == before:
                raise KeyboardInterrupt
            return objective.batch(step)

        optimizer, depth = build_optimizer(recipe, network), depth_switch(recipe, network if grown is None else grown)
        parts = (course_of(recipe), network, optimizer, replace(objective, batch=batch), folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "save_if_due", Checkpoints.save)
            if before is None:
                return run_steps(*parts, depth=depth)[0]
            with pytest.raises(KeyboardInterrupt):
                run_steps(*parts, depth=depth)
            return None

    return run
