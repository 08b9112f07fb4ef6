"""Runs comparisons: what is missing, interleaved, one record at a time.

Arms take turns example by example (the order rotates), so that a machine whose speed drifts slows them all alike. What
is recorded already is not run again; what fails is recorded as failed.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from tqdm import tqdm

from harness import environment, plugins, zoo
from harness.build import Models, build_drafter, build_method, check_names, early_reader, heads_of, overload_of, specs_of
from harness.decode import generate, must_equal, outputs_of, text_of
from harness.divergence import classify
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, Experiment, ModelSpec
from harness.memory import quick_collection, with_peak
from harness.model_files import ZOO
from harness.models import LoadedModel, fits, is_ngram_table, pin_heads, pin_model, scale_of
from harness.profiled import ProfiledRule
from harness.prompts import Prompt, make_prompt
from harness.recipe_checks import check_recipes
from harness.records import Divergence, EarlyRanks, Overlap, Record, RecordFile, RuleTimes, Steps, write_environment
from harness.scoring import score_reference
from methods.errors import InputError, NotFiniteError
from methods.ppd.heads import EarlyHead
from methods.ppd.match_rate import early_ranks
from methods.speculative.decode import DraftAndVerify
from methods.speculative.overlap import overlap
from methods.types import Drafter, Generation, Inputs, Method, Session, Step
from tasks import fingerprint, get_task
from tasks.base import Example, ReferenceScore, Task
from tasks.errors import DataError

WARM_UP = 1
FAILURES = (InputError, RuntimeError, ValueError, IndexError)  # of one example: recorded, and the others go on
PIPELINE_COLUMNS = ("candidates", "matched", "early_layer", "parts", "units")


def pin(experiment: Experiment) -> Experiment:
    """Fill in what the names mean today: the data's fingerprint, every model's revision, plug-ins. Loads no model."""
    plugins.load()
    task = get_task(experiment.task)
    check_names(experiment.method)
    check_recipes(experiment)
    heads, where = heads_of(experiment), (experiment.profile, experiment.source)
    revisions = {spec: (pin_heads if spec in heads else pin_model)(spec, *where) for spec in specs_of(experiment)}

    def model(spec: ModelSpec | None) -> ModelSpec | None:
        return None if spec is None else revisions[spec]

    def drafter(spec: DrafterSpec | None) -> DrafterSpec | None:
        return None if spec is None else replace(spec, model=model(spec.model), inner=drafter(spec.inner))

    method = experiment.method
    return experiment.replace(
        source_fingerprint=fingerprint(task.name, experiment.source),
        target=revisions[experiment.target],
        method=replace(method, drafter=drafter(method.drafter), heads=model(method.heads)),
        overlap=tuple(drafter(spec) for spec in experiment.overlap),
        early=tuple(replace(spec, heads=model(spec.heads)) for spec in experiment.early),
        plugins=plugins.used_by(experiment),
    )


def ensure_models(experiments: Iterable[Experiment], workers: int | None = None) -> None:
    """Train what the zoo lacks for these experiments, several models at once (``workers`` as in ``zoo.ensure``)."""
    wanted: dict[tuple[zoo.Scale, str], dict[str, None]] = {}
    for experiment in experiments:
        for spec in specs_of(experiment):
            if spec.name.startswith(ZOO):
                group = wanted.setdefault((scale_of(experiment.profile), experiment.source), {})
                group[spec.name.removeprefix(ZOO)] = None
    for (scale, source), names in wanted.items():
        zoo.ensure(list(names), scale, source, workers=workers)


@dataclass
class Arm:
    """One experiment made ready: its method, what is measured over its output, its prompts, and what is recorded."""

    experiment: Experiment
    method: Method
    overlap: list[tuple[str, Drafter]]
    early: list[EarlyHead]
    prompts: list[Prompt]
    file: RecordFile
    done: dict[tuple[str, int], Record]
    checked: bool

    def lacks(self, chunk: range, repeat: int) -> bool:
        return any((self.prompts[index].example.id, repeat) not in self.done for index in chunk)


class Runner:
    """Runs comparisons in one process; models stay loaded between them while device and dtype stay the same."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        self.folder, self.quiet = folder, quiet
        self._id = uuid4().hex[:12]
        self._noted: set[str] = set()
        self._models: Models | None = None

    def path(self, experiment: Experiment) -> Path:
        return RecordFile(self.folder, experiment).path

    def records(self, experiment: Experiment) -> list[Record]:
        """What is stored for an experiment (which must be pinned), in the order it was made."""
        return RecordFile(self.folder, experiment).read()

    def is_complete(self, comparison: Comparison) -> bool:
        """Whether every record is there, judged by count so that neither data nor model is touched."""
        return all(len(self.records(arm)) >= arm.limit * arm.repeats for arm in comparison.arms)

    def models(self, experiment: Experiment) -> Models:
        if self._models is None or (self._models.device, self._models.dtype) != (experiment.device, experiment.dtype):
            self._models = Models(experiment.device, experiment.dtype)
        return self._models

    def run(self, comparison: Comparison, description: str = "") -> None:
        """Run what is missing. Raises UsageError for what no example can work with; failures of single examples are records."""
        first = comparison.arms[0]
        task = get_task(first.task)
        examples = list(task.examples(first.source, "test", first.limit, first.seed))
        _check_examples(examples, first)
        keys = {(example.id, repeat) for example in examples for repeat in range(first.repeats)}
        if not any(keys - {record.key for record in self.records(arm)} for arm in comparison.arms):
            return
        ensure_models(comparison.arms)
        target = self.models(first).get(first.target)
        arms = [self._arm(arm, first, task, examples, target) for arm in comparison.arms]
        session = target.session()
        for arm in arms:
            if warm_up := _heard(arm.prompts)[0][:WARM_UP]:
                with suppress(RuntimeError, IndexError, NotFiniteError):  # fails again where it counts, and is recorded then
                    generate(arm.experiment, arm.method, warm_up, target, session, repeat=0)
        self._run_all(arms, task, target, session, description or first.task)

    def _arm(
        self, experiment: Experiment, baseline: Experiment, task: Task, examples: Sequence[Example], target: LoadedModel
    ) -> Arm:
        models = self.models(experiment)
        prompts = [make_prompt(task, example, experiment, target) for example in examples]
        _check_drafts(experiment, prompts, target, models)
        if warning := overload_of(experiment.method):
            print(f"foretoken: warning: {warning}", file=sys.stderr)
        method, file = build_method(experiment.method, target, models), RecordFile(self.folder, experiment)
        if experiment.profiled and isinstance(method, DraftAndVerify):
            method.rule = ProfiledRule(method.rule, experiment.device)
        overlap = [(spec.label, build_drafter(spec, target, models)) for spec in experiment.overlap]
        early = [early_reader(spec, target) for spec in experiment.early]
        done = {record.key: record for record in file.read()}
        return Arm(experiment, method, overlap, early, prompts, file, done, must_equal(baseline, experiment, method))

    def _run_all(self, arms: list[Arm], task: Task, target: LoadedModel, session: Session, title: str) -> None:
        total = sum(len(arm.prompts) * arm.experiment.repeats - len(arm.done) for arm in arms)
        bar = tqdm(total=total, desc=title, unit="ex", disable=self.quiet, delay=2, dynamic_ncols=True)
        facts = self._environment(arms[0].experiment)
        with ExitStack() as stack:
            stack.callback(bar.close)
            if arms[0].experiment.memory:
                stack.enter_context(quick_collection())
            writers = [stack.enter_context(arm.file.open()) for arm in arms]
            for turn, (repeat, chunk) in enumerate(_chunks(arms[0].experiment, len(arms[0].prompts))):
                made = self._run_chunk(arms, turn, repeat, chunk, task, target, session, facts)
                for arm, writer in zip(arms, writers, strict=True):
                    for record in made[arm.experiment.signature]:
                        writer.append(record)
                        arm.done[record.key] = record
                        bar.update()

    def _run_chunk(
        self,
        arms: list[Arm],
        turn: int,
        repeat: int,
        chunk: range,
        task: Task,
        target: LoadedModel,
        session: Session,
        facts: str,
    ) -> dict[str, list[Record]]:
        """The new records of a chunk of examples. A batch is run whole, so that a resumed one rounds as it would have."""
        made: dict[str, list[Record]] = {arm.experiment.signature: [] for arm in arms}
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            if arm.lacks(chunk, repeat):
                prompts = [arm.prompts[index] for index in chunk]
                if arm.experiment.memory:  # a batch must not find what the last one left
                    arm.method = build_method(arm.experiment.method, target, self.models(arm.experiment))
                    session = target.session()
                self._note_conversions(_heard(prompts)[0])
                records = _records(arm, prompts, task, target, session, repeat, {"run": self._id, "environment": facts})
                made[arm.experiment.signature] = [record for record in records if record.key not in arm.done]
        plain = {**arms[0].done, **{record.key: record for record in made[arms[0].experiment.signature]}}
        for arm in arms[1:] if len(arms) > 1 else []:
            for record in made[arm.experiment.signature]:
                if arm.checked:
                    record.divergence = self._divergence(arms[0], arm, plain.get(record.key), record)
        return made

    def _divergence(self, baseline: Arm, arm: Arm, plain: Record | None, record: Record) -> Divergence | None:
        if plain is None or plain.tokens is None or record.tokens is None or plain.tokens == record.tokens:
            return None
        prompt = next(prompt for prompt in arm.prompts if prompt.example.id == record.example)
        pair = (baseline.experiment, arm.experiment)
        return classify(pair, (plain.tokens, record.tokens), prompt, record.repeat, self.models(arm.experiment))

    def _note_conversions(self, prompts: Sequence[Prompt]) -> None:
        """Say once of each recording what was done to make it one channel at 16 kHz."""
        for prompt in prompts:
            audio, name = prompt.example.audio, prompt.example.id
            if audio is not None and name not in self._noted:
                self._noted.add(name)
                if conversion := audio.sound().conversion:
                    print(f"foretoken: note: example {name!r}: {conversion}", file=sys.stderr)

    def _environment(self, experiment: Experiment) -> str:
        """Keeps this machine's description beside the records; its hash stands in every one of them."""
        facts = environment.describe(experiment.device)
        digest = environment.fingerprint(facts)
        write_environment(self.folder, digest, facts)
        return digest


