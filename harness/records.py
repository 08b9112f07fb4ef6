"""Records: one line of JSON for one example, one repeat, one arm. Append-only; everything printed is derived from them.

``<folder>/<signature>.jsonl`` holds an experiment's records in the order they were made and ``<signature>.json`` its
description. A process that is killed leaves at most one torn last line, which the next one cuts off and runs again.
``<folder>/parts`` is empty but while workers of a cluster run, or after they were stopped; ``<folder>/replaced`` keeps what was
recorded anew (``--again``).
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import UsageError
from harness.experiment import Experiment
from harness.lines import LineFile, write_whole
from harness.typed import check_types, parsed

if TYPE_CHECKING:
    import pandas as pd

PARTS, REPLACED = "parts", "replaced"


@dataclass(kw_only=True)
class Steps:
    """The rounds of one generation, one list per field of methods.types.Step; times in seconds."""

    drafted: list[list[int]] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    target_probs: list[list[float]] = field(default_factory=list)
    draft_probs: list[list[float]] = field(default_factory=list)
    choices: list[list[int]] = field(default_factory=list)
    draft_s: list[float] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)
    candidates: list[list[int]] = field(default_factory=list)
    matched: list[bool | None] = field(default_factory=list)
    early_layer: list[int] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)
    units: list[list[float]] = field(default_factory=list)


@dataclass(kw_only=True)
class EarlyRanks:
    """Per output position the rank of the emitted token among what a head read after an early layer; 0 is its first choice."""

    head: str
    layer: int
    ranks: list[int]


@dataclass(kw_only=True)
class Overlap:
    """Per output position sum_x min(p(x)/l, q(x)) of a drafter with the target, one list per lenience l (1.0 is alpha's)."""

    drafter: str
    by_lenience: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where an output that should equal the plain arm's parts from it, and what explains it; see harness.divergence.

    ``margin`` is between the two largest logits there, ``bound`` what rounding can move; None between beams.
    """

    position: int
    margin: float | None
    bound: float | None
    replays_agree: bool
    kind: Literal["near-tie", "bug"]


@dataclass(kw_only=True)
class RuleTimes:
    """Seconds of every call of a verify rule, in the order of the rounds (harness.profiled).

    ``profiled_s`` is CPU time on a CPU, the sum of device events on CUDA; ``wall_s`` is the clock's, ``event_s`` what passed
    between two CUDA events (none on a CPU).
    """

    profiled_s: list[float]
    wall_s: list[float]
    event_s: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Record:
    """What happened to one example. A failure has its message and no numbers, and is counted in denominators.

    ``run`` is the process that made it: times are compared only within one. ``divergence`` is None where the output equals
    the plain arm's or need not. ``wall_s`` is a batch's time over its rows; so are, for draft-and-verify methods, ``encode_s``
    (the target's prefill: its encoder, or the prompt) and ``draft_encode_s`` (the drafter's begin). ``peak_bytes`` is the whole
    batch's, above what was held before it: None where memory was not measured or cannot be. ``rule_times`` are there where they
    were asked for.
    """

    signature: str
    example: str
    repeat: int
    status: Literal["ok", "failed"]
    error: str | None = None
    prompt_tokens: int | None = None
    truncated_tokens: int | None = None
    tokens: list[int] | None = None
    text: str | None = None
    stop_reason: str | None = None
    wall_s: float | None = None
    encode_s: float | None = None
    draft_encode_s: float | None = None
    peak_bytes: int | None = None
    steps: Steps | None = None
    statistics: dict[str, float | list[float]] | None = None
    overlap: list[Overlap] = field(default_factory=list)
    early: list[EarlyRanks] = field(default_factory=list)
    divergence: Divergence | None = None
    rule_times: RuleTimes | None = None
    run: str = ""
    environment: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.example, self.repeat

    def to_line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> "Record":
        return cls.from_dict(parsed(line))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Record":
        """TypeError or ValueError for what is no record: other fields or types, rounds that do not fit the tokens."""
        found = {name: _made(kind, values.pop(name, None)) for name, kind in _NESTED.items()}
        several = {name: [_made(kind, item) for item in values.pop(name, [])] for name, kind in _LISTED.items()}
        record = _made(cls, {**values, **found, **several})
        _check_rounds(record)
        return record


_NESTED = {"steps": Steps, "divergence": Divergence, "rule_times": RuleTimes}
_LISTED = {"overlap": Overlap, "early": EarlyRanks}


def _made(kind: type, values: dict[str, Any] | None) -> Any:
    """One of our dataclasses; None stays None."""
    if values is None:
        return None
    check_types(kind, values)
    return kind(**values)


def _check_rounds(record: Record) -> None:
    """Columns are whole or, where a method has none, empty; together the rounds emit the record's tokens."""
    steps = record.steps
    if steps is None:
        return
    lengths = {name: len(column) for name, column in vars(steps).items()}
    rounds = lengths["drafted"]
    if lengths["num_accepted"] != rounds or lengths["emitted"] != rounds or not {0, rounds}.issuperset(lengths.values()):
        raise ValueError("steps: columns of different lengths")
    if any(len(target) != len(draft) for target, draft in zip(steps.target_probs, steps.draft_probs, strict=False)):
        raise ValueError("steps: target_probs and draft_probs of different lengths")
    if sum(steps.emitted) != len(record.tokens or ()) or min((*steps.emitted, *steps.num_accepted), default=0) < 0:
        raise ValueError(f"steps: {sum(steps.emitted)} tokens emitted, {len(record.tokens or ())} recorded")


class RecordFile:
    """The records of one experiment on disk. Opening one for writing repairs a torn end."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.experiment = experiment
        self.path = folder / f"{experiment.signature}.jsonl"

    def read(self) -> list[Record]:
        return distinct(read_records(self.path) if self.path.exists() else ())

    @property
    def parts(self) -> Path:
        """Where workers of other processes put what they make, a file a node, until it stands in this one in its order."""
        return self.path.parent / PARTS / self.path.stem

    def read_parts(self) -> list[Record]:
        return distinct(record for path in sorted(self.parts.glob("*.jsonl")) for record in read_records(path))

    def set_aside(self) -> None:
        """Nothing is recorded any more; what was is kept in ``replaced/``, numbered."""
        if self.path.exists():
            folder = self.path.parent / REPLACED
            folder.mkdir(exist_ok=True)
            names = (folder / f"{self.path.stem}-{number}.jsonl" for number in count(1))
            self.path.rename(next(path for path in names if not path.exists()))
        self.drop_parts()

    def drop_parts(self) -> None:
        if self.parts.exists():
            shutil.rmtree(self.parts)
            if not any(self.parts.parent.iterdir()):
                self.parts.parent.rmdir()

    def open(self) -> "RecordWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path.with_suffix(".json"), self.experiment.to_json() + "\n")
            return RecordWriter(self.path)
        except OSError as error:
            raise UsageError(
                f"records {self.path}: cannot be written ({error.strerror}); free space or choose --records"
            ) from error


class RecordWriter(LineFile):
    def append(self, record: Record) -> None:
        self.write(record.to_line().encode())


def read_records(path: Path) -> Iterator[Record]:
    """All whole records of a file; a torn last line (no newline) is left out, a malformed whole line is an error."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                yield _record(line, f"{path}:{number}")
    except OSError as error:
        raise UsageError(f"records {path}: cannot be read ({error.strerror}); expected a .jsonl file of a run") from error


def _record(line: bytes, where: str) -> Record:
    try:
        return Record.from_line(line)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{where}: not a record ({error}); expected lines as a run writes them: remove this one, and it is run again"
        ) from error


