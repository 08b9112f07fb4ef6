"""Evidence: everything that a table or figure is made of besides its settings and the published numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from harness.core.experiment import Comparison, DrafterSpec, Experiment, ModelSpec, arms_of
from harness.core.files import digest_of, readable
from harness.core.notes import Notes, vocabulary_hash
from harness.core.record_files import RecordFile, read_environment
from harness.core.records import Record
from harness.measures.statistics import Missing
from harness.measures.verdicts import Verdict, audit_folder, key_of, label_of, place_of, verdict_of
from harness.tables.archive import archive_of, lean, unpacked
from harness.tables.models import models_that_ran

Decode = Callable[[Sequence[int]], str]
Facts = Mapping[str, Any]


def show_ids(tokens: Sequence[int]) -> str:
    """Write token ids in place of text, where no tokenizer is known."""
    return "".join(f"{token} " for token in tokens)


def _nothing(experiment: Experiment) -> Any:
    return None


_environment = lru_cache(maxsize=256)(read_environment)


@dataclass(frozen=True)
class Evidence:
    """The one argument from which cells and figures are made; making them touches nothing else.

    All of these take an experiment as it was planned, before its replicas are divided or after. ``records_of`` returns its
    records, an empty list where there are none.
    ``verdict_of`` returns what the exactness audit found of its method, None where it was not audited. ``decoder_of`` returns
    a function from token ids of its target to text. ``sources_of`` returns the sentences that it translates, by example.
    ``facts_of`` returns facts of its models, by name: ``num_parameters``, ``training_rows``. ``comet_of`` returns a score for
    each example, None where there is none. ``reason_of`` says why it could not be run, None where nothing hindered it.

    ``audits`` names the folder of the stored audits in notes; it is empty where none is stored. ``folder`` is the records'.
    """

    records_of: Callable[[Experiment], list[Record]]
    verdict_of: Callable[[Experiment], Verdict | None] = _nothing
    decoder_of: Callable[[Experiment], Decode] = lambda experiment: show_ids
    sources_of: Callable[[Experiment], Mapping[str, str]] = lambda experiment: {}
    facts_of: Callable[[Experiment], Mapping[str, Facts]] = lambda experiment: {}
    comet_of: Callable[[Experiment], Mapping[str, float] | Missing | None] = _nothing
    reason_of: Callable[[Experiment], str | None] = _nothing
    audits: str = ""
    folder: Path = Path("results/records")

    def __post_init__(self) -> None:
        """Read the records of every experiment once."""
        object.__setattr__(self, "records_of", cache(self.records_of))

    def ran(self, arms: Sequence[Experiment], drafter: DrafterSpec | None = None, beside: Iterable[Experiment] = ()) -> str:
        """Name the models behind ``arms``, and the draft: ``drafter``, or the one that they all have.

        Arms ``beside`` them are asked about a draft that none of ``arms`` runs.
        """
        facts = {name: found for arm in arms for name, found in self.facts_of(arm).items()}
        if drafter is not None and drafter.model is not None and drafter.model.name not in facts:
            facts = {name: found for arm in beside for name, found in self.facts_of(arm).items()} | facts
        return models_that_ran(arms, facts, drafter)

    def made_by(self, records: Iterable[Record]) -> frozenset[str]:
        """Return the commits and processors that recorded these, those that are known."""
        digests = {record.environment for record in records if record.environment}
        facts = [_environment(self.folder.resolve(), digest) for digest in digests]
        return frozenset(f"{one['commit']} on {one.get('processor', 'unknown')}" for one in facts if "commit" in one)

    def count(self, plan: Iterable[Comparison]) -> tuple[int, int]:
        """Count the runs of a plan: those that are recorded, and all."""
        arms = arms_of(plan)
        return sum(len(self.records_of(arm)) for arm in arms), sum(arm.num_runs for arm in arms)

    def num_lacking(self, arms: Iterable[Experiment]) -> int:
        """Count the arms without any record of which nothing says why."""
        return sum(not self.records_of(arm) and not self.reason_of(arm) for arm in arms)

    def state(self, plan: Sequence[Comparison]) -> str:
        """Say how much of a plan is recorded."""
        done, runs = self.count(plan)
        if not plan:
            return "computed, needs no run"
        return "not run" if done == 0 else "complete" if done >= runs else f"{done} of {runs} runs recorded"

    def reasons(self, plan: Iterable[Comparison]) -> list[str]:
        """Say why experiments of a plan could not be run, each reason once."""
        found = map(self.reason_of, arms_of(plan))
        return list(dict.fromkeys(reason for reason in found if reason))

    def reason_against_speed(self, experiments: Sequence[Experiment]) -> str | None:
        """Say which method's audit is red, or could not have found a fault, so that no speed-up of these arms may be shown."""
        for experiment in experiments:
            verdict = self.verdict_of(experiment)
            if verdict is not None and verdict.bars_speed:
                found = f"is red: {verdict.kind}" if verdict.is_red else "has not tested its law"
                return f"refused: the exactness audit of {label_of(experiment.method)} {found}, {verdict.evidence}"
        return None

    def verdict_notes(self, experiments: Iterable[Experiment]) -> list[str]:
        """Write one note on the verdict of each method; none where no audit is stored. Plain arms have no speed-up.

        A distance belongs to the numbers and models that were audited, so it stands behind their name. Every document that
        was read is named: one of a user's own may change what a committed table says.
        """
        found: dict[tuple[str, ...], str] = {}
        read: set[str] = set()
        for experiment in experiments if self.audits else ():
            if experiment.method.name in ("autoregressive", "beam") or key_of(experiment) in found:
                continue
            verdict = self.verdict_of(experiment)
            drawn = "greedy" if experiment.sampling.greedy else "sampled"
            text = f"not audited for {place_of(experiment)}" if verdict is None else f"{verdict.kind} ({verdict.shown})"
            found[key_of(experiment)] = f"{label_of(experiment.method, numbers=False)}, {drawn}: {text}"
            read.update(() if verdict is None else verdict.audits)
        place = f"{self.audits}: {', '.join(sorted(read))}" if read else self.audits
        return [f"exactness audit ({place}): {'; '.join(found.values())}."] if found else []


