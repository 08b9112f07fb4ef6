"""Evidence that is committed: the records behind the tables and figures of a paper, lean and compressed, in one archive.

``results/evidence/<paper>.tar.xz`` holds a folder of records as a run leaves it (``harness.core.record_files``, ``notes``), but
of every record only what tables, figures and notebooks read (``lean``). It is unpacked and read like any folder of records;
a file beside it has its SHA-256.
Tables are always made of lean records, from wherever they come, so both give the same bytes.
"""

import atexit
import hashlib
import io
import lzma
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, TypeVar

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MemoryProbe, RuleTimesProbe
from harness.core.files import replace_file
from harness.core.notes import Notes
from harness.core.record_files import (
    PROBES,
    RecordFile,
    environment_file,
    load_experiment,
    read_probe,
    read_records,
)
from harness.core.records import Key, ProbeRecord, Record, by_key, text_hash

SECONDS_DIGITS, ROUND_DIGITS, PROB_DIGITS = 6, 4, 3  # significant ones that are kept
TIMED = ("draft_s", "verify_s", "round_s", "parts", "units")
Found = TypeVar("Found", Record, ProbeRecord)
Findings = dict[str, tuple[str, dict[Key, ProbeRecord]]]  # by file: a probe's description, and what it found of each run
TAKEN_ALONG = (MemoryProbe, RuleTimesProbe)  # what they find is of a recording, not of its texts


def archive_of(results: Path, paper: str) -> Path:
    return results / "evidence" / f"{paper}.tar.xz"


def lean(record: Record) -> Record:
    """Return what tables, figures and notebooks read of a record; leaning it again changes nothing.

    The text is left out, its tokens stay. Seconds have six significant digits, those of rounds four. Every position of an
    output holds its mean overlap: sums by example, which alpha is made of, stay as they were to seven digits. Probabilities
    are kept, to three digits, where a rule's calls were timed.
    """
    steps = record.steps
    if steps is not None:
        timed = record.rule_times or any(one.rule_times for one in record.probes.values())
        probs = {name: getattr(steps, name) if timed else [] for name in ("target_probs", "draft_probs")}
        times = {name: _rounded(getattr(steps, name), ROUND_DIGITS) for name in TIMED}
        steps = replace(steps, **times, **{name: _rounded(rows, PROB_DIGITS) for name, rows in probs.items()})
    seconds = {name: _rounded(getattr(record, name), SECONDS_DIGITS) for name in ("wall_s", "encode_s", "draft_encode_s")}
    return _lean_found(replace(record, text=None, steps=steps, **seconds))


def _lean_found(found: Found) -> Found:
    """Lean what probes found, in their own record or in one with their findings."""
    overlap = [
        replace(one, by_lenience={lenience: _evened(values) for lenience, values in one.by_lenience.items()})
        for one in found.overlap
    ]
    times = found.rule_times
    if times is not None:
        names = ("profiled_s", "wall_s", "event_s")
        times = replace(times, **{name: _rounded(getattr(times, name), ROUND_DIGITS) for name in names})
    return replace(found, overlap=overlap, rule_times=times)


def _evened(values: list[float]) -> list[float]:
    return [round(sum(values) / len(values), 7)] * len(values) if values else []


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def keep(arms: Iterable[Experiment], records: Path, archive: Path, planned: Iterable[Experiment]) -> int:
    """Put what is recorded of the ``arms`` into an archive, in place of what it held of them, lean.

    What other tables' probes found of the very same texts stays; how much of it was of others, and so is left out, is returned.
    What is in it of experiments that are not ``planned`` any more is left out, too.
    """
    with TemporaryDirectory() as made:
        folder = Path(made)
        if archive.exists():
            _unpack(archive, folder)
        num_left = sum(_copy(arm, records, folder) for arm in arms)
        _prune(folder, {arm.portable.signature for arm in planned})
        archive.parent.mkdir(parents=True, exist_ok=True)
        _replace(archive, _packed(folder))
    return num_left


def _replace(archive: Path, packed: bytes) -> None:
    """Write an archive and its SHA-256; whoever is killed between leaves the two of the old one and the new."""
    own = hashlib.sha256(packed).hexdigest()
    before = [hashlib.sha256(archive.read_bytes()).hexdigest()] if archive.exists() else []
    replace_file(_seal_of(archive), "".join(f"{one}\n" for one in (own, *before)))
    replace_file(archive, packed)
    replace_file(_seal_of(archive), f"{own}\n")


def num_more(arms: Iterable[Experiment], records: Path, kept: Path) -> int:
    """Count the runs that an unpacked archive has of these arms, for whatever table, and a folder of records does not."""
    return sum(len(_keys(arm.portable, kept) - _keys(arm, records)) for arm in arms)


def unpacked(archive: Path) -> Path | None:
    """Return a folder of records with what an archive holds, which lasts as long as the process; None where there is none."""
    return _unpacked(archive.resolve(), archive.stat().st_mtime_ns) if archive.exists() else None