def distinct(records: Iterable[Record]) -> list[Record]:
    """Every key once: the first record of an example and repeat counts."""
    found: dict[tuple[str, int], Record] = {}
    for record in records:
        found.setdefault(record.key, record)
    return list(found.values())


def record_files(path: str | Path) -> list[Path]:
    """A record file itself, or every one of a folder."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"records {path}: not there; expected a .jsonl file or a folder of them, as a run leaves")
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def load_records(path: str | Path) -> list[Record]:
    """The records of a file or of every ``.jsonl`` in a folder, as they lie there."""
    return [record for file in record_files(path) for record in read_records(file)]


def load(*paths: str | Path, rows: str = "examples", **settings: Any) -> "pd.DataFrame":
    """Records as a tidy pandas frame: of files, of folders of them, or of what ``settings`` picks in these.

        load("results/records", profile="toy", rule=["top-1", "top-beta"])
        load("results/records", rows="steps", signature="00e515633fa34a47")

    Every frame has ``signature``, ``example``, ``repeat``, what its rows hold, and the experiment's settings, one column each
    (``task``, ``target``, ``method``, ``drafter``, ``rule``, ``gamma``, ``temperature``, ...). A setting picks experiments: a
    value, or a list of values of which one must fit. What is unknown or was not measured is None or NaN. The first record of
    an example and repeat counts, a torn last line is left out, and a description must lie beside its records.

    Rows, and their columns (seconds are named ``_s``; positions count from 0 in the output):
        "examples": one a generation. ``status`` and ``error``; ``num_tokens`` emitted, ``num_rounds``, ``num_drafted``,
            ``num_accepted``; ``wall_s``, ``encode_s``, ``draft_encode_s``; ``peak_bytes``; ``divergence`` ("near-tie", "bug");
            ``tokens``, ``text``, the task's ``statistics`` and the rest of ``Record``.
        "steps": one a round, ``position`` being its first token's. ``num_drafted``, ``num_accepted``, ``emitted``; ``draft_s``,
            ``verify_s``, ``round_s`` and, profiled, ``rule_s``; ``drafted_tokens`` and ``choices``. Of PPD: the
            ``candidate_tokens`` read after ``layer``, ``matched``, and the parts of a round (methods.ppd.pipeline.PARTS).
        "drafts": one a drafted token, ``place`` counting from 0 in its round. ``accepted``, ``verified`` (accepted or the
            round's first rejection), ``target_prob`` and ``draft_prob`` after temperature and filters.
        "overlap": one an output position, drafter (``overlap_with``) and ``overlap_lenience`` l. ``overlap_frac`` is
            sum min(p / l, q), whose mean at l = 1 is alpha (Leviathan, Corollary 3.6).
        "early": one an output position, early ``layer`` and ``head`` (N the model's own, Y trained). ``rank`` 0 is the head's
            first choice; ``rank < k`` is PPD's match (Section 4.3).
    """
    from harness.frames import frame

    return frame([Path(path) for path in paths], rows, settings)


def load_experiment(path: Path) -> Experiment:
    """The description that lies beside a record file."""
    try:
        return Experiment.from_dict(parsed(path.with_suffix(".json").read_text(encoding="utf8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"experiment of {path}: cannot be read ({error}); its .json is written beside its records") from error


def write_environment(folder: Path, digest: str, facts: dict[str, str | int]) -> None:
    """``<folder>/environments/<hash>.json``: what a record's environment hash stands for."""
    path = folder / "environments" / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(facts, indent=1) + "\n")


def read_environment(folder: Path, digest: str) -> dict[str, str | int]:
    """Its facts, "unknown" where they are lost: what is derived from records does without."""
    try:
        return dict(parsed((folder / "environments" / f"{digest}.json").read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return {"environment": f"unknown ({digest})"}
