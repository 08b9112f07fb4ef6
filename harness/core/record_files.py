"""Where records lie, and how they are read and appended to.

``<folder>/<signature>.jsonl`` holds what an experiment generated, in the order it was made, and ``<signature>.json`` its
description. ``<folder>/probes/<signature>.<probe>.jsonl`` holds what a probe measured over it. The last field of every line is
a checksum of the others, so that a changed digit is not taken for what was measured. A process that is killed leaves
at most one torn last line in each, which the next one cuts off. ``<folder>/replaced`` keeps what was recorded anew
(``--again``).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from glob import escape
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, Probe, RuleTimesProbe
from harness.core.files import LineFile, parsed, regular, replace_file, short_hash, whole_lines
from harness.core.records import Key, ProbeRecord, Record, by_key, text_hash

PROBES, REPLACED = "probes", "replaced"
SIGNATURE = re.compile(r"[0-9a-f]{16}")  # what a run names a file by; a user may have named it anew
Line = TypeVar("Line", Record, ProbeRecord)


class RecordFile:
    """The records of one experiment on disk, and of its probes."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder, self.experiment = folder, experiment
        self.path = folder / f"{experiment.signature}.jsonl"

    def read(self) -> list[Record]:
        """The records that the experiment asks for: of its first examples and repeats, with what all of its probes found.

        Where a probe has not looked yet, there is no record.
        """
        stored, probes = self.stored(), [probe.id for probe in self.experiment.probes]
        first = set(list(dict.fromkeys(example for example, _ in stored))[: self.experiment.limit])
        asked = [one for one in stored.values() if one.example in first and one.repeat < self.experiment.repeats]
        done = [record for record in asked if record.status == "failed" or record.probes.keys() >= set(probes)]
        return [record.with_probes([record.probes[name] for name in probes if name in record.probes]) for record in done]

    def stored(self) -> dict[Key, Record]:
        """Return everything that is recorded, in its order; ``probes`` of a record has what the experiment's probes found."""
        found = by_key(read_records(self.path) if self.path.exists() else ())
        if foreign := next((one for one in found.values() if one.signature != self.experiment.signature), None):
            raise _foreign(self.path, foreign, self.experiment.signature)
        for record in found.values():
            self._check_asked(record)
        for probe in self.experiment.probes:
            name = probe.id
            for key, one in read_probe(self.probe_path(probe), found).items():
                found[key].probes[name] = one
        return found

    def _check_asked(self, record: Record) -> None:
        """UsageError for rounds, or rows of a batch, that the experiment does not ask for, and for a near-tie of no margin.

        Only beams part without one (harness.run.divergence).
        """
        asked, steps = self.experiment, record.steps
        most = asked.method.gamma if asked.method.name == "speculative" and asked.method.has_constant_gamma else None
        most = 0 if asked.method.name == "autoregressive" else most
        drafted = 0 if steps is None else max(map(len, steps.drafted), default=0)
        if most is not None and drafted > most:
            raise self._unasked(record, f"a round of {drafted} drafts", f"{most} at most")
        if (record.num_rows or 1) > asked.batch_size:
            raise self._unasked(record, f"{record.num_rows} rows in a batch", f"{asked.batch_size} at most")
        parted = record.divergence
        if parted is not None and parted.kind == "near-tie" and parted.margin is None and asked.method.num_beams == 1:
            raise self._unasked(record, "a near-tie without a margin, as only beams have", "one beam")

    def _unasked(self, record: Record, found: str, expected: str) -> UsageError:
        return UsageError(
            f"records {self.path}: example {record.example!r} has {found}; its experiment asks for {expected}: remove that "
            "line, and it is run again"
        )

    def probe_path(self, probe: Probe) -> Path:
        return self.folder / PROBES / f"{self.path.stem}.{probe.id}.jsonl"

    def set_aside(self) -> None:
        """Move the records to ``replaced/``, numbered, with what was timed along with them."""
        for path in (self.path, self.probe_path(RuleTimesProbe())):
            if path.exists():
                folder = self.folder / REPLACED
                folder.mkdir(exist_ok=True)
                names = (folder / f"{path.stem}-{number}.jsonl" for number in count(1))
                path.rename(next(path for path in names if not path.exists()))

    def open(self, stored: Mapping[Key, Record] | None = None) -> "_RecordWriter":
        """Open it for appending; ``stored`` is what ``stored()`` returned. The description counts all examples and repeats."""
        stored = self.stored() if stored is None else stored
        experiment = self.experiment
        limit = max(experiment.limit, len({example for example, _ in stored}))
        repeats = max([experiment.repeats, *(repeat + 1 for _, repeat in stored)])
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            writer = _RecordWriter(self, stored)
            replace_file(self.path.with_suffix(".json"), experiment.replace(limit=limit, repeats=repeats).to_json() + "\n")
        except OSError as error:
            raise UsageError(
                f"records {self.path}: cannot be written ({error.strerror}); free space or choose --records"
            ) from error
        return writer


