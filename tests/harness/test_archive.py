"""Committed evidence: records go into an archive lean, and from it alone tables and figures come out with the same bytes."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from probed import with_probe_records, write_records

from harness.cli.main import main
from harness.core.checkout import ROOT
from harness.core.environment import describe
from harness.core.errors import UsageError
from harness.core.experiment import MemoryProbe
from harness.core.notes import Notes
from harness.core.record_files import RecordFile, read_records, write_environment
from harness.core.records import ProbeRecord, text_hash
from harness.core.settings import COMMITTED, COMMITTED_POCKET, Settings, folder_of, own_folder
from harness.measures.of_run import alpha_overlap
from harness.papers import FIGURES, TABLES, get_figure, get_table
from harness.report import notebooks
from harness.tables.archive import archive_of, keep, lean, unpacked
from harness.tables.base import Figure, Table
from harness.tables.evidence import stored_evidence
from harness.tables.recordings import FILE

CLEAN = "0123456789ab"
SMALL = 5  # a table of few runs, with probes, whose runs have no replicas


@pytest.fixture(scope="module")
def recording(synthetic: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Leviathan's speeds, recorded at a clean commit."""
    records = tmp_path_factory.mktemp("recording") / "records"
    record_all(synthetic, records, CLEAN)
    return records


