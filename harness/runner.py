"""Runs comparisons: what is missing, interleaved, one record at a time.

Arms take turns example by example (the order rotates), so that a machine whose speed drifts slows them all alike. What
is recorded already is not run again; what fails is recorded as failed.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from tqdm import tqdm

from harness import environment, zoo
from harness.build import Models, build_drafter, build_method, check_names, specs_of
from harness.clock import clock_for
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, Experiment
from harness.model_files import ZOO
from harness.models import LoadedModel, pin_model, scale_of
from harness.prompts import Prompt, make_prompt, seed_of
from harness.records import Overlap, Record, RecordFile, Steps
from harness.scoring import score_reference
from methods.errors import InputError
from methods.sampling import Uniforms
from methods.speculative.overlap import overlap
from methods.types import Drafter, Generation, Inputs, Method, Session, Step, Stop
from tasks import fingerprint, get_task
from tasks.base import ReferenceScore, Task

WARM_UP = 1
LONGEST_DRAFT = 128


def pin(experiment: Experiment) -> Experiment:
    """Fill in what the names mean today: the data's fingerprint and every model's revision. Loads no model."""
    task = get_task(experiment.task)
    check_names(experiment.method)
    revisions = {spec: pin_model(spec, experiment.profile, experiment.source) for spec in specs_of(experiment)}

    def drafter(spec: DrafterSpec | None) -> DrafterSpec | None:
        if spec is None:
            return None
        model = revisions[spec.model] if spec.model is not None else None
        return replace(spec, model=model, inner=drafter(spec.inner))

    return experiment.replace(
        source_fingerprint=fingerprint(task.name, experiment.source),
        target=revisions[experiment.target],
        method=replace(experiment.method, drafter=drafter(experiment.method.drafter)),
        overlap=tuple(drafter(spec) for spec in experiment.overlap),
    )


def ensure_models(experiments: Iterable[Experiment]) -> None:
    """Train what the zoo lacks for these experiments, several models at once."""
    wanted: dict[tuple[zoo.Scale, str], dict[str, None]] = {}
    for experiment in experiments:
        for spec in specs_of(experiment):
            if spec.name.startswith(ZOO):
                group = wanted.setdefault((scale_of(experiment.profile), experiment.source), {})
                group[spec.name.removeprefix(ZOO)] = None
    for (scale, source), names in wanted.items():
        zoo.ensure(list(names), scale, source)


@dataclass
class Arm:
    """One experiment made ready: its method, the drafters whose overlap is asked for, and where its records go."""

    experiment: Experiment
    method: Method
    overlap: list[tuple[str, Drafter]]
    file: RecordFile
    done: set[tuple[str, int]]


class Runner:
    """Runs comparisons in one process; models stay loaded between them while device and dtype stay the same."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        self.folder, self.quiet = folder, quiet
        self._models: Models | None = None

    def path(self, experiment: Experiment) -> Path:
        return RecordFile(self.folder, experiment).path

    def records(self, experiment: Experiment) -> list[Record]:
        """What is stored for an experiment (which must be pinned), in example order."""
        return RecordFile(self.folder, experiment).read()

    def is_complete(self, comparison: Comparison) -> bool:
        """Whether every record is there, judged by count so that neither data nor model is touched."""
        for arm in comparison.arms:
            records = RecordFile(self.folder, arm).read()
            if not records or len({r.key for r in records}) < self._expected(arm):
                return False
        return True

    def run(self, comparison: Comparison, description: str = "") -> None:
        """Run what is missing. Raises UsageError for what no example can work with; failures of single examples are records."""
        first = comparison.arms[0]
        if first.num_threads is not None:
            torch.set_num_threads(first.num_threads)
        task = get_task(first.task)
        examples = list(task.examples(first.source, "test", first.limit, first.seed))
        if not examples:
            raise UsageError(f"task {first.task!r} with data {first.source!r}: no examples; expected at least one test row")
        keys = {(example.id, repeat) for example in examples for repeat in range(first.repeats)}
        missing = [arm for arm in comparison.arms if keys - {record.key for record in self.records(arm)}]
        if missing:
            ensure_models(missing)
            target = self.models(first).get(first.target)
            arms = [self._arm(experiment, target) for experiment in missing]
            prompts = {arm.signature: [make_prompt(task, example, arm, target) for example in examples] for arm in missing}
            session = target.session()
            for arm in arms:
                for prompt in prompts[arm.experiment.signature][:WARM_UP]:
                    generate(arm.experiment, arm.method, [prompt], target, session, repeat=0)
            self._run_all(arms, prompts, task, target, session, description or first.task)

    def models(self, experiment: Experiment) -> Models:
        if self._models is None or (self._models.device, self._models.dtype) != (experiment.device, experiment.dtype):
            self._models = Models(experiment.device, experiment.dtype)
        return self._models

    def _expected(self, experiment: Experiment) -> int:
        return experiment.limit * experiment.repeats

    def _arm(self, experiment: Experiment, target: LoadedModel) -> Arm:
        models = self.models(experiment)
        overlap = [(spec.label, build_drafter(spec, target, models)) for spec in experiment.overlap]
        file = RecordFile(self.folder, experiment)
        return Arm(experiment, build_method(experiment.method, target, models), overlap, file, {r.key for r in file.read()})

    def _run_all(
        self, arms: list[Arm], prompts: dict[str, list[Prompt]], task: Task, target: LoadedModel, session: Session, title: str
    ) -> None:
        num_examples = len(prompts[arms[0].experiment.signature])
        writers = {arm.experiment.signature: arm.file.open() for arm in arms}
        total = sum(num_examples * arm.experiment.repeats - len(arm.done) for arm in arms)
        bar = tqdm(total=total, desc=title, unit="ex", disable=self.quiet, delay=2, dynamic_ncols=True)
        try:
            for turn, (repeat, chunk) in enumerate(_chunks(arms[0].experiment, num_examples)):
                for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
                    due = [prompts[arm.experiment.signature][i] for i in chunk]
                    due = [prompt for prompt in due if (prompt.example.id, repeat) not in arm.done]
                    if due:
                        for record in _records(arm, due, task, target, session, repeat):
                            writers[arm.experiment.signature].append(record)
                        bar.update(len(due))
        finally:
            bar.close()
            for writer in writers.values():
                writer.close()