def stored_evidence(records: Path, leaned: bool = False) -> Evidence:
    """The evidence in a folder of records: they, the run's notes beside them, and the audits that count for them.

    A folder that is not there holds no evidence. Of an unpacked archive the records are ``leaned`` as they lie there.
    """
    if not records.is_dir():
        return Evidence(lambda experiment: [], folder=records)
    notes, audits = Notes(records), audit_folder(records)

    def records_of(experiment: Experiment) -> list[Record]:
        pinned = [notes.pin(part) for part in experiment.divided()]
        found = [record for part in pinned if part is not None for record in RecordFile(records, part).read()]
        return found if leaned else [lean(record) for record in found]

    def decoder_of(experiment: Experiment) -> Decode:
        pinned = notes.pin(experiment.divided()[0])
        return show_ids if pinned is None else stored_decoder(records, pinned.target)

    def facts_of(experiment: Experiment) -> Mapping[str, Facts]:
        if (pinned := notes.pin(experiment.divided()[0])) is None:
            return {}
        return {spec.name: notes.model(spec) for spec in (pinned.target, *pinned.draft_models)}

    def comet_of(experiment: Experiment) -> Mapping[str, float] | Missing | None:
        pinned = [notes.pin(part) for part in experiment.divided()]
        found = [notes.scores(part, "comet") for part in pinned if part is not None]
        failed = next((one["failed"] for one in found if "failed" in one), None)
        scores = {name: score for one in found for name, score in one.get("scores", {}).items()}
        return Missing(failed) if failed is not None else scores or None

    return Evidence(
        records_of,
        partial(verdict_of, folder=audits),
        decoder_of,
        lambda experiment: {} if (pinned := notes.pin(experiment.divided()[0])) is None else notes.texts(pinned),
        facts_of,
        comet_of,
        lambda experiment: next(filter(None, map(notes.unavailable, experiment.divided())), None),
        "/".join(audits.parts[-2:]) if any(audits.glob("*.json")) else "",
        records,
    )


def evidence_for(plan: Sequence[Comparison], paper: str, records: Path, results: Path) -> Evidence:
    """The evidence in a folder of records where anything of a plan lies there, else what is kept beside a paper's results."""
    own = stored_evidence(records)
    if not plan or own.count(plan)[0] or own.reasons(plan):
        return own
    kept = unpacked(archive_of(results, paper))
    return own if kept is None or not (found := kept_evidence(kept)).count(plan)[0] else found


@lru_cache(maxsize=1)
def kept_evidence(folder: Path) -> Evidence:
    """The evidence in an unpacked archive, which does not change; tables of one paper that follow each other read it once."""
    return stored_evidence(folder, leaned=True)


def stored_decoder(records: Path, target: ModelSpec) -> Decode:
    """Return a function from token ids to text, by the tokenizer that the run kept; it shows ids if none was kept."""
    notes = Notes(records)
    digest = notes.model(target).get("tokenizer")
    if digest is None:
        return show_ids
    return _decoder(notes.tokenizer(digest))


@cache
def _decoder(path: Path) -> Decode:
    with readable(f"tokenizer {path}", "remove it and the models.jsonl above it, and run the same commands again"):
        if path.is_dir():
            from transformers import AutoTokenizer  # takes seconds; only tokenizers that the light library cannot stand for

            kept = AutoTokenizer.from_pretrained(path)
            if vocabulary_hash(kept) != path.name:
                raise ValueError("it is not as it was written: its vocabulary differs")
            return lambda tokens: str(kept.decode(list(tokens)))
        from tokenizers import Tokenizer

        if not digest_of(path).startswith(path.name):
            raise ValueError("it is not as it was written: its checksum differs")
        light = Tokenizer.from_file(str(path))
        return lambda tokens: light.decode(list(tokens), skip_special_tokens=False)