class _RecordWriter(ExitStack):
    """Appends what is new of each record: first what was generated, then what the experiment's probes found."""

    def __init__(self, file: RecordFile, stored: Mapping[Key, Record]) -> None:
        super().__init__()
        self._file, self._generated = file, self.enter_context(LineFile(file.path))
        self._probes: dict[str, LineFile] = {}
        self._known = {key: set(record.probes) for key, record in stored.items()}

    def append(self, record: Record) -> None:
        if record.key not in self._known:
            self._generated.write(record.to_line().encode())
            self._known[record.key] = set()
        known = self._known[record.key]
        for probe in self._file.experiment.probes:
            if probe.id in record.probes and probe.id not in known:
                self._lines(probe).write(record.probes[probe.id].to_line().encode())
                known.add(probe.id)

    def _lines(self, probe: Probe) -> LineFile:
        if probe.id not in self._probes:
            path = self._file.probe_path(probe)
            path.parent.mkdir(exist_ok=True)
            replace_file(path.with_suffix(".json"), probe.to_json() + "\n")
            self._probes[probe.id] = self.enter_context(LineFile(path))
        return self._probes[probe.id]


def read_records(path: Path) -> Iterator[Record]:
    """Yield what was generated; a torn last line (no newline) is left out, a malformed whole line is an error."""
    return _read(path, Record.from_line)


def read_probe(path: Path, generated: Mapping[Key, Record]) -> dict[Key, ProbeRecord]:
    """Return what a probe found, by key, where something is generated. Refused where it measured another text."""
    found: dict[Key, ProbeRecord] = {}
    for one in _read(path, ProbeRecord.from_line) if path.exists() else ():
        if one.key in generated:
            if one.text != text_hash(generated[one.key].tokens):
                raise UsageError(
                    f"records {path}: measured over another text of example {one.example!r} than is recorded; expected the "
                    "generation's own: remove this file, and it is measured again"
                )
            _check_positions(one, len(generated[one.key].tokens or ()), path)
            found.setdefault(one.key, one)
    return found


def _check_positions(one: ProbeRecord, most: int, path: Path) -> None:
    """Refuse ranks that are not one a token, and overlaps of more positions; where a draft has no room there are fewer."""
    ranks = (len(early.ranks) for early in one.early if len(early.ranks) != most)
    overlaps = (len(values) for overlap in one.overlap for values in overlap.by_lenience.values() if len(values) > most)
    if (odd := next(chain(ranks, overlaps), None)) is not None:
        raise UsageError(
            f"records {path}: example {one.example!r} was measured at {odd} positions of {most} tokens; remove this file, and "
            "it is measured again"
        )


def _read(path: Path, from_line: Callable[[bytes], Line]) -> Iterator[Line]:
    try:
        for number, line in enumerate(whole_lines(path), start=1):
            yield _made(line, from_line, f"{path}:{number}")
    except OSError as error:
        raise UsageError(f"records {path}: cannot be read ({error.strerror}); expected a .jsonl file of a run") from error