def _chunks(experiment: Experiment, num_examples: int) -> Iterator[tuple[int, range]]:
    for repeat in range(experiment.repeats):
        for start in range(0, num_examples, experiment.batch_size):
            yield repeat, range(start, min(start + experiment.batch_size, num_examples))


def generate(
    experiment: Experiment, method: Method, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[list[Generation], float]:
    """The generations of a batch and the seconds it took, sources encoded and prompts prefilled included."""
    seeds = [seed_of(experiment, prompt.example.id, repeat) for prompt in prompts]
    uniforms = Uniforms(seeds, experiment.max_new_tokens + LONGEST_DRAFT, experiment.device)
    stop_ids = frozenset() if experiment.ignore_eos else frozenset(target.eos_token_ids)
    stop = Stop(max_new_tokens=experiment.max_new_tokens, token_ids=stop_ids)
    clock = clock_for(experiment.device)
    inputs = Inputs(tuple(prompt.tokens for prompt in prompts))
    start = clock()
    generations = method.generate(session, inputs, experiment.sampling, uniforms, stop, clock)
    return generations, clock() - start


def _records(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int
) -> Iterator[Record]:
    facts = environment.fingerprint(environment.describe(arm.experiment.device))
    common = {"signature": arm.experiment.signature, "repeat": repeat, "environment": facts}
    try:
        generations, wall_s = generate(arm.experiment, arm.method, prompts, target, session, repeat)
    except (InputError, RuntimeError) as error:
        message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        for prompt in prompts:
            yield Record(example=prompt.example.id, status="failed", error=message, prompt_tokens=len(prompt.tokens), **common)
        return
    for prompt, generation in zip(prompts, generations, strict=True):
        yield Record(
            example=prompt.example.id,
            status="ok",
            prompt_tokens=len(prompt.tokens),
            truncated_tokens=prompt.truncated_tokens,
            tokens=generation.tokens,
            text=target.decode(generation.tokens),
            stop_reason=generation.stop_reason,
            wall_s=wall_s / len(prompts),
            steps=columns(generation.steps),
            statistics=_statistics(task, prompt, generation, target, session),
            overlap=_overlap(arm, prompt, generation, session),
            **common,
        )


def _statistics(task: Task, prompt: Prompt, generation: Generation, target: LoadedModel, session: Session) -> dict:
    score: ReferenceScore | None = None
    if task.scores_reference:
        text = prompt.example.references[0]
        score = score_reference(session, prompt.tokens, target.encode_continuation(text), text)
    return dict(task.statistics(prompt.example, target.decode(generation.tokens), score))


def _overlap(arm: Arm, prompt: Prompt, generation: Generation, session: Session) -> list[Overlap]:
    inputs, sampling = Inputs((prompt.tokens,)), arm.experiment.sampling
    found = []
    for label, drafter in arm.overlap:
        values = overlap(session, drafter, inputs, generation.tokens, sampling, arm.experiment.leniences)
        by_lenience = {f"{lenience:g}": [round(v, 7) for v in row.tolist()] for lenience, row in values.items()}
        found.append(Overlap(drafter=label, by_lenience=by_lenience))
    return found


def columns(steps: Sequence[Step]) -> Steps:
    """Rounds as columns; times of rounds that no clock saw are left out rather than written as NaN."""
    out = Steps()
    for name in (field.name for field in fields(Steps)):
        values = [getattr(step, name) for step in steps]
        if name.endswith("_s"):
            values = [] if any(math.isnan(v) for v in values) else [round(v, 7) for v in values]
        elif name.endswith("_probs"):
            values = [[round(v, 7) for v in row] for row in values]
        setattr(out, name, values)
    return out
