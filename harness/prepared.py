"""A comparison made ready in one process: models loaded, arms built and warmed up; it turns chunks of examples into records."""

import sys
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import environment
from harness.build import Models, build_drafter, build_method, early_reader, heads_of, overload_of, specs_of
from harness.decode import must_equal
from harness.divergence import classify
from harness.errors import UsageError
from harness.experiment import Comparison, Experiment
from harness.models import LoadedModel, fits, is_ngram_table
from harness.profiled import ProfiledRule
from harness.prompts import Prompt, make_prompt
from harness.recording import Arm, heard_of, records_of, warm_up
from harness.records import Divergence, Record, write_environment
from methods.speculative.decode import DraftAndVerify
from tasks import get_task
from tasks.base import Example

Key = tuple[str, int]
Known = tuple[dict[Key, Record], ...]


@dataclass(frozen=True)
class Chunk:
    """Examples that are decoded together, once. ``turn`` says which arm begins.

    ``rows`` are their places among a comparison's examples, ``known`` what each arm has recorded of them before.
    """

    turn: int
    repeat: int
    rows: range
    keys: tuple[Key, ...]
    known: Known

    def lacks(self, arm: int) -> bool:
        return len(self.known[arm]) < len(self.keys)

    @property
    def complete(self) -> bool:
        return not any(self.lacks(arm) for arm in range(len(self.known)))

    def is_new_to(self, stored: Sequence[Container[Key]]) -> bool:
        return any(key not in arm for arm in stored for key in self.keys)

    def merged(self, arm: int, new: Sequence[Record]) -> list[Record]:
        """An arm's records, known and new, in the order of the examples."""
        records = self.known[arm] | {record.key: record for record in new}
        return [records[key] for key in self.keys if key in records]


def examples_of(experiment: Experiment) -> list[Example]:
    examples = list(get_task(experiment.task).examples(experiment.source, "test", experiment.limit, experiment.seed))
    if not examples:
        raise UsageError(f"data {experiment.source!r}: no test example for task {experiment.task!r}; expected at least one row")
    counts = Counter(example.id for example in examples)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UsageError(f"data {experiment.source!r}: id {twice[0]!r} occurs {counts[twice[0]]} times; expected unique ids")
    return examples


def chunks_of(experiment: Experiment, examples: Sequence[Example], known: Known) -> Iterator[Chunk]:
    """All chunks of a comparison, in the order in which their records are written."""
    turn = 0
    for repeat in range(experiment.repeats):
        for start in range(0, len(examples), experiment.batch_size):
            rows = range(start, min(start + experiment.batch_size, len(examples)))
            keys = tuple((examples[row].id, repeat) for row in rows)
            here = tuple({key: records[key] for key in keys if key in records} for records in known)
            yield Chunk(turn, repeat, rows, keys, here)
            turn += 1


class Prepared:
    """``run`` and ``noted`` are the process's: its name in records, and the recordings of which something was said already."""

    def __init__(self, comparison: Comparison, models: Models, folder: Path, run: str, noted: set[str]) -> None:
        first = comparison.arms[0]
        self.models, self.noted = models, noted
        self.task, self.target = get_task(first.task), models.get(first.target)
        examples = examples_of(first)
        self.arms = [self._arm(arm, first, examples) for arm in comparison.arms]
        self.session = self.target.session()
        for arm in self.arms:
            warm_up(arm, self.target, self.session)
        self.facts = {"run": run, "environment": _environment(first, folder)}

    def _arm(self, experiment: Experiment, baseline: Experiment, examples: Sequence[Example]) -> Arm:
        target, models = self.target, self.models
        prompts = [make_prompt(self.task, example, experiment, target) for example in examples]
        _check_drafts(experiment, prompts, target, models)
        if warning := overload_of(experiment.method):
            print(f"foretoken: warning: {warning}", file=sys.stderr)
        method = build_method(experiment.method, target, models)
        if experiment.profiled and isinstance(method, DraftAndVerify):
            method.rule = ProfiledRule(method.rule, experiment.device)
        overlap = [(spec.label, build_drafter(spec, target, models)) for spec in experiment.overlap]
        early = [early_reader(spec, target) for spec in experiment.early]
        return Arm(experiment, method, overlap, early, prompts, must_equal(baseline, experiment, method))

    def run(self, chunk: Chunk) -> list[list[Record]]:
        """The new records of each arm. A batch is run whole, so that a resumed one rounds as it would have."""
        made: list[list[Record]] = [[] for _ in self.arms]
        session, first = self.session, chunk.turn % len(self.arms)
        for index in (*range(first, len(self.arms)), *range(first)):
            if chunk.lacks(index):
                arm = self.arms[index]
                prompts = [arm.prompts[row] for row in chunk.rows]
                if arm.experiment.memory:  # a batch must not find what the last one left
                    arm.method = build_method(arm.experiment.method, self.target, self.models)
                    session = self.target.session()
                self._note_conversions(heard_of(prompts)[0])
                records = records_of(arm, prompts, self.task, self.target, session, chunk.repeat, self.facts)
                made[index] = [record for record in records if record.key not in chunk.known[index]]
        plain = {**chunk.known[0], **{record.key: record for record in made[0]}}
        for arm, records in zip(self.arms[1:], made[1:], strict=True):
            for record in records if arm.checked else ():
                record.divergence = self._divergence(arm, plain.get(record.key), record)
        return made

    def _divergence(self, arm: Arm, plain: Record | None, record: Record) -> Divergence | None:
        if plain is None or plain.tokens is None or record.tokens is None or plain.tokens == record.tokens:
            return None
        prompt = next(prompt for prompt in arm.prompts if prompt.example.id == record.example)
        pair = (self.arms[0].experiment, arm.experiment)
        return classify(pair, (plain.tokens, record.tokens), prompt, record.repeat, self.models)

    def _note_conversions(self, prompts: Sequence[Prompt]) -> None:
        """Say once of each recording what was done to make it one channel at 16 kHz."""
        for prompt in prompts:
            audio, name = prompt.example.audio, prompt.example.id
            if audio is not None and name not in self.noted:
                self.noted.add(name)
                if conversion := audio.sound().conversion:
                    print(f"foretoken: note: example {name!r}: {conversion}", file=sys.stderr)


def _environment(experiment: Experiment, folder: Path) -> str:
    """Keeps this machine's description beside the records; its hash stands in every one of them."""
    facts = environment.describe(experiment.device)
    digest = environment.fingerprint(facts)
    write_environment(folder, digest, facts)
    return digest


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