def _check_examples(examples: Sequence[Example], experiment: Experiment) -> None:
    if not examples:
        raise UsageError(f"data {experiment.source!r}: no test example for task {experiment.task!r}; expected at least one row")
    counts = Counter(example.id for example in examples)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UsageError(f"data {experiment.source!r}: id {twice[0]!r} occurs {counts[twice[0]]} times; expected unique ids")


def _check_drafts(experiment: Experiment, prompts: Sequence[Prompt], target: LoadedModel, models: Models) -> None:
    """Prompts that the target holds but a draft does not are refused; a draft that runs out later only drafts less."""
    for spec in specs_of(experiment)[1:]:
        if is_ngram_table(spec) or spec in heads_of(experiment):
            continue
        draft = models.draft(spec, target)
        for prompt in prompts:
            if not fits(draft, len(prompt.tokens), 1):
                raise UsageError(
                    f"example {prompt.example.id!r}: its prompt of {len(prompt.tokens)} tokens fits target {target.name} "
                    f"(position limit {target.position_limit}) but not draft {draft.name} (position limit "
                    f"{draft.position_limit}); pass --max-input-tokens to cut it"
                )


def _chunks(experiment: Experiment, num_examples: int) -> Iterator[tuple[int, range]]:
    for repeat in range(experiment.repeats):
        for start in range(0, num_examples, experiment.batch_size):
            yield repeat, range(start, min(start + experiment.batch_size, num_examples))