def _made(line: bytes, from_line: Callable[[bytes], Line], where: str) -> Line:
    try:
        return from_line(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where}: not a record ({error}); expected lines as a run writes them: remove this one, and it is run again"
        ) from error


def _foreign(path: Path, record: Record, signature: str) -> UsageError:
    return UsageError(
        f"records {path}: example {record.example!r} is of experiment {record.signature}; expected {signature}, the "
        "file's own: remove that line, and it is run again"
    )


def record_files(path: str | Path) -> list[Path]:
    """Return a record file itself, or every one of a folder."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"records {path}: not there; expected a .jsonl file or a folder of them, as a run leaves")
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def files_of(path: Path) -> list[Path]:
    """Return what belongs to a record file: itself, the description beside it and what probes found."""
    if not path.is_file():
        return [path]
    return [path, path.with_suffix(".json"), *sorted((path.parent / PROBES).glob(f"{escape(path.stem)}.*"))]


def check_output(output: Path | None, read: Iterable[Path]) -> None:
    """UsageError for an output that is one of the files that are read, by whatever name."""
    if output is not None and output.is_file() and any(one.is_file() and output.samefile(one) for one in read):
        raise UsageError(f"output {output}: it is one of the files that are read, and would be lost; name another")


def load_records(path: str | Path) -> list[Record]:
    """Return the records of a file, or of every ``.jsonl`` in a folder, with what any probe found; of each key the first."""
    found = []
    for file in record_files(path):
        records = by_key(read_records(file))
        own = file.stem if SIGNATURE.fullmatch(file.stem) else next((one.signature for one in records.values()), "")
        if foreign := next((one for one in records.values() if one.signature != own), None):
            raise _foreign(file, foreign, own)
        probes = [read_probe(one, records) for one in sorted((file.parent / PROBES).glob(f"{file.stem}.*.jsonl"))]
        found += [record.with_probes([one[key] for one in probes if key in one]) for key, record in records.items()]
    return found


def load_experiment(path: Path) -> Experiment:
    """Return the description that lies beside a record file, which is named by what it describes."""
    if path.suffix != ".jsonl" or not path.is_file():
        raise UsageError(f"records {path}: no record file; expected a .jsonl file, as a run leaves in its folder of records")
    description = path.with_suffix(".json")
    try:
        regular(description)
        found = Experiment.from_dict(parsed(description.read_text(encoding="utf8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"experiment of {path}: cannot be read ({error}); its .json is written beside its records") from error
    if SIGNATURE.fullmatch(path.stem) and found.signature != path.stem:
        raise UsageError(
            f"experiment of {path}: its .json describes {found.signature}, another; expected that which the file is named by: "
            "put it back, or use the version of Foretoken that wrote it"
        )
    return found


DATE = "date"  # in an environment: the day on which its records were begun (UTC), absent from those of older versions


def environment_file(folder: Path, digest: str) -> Path:
    """``<folder>/environments/<hash>.json``: what a record's environment hash stands for."""
    return folder / "environments" / f"{digest}.json"


def write_environment(folder: Path, facts: dict[str, str | int]) -> str:
    """Keep the facts of an environment; return their hash."""
    digest = _digest(facts)
    path = environment_file(folder, digest)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(facts, indent=1) + "\n")
    return digest


def read_environment(folder: Path, digest: str) -> dict[str, str | int]:
    """Return the facts behind an environment's hash; "unknown" if the file is lost or was changed: no number depends on it."""
    try:
        facts = dict(parsed(environment_file(folder, digest).read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError, RecursionError):
        facts = {}
    return facts if _digest(facts) == digest else {"environment": f"unknown ({digest})"}


def _digest(facts: dict[str, str | int]) -> str:
    return short_hash(json.dumps(facts, sort_keys=True), 12)
