"""Rendering reads what was recorded and published: the same bytes without network, elsewhere, without a cache."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from probed import write_records
from transformers import AutoTokenizer

from harness.cli.main import main
from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import Comparison, Experiment
from harness.core.notes import Notes
from harness.core.record_files import RecordFile
from harness.core.settings import Settings
from harness.papers import get_table
from harness.run import plan as run_plan_module
from harness.run.plan import run_plan
from harness.run.runner import keep_tokenizer
from harness.tables.evidence import _decoder, stored_evidence
from harness.zoo.build import ensure

PAPER = Settings(profile="paper", limit=2)
FLAGS = ["--profile", "paper", "--data", "toy", "--limit", "2", "--quiet"]


class Recorder:
    """A runner that writes made-up records: the Hub's models cannot be run here."""

    def __init__(self, folder: Path, records: Callable[[Experiment], list]) -> None:
        self.folder, self._records = folder, records

    def records(self, experiment: Experiment) -> list:
        return RecordFile(self.folder, experiment).read()

    def is_complete(self, comparison: Comparison) -> bool:
        return all(self.records(arm) for arm in comparison.arms)

    def run(self, comparison: Comparison, description: str) -> None:
        for arm in comparison.arms:
            write_records(self.folder, arm, self._records(arm))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The commit that every name of the Hub means."""
    answer = {"commit": "a" * 40}
    monkeypatch.setattr("harness.models.names.hub_commit", lambda spec: answer["commit"])
    monkeypatch.setattr(run_plan_module, "note_facts", lambda notes, comparison, examples: None)
    return answer


def cut_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("harness.models.names.hub_commit", refuse)


def render(folder: Path, records: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    folder.mkdir()
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main(["table", "8", *FLAGS, "--records", str(records)]) == 0
    files = {path.name: path.read_bytes() for path in sorted((folder / "results/runs/paper-toy-limit-2/tables").iterdir())}
    return {"printed": capsys.readouterr().out.encode(), **files}


def test_the_same_bytes_without_network_elsewhere_and_without_a_cache(
    hub: dict[str, str],
    synthetic: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    records = tmp_path / "project" / "results" / "records"
    plan = get_table(8).plan(PAPER)
    run_plan(plan, Recorder(records, synthetic.run))
    first = render(tmp_path / "first", records, capsys, monkeypatch)
    assert b"2.18" not in first["leviathan-2.md"]
    assert json.loads(first["leviathan-2.json"])["header"]["record_files"]
    cut_network(monkeypatch)
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "empty"))
    assert render(tmp_path / "second", records, capsys, monkeypatch) == first
    assert not (tmp_path / "empty").exists()


def test_the_newest_meaning_of_a_name_is_shown(hub: dict[str, str], synthetic: SimpleNamespace, tmp_path: Path) -> None:
    plan = get_table(8).plan(PAPER)[:1]
    arm = plan[0].arms[0]
    assert stored_evidence(tmp_path).records_of(arm) == []
    run_plan(plan, Recorder(tmp_path, synthetic.run))
    old = stored_evidence(tmp_path).records_of(arm)[0].signature
    hub["commit"] = "b" * 40
    assert stored_evidence(tmp_path).records_of(arm)[0].signature == old, "rendering asks nobody"
    run_plan(plan, Recorder(tmp_path, synthetic.run))
    new = stored_evidence(tmp_path).records_of(arm)[0].signature
    assert new != old
    pinned = Notes(tmp_path).pin(arm)
    assert pinned is not None
    assert (pinned.signature, pinned.target.revision) == (new, "b" * 40)
    lines = (tmp_path / "notes" / "pins.jsonl").read_bytes()
    run_plan(plan, Recorder(tmp_path, synthetic.run))
    assert (tmp_path / "notes" / "pins.jsonl").read_bytes() == lines, "what is noted is not noted again"


def test_a_reason_is_kept_and_never_hides_records(hub: dict[str, str], synthetic: SimpleNamespace, tmp_path: Path) -> None:
    plan = get_table(8).plan(PAPER)[:2]
    recorder = Recorder(tmp_path, synthetic.run)
    run_plan(plan[:1], recorder)

    def gone(comparison: Comparison, description: str) -> None:
        raise Unavailable("model 'x': gone")

    recorder.is_complete, recorder.run = lambda comparison: False, gone  # type: ignore[method-assign]
    run_plan(plan, recorder)
    evidence = stored_evidence(tmp_path)
    assert evidence.records_of(plan[0].arms[0])
    assert evidence.reasons(plan) == ["model 'x': gone"]
    run_plan(plan, Recorder(tmp_path, synthetic.run))
    assert stored_evidence(tmp_path).reasons(plan) == []


def test_without_records_files_stay_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    committed = tmp_path / "results/tables/leviathan-2.md"
    committed.parent.mkdir(parents=True)
    committed.write_text("measured")
    assert main(["table", "8"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "table 8: nothing of it is recorded in results/records, no file is written; run `make reproduce-table-8`"
    ]
    assert [path.name for path in committed.parent.iterdir()] == ["leviathan-2.md"]
    assert committed.read_text() == "measured"


def test_how_what_is_committed_is_shown_stands_beside_what_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Fault: by the README's command without `reproduce` it seemed that nothing is recorded, though a table is committed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    asked = ["table", "8", "--profile", "pocket", "--data", "data"]
    assert main(asked) == 0
    assert "shows what is committed" not in capsys.readouterr().out
    committed = tmp_path / "results/pocket/tables/leviathan-2.md"
    committed.parent.mkdir(parents=True)
    committed.write_text("measured")
    assert main(asked) == 0
    assert "; `foretoken table 8 --profile pocket` shows what is committed\n" in capsys.readouterr().out
    assert main(["table", "8", "--limit", "3"]) == 0
    assert "shows what is committed" not in capsys.readouterr().out, "of the toy profile nothing is, there"


def test_a_table_of_which_a_profile_runs_nothing_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Fault: a file appeared among what is committed that said that nothing is recorded."""
    monkeypatch.chdir(tmp_path)
    assert main(["table", "13", "--profile", "pocket"]) == 0
    assert "table 13: profile pocket has nothing to run of it and no number; no file is written" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.md"))


