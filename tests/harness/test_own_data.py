"""``foretoken run`` on a user's own data: which rows it tests, what it says, and that nothing trained on is tested."""

import json
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from fuzz_models import save_models

import tasks
from harness.cli import exact
from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.settings import source_of
from harness.measures import pairing
from harness.report.experiments import experiment_items
from harness.run.own_data import evaluated_source, learned_lines, learned_rows, notes
from harness.run.runner import pin
from tasks.base import Example
from tasks.sources.read import read_examples
from tasks.sources.rows import Rows
from tasks.sources.source import Source

PROMPTS = [f"abc def {number} " + "ghi " * 30 for number in range(9)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "own.csv"
    path.write_text("number,story\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(PROMPTS)), encoding="utf8")
    return path


def run(models: dict[str, str], table: Path, *words: str) -> int:
    where = ("--data", str(table), "--records", str(table.parent / "records"), "--quiet", "--threads", "1")
    size = ("--limit", "20", "--max-new-tokens", "3", "--replay", "none")
    return main(["run", "--task", "text", "--target", models["target"], *where, *size, *words])


def test_a_users_prompts_are_all_tested_uncut(
    models: dict[str, str], table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine rows of nine, their prompts whole; nothing is scored where nothing is known to be right."""
    for limit, value in (("MAX_DRIFT", inf), ("MAX_SPREAD", inf), ("LEAST_ON_PROCESSOR", 0.0)):
        monkeypatch.setattr(pairing, limit, value)  # tests share their machine, whose times would be refused
    assert run(models, table, "--field", "prompt=story", "--method", "speculative", "--drafter", "copy", "--gamma", "2") == 0
    out, err = capsys.readouterr()
    document = json.loads(out.splitlines()[-1])
    assert "9 of 20 examples: " in err
    assert "the first third" not in err
    assert not {"perplexity", "bits_per_byte"} & set(document["metrics"])
    for rate, unit in (("tokens_per_s", "tokens/s"), ("ms_per_token", "ms")):
        assert {document["metrics"][f"{arm}{rate}"]["unit"] for arm in ("", "baseline_")} == {unit}
    product = document["metrics"]["tokens_per_s"]["value"] * document["metrics"]["ms_per_token"]["value"]
    assert product == pytest.approx(1000)
    lines = Path(document["records"]).read_text(encoding="utf8").splitlines()
    lengths = {json.loads(line)["prompt_tokens"] for line in lines}
    assert len(lines) == 9
    assert min(lengths) > 60
    assert json.loads(Path(document["records"]).with_suffix(".json").read_text())["source"].endswith(
        "own.csv?split=whole&field=prompt%3Dstory"
    )


def test_an_audit_of_ones_own_pair_decodes_the_whole_file(
    models: dict[str, str], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: an audit decoded the part that training leaves out, though neither model had learned from the file."""
    asked = []
    monkeypatch.setattr(exact, "own_subjects", lambda target, draft, task, source, *rest: asked.append(source) or [])
    words = ["audit", "--target", models["target"], "--draft", models["draft"], "--data", str(table), "--field", "prompt=story"]
    for more in ([], ["--split", "test"]):
        assert main([*words, *more]) == 2  # no subject is left
    assert asked == [source_of(str(table), fields=["prompt=story"], split=split) for split in ("whole", "")]


def test_a_cut_is_said_and_the_held_out_part_may_be_asked_for(
    models: dict[str, str], table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(models, table, "--field", "text=story", "--split", "test") == 0
    out, err = capsys.readouterr()
    assert "note: of a text the first third is the prompt, at most 60 words" in err
    assert "This is the part that training leaves out" in err
    assert 0 < json.loads(out.splitlines()[-1])["metrics"]["perplexity"]["n"] < 9


def test_what_a_model_learned_from_is_not_tested(models: dict[str, str], table: Path, tmp_path: Path) -> None:
    """By its recipe.json or its name. Fault: a draft that was distilled on a file, tested on the whole of it."""
    place = str(table)
    learned = tmp_path / "draft"
    learned.mkdir()
    (learned / "recipe.json").write_text(json.dumps({"material": {"source": f"{place}?field=text%3Dstory"}}), encoding="utf8")
    own, zoo = ModelSpec(name=models["target"]), ModelSpec(name="zoo:gpt-target")
    fields = ["prompt=story"]
    part = source_of(place, fields=fields)
    assert evaluated_source(part, "text", [own]) == source_of(place, fields=fields, split="whole")
    assert evaluated_source(source_of(place, fields=fields, split="test"), "text", [own]) == part
    for learner in (ModelSpec(name=str(learned)), zoo, ModelSpec(name="pocket:smollm2-draft-small")):
        assert evaluated_source(part, "text", [own, learner]) == part
        with pytest.raises(UsageError, match=r"split 'whole': .* learns from rows of .* that it tests; choose --split test"):
            evaluated_source(source_of(place, fields=fields, split="whole"), "text", [own, learner])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--field", "prompt"), "field 'prompt': expected FIELD=COLUMN, for example prompt=story"),
        (("--field", "prompt=a", "--field", "prompt=b"), "field 'prompt': given twice"),
        (("--field", "prompt=tale"), "own.csv:2: column 'tale' is missing (found: number, story); correct --field prompt=tale"),
        (("--split", "odd"), "split 'odd': "),
        (("--config", "en"), "config 'en': only data sets of the Hub have one"),
    ],
)
def test_bad_words_are_refused_in_one_line(
    models: dict[str, str], table: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert run(models, table, *words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line


def test_training_rows_of_a_hub_data_set_are_not_tested(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps({"source": f"hub:o/n@{'a' * 40}"}))
    with pytest.raises(UsageError, match=r"split 'train': .* learns from rows of hub:o/n"):
        evaluated_source(f"hub:o/n@{'b' * 40}?split=train", "text", [ModelSpec(name=str(tmp_path))])


def draft_of(folder: Path, source: str, with_rows: bool = False) -> ModelSpec:
    """A draft's folder with what its recipe.json says of the data that it learned from."""
    folder.mkdir()
    facts = {"material": {"source": source}, "learned": tasks.training_files(["text"], source)}
    if with_rows:
        task = tasks.get_task("text")
        facts["rows"] = Rows.of((task, one) for one in read_examples(task, source, "train", None, 0)).as_dict()
    (folder / "recipe.json").write_text(json.dumps(facts), encoding="utf8")
    return ModelSpec(name=str(folder))


def test_a_copy_of_what_a_draft_learned_from_is_recognised(table: Path, tmp_path: Path) -> None:
    """Of a copy under another name the part is tested that training left out. Fault: it is tested whole, 85 % of it learned."""
    fields = ["text=story"]
    draft = draft_of(tmp_path / "draft", source_of(str(table), fields=fields))
    copy = tmp_path / "elsewhere.csv"
    copy.write_bytes(table.read_bytes())
    tested = source_of(str(copy), fields=fields)
    assert evaluated_source(tested, "text", [draft]) == tested
    with pytest.raises(UsageError, match=r"split 'whole': .*draft learns from rows of .*elsewhere.csv that it tests"):
        evaluated_source(source_of(str(copy), fields=fields, split="whole"), "text", [draft])
    called_test = tmp_path / "test.csv"  # of a file of this name all rows are tested
    called_test.write_bytes(table.read_bytes())
    with pytest.raises(UsageError, match=r"data .*test.csv: .*draft learned from a file with the same content"):
        evaluated_source(source_of(str(called_test), fields=fields), "text", [draft])
    copy.write_text(copy.read_text() + '9,"another"\n')
    assert evaluated_source(tested, "text", [draft]) == source_of(str(copy), fields=fields, split="whole")


def test_a_copy_of_a_folder_of_which_a_draft_learned_one_file(tmp_path: Path) -> None:
    """The copy's test file may be tested, its training file may not, neither there nor alone."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    folder.mkdir()
    for number, name in enumerate(("train", "test")):
        (folder / f"{name}.txt").write_text("\n".join(PROMPTS[number:]), encoding="utf8")
    shutil.copytree(folder, copy)
    draft = draft_of(tmp_path / "draft", str(folder))
    assert evaluated_source(str(copy), "text", [draft]) == str(copy)
    for tested in (source_of(str(copy), split="train"), str(copy / "train.txt")):
        with pytest.raises(UsageError, match="learned from a file with the same content"):
            evaluated_source(tested, "text", [draft])
    alone = str(copy / "test.txt")
    assert evaluated_source(alone, "text", [draft]) == source_of(alone, split="whole")


def test_a_file_inside_a_folder_that_a_draft_learned_from_is_not_tested(tmp_path: Path) -> None:
    """A folder's training file is trained on whole, so that no part of it is left to test; nor the other way round."""
    folder, draft = tmp_path / "data", tmp_path / "draft"
    folder.mkdir()
    draft.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.txt").write_text("\n".join(PROMPTS), encoding="utf8")
    for learned, tested in ((folder, folder / "train.txt"), (folder / "train.txt", folder)):
        (draft / "recipe.json").write_text(json.dumps({"material": {"source": source_of(str(learned))}}), encoding="utf8")
        with pytest.raises(UsageError, match=r"draft learned from .*data.*, where the same rows may lie"):
            evaluated_source(source_of(str(tested)), "text", [ModelSpec(name=str(draft))])


STORIES = [f"abc def {number} " + "ghi " * 30 for number in range(80)]


def table_of(path: Path, texts: list[str]) -> str:
    path.write_text("story\n" + "".join(f'"{text}"\n' for text in texts), encoding="utf8")
    return str(path)


@pytest.fixture
def draft(tmp_path: Path) -> ModelSpec:
    """A draft that learned from the training part of a file of JSON Lines."""
    learned = tmp_path / "learned.jsonl"
    learned.write_text("".join(json.dumps({"text": text}) + "\n" for text in STORIES))
    return draft_of(tmp_path / "draft", str(learned), with_rows=True)


@pytest.mark.parametrize("field", ["prompt", "text"])
def test_rows_that_a_draft_learned_from_are_known_in_another_order_and_format(
    draft: ModelSpec, tmp_path: Path, field: str
) -> None:
    """The part is tested that training left out. Fault: all are tested, most of them learned from."""
    place = table_of(tmp_path / "some.csv", STORIES[59::-1])
    tested = source_of(place, fields=[f"{field}=story"])
    assert evaluated_source(tested, "text", [draft]) == tested
    with pytest.raises(UsageError, match=r"split 'whole': .*draft learns from rows of .*some.csv that it tests"):
        evaluated_source(source_of(place, fields=[f"{field}=story"], split="whole"), "text", [draft])
    others = table_of(tmp_path / "others.csv", [f"jkl {text}" for text in STORIES])
    tested = source_of(others, fields=[f"{field}=story"])
    assert evaluated_source(tested, "text", [draft]) == source_of(others, fields=[f"{field}=story"], split="whole")


def test_learned_rows_that_no_hash_leaves_out_are_left_out_one_by_one(
    models: dict[str, str], draft: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test file is tested whole: what is left of it are the rows that no training part has, and rows of no training at all.

    Fault: one row that is known again refuses all others.
    """
    task = tasks.get_task("text")
    asked = source_of(table_of(tmp_path / "test.csv", [*STORIES, "jkl " * 30]), fields=["text=story"])
    learned = {one.inputs["prompt"] for one in read_examples(task, str(tmp_path / "learned.jsonl"), "train", None, 0)}
    every = list(read_examples(task, asked, "test", None, 0))
    unseen = [one for one in every if one.inputs["prompt"] not in learned]
    assert 5 < len(unseen) < 20
    tested = evaluated_source(asked, "text", [draft])
    assert list(read_examples(task, tested, "test", None, 0)) == unseen
    assert Source.of(tested).text == tested != asked
    assert evaluated_source(tested, "text", [draft]) == tested
    few = list(read_examples(task, tested, "test", 4, 0))
    assert {one.id for one in few} < {one.id for one in unseen}
    [line] = [line for line in notes(plain_of(models["target"], tested), 80) if "left out" in line]
    gone = [one.id for one in every if one not in unseen]
    assert f"note: {len(gone)} rows of {tmp_path}/test.csv left out of the test, the first with id {gone[0]!r}" in line
    pinned = pin(plain_of(models["target"], tested))
    assert learned_rows(pinned, [draft])[draft.name]["rows"] == 0
    monkeypatch.setattr("harness.run.own_data.MOST_SKIPPED", len(gone) - 1)
    with pytest.raises(UsageError, match=rf"learned from {len(gone)} of the 81 .*; at most {len(gone) - 1} can be left"):
        evaluated_source(asked, "text", [draft])


def test_a_run_tests_what_its_draft_did_not_learn_from(
    models: dict[str, str], table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of nine prompts stand in the draft's training: seven are decoded by both arms, and the two are named and counted."""
    draft = tmp_path / "draft"
    shutil.copytree(models["draft"], draft)
    task = tasks.get_task("text")
    rows = Rows.of((task, Example(str(number), {"prompt": PROMPTS[number].upper()}, ())) for number in (3, 5))
    (draft / "recipe.json").write_text(json.dumps({"rows": rows.as_dict()}))
    test = table.rename(table.parent / "test.csv")
    words = ("--field", "prompt=story", "--draft", str(draft), "--method", "speculative", "--gamma", "2")
    assert run(models, test, *words) == 0
    out, err = capsys.readouterr()
    document = json.loads(out.splitlines()[-1])
    [facts] = [one for one in document["learned_rows"].values() if one["name"] == str(draft)]
    assert (facts["rows"], facts["tested"]) == (0, 7)
    assert f"note: 2 rows of {test} left out of the test, the first with id 'test-3'" in err
    texts = [Path(document[name]).read_text(encoding="utf8") for name in ("records", "baseline_records")]
    arms = [[json.loads(line)["example"] for line in text.splitlines()] for text in texts]
    assert arms[0] == arms[1]
    assert sorted(arms[0]) == [f"test-{number}" for number in (0, 1, 2, 4, 6, 7, 8)]


def test_rows_that_were_all_learned_from_are_refused(draft: ModelSpec, tmp_path: Path) -> None:
    task = tasks.get_task("text")
    learned = next(read_examples(task, str(tmp_path / "learned.jsonl"), "train", None, 0))
    [text] = [text for text in STORIES if text.startswith(learned.inputs["prompt"])]
    asked = source_of(table_of(tmp_path / "test.csv", [text.upper().replace(" ", "  ")]), fields=["text=story"])
    with pytest.raises(UsageError, match=r"draft learned from 1 of the 1 rows .* the first with id 'test-0'; none is left"):
        evaluated_source(asked, "text", [draft])


@pytest.mark.parametrize("name", ["own.jsonl", "train.jsonl"])
def test_a_draft_can_be_tested_beside_what_it_learned_from_where_rows_differ_in_capitals_alone(
    tmp_path: Path, name: str
) -> None:
    """Fault: training leaves out the very rows that are tested alone, so that no run of its own data is possible."""
    (tmp_path / "data").mkdir()
    twice = [one for text in STORIES for one in (text, text.upper().replace(" ", "  "))]
    lines = [json.dumps({"text": text}) + "\n" for text in twice]
    (tmp_path / "data" / name).write_text("".join(lines))
    if name == "train.jsonl":
        (tmp_path / "data" / "test.jsonl").write_text("".join(lines[:9]))
    source = str(tmp_path / "data" if name == "train.jsonl" else tmp_path / "data" / name)
    assert evaluated_source(source, "text", [draft_of(tmp_path / "draft", source, with_rows=True)]) == source


def test_of_every_model_it_is_said_what_is_known_of_its_training(
    models: dict[str, str], table: Path, draft: ModelSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: nothing is said of a downloaded model, so that a reader takes its rows for unseen ones."""
    assert run(models, table, "--field", "prompt=story") == 0
    out, _ = capsys.readouterr()
    told = json.loads(out.splitlines()[-1])["learned_rows"]
    [facts] = told.values()
    assert facts["revision"]
    assert facts == {
        "name": models["target"], "revision": facts["revision"], "rows": "unknown", "tested": 9,
        "why": "it says nothing of its training",
    }  # fmt: skip
    assert list(told) == [f"{models['target']}@{facts['revision']}"]
    assert f"learned from tested rows: {models['target']} unknown (it says nothing of its training)\n" in out
    [item] = experiment_items(table.parent / "records", (), table.parent, 1)
    assert item.learned == told
    place = table_of(tmp_path / "some.csv", STORIES)
    pinned = pin(plain_of(models["target"], source_of(place, fields=["text=story"])))
    older = draft_of(tmp_path / "older", str(tmp_path / "learned.jsonl"))
    zoo = ModelSpec(name="zoo:gpt-target")
    told = {one["name"]: one for one in learned_rows(pinned, [draft, older, zoo]).values()}
    assert (told[draft.name]["rows"], told[draft.name]["why"]) == (0, None)
    assert told[older.name]["why"] == "its recipe.json notes no rows"
    assert len(told) == 2
    whole = pin(plain_of(models["target"], source_of(place, fields=["text=story"], split="whole")))
    assert 60 < learned_rows(whole, [draft])[draft.name]["rows"] < 80
    assert learned_rows(pin(plain_of(models["target"], "toy")), [draft]) == {}
    drafted = pinned.replace(method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="model", model=draft), gamma=2))
    assert any(f"note: {draft.name} learned from 7" in line and "the part is tested" in line for line in notes(drafted, 80))


def test_two_revisions_of_a_model_have_rows_of_their_own(models: dict[str, str], draft: ModelSpec, tmp_path: Path) -> None:
    """Fault: a target and a draft of one name are one line, and what the first learned from is lost."""
    place = table_of(tmp_path / "some.csv", STORIES)
    pinned = pin(plain_of(models["target"], source_of(place, fields=["text=story"], split="whole")))
    told = learned_rows(pinned, [replace(draft, revision="a" * 40), replace(draft, revision="b" * 40)])
    assert [(one["name"], one["revision"]) for one in told.values()] == [(draft.name, "a" * 40), (draft.name, "b" * 40)]
    [line] = learned_lines(told)
    assert f"{draft.name}@{'a' * 40} 7" in line
    assert f"{draft.name}@{'b' * 40} 7" in line
    [alone] = learned_lines(learned_rows(pinned, [draft]))
    assert f"learned from tested rows: {draft.name} 7" in alone


def plain_of(target: str, source: str) -> Experiment:
    return Experiment(
        task="text", source=source, target=ModelSpec(name=target), method=MethodSpec(name="autoregressive"), limit=80
    )


def test_noted_rows_are_few_bytes_and_what_is_damaged_is_none() -> None:
    task = tasks.get_task("text")
    examples = [(task, Example(str(number), {"prompt": text}, ())) for number, text in enumerate(STORIES)]
    told = Rows.of(examples).as_dict()
    assert Rows.from_dict(json.loads(json.dumps(told))) == Rows.of(reversed(examples))
    assert len(told["hashes"]) == 8 * len(STORIES)
    for damaged in (None, [], {}, {"hashes": "abc"}, {"hashes": "AAAA"}, {"hashes": ""}, {"hashes": 3}):
        assert Rows.from_dict(damaged) is None
