"""Dialogues in the form of ShareGPT: a JSON list or JSON Lines, prompts that end where the assistant begins, bad rows."""

import json

import pytest

from tasks import TASKS, TRAINING_ONLY, get_task, get_training_task
from tasks.base import DataError
from tasks.sources.read import read_examples, training_pairs

TURNS = [
    {"from": "system", "value": "Be kind."},
    {"from": "human", "value": "Hello!"},
    {"from": "gpt", "value": "Hi. How can I help?"},
    {"from": "human", "value": "Count to two."},
    {"from": "gpt", "value": "One, two."},
]


def dialogues(num_rows):
    return [
        {"id": f"d{i}", "conversations": [*TURNS[:1], {"from": "human", "value": f"Hello {i}!"}, *TURNS[2:]]}
        for i in range(num_rows)
    ]


def write(path, rows):
    lines = path.suffix == ".jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows, indent=1), encoding="utf-8")
    return path


def test_it_is_for_training_only():
    assert not set(TASKS) & set(TRAINING_ONLY)
    assert get_training_task("conversations").name == "conversations"
    assert get_training_task("squad") is get_task("squad")
    with pytest.raises(DataError, match=r"task 'conversations': it is only trained on"):
        get_task("conversations")
    with pytest.raises(DataError, match=r"task 'chats': unknown; expected one of squad, .*conversations"):
        get_training_task("chats")


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_a_prompt_ends_where_the_assistant_begins(tmp_path, name):
    source = write(tmp_path / name, dialogues(40))
    pairs = dict(training_pairs(get_training_task("conversations"), str(source), None, 0))
    assert 25 <= len(pairs) < 40  # a share of the dialogues is kept for testing
    assert all(prompt.startswith("USER: Hello ") and prompt.endswith("! ASSISTANT:") for prompt in pairs)
    assert set(pairs.values()) == {"Hi. How can I help? USER: Count to two. ASSISTANT: One, two."}


def test_the_layout_of_the_hub_repository_is_found(tmp_path):
    (tmp_path / "sharegpt").mkdir()
    rows = write(tmp_path / "sharegpt" / "ShareGPT_V3_unfiltered_cleaned_split.json", dialogues(40))
    task = get_training_task("conversations")
    found = [list(read_examples(task, str(source), "train", 10, 0)) for source in (tmp_path, rows.parent, rows)]
    assert len(found[0]) == 10
    assert found[0] == found[1] == found[2]


def test_dialogues_without_an_answer_are_passed_over(tmp_path):
    rows = [{"id": f"q{i}", "conversations": [{"from": "human", "value": "Anyone?"}]} for i in range(30)]
    source = write(tmp_path / "rows.json", [*rows, *dialogues(30)])
    ids = {example.id for example in read_examples(get_training_task("conversations"), str(source), "train", None, 0)}
    assert ids
    assert all(name.startswith("d") for name in ids)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"id": "a", "conversations": "hello"}], r"row 1: field 'conversations' is 'hello', expected a list"),
        ([{"id": "a"}], r"row 1: field 'conversations' is 'None'"),
        (
            [{"id": "a", "conversations": [{"from": "human"}]}],
            r"row 1: a turn of 'conversations' is .*texts 'from' and 'value'",
        ),
        ({"id": "a"}, r"rows\.json: is not a list of objects"),
        (["a"], r"rows\.json: is not a list of objects"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, expected):
    source = write(tmp_path / "rows.json", rows)
    with pytest.raises(DataError, match=expected):
        list(read_examples(get_training_task("conversations"), str(source), "train", None, 0))


def test_broken_json_names_the_line(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[\n{"id": "a",\n "conversations" []}]')
    with pytest.raises(DataError, match=r"rows\.json:3: not JSON"):
        list(read_examples(get_training_task("conversations"), str(path), "train", None, 0))


def test_the_hub_file_is_a_json_list_at_a_commit(monkeypatch, tmp_path):
    """The datasets library reads the hub's file, here from a folder, as rows."""
    import datasets

    files = get_training_task("conversations").dataset.hub
    assert len(files.revision) == 40
    write(tmp_path / files.train, dialogues(12))
    whole = datasets.load_dataset

    def local(repository, *, data_files, split, revision, streaming):
        assert (repository, revision) == (files.repository, files.revision)
        return whole("json", data_files={split: str(tmp_path / data_files[split])}, split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", local)
    found = list(training_pairs(get_training_task("conversations"), "hub", 5, 0))
    assert len(found) == 5


def test_toy_dialogues_are_of_the_generated_world():
    pairs = list(training_pairs(get_training_task("conversations"), "toy", 20, 0))
    assert len(pairs) == 20
    assert all(prompt.endswith("? ASSISTANT:") and " USER: Translate into French: " in answer for prompt, answer in pairs)
