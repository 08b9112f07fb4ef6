"""Evidence that is committed: the records behind the tables and figures of a paper, lean and compressed, in one archive.

``results/evidence/<paper>.tar.xz`` holds a folder of records as a run leaves it (``harness.core.record_files``, ``notes``), but
of every record only what tables, figures and notebooks read (``lean``). It is unpacked and read like any folder of records.
Tables are always made of lean records, from wherever they come, so both give the same bytes.
"""

import atexit
import io
import lzma
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, TypeVar

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, RuleTimesProbe
from harness.core.files import replace_file
from harness.core.notes import Notes
from harness.core.record_files import (
    PROBES,
    RecordFile,
    load_experiment,
    read_environment,
    read_probe,
    read_records,
    write_environment,
)
from harness.core.records import Key, ProbeRecord, Record, distinct, text_hash

SECONDS_DIGITS, ROUND_DIGITS, PROB_DIGITS = 6, 4, 3  # significant ones that are kept
TIMED = ("draft_s", "verify_s", "round_s", "parts", "units")
Found = TypeVar("Found", Record, ProbeRecord)


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


def keep(arms: Iterable[Experiment], records: Path, archive: Path, planned: Iterable[Experiment]) -> None:
    """Put what is recorded of the ``arms`` into an archive, in place of what it held of them, lean.

    What other tables' probes found of the very same texts stays. What is in it of experiments that are not ``planned`` any more
    is left out.
    """
    with TemporaryDirectory() as made:
        folder = Path(made)
        if archive.exists():
            _unpack(archive, folder)
        for arm in arms:
            _copy(arm, records, folder)
        _prune(folder, {arm.portable.signature for arm in planned})
        archive.parent.mkdir(parents=True, exist_ok=True)
        replace_file(archive, _packed(folder))


def num_more(arms: Iterable[Experiment], records: Path, kept: Path) -> int:
    """Count the runs that an unpacked archive has of these arms, for whatever table, and would lose to a folder of records.

    They are not in there, or what a probe found of them is not, and it was found of other texts.
    """
    return sum(len(_lost(arm, records, kept)) for arm in arms)


def unpacked(archive: Path) -> Path | None:
    """Return a folder of records with what an archive holds, which lasts as long as the process; None where there is none."""
    return _unpacked(archive.resolve(), archive.stat().st_mtime_ns) if archive.exists() else None


@lru_cache(maxsize=32)
def _unpacked(archive: Path, changed_ns: int) -> Path:
    folder = Path(mkdtemp(prefix="foretoken-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _unpack(archive, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive, whose checksum is compared.

    Raises:
        UsageError: it is damaged.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive.read_bytes()))) as files:
            files.extractall(folder, filter="data")
    except (OSError, lzma.LZMAError, EOFError, tarfile.TarError) as error:
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


def _lost(arm: Experiment, records: Path, kept: Path) -> set[Key]:
    """Return the runs of an arm that an unpacked archive would lose."""
    there, here = _stored(arm.portable, kept), _stored(arm, records)
    lost = there.keys() - here.keys()
    for path in _other_probes(next(iter(there.values())).signature, records, kept) if there else ():
        found = {one.key: one.text for one in read_probe(path, there).values()}
        is_timed = RuleTimesProbe().id in path.name  # a time belongs to its recording
        lost |= {key for key in found.keys() & here.keys() if is_timed or found[key] != text_hash(here[key].tokens)}
    return lost


def _stored(arm: Experiment, folder: Path) -> dict[Key, Record]:
    pinned = Notes(folder).pin(arm)
    return {} if pinned is None else RecordFile(folder, pinned).stored()


def _other_probes(signature: str, records: Path, kept: Path) -> list[Path]:
    """Return the files of probes that an unpacked archive has of an experiment, and a folder of records has not."""
    own = {path.name for path in (records / PROBES).glob(f"{signature}.*")}
    return [path for path in sorted((kept / PROBES).glob(f"{signature}.*.jsonl")) if path.name not in own]


def _copy(arm: Experiment, records: Path, folder: Path) -> None:
    """Copy an arm's records, all that probes found of them, and the run's notes on it."""
    here, there = Notes(records), Notes(folder)
    pinned = here.pin(arm)
    if pinned is None:
        if why := here.unavailable(arm):
            there.note_unavailable([arm.portable], why)
        return
    others = _other_probes(pinned.signature, records, folder)
    for path in (*folder.glob(f"{pinned.signature}.*"), *(folder / PROBES).glob(f"{pinned.signature}.*")):
        if path.with_suffix(".jsonl") not in others:
            path.unlink()
    there.note_pin(arm.portable, pinned.portable)
    source = RecordFile(records, pinned).path
    generated = {record.key: record for record in distinct(read_records(source))} if source.exists() else {}
    if not generated:
        return
    described = load_experiment(source).portable
    (folder / source.with_suffix(".json").name).write_text(described.to_json() + "\n", encoding="utf8")
    for path in others:
        read_probe(path, generated)  # refused where it looked at other texts
    for path in sorted((records / PROBES).glob(f"{pinned.signature}.*.jsonl")):
        found = read_probe(path, generated)
        for key, one in found.items():
            generated[key].probes[path.stem] = one
        (folder / PROBES).mkdir(exist_ok=True)
        shutil.copyfile(path.with_suffix(".json"), folder / PROBES / path.with_suffix(".json").name)
        lines = (_lean_found(one).to_line() for one in found.values())
        (folder / PROBES / path.name).write_text("".join(lines), encoding="utf8")
    (folder / source.name).write_text("".join(lean(one).to_line() for one in generated.values()), encoding="utf8")
    for digest in {record.environment for record in generated.values()}:
        write_environment(folder, digest, read_environment(records, digest))
    _copy_notes(pinned, here, there, [example for example, _ in generated])


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