@lru_cache(maxsize=32)
def _unpacked(archive: Path, changed_ns: int) -> Path:
    folder = Path(mkdtemp(prefix="foretoken-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _unpack(archive, folder)
    return folder


def _seal_of(archive: Path) -> Path:
    """Name the file with an archive's SHA-256, which tells when whole lines or records are gone."""
    return archive.with_name(f"{archive.name}.sha256")


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive, whose checksums are compared.

    Raises:
        UsageError: it is damaged, not the one that was packed, or nothing tells whether it is.
    """
    try:
        packed, seal = archive.read_bytes(), _seal_of(archive)
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed))) as files:
            sealed = seal.read_text(encoding="utf8").split() if seal.exists() else []
            if hashlib.sha256(packed).hexdigest() not in sealed:
                why = f"its SHA-256 is not that of {seal.name}" if sealed else f"{seal.name}, with its SHA-256, is not there"
                raise UsageError(
                    f"evidence {archive}: nothing says that it is what was packed: {why}; `git checkout` brings back both as "
                    "they are committed"
                )
            files.extractall(folder, filter="data")
    except (OSError, UnicodeDecodeError, lzma.LZMAError, EOFError, tarfile.TarError) as error:
        raise UsageError(
            f"evidence {archive}: cannot be read ({error}); `git checkout` brings back the one that is committed"
        ) from error


def _packed(folder: Path) -> bytes:
    """Pack a folder: the same bytes for the same files, with a SHA-256 of them."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as files:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry, content = tarfile.TarInfo(path.relative_to(folder).as_posix()), path.read_bytes()
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    return lzma.compress(tar.getvalue(), check=lzma.CHECK_SHA256, preset=9)


def _keys(arm: Experiment, folder: Path) -> set[Key]:
    pinned = Notes(folder).pin(arm)
    return set() if pinned is None else set(RecordFile(folder, pinned).stored())


def _generated(pinned: Experiment | None, folder: Path) -> dict[Key, Record]:
    path = None if pinned is None else RecordFile(folder, pinned).path
    return {} if path is None or not path.exists() else by_key(read_records(path))


def _findings(generated: Mapping[Key, Record], folder: Path) -> Findings:
    """Return, by the name of its file, how each probe of these records is described and what it found."""
    signature = next((record.signature for record in generated.values()), None)
    files = sorted((folder / PROBES).glob(f"{signature}.*.jsonl"))
    described = {one.name: one.with_suffix(".json").read_text(encoding="utf8") for one in files}
    return {one.name.partition(".")[2]: (described[one.name], read_probe(one, generated)) for one in files}


def _copy(arm: Experiment, records: Path, folder: Path) -> int:
    """Copy an arm's records, all that probes found of them, and the run's notes on it.

    What the archive holds of probes that have not looked at these records stays where the texts are the same; what was measured
    while a text was made is of that recording alone. Returns how many findings are left out.
    """
    here, there = Notes(records), Notes(folder)
    pinned = here.pin(arm)
    if pinned is None:
        if why := here.unavailable(arm):
            there.note_unavailable([arm.portable], why)
        return 0
    kept = _findings(_generated(there.pin(arm.portable), folder), folder)
    for path in (*folder.glob(f"{pinned.signature}.*"), *(folder / PROBES).glob(f"{pinned.signature}.*")):
        path.unlink()
    there.note_pin(arm.portable, pinned.portable)
    source, generated = RecordFile(records, pinned).path, _generated(pinned, records)
    if not generated:
        return 0
    described = load_experiment(source).portable
    (folder / source.with_suffix(".json").name).write_text(described.to_json() + "\n", encoding="utf8")
    own, num_left = _findings(generated, records), 0
    for name in sorted(own.keys() | kept.keys()):
        description, found = own.get(name) or (kept[name][0], {})
        others = {key: one for key, one in kept.get(name, ("", {}))[1].items() if key not in found}
        carried = {key: one for key, one in others.items() if key in generated and one.text == text_hash(generated[key].tokens)}
        if any(name.startswith(f"{probe().id}.") for probe in TAKEN_ALONG):
            carried = {}
        num_left += len(others) - len(carried)
        if not (found := found | carried):
            continue
        path = folder / PROBES / f"{pinned.signature}.{name}"
        for key, one in found.items():
            generated[key].probes[path.stem] = one
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".json").write_text(description, encoding="utf8")
        path.write_text("".join(_lean_found(one).to_line() for one in found.values()), encoding="utf8")
    (folder / source.name).write_text("".join(lean(one).to_line() for one in generated.values()), encoding="utf8")
    for digest in {record.environment for record in generated.values()}:
        if (known := environment_file(records, digest)).exists():
            (copy := environment_file(folder, digest)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known, copy)
    _copy_notes(pinned, here, there, [example for example, _ in generated])
    return num_left


def _copy_notes(pinned: Experiment, here: Notes, there: Notes, examples: Iterable[str]) -> None:
    for spec in (pinned.target, *pinned.draft_models):
        if here.model(spec) == there.model(spec):
            continue
        there.note_model(spec, {name: value for name, value in here.model(spec).items() if name not in ("name", "revision")})
        digest = here.model(spec).get("tokenizer")
        if digest is not None and not there.tokenizer(digest).exists():
            copy = shutil.copytree if here.tokenizer(digest).is_dir() else shutil.copyfile
            there.tokenizer(digest).parent.mkdir(parents=True, exist_ok=True)
            copy(here.tokenizer(digest), there.tokenizer(digest))
    sources = here.texts(pinned)
    there.note_texts(pinned, {name: sources[name] for name in dict.fromkeys(examples) if name in sources})
    for path in here.score_file(pinned, "*").parent.glob(f"{pinned.signature}-*"):
        there.score_file(pinned, "comet").parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there.score_file(pinned, "comet").with_name(path.name))


def _prune(folder: Path, planned: set[str]) -> None:
    """Forget pins that were replaced or are not planned any more, and the records that none of the others names."""
    named = Notes(folder).keep_pins(planned)
    for path in (*folder.glob("*.json*"), *(folder / PROBES).glob("*")):
        if path.name.split(".")[0] not in named:
            path.unlink()
