"""Records: one line of JSON for one example, one repeat, one arm. Append-only; everything printed is derived from them.

``<folder>/<signature>.jsonl`` holds an experiment's records in the order they were made and ``<signature>.json`` its
description. A process that is killed leaves at most one torn last line, which the next one cuts off and runs again.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import UsageError
from harness.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd


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
    statistics: dict[str, Any] | None = None
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
    def from_dict(cls, values: dict[str, Any]) -> "Record":
        steps = values.pop("steps", None)
        divergence = values.pop("divergence", None)
        rule_times = values.pop("rule_times", None)
        overlap = [Overlap(**item) for item in values.pop("overlap", [])]
        early = [EarlyRanks(**item) for item in values.pop("early", [])]
        return cls(
            **values,
            steps=Steps(**steps) if steps is not None else None,
            overlap=overlap,
            early=early,
            divergence=Divergence(**divergence) if divergence is not None else None,
            rule_times=RuleTimes(**rule_times) if rule_times is not None else None,
        )


class RecordFile:
    """The records of one experiment on disk. Opening one for writing repairs a torn end."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.experiment = experiment
        self.path = folder / f"{experiment.signature}.jsonl"

    def read(self) -> list[Record]:
        return distinct(read_records(self.path) if self.path.exists() else ())

    def open(self) -> "RecordWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(self.path.with_suffix(".json"), self.experiment.to_json() + "\n")
            return RecordWriter(self.path)
        except OSError as error:
            raise UsageError(
                f"records {self.path}: cannot be written ({error.strerror}); free space or choose --records"
            ) from error


class RecordWriter:
    """Appends one record at a time, flushed to the disk before the next example begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UsageError(f"records {path}: another process is writing them; wait for it, or choose --records") from error

        self._cut_torn_end()

    def _cut_torn_end(self) -> None:
        """What a killed process left of its last line goes; only the holder of the lock may do this."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            self._file.truncate(whole)

    def append(self, record: Record) -> None:
        data, start = record.to_line().encode(), os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(28, "No space left on device")
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._file.truncate(start)
            raise UsageError(
                f"records {self.path}: {error.strerror}; what was recorded before is kept: free space, run it again"
            ) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_records(path: Path) -> Iterator[Record]:
    """All whole records of a file; a torn last line (no newline) is left out, a malformed whole line is an error."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Record.from_dict(json.loads(line))
            except (ValueError, TypeError, AttributeError) as error:
                raise UsageError(f"{path}:{number}: not a record ({error}); expected lines as a run writes them") from error


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
        return Experiment.from_dict(json.loads(path.with_suffix(".json").read_text(encoding="utf8")))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"experiment {path.with_suffix('.json')}: cannot be read ({error}); it is written beside its records"
        ) from error


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf8")
    os.replace(temporary, path)


def write_environment(folder: Path, digest: str, facts: dict[str, str | int]) -> None:
    """``<folder>/environments/<hash>.json``: what a record's environment hash stands for."""
    path = folder / "environments" / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, json.dumps(facts, indent=1) + "\n")


def read_environment(folder: Path, digest: str) -> dict[str, str | int]:
    path = folder / "environments" / f"{digest}.json"
    return json.loads(path.read_text(encoding="utf8")) if path.exists() else {"environment": f"unknown ({digest})"}
