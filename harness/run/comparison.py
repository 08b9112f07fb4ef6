"""A comparison made ready in one process: models loaded, arms built and warmed up; it turns chunks of examples into records."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness.core import environment
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, Experiment, MemoryProbe, OverlapProbe, Probe, RuleTimesProbe
from harness.core.record_files import DATE, write_environment
from harness.core.records import Divergence, Key, ProbeRecord, Record
from harness.models.fit import Models, fits
from harness.models.loading import LoadedModel
from harness.models.names import is_ngram_table
from harness.run.build import build_drafter, build_method, early_reader, heads_of, specs_of
from harness.run.decode import must_equal
from harness.run.divergence import classify
from harness.run.patience import Patience
from harness.run.prompts import Prompt, examples_of, make_prompt
from harness.run.record import Arm, decoded_again, forced, generated, profile_rule, warm_up, with_readable_audio
from harness.run.refusals import check_tokens, overload_of
from harness.run.replay import Reader, replay_record, with_end
from methods.sampling import Sampling
from methods.session import ModelSession
from methods.static import Room
from tasks import get_task
from tasks.base import Example

Known = tuple[Mapping[Key, Record], ...]
Replay = Literal["all", "sample", "none"]
LEAST, REPLAYED = 20, 50  # outputs of an arm that "sample" replays: a third of the examples, at random, once each


@dataclass(frozen=True)
class Chunk:
    """Examples that are decoded together, once. ``turn`` says which arm begins.

    ``rows`` are their places among a comparison's examples, ``known`` what each arm has recorded of them before, ``lacking``
    whether an arm has more to record.
    """

    turn: int
    repeat: int
    rows: range
    keys: tuple[Key, ...]
    known: tuple[dict[Key, Record], ...]
    lacking: tuple[bool, ...]

    def is_generated(self, arm: int) -> bool:
        return len(self.known[arm]) == len(self.keys)


def stages_of(comparison: Comparison) -> list[Comparison]:
    """Return the comparison as it is generated, then once more for each probe that cannot look while its arms are timed.

    The times of a verify rule's calls are taken along with the generation on a CPU, where that disturbs nothing.
    """
    found = [Comparison(tuple(arm.replace(probes=tuple(filter(arm.takes_along, arm.probes))) for arm in comparison.arms))]
    for probe in dict.fromkeys(probe for arm in comparison.arms for probe in arm.probes if probe.decodes):
        asked = tuple(arm.replace(probes=(probe,)) for arm in comparison.arms if probe in arm.probes)
        found.append(Comparison(asked, decoded_for=probe))
    return found


def is_lacking(arm: Experiment, decoded_for: Probe | None, record: Record | None) -> bool:
    """Say whether a stage has something to add to a record. What is not generated yet is lacking in the first stage alone."""
    if record is None:
        return decoded_for is None
    probes = [probe for probe in arm.probes if not probe.decodes] if decoded_for is None else [decoded_for]
    return record.status == "ok" and any(probe.id not in record.probes for probe in probes)


def chunks_of(comparison: Comparison, examples: Sequence[Example], known: Known) -> Iterator[Chunk]:
    """Return all chunks of a stage, in the order in which their records are written."""
    turn, first = 0, comparison.arms[0]
    for repeat in range(first.repeats):
        for start in range(0, len(examples), first.batch_size):
            rows = range(start, min(start + first.batch_size, len(examples)))
            keys = tuple((examples[row].id, repeat) for row in rows)
            here = tuple({key: records[key] for key in keys if key in records} for records in known)
            lacking = tuple(
                any(is_lacking(arm, comparison.decoded_for, records.get(key)) for key in keys)
                for arm, records in zip(comparison.arms, here, strict=True)
            )
            yield Chunk(turn, repeat, rows, keys, here, lacking)
            turn += 1


class Prepared:
    """A stage of a comparison, ready to turn chunks into records.

    ``run`` is the id of this process, stored in each record. ``noted``: ids of recordings whose conversion was reported.
    ``replay``: which outputs are replayed as soon as they are recorded. ``patience``: with programs that disturb it.
    """

    def __init__(
        self,
        comparison: Comparison,
        models: Models,
        folder: Path,
        run: str,
        noted: set[str],
        replay: Replay = "sample",
        patience: Patience | None = None,
    ) -> None:
        first = comparison.arms[0]
        self.models, self.noted, self.decoded_for = models, noted, comparison.decoded_for
        self.patience = patience or Patience()
        self.task, self.target = get_task(first.task), models.get(first.target)
        examples = examples_of(first)
        self.arms = [self._arm(arm, first, examples) for arm in comparison.arms]
        self.session = self.target.session()  # that reads; the other one decodes
        self.decoding = self._decoding() if first.graphs else self.session
        self._is_warm = False
        self.chosen_keys = choose_replayed(examples, replay, first)
        self.reader = Reader(self.target, Sampling.of(first.sampling), models)
        self.facts = {"run": run, "environment": _environment(first, folder)}

    def _arm(self, experiment: Experiment, baseline: Experiment, examples: Sequence[Example]) -> Arm:
        target, models = self.target, self.models
        prompts = [make_prompt(self.task, example, experiment, target) for example in examples]
        _check_drafts(experiment, prompts, target, models)
        if warning := overload_of(experiment.method):
            print(f"foretoken: warning: {warning}", file=sys.stderr)
        method = build_method(experiment.method, target, _with_room(models, experiment, prompts))
        overlaps = [one for one in experiment.probes if isinstance(one, OverlapProbe)]
        drafters = {one: build_drafter(one.drafter, target, models) for one in overlaps}
        heads = {one: early_reader(one, target) for one in experiment.early}
        arm = Arm(experiment, method, prompts, must_equal(baseline, experiment, method), drafters, heads)
        if RuleTimesProbe() in experiment.probes:
            profile_rule(arm)
        return arm

    def _decoding(self) -> ModelSession:
        """Return the session of fixed shapes that all arms decode with; it has steps for the most drafts of any of them."""
        first, most_drafts = self.arms[0], max(arm.experiment.method.gamma for arm in self.arms)
        if self.models.device == "cpu":
            print("foretoken: note: graphs on a CPU: passes have fixed shapes, nothing is captured", file=sys.stderr)
        return _with_room(self.models, first.experiment, first.prompts).session(self.target, most_drafts + 1)

    def run(self, chunk: Chunk) -> list[list[Record]]:
        """Return the records of each arm that are new or have more probes than before."""
        for known in chunk.known:
            check_tokens(known.values(), self.target.name, self.target.vocab_size)
        if self.decoded_for is not None:
            return self.in_turn(chunk, self._decode_again)
        records = self.patience.undisturbed(lambda: self.in_turn(chunk, self._generate))
        compared = [self._compared(index, chunk, records[0], own) for index, own in enumerate(records)]
        replayed = self._with_replays(chunk, compared)
        measured = [self._measured(arm, chunk, own) for arm, own in zip(self.arms, replayed, strict=True)]
        return [
            [record for record in own if record is not known.get(record.key)]
            for own, known in zip(measured, chunk.known, strict=True)
        ]

    def in_turn(self, chunk: Chunk, decode: Callable[[int, Chunk], list[Record]]) -> list[list[Record]]:
        """Arms decode one after another; which one begins changes from chunk to chunk."""
        made: list[list[Record]] = [[] for _ in self.arms]
        first = chunk.turn % len(self.arms)
        for index in (*range(first, len(self.arms)), *range(first)):
            made[index] = decode(index, chunk) if chunk.lacking[index] else list(chunk.known[index].values())
        return made

    def _warm_up(self) -> None:
        for arm in () if self._is_warm else self.arms:
            warm_up(arm, self.target, self.decoding)
        self._is_warm = True

    def _generate(self, index: int, chunk: Chunk) -> list[Record]:
        """Return all records of an arm. A batch is decoded whole, so that a resumed one rounds as it would have."""
        known, arm = chunk.known[index], self.arms[index]
        if chunk.is_generated(index):
            return list(known.values())
        self._warm_up()
        prompts = [arm.prompts[row] for row in chunk.rows]
        self._note_conversions(with_readable_audio(prompts)[0])
        records = generated(arm, prompts, self.task, self.target, self.decoding, chunk.repeat, self.facts)
        return [known.get(record.key, record) for record in records]

    def _decode_again(self, index: int, chunk: Chunk) -> list[Record]:
        """Decode a batch under a probe; memory finds nothing there that the batch before it left."""
        arm, probe, session = self.arms[index], self.decoded_for, self.decoding
        assert probe is not None
        self._warm_up()
        if isinstance(probe, MemoryProbe):
            arm.method, session = build_method(arm.experiment.method, self.target, self.models), self.target.session()
        rows = {key: row for key, row in zip(chunk.keys, chunk.rows, strict=True) if key in chunk.known[index]}
        records = [record for record in chunk.known[index].values() if record.status == "ok"]
        prompts = [arm.prompts[rows[record.key]] for record in records]
        found = decoded_again(arm, records, prompts, probe, self.target, session, self.facts)
        return [_with(record, {probe.id: found[record.key]}) for record in records if record.key in found]

    def _compared(self, index: int, chunk: Chunk, plain: Sequence[Record], own: Sequence[Record]) -> list[Record]:
        """Return an arm's records; where new ones must equal the plain arm's and do not, with what parts them."""
        arm, found = self.arms[index], {record.key: record for record in plain}
        if not arm.must_equal:
            return list(own)
        new = {record.key for record in own if record.key not in chunk.known[index]}
        return [
            replace(one, divergence=self._divergence(arm, found.get(one.key), one)) if one.key in new else one for one in own
        ]

    def _divergence(self, arm: Arm, plain: Record | None, record: Record) -> Divergence | None:
        if plain is None or plain.tokens is None or record.tokens is None or plain.tokens == record.tokens:
            return None
        prompt = next(prompt for prompt in arm.prompts if prompt.example.id == record.example)
        pair = (self.arms[0].experiment, arm.experiment)
        return classify(pair, (plain.tokens, record.tokens), prompt, record.repeat, self.models)

    def _with_replays(self, chunk: Chunk, records: Sequence[Sequence[Record]]) -> list[list[Record]]:
        """Return all arms' records, new ones with what is wrong at their ends, those of the chosen examples replayed.

        Row by row: what several arms say of an example is mostly one text, and is read once.
        """
        found = [list(own) for own in records]
        for key, row in zip(chunk.keys, chunk.rows, strict=True):
            for arm, known, own in zip(self.arms, chunk.known, found, strict=True):
                for place, record in enumerate(own):
                    if record.key == key and key not in known and record.status == "ok":
                        own[place] = self._looked_at(arm, record, arm.prompts[row])
        return found

    def _looked_at(self, arm: Arm, record: Record, prompt: Prompt) -> Record:
        """Return a record with what is wrong at its end, or, of a chosen one, in its replay.

        Of an example that was not chosen no recording is heard once more.
        """
        chosen = record.key in self.chosen_keys
        if prompt.listener is not None and not chosen:
            return record
        found = with_end(record, arm.experiment, prompt, self.target)
        return replay_record(record, arm.experiment, arm.method, prompt, self.reader) if chosen and found is record else found

    def _measured(self, arm: Arm, chunk: Chunk, own: Sequence[Record]) -> list[Record]:
        """Records with what teacher-forced probes find over their text, as far as it is not recorded yet."""
        prompts = {key: arm.prompts[row] for key, row in zip(chunk.keys, chunk.rows, strict=True)}
        found = []
        for record in own:
            lacking = [one for one in arm.experiment.probes if not one.decodes and one.id not in record.probes]
            if lacking and record.status == "ok":
                prompt = prompts[record.key]
                record = _with(record, forced(arm, lacking, prompt, record, self.target, self.session, self.facts))
            found.append(record)
        return found

    def _note_conversions(self, prompts: Sequence[Prompt]) -> None:
        """Say once of each recording what was done to make it one channel at 16 kHz."""
        for prompt in prompts:
            audio, name = prompt.example.audio, prompt.example.id
            if audio is not None and name not in self.noted:
                self.noted.add(name)
                if conversion := audio.sound().conversion:
                    print(f"foretoken: note: example {name!r}: {conversion}", file=sys.stderr)


def _with(record: Record, found: dict[str, ProbeRecord]) -> Record:
    return replace(record, probes=record.probes | found)


def _with_room(models: Models, experiment: Experiment, prompts: Sequence[Prompt]) -> Models:
    """Return the same models; with graphs their sessions are laid out for these prompts and their outputs."""
    if not experiment.graphs:
        return models
    longest = max(len(prompt.tokens) for prompt in prompts)
    return replace(models, room=Room(experiment.batch_size, longest, experiment.max_new_tokens))


def _environment(experiment: Experiment, folder: Path) -> str:
    """Keep this machine's description and today's date beside the records; their hash stands in every one of them."""
    facts = environment.describe(experiment.device) | {DATE: datetime.now(UTC).date().isoformat()}
    return write_environment(folder, facts)


def _check_drafts(experiment: Experiment, prompts: Sequence[Prompt], target: LoadedModel, models: Models) -> None:
    """Prompts that the target holds but a draft does not are refused; a draft that runs out later only drafts less."""
    for spec in specs_of(experiment)[1:]:
        if is_ngram_table(spec) or spec in heads_of(experiment):
            continue
        draft = models.draft(spec, target, translated=True)  # the drafter itself says what is wrong with their vocabularies
        for prompt in prompts:
            if not fits(draft, len(prompt.tokens), 1):
                raise UsageError(
                    f"example {prompt.example.id!r}: its prompt of {len(prompt.tokens)} tokens fits target {target.name} "
                    f"(position limit {target.position_limit}) but not draft {draft.name} (position limit "
                    f"{draft.position_limit}); pass --max-input-tokens to cut it"
                )


def choose_replayed(examples: Sequence[Example], replay: Replay, arm: Experiment) -> frozenset[Key]:
    """Return which outputs of every arm are replayed, of an example that of any one repeat.

    It depends on examples and seed alone: a resumed run agrees.
    """
    if replay == "none":
        return frozenset()
    names = [example.id for example in examples]
    if replay == "all":
        return frozenset((name, repeat) for name in names for repeat in range(arm.repeats))
    count = min(REPLAYED, max(LEAST, len(names) // 3), len(names))
    drawn = random.Random(arm.seed)
    return frozenset((name, drawn.randrange(arm.repeats)) for name in drawn.sample(names, count))
