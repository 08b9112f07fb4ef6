"""Record files cut at any byte, with flipped bytes, doubled lines, odd values: no traceback, no whole record lost."""

import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz_models import save_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cli.main import main
from harness.cli.run_judged import remarks, status_of
from harness.core.errors import UsageError
from harness.core.files import sealed, unsealed
from harness.core.notes import Notes
from harness.core.record_files import (
    PROBES,
    RecordFile,
    environment_file,
    load_experiment,
    read_environment,
    read_records,
    write_environment,
)
from harness.core.records import Divergence, EarlyRanks, Record, RuleTimes, by_key
from harness.measures import frames
from harness.measures.frames import load
from harness.measures.of_run import of_task
from harness.papers import TABLES
from harness.report.experiments import experiment_items
from harness.report.items import read_table
from harness.report.regress import read_baseline
from harness.run.refusals import check_alike
from harness.tables.evidence import stored_decoder
from kernels.inputs import SamplingSpec
from methods.speculative.acceptance import alpha_ratio
from methods.steps import Step
from tasks import get_task

SHARED = [HealthCheck.function_scoped_fixture]  # every example writes its files anew
FUZZED = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": SHARED}
ODD = (None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", "1", "\ud800", [], [None], [[]], [1.5], ["a"], {})
WRITERS = {"show": ("--trace", "--html"), "acceptance": ("--json", "--profile-out")}  # their outputs
LINES = (b"\n", b"null\n", b"[]\n", b"5\n", b"{}\n", b"\xff\n", b"\0\0\n", b"[" * 100_000 + b"\n", b"9" * 5000 + b"\n")


@pytest.fixture
def stored(tmp_path: Path, synthetic: SimpleNamespace) -> SimpleNamespace:
    """A folder with a plain arm and one that drafted, every kind of field filled somewhere."""
    made = synthetic
    plain = made.plain_experiment(limit=2)
    drafted = made.drafted_experiment(plain)
    first = [made.plain(plain, f"é{i}", 4, overlap={"t5-small": [0.5, 0.4, 0.3, 0.2]}) for i in range(2)]
    second = [made.drafted(drafted, "é0", 4, (1, 2)), made.failed(drafted, "é1")]
    for record in (*first, second[0]):
        record.statistics = {"sacrebleu": [1.0] * 10, "bleu": [1.0] * 10}
    first[0].early = [EarlyRanks(head="N", layer=2, ranks=[0, 1, 2, 3])]
    second[0].divergence = Divergence(position=1, margin=0.1, bound=0.2, replays_agree=True, kind="near-tie")
    second[0].rule_times = RuleTimes(profiled_s=[0.1], wall_s=[0.2])
    lines = {one.signature: [r.to_line().encode() for r in rows] for one, rows in ((plain, first), (drafted, second))}
    return SimpleNamespace(folder=tmp_path, plain=plain, drafted=drafted, lines=lines, records=[*first, *second])


def write(stored: SimpleNamespace, lines: dict[str, list[bytes]] | None = None, **descriptions: bytes) -> tuple[Path, Path]:
    """The two record files, as they are but for what is given."""
    paths = []
    for name in ("plain", "drafted"):
        experiment = getattr(stored, name)
        path = stored.folder / f"{experiment.signature}.jsonl"
        path.write_bytes(b"".join((lines or stored.lines)[experiment.signature]))
        path.with_suffix(".json").write_bytes(descriptions.get(name, experiment.to_json().encode()))
        paths.append(path)
    return paths[0], paths[1]


def read_everything(plain: Path, drafted: Path, screen: "Quiet") -> None:
    """Every reader of records: what it cannot use is one line and status 2."""
    for arguments in (["acceptance", str(drafted)], ["compare", str(plain), str(drafted)]):
        status = main(arguments)
        said = screen.errors()
        assert (status, len(said)) in ((0, 0), (2, 1)), said
        assert not said or said[0].startswith("foretoken: ")
    for rows in frames.ROWS:
        with suppress(UsageError):
            load(plain.parent, rows=rows)
    for item in experiment_items(plain.parent, [], plain.parent, 2):
        assert f"{item.page}{item.method}{item.description}"


def inner(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (collection, key) within a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from inner(value[key])


def altered(data: st.DataObject, line: bytes) -> bytes:
    """A line whose JSON has another value, key or length at one place."""
    values = json.loads(line)
    holder, key = data.draw(st.sampled_from(list(inner(values))))
    change = data.draw(st.sampled_from(("value", "value", "value", "gone", "doubled")))
    if change == "value":
        odd = data.draw(st.sampled_from(ODD))  # an integer is a float too, but not to the shape checks of these tests
        holder[key] = float(odd) if type(odd) is int and isinstance(holder[key], float) else odd
    elif change == "gone":
        del holder[key]
    elif isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[f"{key}2"] = holder[key]
    return json.dumps(values).encode() + b"\n"


@settings(max_examples=20, **FUZZED)
@given(data=st.data())
def test_odd_values_in_records_and_descriptions(stored: SimpleNamespace, data: st.DataObject) -> None:
    arm = data.draw(st.sampled_from(("plain", "drafted")))
    lines = {signature: list(own) for signature, own in stored.lines.items()}
    own = lines[getattr(stored, arm).signature]
    if data.draw(st.booleans()):
        own[0] = altered(data, own[0])
        paths = write(stored, lines)
    else:
        paths = write(stored, **{arm: altered(data, getattr(stored, arm).to_json().encode())})
    before = [path.read_bytes() for path in paths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.report.experiments.stored_decoder", lambda folder, target: str)
        read_everything(*paths, Quiet(patch))
    assert [path.read_bytes() for path in paths] == before


class Quiet:
    """What pytest's capsys is for a test, for one of its many examples."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.errors()

    def errors(self) -> list[str]:
        """The lines on stderr since the last call."""
        said = sys.stderr.getvalue().splitlines() if isinstance(sys.stderr, io.StringIO) else []
        self._patch.setattr(sys, "stderr", io.StringIO())
        self._patch.setattr(sys, "stdout", io.StringIO())
        return said


@settings(max_examples=150, **FUZZED)
@given(data=st.data())
def test_flipped_bytes_and_foreign_lines_are_named_and_nothing_is_removed(stored: SimpleNamespace, data: st.DataObject) -> None:
    """A whole record before the damage is read; the file stays as it is, whatever is wrong with it."""
    own = stored.lines[stored.plain.signature]
    if data.draw(st.booleans()):
        whole = bytearray(b"".join(own))
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'0123456789",:[]{}en.-\n'))
        damaged, first = bytes(whole), 0 if place < len(own[0]) else 1
    else:
        first = data.draw(st.integers(0, 2))
        damaged = b"".join([*own[:first], data.draw(st.sampled_from(LINES)), *own[first:]])
    path, _ = write(stored, stored.lines | {stored.plain.signature: [damaged]})
    seen, said = [], f"{path}:"
    try:
        seen.extend(read_records(path))
    except UsageError as error:
        said = str(error)
        seen.extend(islice(read_records(path), first))
    assert f"{path}:" in said
    assert [one.to_line().encode() for one in seen[:first]] == own[: min(first, len(own))]
    assert path.read_bytes() == damaged


@settings(max_examples=60, **FUZZED)
@given(order=st.lists(st.integers(0, 2), min_size=1, max_size=8), cut=st.integers(0, 10**6))
def test_doubled_lines_count_once_and_a_torn_one_not_at_all(stored: SimpleNamespace, order: list[int], cut: int) -> None:
    records = [*stored.records[:2], replace(stored.records[1], example=stored.records[0].example, text="another")]
    all_lines = [record.to_line().encode() for record in records]
    whole = b"".join(all_lines[index] for index in order)
    cut %= len(whole) + 1
    path, _ = write(stored, stored.lines | {stored.plain.signature: [whole[:cut]]})
    num_whole = whole[:cut].count(b"\n")
    kept = list(read_records(path))
    assert [one.to_line().encode() for one in kept] == [all_lines[index] for index in order[:num_whole]]
    assert list(by_key(kept)) == list(dict.fromkeys(records[index].key for index in order[:num_whole]))
    file = RecordFile(stored.folder, stored.plain)
    with file.open() as writer:
        writer.append(stored.records[0])
        writer.append(new := replace(stored.records[0], example="new"))
    known = b"".join(all_lines[index] for index in order[:num_whole])
    added = [stored.records[0]] if stored.records[0].key not in {one.key for one in kept} else []
    assert file.path.read_bytes() == known + b"".join(one.to_line().encode() for one in (*added, new))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A whole run of two arms: its command and its record files."""
    folder = tmp_path_factory.mktemp("run")
    models = save_models(folder)
    command = ["run", "--quiet", "--task", "text", "--data", models["data"], "--target", models["target"], "--limit", "3"]
    command += ["--draft", models["draft"], "--method", "speculative", "--gamma", "2", "--max-new-tokens", "4"]
    command += ["--threads", "1", "--records", str(folder / "records")]
    with pytest.MonkeyPatch.context() as patch:
        Quiet(patch)
        assert main(command) == 0
    paths = sorted((folder / "records").glob("*.jsonl"))
    assert len(paths) == 2
    return SimpleNamespace(command=command, paths=paths, contents=[path.read_bytes() for path in paths])


@settings(max_examples=4, **FUZZED)
@given(cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_run_goes_on_from_any_byte(run: SimpleNamespace, cuts: tuple[float, float]) -> None:
    """Cut both arms' files anywhere: the same command keeps every whole record to the byte and makes only the others."""
    kept = []
    for path, content, cut in zip(run.paths, run.contents, cuts, strict=True):
        left = content[: round(cut * len(content))]
        path.write_bytes(left)
        kept.append(left[: left.rfind(b"\n") + 1])
    with pytest.MonkeyPatch.context() as patch:
        Quiet(patch)
        assert main(run.command) == 0
    for path, left, content in zip(run.paths, kept, run.contents, strict=True):
        again = path.read_bytes()
        assert again.startswith(left)
        assert [stable(line) for line in again.splitlines()] == [stable(line) for line in content.splitlines()]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda values: values.update(tokens=[10**6, *values["tokens"][1:]]),
            "token 1000000; |over another text",
        ),
        (lambda values: values.update(example="nobody's"), "example \"nobody's\" is none of task 'text' in "),
        (lambda values: values.update(signature="0" * 16), "is of experiment 0000000000000000; expected "),
    ],
)
def test_a_run_refuses_records_that_cannot_be_its_own(
    run: SimpleNamespace, capsys: pytest.CaptureFixture, change: Callable[[dict[str, Any]], object], expected: str
) -> None:
    for path, content in zip(run.paths, run.contents, strict=True):
        path.write_bytes(content)  # both arms of one process: else they are recorded anew
    for path, content in zip(run.paths, run.contents, strict=True):
        first, *others = content.splitlines(keepends=True)
        path.write_bytes(without(first, change) + b"".join(others))
        assert main(run.command) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert re.search(expected, line)
        path.write_bytes(content)


@pytest.mark.parametrize(("verdict", "status"), [("bug", 1), ("biased", 1), ("near-tie", 0), ("unknown", 0)])
def test_a_run_whose_audit_found_a_bug_ends_with_status_1(
    run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, verdict: str, status: int
) -> None:
    for path, content in zip(run.paths, run.contents, strict=True):
        path.write_bytes(content)
    monkeypatch.setattr("harness.cli.run_judged.judge_run", lambda *_: {"verdict": verdict, "summary": ""})
    assert main(run.command) == status


def test_a_run_without_plain_outputs_is_not_called_identical(run: SimpleNamespace, capsys: pytest.CaptureFixture) -> None:
    """Fault: every example of the plain arm had failed, and the other's were "identical", status 0."""
    for path, content in zip(run.paths, run.contents, strict=True):
        lines = [Record.from_line(line) for line in content.splitlines()]
        if load_experiment(path).method.drafter is None:
            lines = [replace(failure(one), run=one.run) for one in lines]
            for probe in (path.parent / PROBES).glob(f"{path.stem}.*"):
                probe.unlink()  # it measured texts that are no more
        path.write_text("".join(one.to_line() for one in lines))
    assert main(run.command) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["audit"]["verdict"] == "unknown"
    assert "3 of plain decoding's 3 examples failed; the first: InputError: x" in shown.err


def failure(one: Record) -> Record:
    return Record(signature=one.signature, example=one.example, repeat=one.repeat, status="failed", error="InputError: x")


def stable(line: bytes) -> tuple[Any, ...]:
    record = Record.from_line(line)
    return record.key, record.tokens, record.text, record.steps and record.steps.drafted, record.statistics


# What fuzzing found, each as it was found.


def without(line: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A line that was changed and signed anew, as somebody does who knows how."""
    values = json.loads(line)
    del values["checksum"]
    change(values)
    text = json.dumps(values)[:-1]
    return f'{text},"checksum":"{hashlib.sha256(text.encode()).hexdigest()[:16]}"}}\n'.encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(steps=None),
        lambda values: values.update(statistics=None),
        lambda values: values.update(wall_s=None),
        lambda values: values.update(wall_s=values["wall_s"] * 1.1),
        lambda values: values["tokens"].__setitem__(0, values["tokens"][0] ^ 1),
        lambda values: values.update(divergence=None),
        lambda values: values.update(nothing=None) or values.pop("nothing"),
        lambda values: values.pop("checksum"),
    ],
)
def test_a_line_that_is_not_as_it_was_written_is_refused(
    stored: SimpleNamespace, change: Callable[[dict[str, Any]], object], capsys: pytest.CaptureFixture
) -> None:
    """Edits that leave a possible record, of which nothing else could tell; the last but one only writes spaces."""
    own = stored.lines[stored.drafted.signature]
    values = json.loads(own[0])
    change(values)
    _, path = write(stored, stored.lines | {stored.drafted.signature: [json.dumps(values).encode() + b"\n", *own[1:]]})
    assert main(["acceptance", str(path)]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"foretoken: {path}:1: not a record (checksum")


def test_every_digit_of_a_line_is_guarded(stored: SimpleNamespace) -> None:
    for line in stored.lines[stored.plain.signature]:
        for place in [index for index, byte in enumerate(line) if chr(byte).isdigit()]:
            flipped = line[:place] + str((int(chr(line[place])) + 1) % 10).encode() + line[place + 1 :]
            with pytest.raises(ValueError):  # noqa: PT011  (a checksum, or a number that cannot be)
                Record.from_line(flipped)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values: values.update(tokens=[1.5, 2, 3, 4]), r"at `\$\.tokens\[0\]`"),
        (lambda values: values.update(status="good"), r"'good' - at `\$\.status`"),
        (lambda values: values.update(example=["a"]), r"at `\$\.example`"),
        (lambda values: values.update(repeat=True), r"got `bool` - at `\$\.repeat`"),
        (lambda values: values.update(text="\ud800"), "malformed|truncated|surrogate"),
        (lambda values: values.update(wall_s=float("nan")), "malformed"),
        (lambda values: values.update(statistics={"bleu": ["x"]}), r"at `\$\.statistics"),
        (lambda values: values["steps"].update(drafted=5), r"got `int` - at `\$\.steps\.drafted`"),
        (lambda values: values["steps"].update(emitted=[]), "columns of different lengths"),
        (lambda values: values["steps"]["emitted"].__setitem__(0, 9), "tokens emitted, 4 recorded"),
        (lambda values: values["steps"]["draft_probs"][0].pop(), "target_probs and draft_probs"),
        (lambda values: values["divergence"].pop("kind"), "kind"),
    ],
)
def test_what_is_no_record_is_named_with_its_line(
    stored: SimpleNamespace, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    own = stored.lines[stored.drafted.signature]
    _, path = write(stored, stored.lines | {stored.drafted.signature: [own[1], without(own[0], change)]})
    with pytest.raises(UsageError, match=rf"\.jsonl:2: not a record .*(?:{reason})"):
        list(read_records(path))


@pytest.mark.parametrize(
    "description",
    [b"null", b"[]", b"5", b"[" * 100_000, b'{"task": 5}', b'{"target": 5}', b'{"overlap": [1]}', b'{"seed": "x"}'],
)
def test_what_is_no_description_is_named(stored: SimpleNamespace, description: bytes) -> None:
    path, _ = write(stored, plain=description)
    with pytest.raises(UsageError, match="cannot be read"):
        load_experiment(path)


def test_a_folder_named_as_a_record_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"x\.jsonl: cannot be read"):
        list(read_records(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("content", [b"", b"[1]", b"5", b"\xff"])
def test_a_lost_environment_is_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "abc.json").write_bytes(content)
    assert read_environment(tmp_path, "abc") == {"environment": "unknown (abc)"}


@pytest.mark.parametrize("content", [b"[1]\n", b"5\n", b"{\n", b"\xff\n", b"[" * 100_000 + b"\n"])
@pytest.mark.parametrize("name", ["pins", "models", "texts", "scores"])
def test_damaged_notes_are_named(synthetic: SimpleNamespace, tmp_path: Path, name: str, content: bytes) -> None:
    arm, notes = synthetic.plain_experiment(), Notes(tmp_path)
    path, read = {
        "pins": (notes.folder / "pins.jsonl", lambda: notes.pin(arm)),
        "models": (notes.folder / "models.jsonl", lambda: notes.model(arm.target)),
        "texts": (notes.text_file(arm), lambda: notes.texts(arm)),
        "scores": (notes.score_file(arm, "comet"), lambda: notes.scores(arm, "comet")),
    }[name]
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"notes {path}: cannot be read .*; remove it"):
        read()


def test_edited_notes_are_refused(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """Fault: other parameters in models.jsonl, or rows in learned/, went into tables and reports in silence."""
    arm, notes = synthetic.plain_experiment(), Notes(tmp_path)
    notes.note_pin(arm, arm)
    notes.note_model(arm.target, {"num_parameters": 123})
    notes.note_texts(arm, {"one": "ein Satz 123"})
    notes.note_scores(arm, "comet", {"scores": {"one": 0.123}})
    notes.note_learned(arm.signature, {arm.target.name: {"rows": 123, "tested": 200, "why": ""}})
    read: dict[str, Callable[[Notes], object]] = {
        "pins.jsonl": lambda notes: notes.pin(arm),
        "models.jsonl": lambda notes: notes.model(arm.target),
        str(notes.text_file(arm).relative_to(notes.folder)): lambda notes: notes.texts(arm),
        str(notes.score_file(arm, "comet").relative_to(notes.folder)): lambda notes: notes.scores(arm, "comet"),
        f"learned/{arm.signature}.json": lambda notes: notes.learned(arm.signature),
    }
    assert set(read) == {str(path.relative_to(notes.folder)) for path in notes.folder.rglob("*.json*")}
    for name, reading in read.items():
        path = notes.folder / name
        whole = path.read_bytes()
        assert reading(Notes(tmp_path))
        old, new = (b'"seed":0', b'"seed":1') if name == "pins.jsonl" else (b"123", b"124")
        assert old in whole
        older = re.sub(rb',?"checksum":"[0-9a-f]+"', b"", whole)
        appended = re.sub(rb'("checksum":"[0-9a-f]+")', rb'\1,"seed":1', whole, count=1)
        edits = {"not the line's": whole.replace(old, new, 1), "checksum: missing": older, "last field": appended}
        for reason, edited in edits.items():
            assert edited != whole
            path.write_bytes(edited)
            with pytest.raises(UsageError, match=rf"notes {re.escape(str(path))}: cannot be read .*{reason}.*; remove it"):
                reading(Notes(tmp_path))
        path.write_bytes(whole)


def test_notes_of_other_kinds_are_named(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """Fault: notes signed anew by somebody who knows how ended in tracebacks."""
    arm, notes = synthetic.plain_experiment(), Notes(tmp_path)
    notes._note_pins({arm.signature: {"planned": arm.signature, "unavailable": 5}})
    with pytest.raises(UsageError, match=r"pins\.jsonl: cannot be read \(unavailable 5: expected text\)"):
        Notes(tmp_path).unavailable(arm)
    for odd in (5, {"rows": 3}):
        notes.note_learned(arm.signature, {"m": odd})
        with pytest.raises(UsageError, match=rf"learned/{arm.signature}\.json: cannot be read"):
            Notes(tmp_path).learned(arm.signature)


def test_statistics_of_different_shapes_are_refused(stored: SimpleNamespace) -> None:
    one = stored.records[0]
    other = replace(one, example="other", statistics={name: [1.0, 2.0, 3.0] for name in one.statistics})
    with pytest.raises(UsageError, match="example 'other': its statistics are not those of example"):
        of_task(get_task("wmt-en-de"), [one, other])


@pytest.mark.parametrize(("failed", "status"), [(0, 0), (1, 0), (2, 1), (4, 1)])
def test_a_run_of_which_half_failed_ends_with_status_1(synthetic: SimpleNamespace, failed: int, status: int) -> None:
    """Fault: 11 of 12 examples failed, and the last of them was "identical", status 0."""
    one = synthetic.run(synthetic.plain_experiment())[0]
    all_well = [replace(one, example=str(number)) for number in range(4)]
    records = [replace(one, status="failed", error="InputError: x") for one in all_well[:failed]] + all_well[failed:]
    records.append(replace(one, example="4", status="failed", error="DataError: no sound"))
    for arms in ([records], [records, all_well], [records, records]):
        assert status_of(arms, {"audit": {"verdict": "identical"}}) == status
    unread = replace(one, example="4")  # which plain decoding could read
    alone = [[*all_well, unread], records]  # fault: a method that failed on some of what plain decoding decodes had status 0
    assert status_of(alone, {"audit": {"verdict": "identical"}}) == int(failed > 0)


def test_failures_of_every_arm_are_told_and_those_of_an_example_once(synthetic: SimpleNamespace) -> None:
    """Fault: a run ended with status 1 and said nothing where the arm between the first and the last had failed."""
    experiment = synthetic.plain_experiment()
    well = synthetic.run(experiment)
    failed = [replace(one, status="failed", error="InputError: x") for one in well]
    for arms in ([well, failed, well], [failed, failed, failed], [failed, well]):
        assert len([line for line in remarks(experiment, arms) if "failed; the first: InputError: x" in line]) == 1


def test_another_text_without_a_divergence_is_refused(synthetic: SimpleNamespace) -> None:
    """Fault: a forged line whose text was another one than plain decoding's was "identical"."""
    plain = synthetic.run(synthetic.plain_experiment())
    check_alike(plain, plain)
    other = replace(plain[0], tokens=[*plain[0].tokens, 1], divergence=None)
    with pytest.raises(UsageError, match="its text is not plain decoding's, and no divergence is noted"):
        check_alike(plain, [other])
    check_alike(plain, [replace(other, status="failed", error="why")])
    with pytest.raises(UsageError, match="its prompt has 9 tokens, plain decoding's None; expected the same"):
        check_alike(plain, [replace(plain[0], prompt_tokens=9)])


def test_an_edited_environment_is_unknown(tmp_path: Path) -> None:
    """Fault: another processor or commit in it stood in the head of tables."""
    digest = write_environment(tmp_path, {"processor": "AMD EPYC", "commit": "0123456789ab"})
    assert read_environment(tmp_path, digest)["processor"] == "AMD EPYC"
    path = environment_file(tmp_path, digest)
    path.write_text(path.read_text(encoding="utf8").replace("AMD", "Intel"), encoding="utf8")
    assert read_environment(tmp_path, digest) == {"environment": f"unknown ({digest})"}


def test_a_pin_of_another_experiment_is_named(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """Fault: two lines' experiments were exchanged, and a table printed temperature 0's numbers under temperature 1."""
    greedy = synthetic.plain_experiment()
    drawn = greedy.replace(sampling=SamplingSpec(temperature=1.0))
    notes = Notes(tmp_path)
    notes.note_pin(greedy, greedy)
    notes.note_pin(drawn, drawn)
    path = notes.folder / "pins.jsonl"
    lines = [unsealed(line) for line in path.read_text(encoding="utf8").splitlines()]
    lines[0]["experiment"], lines[1]["experiment"] = lines[1]["experiment"], lines[0]["experiment"]
    path.write_text("".join(sealed(line) for line in lines), encoding="utf8")
    with pytest.raises(UsageError, match=rf"notes {path}: cannot be read .*was run with another sampling than it plans"):
        Notes(tmp_path).pin(greedy)


def test_a_tokenizer_that_changed_is_refused(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    """Its file is named by what it held."""
    target, notes = synthetic.plain_experiment().target, Notes(tmp_path)
    notes.note_model(target, {"tokenizer": "0123456789abcdef"})
    path = notes.tokenizer("0123456789abcdef")
    path.parent.mkdir()
    for content in ("{", '{"model": 1}'):
        path.write_text(content)
        with pytest.raises(UsageError, match=rf"tokenizer {path}: cannot be read .*checksum"):
            stored_decoder(tmp_path, target)


@pytest.mark.parametrize("content", ["", "5", "[1]", '{"a": NaN}', r'{"a": "\ud800"}', "[" * 100_000])
def test_damaged_baselines_and_tables_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "gpt-greedy.json"
    path.write_text(content, encoding="utf8")
    with pytest.raises(UsageError, match=r"baseline .*gpt-greedy\.json: cannot be read"):
        read_baseline(tmp_path)
    with pytest.raises(UsageError, match=r"gpt-greedy\.json: (cannot be read|not as)"):
        read_table(next(iter(TABLES.values())), path)


def test_a_probability_rounded_to_zero_does_not_divide() -> None:
    step = Step(drafted=[1], num_accepted=1, emitted=1, target_probs=[0.5], draft_probs=[0.0])
    assert alpha_ratio([step]) == (1.0, 1.0)


def test_statistics_of_another_task_are_refused(stored: SimpleNamespace, capsys: pytest.CaptureFixture) -> None:
    own = stored.lines[stored.plain.signature]
    edited = [without(line, lambda values: values.update(statistics={"zzz": 1.0})) for line in own]
    others = "statistics of task 'wmt-en-de': not as it gives them (KeyError: 'sacrebleu')"
    for lines, example, expected in (
        ([own[0], *edited[1:]], "é1", "its statistics are not those of example 'é0'"),
        (edited, "é0", others),
        (edited[:1], "é0", others),
    ):
        path, _ = write(stored, stored.lines | {stored.plain.signature: lines})
        assert main(["compare", str(path), str(path)]) == 2
        [said] = capsys.readouterr().err.splitlines()
        assert f"record {stored.plain.signature}, example {example!r}: {expected}; remove the line that was edited" in said


def test_a_file_without_records_has_none_to_show(stored: SimpleNamespace, capsys: pytest.CaptureFixture) -> None:
    path, _ = write(stored, stored.lines | {stored.plain.signature: []})
    assert main(["show", str(path)]) == 2
    assert "its file holds none" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"seed": 5}, {"limit": 3}])
def test_a_description_of_another_experiment_is_refused(stored: SimpleNamespace, change: dict[str, Any]) -> None:
    """How many examples were asked for is no part of what a file is named by."""
    path, _ = write(stored, plain=stored.plain.replace(**change).to_json().encode())
    if "limit" in change:
        assert load_experiment(path).limit == 3
        return
    with pytest.raises(UsageError, match="another; expected that which the file is named by"):
        load_experiment(path)


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("command", ["acceptance", "show"])
def test_a_pipe_in_the_place_of_a_file_hangs_nothing(stored: SimpleNamespace, command: str, suffix: str) -> None:
    _, path = write(stored)
    path.with_suffix(suffix).unlink()
    os.mkfifo(path.with_suffix(suffix))
    assert main([command, str(path)]) == 2


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".link"])
@pytest.mark.parametrize(("command", "option"), [(name, option) for name, options in WRITERS.items() for option in options])
def test_an_output_that_is_what_is_read_is_refused(
    stored: SimpleNamespace, command: str, option: str, suffix: str, capsys: pytest.CaptureFixture
) -> None:
    """Fault: the records were read, and then lost."""
    _, path = write(stored)
    path.with_suffix(".link").symlink_to(path)
    before = [path.read_bytes(), path.with_suffix(".json").read_bytes()]
    assert main([command, str(path), option, str(path.with_suffix(suffix))]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert "it is one of the files that are read, and would be lost; name another" in said
    assert [path.read_bytes(), path.with_suffix(".json").read_bytes()] == before


def test_a_lenience_that_is_no_number_is_no_record(stored: SimpleNamespace) -> None:
    path = stored.folder / "x.jsonl"
    overlap = {"drafter": "d", "by_lenience": {"x": [0.5]}}
    path.write_bytes(without(stored.lines[stored.plain.signature][0], lambda values: values.update(overlap=[overlap])))
    with pytest.raises(UsageError, match="could not convert string to float: 'x'"):
        list(read_records(path))
