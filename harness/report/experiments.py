"""The records at hand, one item an experiment, down to single generations whose tokens are coloured by what became of them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.experiment import Experiment, ModelSpec
from harness.records import Record, load_experiment, read_environment, read_records
from harness.render.coloured import Decode, Token, coloured_rounds, summary
from harness.report.items import TableItem, read_json


@dataclass(frozen=True, kw_only=True)
class Use:
    """A table that was made of an experiment's records, and its command; ``page`` is None for runs that are not committed."""

    name: str
    title: str
    command: str
    page: str | None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One record as a reader sees it. ``rounds`` is empty where nothing was drafted: the text says it all."""

    number: int
    record: Record
    rounds: Sequence[Sequence[Token]]
    summary: str


@dataclass(frozen=True, kw_only=True)
class ExperimentItem:
    """A record file with its description; ``problem`` says why one cannot be read, ``undecoded`` why ids stand for text."""

    signature: str
    path: Path
    experiment: Experiment | None = None
    problem: str = ""
    undecoded: str = ""
    counts: Mapping[str, int | float] | None = None
    environments: tuple[Mapping[str, str | int], ...] = ()
    generations: tuple[Generation, ...] = ()
    uses: tuple[Use, ...] = ()

    @property
    def page(self) -> str:
        return f"experiment-{self.signature}.html"

    @property
    def method(self) -> str:
        """The method with what is plugged into it, in words."""
        if self.experiment is None:
            return ""
        method = self.experiment.method
        parts = [method.name]
        if method.drafter is not None:
            parts += [f"drafter {method.drafter.label}", f"gamma {method.gamma}"]
        if method.name == "speculative":
            parts.append(f"rule {method.rule}" + (f" ({method.beta}, {method.tau:g})" if method.rule == "top-beta" else ""))
        if method.name == "ppd":
            parts += [f"layer {method.early_layer}", f"{method.candidates} candidates"]
        elif method.early_layer is not None:
            parts.append(f"layer {method.early_layer}")
        return ", ".join(parts)

    @property
    def description(self) -> dict[str, Any]:
        return asdict(self.experiment) if self.experiment else {}


def experiment_items(folder: Path, tables: Sequence[TableItem], runs: Path, limit: int) -> list[ExperimentItem]:
    """All record files of ``folder``, each with at most ``limit`` of its generations; none where there is no such folder."""
    uses = uses_of(tables, runs)
    return [_item(path, uses.get(path.name, ()), limit) for path in sorted(folder.glob("*.jsonl"))]


def uses_of(tables: Sequence[TableItem], runs: Path) -> dict[str, tuple[Use, ...]]:
    """By record file: the committed tables that name it in their header, and those of other profiles under ``runs``."""
    found: dict[str, list[Use]] = defaultdict(list)
    for table in tables:
        use = Use(name=str(table.number), title=table.title, command=table.command, page=table.page)
        for name in table.record_files:
            found[name].append(use)
    for path in sorted(runs.glob("*/tables/*.json")):
        use, names = _other_use(path)
        for name in names:
            found[name].append(use)
    return {name: tuple(uses) for name, uses in found.items()}


def _other_use(path: Path) -> tuple[Use, list[str]]:
    """A table of another profile, and the record files it was made of."""
    document = read_json(path)
    try:
        header = document["header"]
        name = f"{path.stem} of {path.parts[-3]}"
        return Use(name=name, title=document["title"], command=header["command"], page=None), list(header["record_files"])
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"table {path}: not as `foretoken table` writes it ({error!r}); remove it, or write it again"
        ) from error


def _item(path: Path, uses: tuple[Use, ...], limit: int) -> ExperimentItem:
    """What cannot be read has a page that says so: one file of another version must not cost the others theirs."""
    try:
        experiment, records = load_experiment(path), list(read_records(path))
    except UsageError as error:
        return ExperimentItem(signature=path.stem, path=path, problem=str(error), uses=uses)
    decode, undecoded = decoder_of(experiment.target)
    digests = dict.fromkeys(record.environment for record in records)
    return ExperimentItem(
        signature=path.stem,
        path=path,
        experiment=experiment,
        undecoded=undecoded,
        counts=_counts(records),
        environments=tuple(read_environment(path.parent, digest) for digest in digests),
        generations=tuple(generations(records, decode, limit)),
        uses=uses,
    )


@lru_cache(maxsize=64)
def decoder_of(target: ModelSpec) -> tuple[Decode, str]:
    """From ids to text; where the tokenizer is not on this machine ids stand for text, with the reason."""
    from harness.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(target)
    except UsageError as error:
        return _ids, str(error)
    return lambda ids: str(tokenizer.decode(list(ids))), ""


def _ids(tokens: Sequence[int]) -> str:
    return "".join(f"{token} " for token in tokens)


def _counts(records: Sequence[Record]) -> dict[str, int | float]:
    """What a reader asks first; times of failed runs are not there to be added."""
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


def generations(records: Sequence[Record], decode: Decode, limit: int) -> list[Generation]:
    """At most ``limit``: failures and divergences before the others, then in the order of the file."""
    numbered = list(enumerate(records, start=1))
    numbered.sort(key=lambda pair: pair[1].status == "ok" and pair[1].divergence is None)
    return [_generation(number, record, decode) for number, record in numbered[:limit]]


def _generation(number: int, record: Record, decode: Decode) -> Generation:
    drafted = record.status == "ok" and record.steps is not None and any(record.steps.drafted)
    if not drafted:
        count = len(record.tokens or ())
        text = f"{count} tokens, nothing drafted" if record.status == "ok" else f"failed: {record.error}"
        return Generation(number=number, record=record, rounds=(), summary=text)
    rounds = coloured_rounds(record, decode)
    return Generation(number=number, record=record, rounds=rounds, summary=summary(rounds))