def test_a_measured_cell_is_not_replaced_by_not_run(
    hub: dict[str, str],
    synthetic: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    plan, records = get_table(8).plan(PAPER), tmp_path / "results" / "records"
    monkeypatch.chdir(tmp_path)
    call = ["table", "8", *FLAGS, "--records", "results/records"]
    run_plan(plan[:1], Recorder(records, synthetic.run))
    assert main(call) == 0
    written = tmp_path / "results/runs/paper-toy-limit-2/tables/leviathan-2.json"
    few = written.read_bytes()
    run_plan(plan, Recorder(records, synthetic.run))
    assert main(call) == 0, "more cells are measured: written"
    whole = written.read_bytes()
    assert whole != few
    for path in records.glob(f"{Notes(records).pin(plan[0].arms[0]).signature}.*"):  # type: ignore[union-attr]
        path.unlink()
    capsys.readouterr()
    assert main(call) == 0
    assert "measured cells without records here; run `make" in capsys.readouterr().err
    assert written.read_bytes() == whole
    assert main([*call, "--seed", "3"]) == 0, "other settings: nothing is recorded"
    assert written.read_bytes() == whole
    document = json.loads(whole)
    del document["settings"]["fixed_length"]
    written.write_text(json.dumps(document), encoding="utf8")
    assert main(call) == 0
    assert "fixed_length" not in json.loads(written.read_text(encoding="utf8"))["settings"], "a file of an older version too"


def test_records_may_lie_right_below_the_root(capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["table", "7", "--profile", "test", "--records", "/records-that-are-not-there"]) == 0
    assert "leviathan-1.md" in capsys.readouterr().err


def test_what_needs_no_run_is_the_same_in_every_profile(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: of real models they were written anew, with the name of the folder of data, into what is committed."""
    monkeypatch.chdir(tmp_path)
    told = []
    for flags in ([], ["--profile", "pocket", "--data", str(tmp_path)]):
        for kind, name in (("table", "7"), ("figure", "optimized-1"), ("figure", "optimized-2")):
            assert main([kind, name, *flags]) == 0
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".png"}
        told.append((capsys.readouterr(), files))
    assert told[0] == told[1]
    assert {path.suffix for path in told[0][1]} == {".md", ".csv", ".json", ".tex", ".svg"}


def test_a_figure_is_not_replaced_by_one_that_shows_less(
    hub: dict[str, str],
    synthetic: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """The curves of Leviathan's figures are theory; without records they were drawn over committed ones with markers."""
    plan, records = get_table(8).plan(PAPER), tmp_path / "results" / "records"
    monkeypatch.chdir(tmp_path)
    call = ["figure", "leviathan-2", *FLAGS, "--records", "results/records"]
    picture = tmp_path / "results/runs/paper-toy-limit-2/figures/leviathan-2.svg"
    picture.parent.mkdir(parents=True)
    picture.write_text("committed")
    assert main(call) == 0
    assert "figure leviathan-2: nothing of it is recorded in results/records, no file is written" in capsys.readouterr().out
    run_plan(plan[:1], Recorder(records, synthetic.run))
    assert main(call) == 0
    assert "arms have no records here; run `make reproduce-figure-leviathan-2" in capsys.readouterr().err
    assert picture.read_text() == "committed"
    run_plan(plan, Recorder(records, synthetic.run))
    assert main(call) == 0
    assert picture.read_text() != "committed"


def test_a_kept_tokenizer_gives_the_same_text(zoo_cache: Path, tmp_path: Path) -> None:
    folders = ensure(("t5-small", "llama-draft-small"), "test", "toy", workers=0)
    for folder in folders.values():
        whole, notes = AutoTokenizer.from_pretrained(folder), Notes(tmp_path)
        digest = keep_tokenizer(whole, notes)
        assert notes.tokenizer(digest).is_file()
        light = _decoder(notes.tokenizer(digest))
        for start in range(0, len(whole) - 5, 7):
            ids = list(range(start, start + 5))
            assert light(ids) == whole.decode(ids)


def test_a_kept_folder_of_a_tokenizer_that_changed_is_refused(zoo_cache: Path, tmp_path: Path) -> None:
    """Fault: two tokens of a folder's vocabulary were exchanged, and a figure showed one for the other."""
    folder = ensure(("t5-small",), "test", "toy", workers=0)["t5-small"]
    whole, notes = AutoTokenizer.from_pretrained(folder), Notes(tmp_path)
    whole.clean_up_tokenization_spaces = True  # the light library knows nothing of it
    kept = notes.tokenizer(keep_tokenizer(whole, notes))
    assert kept.is_dir()
    assert _decoder(kept)([5, 6]) == whole.decode([5, 6])
    first, second = (json.dumps(whole.convert_ids_to_tokens(number)) for number in (5, 6))
    path = kept / "tokenizer.json"
    text = path.read_text(encoding="utf8")
    for old, new in ((first, '"\\u0001"'), (second, first), ('"\\u0001"', second)):
        text = text.replace(old, new)
    path.write_text(text, encoding="utf8")
    _decoder.cache_clear()
    with pytest.raises(UsageError, match=r"cannot be read .*its vocabulary differs"):
        _decoder(kept)


def test_a_figure_of_text_needs_no_cache(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Figure Leviathan 1 is text: the tokenizer was kept by the run. Table 29's sentences likewise."""
    flags = ["--profile", "test", "--limit", "1", "--quiet", "--records", str(tmp_path / "records")]
    drawn = []
    for name, more in (("first", ["--reproduce"]), ("second", [])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert main(["figure", "leviathan-1", *flags, *more]) == 0
        folder = tmp_path / name / "results/runs/test-toy-limit-1/figures"
        drawn.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
        monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "empty"))
        cut_network(monkeypatch)
    assert drawn[0] == drawn[1]
    assert not os.path.exists(tmp_path / "empty")