@pytest.fixture
def recorded(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of that recording, at a clean commit."""
    shutil.copytree(recording, tmp_path / "results" / "records")
    return at_a_clean_commit(tmp_path, monkeypatch)


@pytest.fixture
def few_recorded(synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with the records of a small table alone."""
    record_all(synthetic, tmp_path / "results" / "records", CLEAN, number=SMALL)
    return at_a_clean_commit(tmp_path, monkeypatch)


def at_a_clean_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("harness.cli.catalogue.commit", lambda: CLEAN)
    monkeypatch.chdir(folder)
    return folder


def record_all(synthetic: SimpleNamespace, records: Path, commit: str, settings: Settings = COMMITTED, number: int = 8) -> None:
    facts = describe() | {"commit": commit, "date": "2026-11-23"}
    environment = write_environment(records, facts)
    notes = Notes(records)
    for arm in get_table(number).arms(settings):
        pinned = arm.replace(source_fingerprint="0123")
        own = {"signature": pinned.signature, "environment": environment}
        made = [replace(one, example=f"{one.example} of {arm.replica}", **own) for one in synthetic.run(arm)]
        write_records(records, pinned, made)
        notes.note_pin(arm, pinned)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rendered(place: Path, *items: tuple[str, str]) -> dict[str, bytes]:
    for words in items:
        assert main(list(words)) == 0
    return {name: content for name, content in files_of(place / "results").items() if name.startswith(("tables/", "figures/"))}


def test_an_archive_that_lost_whole_lines_is_refused(few_recorded: Path, capsys: pytest.CaptureFixture) -> None:
    """Fault: each line that was left was whole, and a committed table was written anew of fewer examples."""
    assert main(["table", str(SMALL)]) == 0
    archive = archive_of(few_recorded / "results", get_table(SMALL).paper)
    with tarfile.open(archive) as files:
        members = {one.name: files.extractfile(one).read() for one in files.getmembers()}  # type: ignore[union-attr]
    longest = max((name for name in members if name.endswith(".jsonl")), key=lambda name: members[name].count(b"\n"))
    members[longest] = members[longest].partition(b"\n")[2]
    with tarfile.open(archive, "w:xz") as files:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    for path in (few_recorded / "results" / "records").rglob("*.json*"):
        path.unlink()
    capsys.readouterr()
    assert main(["table", str(SMALL)]) == 2
    assert "nothing says that it is what was packed: its SHA-256 is not that of" in capsys.readouterr().err
    archive.with_name(f"{archive.name}.sha256").unlink()
    assert main(["table", str(SMALL)]) == 2
    assert f"{archive.name}.sha256, with its SHA-256, is not there; `git checkout`" in capsys.readouterr().err


def test_every_committed_archive_has_its_checksum() -> None:
    archives = [*(ROOT / "results").rglob("evidence/*.tar.xz")]
    assert len(archives) == 8
    for archive in archives:
        seal = archive.with_name(f"{archive.name}.sha256").read_text(encoding="utf8")
        assert seal == f"{hashlib.sha256(archive.read_bytes()).hexdigest()}\n"


def test_from_the_archive_alone_come_the_same_bytes(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    items = (("table", "8"), ("figure", "leviathan-2"))
    first = rendered(recorded, *items)
    assert len(first) == 6
    assert f"commit {CLEAN}; recorded on 2026-11-23 (UTC) in 1 process;".encode() in first["tables/leviathan-2.md"]
    clone = recorded / "clone"
    (clone / "results").mkdir(parents=True)
    (recorded / "results" / "evidence").rename(clone / "results" / "evidence")
    monkeypatch.chdir(clone)
    monkeypatch.setattr("harness.cli.catalogue.commit", lambda: "ba9876543210")
    assert rendered(clone, *items) == first, "the header is the recording's, whoever renders it"
    assert sorted(path.name for path in (clone / "results").iterdir()) == ["evidence", "figures", "recordings.csv", "tables"]
    capsys.readouterr()
    assert main(["table", "8", "--records", "elsewhere"]) == 0
    assert "nothing of it is recorded in elsewhere" in capsys.readouterr().out, "a folder that is named is the one that is read"


def test_what_is_recorded_of_a_folder_is_committed_without_its_place(
    synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profile pocket: the same bytes come from the archive alone, where nobody knows the folder."""
    monkeypatch.setattr("harness.cli.catalogue.commit", lambda: CLEAN)
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "of-mine"
    place.mkdir()
    record_all(synthetic, tmp_path / "results" / "records", CLEAN, replace(COMMITTED_POCKET, source=str(place)))
    assert main(["table", "8", "--profile", "pocket", "--data", str(place)]) == 0
    made = {name: content for name, content in files_of(tmp_path / "results" / "pocket").items() if "evidence" not in name}
    assert sorted(made) == ["recordings.csv", *(f"tables/leviathan-2.{ending}" for ending in ("csv", "json", "md", "tex"))]
    kept = unpacked(archive_of(tmp_path / "results" / "pocket", "leviathan"))
    assert kept is not None
    assert not [name for name, content in {**files_of(kept), **made}.items() if b"of-mine" in content]
    clone = tmp_path / "clone"
    (clone / "results" / "pocket").mkdir(parents=True)
    (tmp_path / "results" / "pocket" / "evidence").rename(clone / "results" / "pocket" / "evidence")
    monkeypatch.chdir(clone)
    assert main(["table", "8", "--profile", "pocket"]) == 0
    again = {name: content for name, content in files_of(clone / "results" / "pocket").items() if "evidence" not in name}
    assert again == made


def test_notebooks_read_what_is_committed_and_train_nothing(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh clone. Records of one's own that are not whole do not hide it."""
    figure, own = get_figure("leviathan-2"), recorded / "results" / "records"
    keep(figure.arms(COMMITTED), own, archive_of(recorded / "results", figure.paper), figure.arms(COMMITTED))
    monkeypatch.setattr(notebooks, "ensure_models", lambda arms, workers: pytest.fail("it trains"))
    assert notebooks.recorded(figure, "results/records").told == "Records of profile 'toy', results/records: complete."
    max(own.glob("*.jsonl")).unlink()
    data = notebooks.recorded(figure, "results/records")
    assert data.told == "Records of profile 'toy', committed: complete."
    assert set(data.load("steps").signature) == {
        arm.replace(source_fingerprint="0123").signature for arm in figure.arms(COMMITTED)
    }
    assert data.figure("leviathan-2").startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="profile 'toy': nothing of it is recorded in elsewhere"):
        notebooks.recorded(figure, "elsewhere", "toy")


@pytest.mark.parametrize(
    ("number", "where", "commit", "folder"),
    [
        (SMALL, "recorded", CLEAN + "+changes", "toy-toy"),
        (SMALL, "recorded", "unknown", "toy-toy"),
        (SMALL, "rendered", CLEAN + "+changes", "toy-toy"),
        (8, "rendered", "unknown", "toy-toy-replicas-3"),
    ],
)
def test_what_no_clean_commit_made_is_not_put_among_what_is_committed(
    number: int,
    where: str,
    commit: str,
    folder: str,
    request: pytest.FixtureRequest,
    synthetic: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Of a small table, and of one with replicas, whose own folder names them."""
    place: Path = request.getfixturevalue("few_recorded" if number == SMALL else "recorded") / "results"
    assert main(["table", str(number)]) == 0
    before = files_of(place)
    if where == "recorded":
        for path in (place / "records").rglob("*.json*"):
            path.unlink()
        record_all(synthetic, place / "records", commit, number=number)
    else:
        monkeypatch.setattr("harness.cli.catalogue.commit", lambda: commit)
    capsys.readouterr()
    assert main(["table", str(number)]) == 0
    said = capsys.readouterr().err
    assert f"not committed: made at {commit}, no clean commit; written to results/runs/{folder}\n" in said
    after = files_of(place)
    assert {name for name, content in after.items() if before.get(name) != content and not name.startswith("records/")} == {
        f"runs/{folder}/tables/{get_table(number).name}.{ending}" for ending in ("md", "csv", "json", "tex")
    }


def test_fewer_records_do_not_replace_what_is_committed(few_recorded: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["table", str(SMALL)]) == 0
    archive = archive_of(few_recorded / "results", get_table(SMALL).paper)
    before = archive.read_bytes()
    path = max((few_recorded / "results" / "records").glob("*.jsonl"))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    assert main(["table", str(SMALL)]) == 0
    assert "not committed: 1 runs that are committed are not recorded in results/records" in capsys.readouterr().err
    assert archive.read_bytes() == before


@pytest.mark.parametrize(("kind", "name", "stem"), [("table", "8", "leviathan-2"), ("figure", "leviathan-2", "leviathan-2")])
def test_what_lacks_an_arm_comes_not_newly_among_what_is_committed(
    kind: str, name: str, stem: str, recorded: Path, capsys: pytest.CaptureFixture
) -> None:
    """Fault: a clone that shows what it has in part was left with files that nobody committed."""
    records = recorded / "results" / "records"
    path = max(records.glob("*.jsonl"))
    content = path.read_bytes()
    path.unlink()
    place = recorded / "results" / f"{kind}s"
    assert main([kind, name]) == 0
    said = capsys.readouterr().err
    assert re.search(r"not committed: \d+ of its \d+ arms are not recorded; written to results/runs/toy-toy-replicas-3\n", said)
    assert not place.exists()
    assert not archive_of(recorded / "results", "leviathan").exists()
    assert [*(recorded / "results" / "runs").rglob(f"{kind}s/{stem}.*")]
    path.write_bytes(content)
    assert main([kind, name]) == 0
    assert "not committed" not in capsys.readouterr().err
    assert [*place.glob(f"{stem}.*")]


def test_what_another_tables_probes_found_of_the_same_texts_stays(recorded: Path, capsys: pytest.CaptureFixture) -> None:
    """Two tables share an arm, each with probes of its own: recording one anew, elsewhere, must not cost the other its."""
    assert main(["table", "8"]) == 0
    archive, records = archive_of(recorded / "results", "leviathan"), recorded / "results" / "records"
    before = archive.read_bytes()
    signature = min((records / "probes").glob("*.overlap-*.jsonl")).name.split(".")[0]
    arm = next(arm for arm in get_table(8).arms(COMMITTED) if arm.replace(source_fingerprint="0123").signature == signature)
    for path in (records / "probes").glob(f"{signature}.*"):
        path.unlink()
    keep([arm], records, archive, get_table(8).arms(COMMITTED))
    assert archive.read_bytes() == before
    path = records / f"{signature}.jsonl"
    found = list(read_records(path))
    other = replace(found[0], tokens=[*found[0].tokens[:-1], found[0].tokens[-1] + 1])
    path.write_text("".join(one.to_line() for one in [other, *found[1:]]), encoding="utf8")
    num_probes = len(list((unpacked(archive) / "probes").glob(f"{signature}.*.jsonl")))
    assert keep([arm], records, archive, get_table(8).arms(COMMITTED)) == num_probes > 0, "one text's findings are left out"
    kept = unpacked(archive) / "probes"
    for one in kept.glob(f"{signature}.*.jsonl"):
        assert len(one.read_bytes().splitlines()) == len(found) - 1
    assert main(["table", "8"]) == 0
    assert "findings in" not in capsys.readouterr().err, "what is gone already is not missed again"


def test_what_was_taken_along_with_a_recording_is_of_it_alone(recorded: Path) -> None:
    arm = min(get_table(8).arms(COMMITTED), key=lambda one: one.signature)
    records, archive = recorded / "results" / "records", recorded / "kept.tar.xz"
    pinned = Notes(records).pin(arm)
    path = RecordFile(records, pinned.replace(probes=(MemoryProbe(),))).probe_path(MemoryProbe())
    found = list(read_records(records / f"{pinned.signature}.jsonl"))
    of_it = [ProbeRecord(example=one.example, repeat=one.repeat, text=text_hash(one.tokens), peak_bytes=1) for one in found]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(one.to_line() for one in of_it), encoding="utf8")
    path.with_suffix(".json").write_text(MemoryProbe().to_json(), encoding="utf8")
    assert keep([arm], records, archive, [arm]) == 0
    assert (unpacked(archive) / "probes" / path.name).exists()
    path.unlink()
    assert keep([arm], records, archive, [arm]) == len(found)
    assert not (unpacked(archive) / "probes" / path.name).exists()


def test_records_come_back_lean_and_whole(recorded: Path) -> None:
    arms, archive = sorted(get_table(8).arms(COMMITTED), key=lambda arm: arm.signature), recorded / "kept.tar.xz"
    keep(arms, recorded / "results" / "records", archive, arms)
    own, kept = stored_evidence(recorded / "results" / "records"), stored_evidence(unpacked(archive) or recorded)
    for arm in arms:
        assert own.records_of(arm) == kept.records_of(arm) != []
    content = archive.read_bytes()
    keep(arms, recorded / "results" / "records", archive, arms)
    assert archive.read_bytes() == content, "the same bytes for the same records"
    keep(arms[:1], recorded / "results" / "records", archive, arms[:1])
    few = stored_evidence(unpacked(archive) or recorded)
    assert [bool(few.records_of(arm)) for arm in arms] == [True] + [False] * (len(arms) - 1)


def test_leaning_keeps_sums_and_counts_and_does_nothing_twice(synthetic: SimpleNamespace) -> None:
    for arm in get_table(8).arms(COMMITTED):
        for record in synthetic.run(arm):
            once = lean(record)
            assert lean(once) == once
            assert (once.tokens, once.statistics, once.divergence) == (record.tokens, record.statistics, record.divergence)
            for one, whole in zip(once.overlap, record.overlap, strict=True):
                for lenience, values in one.by_lenience.items():
                    assert len(values) == len(whole.by_lenience[lenience])
                    assert sum(values) == pytest.approx(sum(whole.by_lenience[lenience]), abs=1e-5)
            if record.steps is not None and once.steps is not None:
                assert once.steps.round_s == pytest.approx(record.steps.round_s, rel=1e-3)
                assert (once.steps.drafted, once.steps.num_accepted) == (record.steps.drafted, record.steps.num_accepted)
            assert with_probe_records(arm, once).key == record.key
    arm = next(arm for arm in get_table(8).arms(COMMITTED) if arm.overlap)
    records = synthetic.run(arm)
    whole_alpha, lean_alpha = (alpha_overlap(own, arm.overlap[0].label) for own in (records, [lean(one) for one in records]))
    assert whole_alpha is not None
    assert lean_alpha is not None
    assert lean_alpha.value == pytest.approx(whole_alpha.value, abs=1e-6)


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"", lambda data: data[:900] + b"?" + data[901:]])
def test_a_damaged_archive_is_refused_in_one_line(
    few_recorded: Path, damage: Callable[[bytes], bytes], capsys: pytest.CaptureFixture
) -> None:
    assert main(["table", str(SMALL)]) == 0
    archive = archive_of(few_recorded / "results", get_table(SMALL).paper)
    archive.write_bytes(damage(archive.read_bytes()))
    for path in (few_recorded / "results" / "records").rglob("*.json*"):
        path.unlink()
    capsys.readouterr()
    assert main(["table", str(SMALL)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"foretoken: evidence {archive}: cannot be read")
    assert said.count("\n") == 1


def test_other_settings_have_other_folders(tmp_path: Path) -> None:
    for name in ("a/data", "b/data"):
        (tmp_path / name).mkdir(parents=True)
    default = COMMITTED
    different = [
        Settings(),
        Settings(profile="test"),
        Settings(limit=3),
        Settings(limit=50),
        Settings(limit=3, dtype="bfloat16"),
        Settings(dtype="bfloat16"),
        Settings(device="cuda"),
        Settings(seed=3),
        Settings(repeats=3),
        Settings(num_threads=3),
        Settings(fixed_length=True),
        Settings(graphs=True),
        Settings(source="hub"),
        Settings(source=str(tmp_path / "a/data")),
        Settings(source=str(tmp_path / "b/data")),
        Settings(models=(("t5-small", "google/mt5-small"),)),
        Settings(models=(("t5-base", "google/mt5-small"),)),
    ]
    folders = [folder_of(default), own_folder(default), *map(folder_of, different)]
    assert all(one != other for one, other in combinations(folders, 2))
    assert all(one not in other.parents for one, other in combinations(folders[1:], 2))
    assert all(folder.parts[:2] == ("results", "runs") and len(folder.parts) == 3 for folder in folders[1:])


NAMES = [
    *(f"table {number}" for number, table in TABLES.items() if table.is_committed),
    *(f"figure {name}" for name in FIGURES),
]
POCKET = [
    f"{kind} {name} --profile pocket"
    for kind, items in (("table", TABLES), ("figure", FIGURES))
    for name, item in items.items()
    if list((ROOT / "results" / "pocket" / f"{kind}s").glob(f"{item.name}.*"))
]


def item_of(name: str) -> Table | Figure:
    kind, number, *_ = name.split()
    return get_table(int(number)) if kind == "table" else get_figure(number)


RENDER_ALL = """
import sys
from harness.cli import catalogue, main
catalogue.commit = lambda: "0123456789ab"
for name in sys.argv[1].split(","):
    assert main.main(name.split()) == 0
"""


@pytest.fixture(scope="module")
def all_rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is committed, rendered as in a fresh clone: no records, no models; the evidence alone.

    In a process without the tests' checks of types, which would take four times as long.
    """
    place = tmp_path_factory.mktemp("clone")
    for own in (Path("results"), Path("results") / "pocket"):
        (place / own).mkdir()
        (place / own / "evidence").symlink_to(ROOT / own / "evidence")
        shutil.copyfile(ROOT / own / FILE, place / own / FILE)
    in_turn = sorted([*NAMES, *POCKET], key=lambda name: (name.endswith("pocket"), item_of(name).paper))  # each archive once
    command = [sys.executable, "-c", RENDER_ALL, ",".join(in_turn)]
    made = subprocess.run(command, cwd=place, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return place / "results"


@pytest.mark.parametrize("own", [Path(), Path("pocket")])
def test_rendering_what_is_committed_lists_no_new_recording(own: Path, all_rendered: Path) -> None:
    assert (all_rendered / own / FILE).read_bytes() == (ROOT / "results" / own / FILE).read_bytes()


@pytest.mark.parametrize("name", [*NAMES, *POCKET])
def test_what_is_committed_renders_to_the_same_bytes(name: str, all_rendered: Path) -> None:
    kind, number, *profile = name.split()
    item = item_of(name)
    own = Path("pocket") if profile else Path()
    written = {path.name: path.read_bytes() for path in (all_rendered / own / f"{kind}s").glob(f"{item.name}.*")}
    assert written
    assert [name for name, content in written.items() if b'"status": "not run"' in content] == []
    committed = {name: (ROOT / "results" / own / f"{kind}s" / name).read_bytes() for name in written}
    stale = [name for name in written if written[name] != committed[name]]  # pytest would print the difference of two pictures
    assert stale == [], f"make {kind}-{number} writes them anew"


def test_everything_is_planned_made_and_summed_up_by_one_command(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("harness.cli.reproduce.commit", lambda: CLEAN)
    monkeypatch.setattr("harness.cli.reproduce.TABLES", {number: get_table(number) for number in (7, 8, 9)})
    monkeypatch.setattr("harness.cli.reproduce.FIGURES", {"leviathan-2": get_figure("leviathan-2")})
    monkeypatch.setattr("harness.cli.reproduce.ensure_models", lambda arms: None)
    monkeypatch.setattr("harness.cli.catalogue._run_missing", lambda args, plan, scores=(): True)
    assert main(["reproduce", "--dry-run"]) == 0
    planned = capsys.readouterr().out.splitlines()
    assert len(planned) == 5
    assert planned[1].split(")")[1].split() == ["0", "runs", "left,", "nothing", "to", "run"]
    assert "1260 runs left" in planned[2]
    assert planned[-1] == "decoding alone at least 0 minutes; unknown for 1260 runs, training not counted"
    assert not (recorded / "results" / "tables").exists()
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert "[2/4] table 8 (leviathan-2): 0." in said
    assert "cells without a number:" in said
    written = files_of(recorded / "results")
    assert {"tables/leviathan-2.md", "tables/leviathan-1.md", "figures/leviathan-2.svg", "ledger.csv"} <= set(written)
    assert "evidence/leviathan.tar.xz" in written
    assert "tables/leviathan-3.md" not in written, "of which nothing is recorded"
