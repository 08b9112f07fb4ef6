"""The records of a folder as the report shows them: an item for each experiment, with generations in coloured tokens."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.files import readable
from harness.core.notes import Notes
from harness.core.record_files import load_experiment, load_records, read_environment
from harness.core.records import Record
from harness.report.items import TableItem, read_json
from harness.tables.coloured import Token, coloured_rounds, summary
from harness.tables.evidence import Decode, show_ids, stored_decoder


@dataclass(frozen=True, kw_only=True)
class _Use:
    """A table that shows an experiment's records, and its command; ``page`` is None for runs that are not committed."""

    name: str
    title: str
    command: str
    page: str | None


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """One record as a reader sees it. ``rounds`` is empty where nothing was drafted."""

    number: int
    record: Record
    rounds: Sequence[Sequence[Token]]
    summary: str


@dataclass(frozen=True, kw_only=True)
class ExperimentItem:
    """A record file with its experiment; ``problem`` says why it cannot be read, ``undecoded`` why ids stand for text."""

    signature: str
    path: Path
    experiment: Experiment | None = None
    problem: str = ""
    undecoded: str = ""
    counts: Mapping[str, int | float] | None = None
    learned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environments: tuple[Mapping[str, str | int], ...] = ()
    generations: tuple[_Generation, ...] = ()
    uses: tuple[_Use, ...] = ()

    @property
    def page(self) -> str:
        return f"experiment-{self.signature}.html"

    @property
    def method(self) -> str:
        """The method with its drafter, rule and layers, in words."""
        if self.experiment is None:
            return ""
        method = self.experiment.method
        parts = [method.name]
        if method.drafter is not None:
            parts += [f"drafter {method.drafter.label}", f"gamma {method.gamma}"]
        values = method.values
        if method.rule is not None:
            parts.append(f"rule {method.rule.name}" + (f" ({values['beta']}, {values['tau']:g})" if "beta" in values else ""))
        if "candidates" in values:
            parts += [f"layer {values['early_layer']}", f"{values['candidates']} candidates"]
        elif values.get("early_layer") is not None:
            parts.append(f"layer {values['early_layer']}")
        return ", ".join(parts)

    @property
    def description(self) -> dict[str, Any]:
        return asdict(self.experiment) if self.experiment else {}


def experiment_items(folder: Path, tables: Sequence[TableItem], runs: Path, limit: int) -> list[ExperimentItem]:
    """Read all record files of a folder, each with at most ``limit`` of its generations; a missing folder has none."""
    uses = uses_of(tables, runs)
    return [_item(path, uses.get(path.name, ()), limit) for path in sorted(folder.glob("*.jsonl"))]


def uses_of(tables: Sequence[TableItem], runs: Path) -> dict[str, tuple[_Use, ...]]:
    """The tables that name a record file in their header, by file: committed ones, and those of other profiles in ``runs``."""
    found: dict[str, list[_Use]] = defaultdict(list)
    for table in tables:
        use = _Use(name=str(table.number), title=table.title, command=table.command, page=table.page)
        for name in table.record_files:
            found[name].append(use)
    for path in sorted(runs.glob("*/tables/*.json")):
        use, names = _other_use(path)
        for name in names:
            found[name].append(use)
    return {name: tuple(uses) for name, uses in found.items()}


def _other_use(path: Path) -> tuple[_Use, list[str]]:
    """Read a table of another profile and the names of its record files."""
    document = read_json(path)
    with readable(f"table {path}", "expected what `foretoken table` writes: remove it, or write it again"):
        header = document["header"]
        name = f"{path.stem} of {path.parts[-3]}"
        return _Use(name=name, title=document["title"], command=header["command"], page=None), list(header["record_files"])


def _item(path: Path, uses: tuple[_Use, ...], limit: int) -> ExperimentItem:
    """Read one record file. One that cannot be read becomes an item with its problem, so that the others keep their pages."""
    try:
        experiment, records = load_experiment(path), load_records(path)
        learned = Notes(path.parent).learned(path.stem)
    except UsageError as error:
        return ExperimentItem(signature=path.stem, path=path, problem=str(error), uses=uses)
    decode = stored_decoder(path.parent, experiment.target)
    undecoded = f"no tokenizer of {experiment.target.name} was kept with the records" if decode is show_ids else ""
    digests = dict.fromkeys(record.environment for record in records)
    return ExperimentItem(
        signature=path.stem,
        path=path,
        experiment=experiment,
        undecoded=undecoded,
        counts=_counts(records),
        learned=learned,
        environments=tuple(read_environment(path.parent, digest) for digest in digests),
        generations=tuple(generations(records, decode, limit)),
        uses=uses,
    )


def _counts(records: Sequence[Record]) -> dict[str, int | float]:
    """Count what a reader asks first. Failed runs have no tokens and no times."""
    good = [record for record in records if record.status == "ok"]
    tokens = sum(len(record.tokens or ()) for record in good)
    rounds = sum(len(record.steps.emitted) for record in good if record.steps)
    kinds = Counter(record.divergence.kind for record in good if record.divergence)
    return {
        "records": len(records),
        "examples": len({record.example for record in records}),
        "failed": len(records) - len(good),
        "tokens": tokens,
        "rounds": rounds,
        "seconds": sum(record.wall_s or 0.0 for record in good),
        "near-ties": kinds["near-tie"],
        "bugs": kinds["bug"],
    }


def generations(records: Sequence[Record], decode: Decode, limit: int) -> list[_Generation]:
    """Choose at most ``limit`` records: failures and divergences first, then in the order of the file."""
    numbered = list(enumerate(records, start=1))
    numbered.sort(key=lambda pair: pair[1].status == "ok" and pair[1].divergence is None)
    return [_generation(number, record, decode) for number, record in numbered[:limit]]


def _generation(number: int, record: Record, decode: Decode) -> _Generation:
    drafted = record.status == "ok" and record.steps is not None and any(record.steps.drafted)
    if not drafted:
        count = len(record.tokens or ())
        text = f"{count} tokens, nothing drafted" if record.status == "ok" else f"failed: {record.error}"
        return _Generation(number=number, record=record, rounds=(), summary=text)
    rounds = coloured_rounds(record, decode)
    return _Generation(number=number, record=record, rounds=rounds, summary=summary(rounds))
