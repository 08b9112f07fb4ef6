"""Whatever a row or a file holds: examples that can be prompted, scored and written, or one DataError that says where."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import TASKS, TRAINING_ONLY, get_training_task
from tasks.base import DataError, Sound
from tasks.sources.locate import fingerprint
from tasks.sources.read import read_examples, training_pairs

NAMES = (*TASKS, *TRAINING_ONLY)
WORDS = " ".join("abcdefghijklmnopqrstuvwxyz")
FUZZED = settings(max_examples=150, deadline=None, derandomize=True, database=None)
GOOD: dict[str, dict[str, Any]] = {
    "squad": {"id": "a", "context": "c d", "question": "q", "title": "t", "answers": {"text": ["x"], "answer_start": [0]}},
    "cnndm": {"id": "a", "article": "b c", "highlights": "h"},
    "xsum": {"id": "a", "document": "b", "summary": "h"},
    "text": {"id": "a", "text": WORDS},
    "conversations": {"id": "a", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
    "translation": {"id": "7", "translation": {"en": "hello", "de": "hallo", "fr": "salut", "ro": "salut"}},
    "speech": {"id": "a", "text": "hello", "sentence": "hello", "audio": "a.flac", "speaker_id": 3},
}
# Empty, blank, control and bidirectional characters, line ends that are none, half of a pair, digits that are none, the huge.
ODD = ("", " ", "\0", "\x1c", "\x85", "\u2028", "\u202e", "\ufeff", "\ud800", "a\udfffb", "½²٣", "{x}", "NaN", "x" * 70_000)
TEXTS = st.sampled_from((*ODD, WORDS)) | st.text(max_size=30)
LEAVES = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("text", "en", "de", "from", "value", "path", "bytes")) | TEXTS, inner, max_size=3)
    ),
    max_leaves=5,
)
PIECES = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"text"',
    b":",
    b",",
    b'"' + WORDS.encode() + b'"',
    b"\n",
    b"1",
    b"NaN",
    b"-Infinity",
    b"1e999",
)
BROKEN = (
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\0",
    b"\\ud800",
    b'"',
    b"9" * 5000,
    b"[" * 2000,
    b'{"a":' * 2000,
)


def good_row(name: str) -> dict[str, Any]:
    kind = "translation" if name.startswith(("wmt", "multi30k")) else name if name in GOOD else "speech"
    return copy.deepcopy(GOOD[kind])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a row."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


@st.composite
def rows_of(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    """A task and good rows for it, but for one value of one of them: another one, or gone."""
    name = draw(st.sampled_from(NAMES))
    rows = [good_row(name) for _ in range(draw(st.integers(1, 3)))]
    *way, last = draw(st.sampled_from(list(places(rows[0]))))
    inner = rows[0]
    for key in way:
        inner = inner[key]
    if draw(st.booleans()) or isinstance(inner, list):
        inner[last] = draw(VALUES)
    else:
        del inner[last]
    return name, rows


def use(name: str, path: Path) -> str:
    """Read a file in every way that a task is read: what testing with it said in one line, "" if nothing was wrong. Only
    DataError may be raised; that a small file has nothing to train on is fine."""
    task = get_training_task(name)
    with suppress(DataError):
        for source, target in training_pairs(task, str(path), 2, 0):
            f"{source}{target}".encode()
    try:
        examples = [example for limit in (2, None) for example in read_examples(task, str(path), "test", limit, 0)]
        fingerprint(task.dataset, str(path))
    except DataError as error:
        return " ".join(str(error).split())
    for example in examples:
        "".join((example.id, task.prompt(example, "instruction"), task.prompt(example, "t5"), *example.references)).encode()
        if example.audio is not None:
            with pytest.raises(DataError):
                example.audio.sound()
    if name in TASKS and not task.scores_reference:
        statistics = [task.statistics(example, text) for example in examples for text in (WORDS, "", "\0")]
        json.dumps(statistics, allow_nan=False)
        task.aggregate(statistics)
    return ""


@FUZZED
@given(task_and_rows=rows_of(), escaped=st.booleans())
def test_rows_of_every_task(tmp_path_factory: pytest.TempPathFactory, task_and_rows: tuple, escaped: bool) -> None:
    name, rows = task_and_rows
    path = tmp_path_factory.getbasetemp() / f"{name}.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=escaped) + "\n" for row in rows)
    path.write_bytes(text.encode("utf8", "surrogatepass"))
    said = use(name, path)
    assert said == "" or str(path) in said


@FUZZED
@given(
    name=st.sampled_from(NAMES),
    data=st.lists(st.sampled_from((*PIECES, *BROKEN)), max_size=10).map(b"".join) | st.binary(max_size=60),
    ending=st.sampled_from((".jsonl", ".json", ".txt", ".parquet")),
)
def test_files_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes, ending: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"bytes{ending}"
    path.write_bytes(data)
    said = use(name, path)
    assert said == "" or str(path) in said


@FUZZED
@given(st.data())
def test_parquet_cut_or_with_flipped_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(("text", "squad", "conversations")))
    path = tmp_path_factory.getbasetemp() / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([good_row(name)] * 2), path)
    whole = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[place] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.sampled_from((len(whole), data.draw(st.integers(0, len(whole))))))])
    said = use(name, path)
    assert said == "" or str(path) in said


# What fuzzing found, each as it was found.


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": ' + "9" * 5000 + "}", "a number of too many digits"),
        ('{"a":' * 100_000, "it is nested too deeply"),
        (r'{"text": "\ud800"}', r"has the lone surrogate '\ud800'"),
        (r'{"other": ["\uDC00 b"]}', r"has the lone surrogate '\udc00'"),
    ],
)
@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_json_that_python_cannot_hold(tmp_path: Path, line: str, reason: str, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    path.write_text(line if ending == ".jsonl" else f"[{line}]", encoding="utf8")
    said = use("conversations", path)
    assert str(path) in said
    assert reason in said


def test_a_pair_of_surrogate_escapes_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"text": f"{WORDS} 🙂"}) + "\n", encoding="utf8")
    assert r"\ud83d\ude42" in path.read_text(encoding="utf8")
    [example] = read_examples(get_training_task("text"), str(path), "test", None, 0)
    assert example.references[0].endswith("🙂")


def test_a_recordings_name_may_be_one_that_no_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(good_row("librispeech-clean") | {"audio": "a" * 300}) + "\n", encoding="utf8")
    assert use("librispeech-clean", path) == ""
    [example] = read_examples(get_training_task("librispeech-clean"), str(path), "test", None, 0)
    with pytest.raises(DataError, match="no such file"):
        assert isinstance(example.audio.sound(), Sound)


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.StringArray.from_buffers(1, pyarrow.array(["ab"]).buffers()[1], pyarrow.py_buffer(b"\xff\xfe")),
        pyarrow.array([2**31 - 1], pyarrow.date32()),
        pyarrow.array([2**62], pyarrow.timestamp("us")),
    ],
)
def test_parquet_that_python_cannot_hold(tmp_path: Path, column: pyarrow.Array) -> None:
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
    assert "not a readable Parquet file" in use("text", path)


@pytest.mark.parametrize("content", ["null", "[]", "5", '"x"', "[" * 100_000, '{"splits": 5}'])
def test_saved_datasets_with_a_damaged_description(tmp_path: Path, content: str) -> None:
    import datasets

    datasets.disable_progress_bars()
    folder = tmp_path / "saved"
    datasets.Dataset.from_list([good_row("text")] * 2).save_to_disk(str(folder))
    assert use("text", folder) == ""
    (folder / "dataset_info.json").write_text(content, encoding="utf8")
    assert "not a readable save_to_disk folder" in use("text", folder)


@pytest.mark.parametrize("statistics", [{}, {"exact_match": 1.0, "f1": "x", "num_examples": 1.0}, {"exact_match": [1.0, 2.0]}])
def test_statistics_of_another_version(statistics: dict[str, Any]) -> None:
    right = get_training_task("squad").statistics(next(read_examples(get_training_task("squad"), "toy", "test", 1, 0)), "x")
    with pytest.raises(DataError, match="statistics of task 'squad'"):
        get_training_task("squad").aggregate([right, statistics])