def _heard(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
    """Those whose recording can be read, if they have one, and the others with what is wrong with them."""
    heard, unheard = [], []
    for prompt in prompts:
        try:
            prompt.windows()
        except DataError as error:
            unheard.append((prompt, f"{type(error).__name__}: {error}"))
        else:
            heard.append(prompt)
    return heard, unheard


def _records(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int, facts: dict[str, str]
) -> list[Record]:
    """One record a prompt. A recording that cannot be read fails alone, without the rest of its batch."""
    heard, unheard = _heard(prompts)
    records = _decoded(arm, heard, task, target, session, repeat, facts) if heard else []
    common: dict[str, Any] = {"signature": arm.experiment.signature, "repeat": repeat, **facts}
    return records + [
        Record(example=prompt.example.id, status="failed", error=message, prompt_tokens=len(prompt.tokens), **common)
        for prompt, message in unheard
    ]


def _decoded(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int, facts: dict[str, str]
) -> list[Record]:
    """One record a prompt. What goes wrong while decoding or scoring makes records of failure, with no numbers."""
    common: dict[str, Any] = {"signature": arm.experiment.signature, "repeat": repeat, **facts}
    try:
        generations, wall_s, peak_bytes, rule_times = _generate(arm, prompts, target, session, repeat)
        records = [
            Record(
                example=prompt.example.id,
                status="ok",
                prompt_tokens=len(prompt.tokens),
                truncated_tokens=prompt.truncated_tokens,
                tokens=generation.tokens,
                text=text_of(arm.experiment, prompt, generation.tokens, target),
                stop_reason=generation.stop_reason,
                wall_s=wall_s / len(prompts),
                encode_s=_share(generation.encode_s, len(prompts)),
                draft_encode_s=_share(generation.draft_encode_s, len(prompts)),
                peak_bytes=peak_bytes,
                steps=columns(generation.steps),
                statistics=_statistics(arm.experiment, task, prompt, generation, target, session),
                overlap=_overlap(arm, prompt, generation, target, session),
                early=_early(arm, prompt, generation, session),
                rule_times=rule_times,
                **common,
            )
            for prompt, generation in zip(prompts, generations, strict=True)
        ]
        for record in records:
            record.to_line()  # a number that JSON cannot hold (NaN) is a failure, found here
    except FAILURES as error:
        message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if isinstance(error, IndexError) or "out of bounds" in message:
            message += " (a token outside the vocabulary: are there NaN in the weights of a model?)"
        return [
            Record(example=prompt.example.id, status="failed", error=message, prompt_tokens=len(prompt.tokens), **common)
            for prompt in prompts
        ]
    return records


def _generate(
    arm: Arm, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[list[Generation], float, int | None, RuleTimes | None]:
    """A batch's generations, its seconds, its peak of memory where that is asked for and can be known, and its rule's times."""

    def made() -> tuple[list[Generation], float]:
        return generate(arm.experiment, arm.method, prompts, target, session, repeat)

    rule = getattr(arm.method, "rule", None)
    if isinstance(rule, ProfiledRule):
        (generations, wall_s), rule_times = rule.profile(made)
        return generations, wall_s, None, rule_times
    if not arm.experiment.memory:
        return *made(), None, None
    value, peak_bytes = with_peak(arm.experiment.device, made)
    return *value, peak_bytes, None


def _share(seconds: float, num_rows: int) -> float | None:
    """A row's share of a batch's seconds; None where no clock saw them."""
    return None if math.isnan(seconds) else seconds / num_rows


def _statistics(
    experiment: Experiment, task: Task, prompt: Prompt, generation: Generation, target: LoadedModel, session: Session
) -> dict:
    score: ReferenceScore | None = None
    if task.scores_reference:
        text = prompt.example.references[0]
        score = score_reference(session, prompt.tokens, target.encode_continuation(text), text)
    return dict(task.statistics(prompt.example, text_of(experiment, prompt, generation.tokens, target), score))


def _overlap(arm: Arm, prompt: Prompt, generation: Generation, target: LoadedModel, session: Session) -> list[Overlap]:
    """Windows of a recording one behind the other, as their outputs."""
    if not arm.overlap:
        return []
    experiment, drafters = arm.experiment, [drafter for _, drafter in arm.overlap]
    outputs = outputs_of(experiment, prompt, generation.tokens, target)
    measured = [
        overlap(session, drafters, inputs, output, experiment.sampling, experiment.leniences)
        for inputs, output in zip(prompt.windows(), outputs, strict=False)
    ]
    return [
        Overlap(
            drafter=label,
            by_lenience={
                repr(float(key)): [round(v, 7) for window in measured for v in window[index][key].tolist()]
                for key in experiment.leniences
            },
        )
        for index, (label, _) in enumerate(arm.overlap)
    ]


def _early(arm: Arm, prompt: Prompt, generation: Generation, session: Session) -> list[EarlyRanks]:
    """Heads that read the same layers share one pass over the text."""
    measured, inputs = [], Inputs((prompt.tokens,))
    for layers in dict.fromkeys(spec.layers for spec in arm.experiment.early):
        readers = [pair for pair in zip(arm.experiment.early, arm.early, strict=True) if pair[0].layers == layers]
        ranks = early_ranks(session, inputs, generation.tokens, layers, [head for _, head in readers]).tolist()
        measured += [
            EarlyRanks(head=spec.label, layer=layer, ranks=row)
            for (spec, _), rows in zip(readers, ranks, strict=True)
            for layer, row in zip(layers, rows, strict=True)
        ]
    return measured


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 7) for value in values]


def columns(steps: Sequence[Step]) -> Steps:
    """Rounds as columns; times of rounds that no clock saw, and what no round of this method has, are left out."""
    out = Steps()
    for name in (field.name for field in fields(Steps)):
        values = [getattr(step, name) for step in steps]
        if name.endswith("_s"):
            values = [] if any(math.isnan(v) for v in values) else _rounded(values)
        elif name.endswith("_probs") or name in ("parts", "units"):
            values = [_rounded(row) for row in values]
        if name in PIPELINE_COLUMNS and not any(step.early_layer for step in steps):
            values = []
        if name == "choices" and not any(values):
            values = []
        setattr(out, name, values)
    return out
