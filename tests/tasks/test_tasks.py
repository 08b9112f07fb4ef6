"""Every task: prompts as the papers print them, ids, training pairs, and the 40-line promise for a new one."""

import csv
import subprocess
import sys

import numpy as np
import pytest

from tasks import TASKS, get_task
from tasks.base import DataError, Example, Task, percent_of_mean
from tasks.sources.locate import fingerprint
from tasks.sources.read import read_examples, training_pairs

SPEECH = ["librispeech-clean", "librispeech-other", "tedlium", "common-voice"]
NUM_TOKENS = {"squad": 16, **dict.fromkeys(SPEECH, 256)}


def published_prompts(shared):
    with (shared / "papers/published/ppd/table_1.csv").open(encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {row["dataset"]: row["prompt_newlines_as_backslash_n"].replace("\\n", "\n") for row in rows}


def test_there_are_fourteen_tasks_and_unknown_names_are_refused():
    pairs = ["wmt-en-de", "wmt13-en-de", "multi30k-en-de", "wmt-de-en", "wmt-en-fr", "wmt-en-ro", "wmt-ro-en"]
    assert list(TASKS) == ["squad", *pairs, "cnndm", "xsum", "text", *SPEECH]
    assert all(task.name == name for name, task in TASKS.items())
    with pytest.raises(DataError, match="task 'squat': unknown; expected one of squad, wmt-en-de"):
        get_task("squat")


def test_instruction_prompts_are_ppds(shared):
    published = published_prompts(shared)
    assert len(published) == 3
    squad = Example("1", {"context": "Some text.", "question": "Why?", "title": "t"}, ("x",))
    filled = published["SQUAD"].format(context="Some text.", question="Why?")
    assert get_task("squad").prompt(squad, "instruction") == filled
    sentence = Example("1", {"source": "It rains."}, ("x",))
    assert get_task("wmt-en-fr").prompt(sentence, "instruction") == published["WMT"].format(source_sentence="It rains.")
    article = Example("1", {"article": "It rained."}, ("x",))
    assert get_task("cnndm").prompt(article, "instruction") == published["CNN/DM"].format(context="It rained.")


def test_t5_prefixes():
    sentence = Example("1", {"source": "It rains."}, ("x",))
    assert get_task("wmt-en-de").prompt(sentence, "t5") == "translate English to German: It rains."
    assert get_task("wmt-ro-en").prompt(sentence, "t5") == "translate Romanian to English: It rains."
    assert get_task("xsum").prompt(Example("1", {"article": "A."}, ("x",)), "t5") == "summarize: A."


@pytest.mark.parametrize("name", TASKS)
def test_toy_examples(name):
    task = TASKS[name]
    examples = list(read_examples(task, "toy", "test", 30, 0))
    assert [example.id for example in examples] == [f"toy-test-{index}" for index in range(30)]
    assert examples == list(read_examples(task, "toy", "test", 40, 0))[:30]
    assert all(example.references and all(example.references) for example in examples)
    assert task.max_new_tokens == NUM_TOKENS.get(name, 128)
    for prompt, reference in training_pairs(task, "toy", 5, 0):
        assert (prompt == "") == (name in ("text", *SPEECH))
        assert reference.strip()


def test_directions_share_their_rows():
    forth = list(read_examples(get_task("wmt-en-de"), "toy", "test", 20, 0))
    back = list(read_examples(get_task("wmt-de-en"), "toy", "test", 20, 0))
    assert [example.inputs["source"] for example in forth] == [example.references[0] for example in back]


def test_the_development_set_has_sentences_of_its_own_and_the_same_training_rows():
    def sources(name, split):
        return {example.inputs["source"] for example in read_examples(get_task(name), "toy", split, 200, 0)}

    assert sources("wmt13-en-de", "train") == sources("wmt-en-de", "train")
    assert len(sources("wmt13-en-de", "test") & sources("wmt-en-de", "test")) <= 2
    assert not sources("wmt13-en-de", "test") & sources("wmt-en-de", "train")
    assert get_task("wmt13-en-de").dataset.hub.test == "de-en/validation-*.parquet"


def test_text_prompt_and_continuation_join_to_the_text():
    task = get_task("text")
    for example in read_examples(task, "toy", "test", 100, 0):
        words = len((example.inputs["prompt"] + example.inputs["continuation"]).split())
        assert example.references == (example.inputs["continuation"],)
        assert task.prompt(example, "t5") == example.inputs["prompt"]
        assert len(example.inputs["prompt"].split()) == min(60, words // 3)
        assert example.inputs["continuation"][0] == " "


def test_fingerprints_tell_data_apart(tmp_path):
    task = get_task("text")
    path = tmp_path / "a.txt"
    path.write_text("One line of text.\n")
    first = fingerprint(task.dataset, str(path))
    path.write_text("One line of test.\n")
    prints = {
        first,
        fingerprint(task.dataset, str(path)),
        fingerprint(task.dataset, "toy"),
        fingerprint(task.dataset, "hub"),
        fingerprint(get_task("squad").dataset, "hub"),
    }
    assert len(prints) == 5
    assert fingerprint(task.dataset, "toy") == fingerprint(task.dataset, "toy")


def test_heavy_libraries_are_imported_only_where_used():
    code = (
        "import sys, tasks; from tasks.sources.read import read_examples;"
        "list(read_examples(tasks.get_task('squad'), 'toy', 'test', 2, 0));"
        "heavy = ('datasets', 'evaluate', 'sacrebleu', 'rouge_score', 'pandas', 'torch', 'pyarrow');"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_naming_tasks_does_not_import_the_generated_world():
    code = (
        "import sys, tasks; print(*sorted(name for name in sys.modules if name.startswith('tasks.world') or name == 'torch'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_a_new_task_takes_a_few_lines():
    class Question(Task):
        name, dataset, metrics, max_new_tokens = "question", get_task("squad").dataset, ("exact",), 8

        def prompt(self, example, style):
            return example.inputs["question"]

        def statistics(self, example, output_text, reference=None):
            return {"exact": float(output_text in example.references), "num_examples": 1.0}

        def values_from_sums(self, sums):
            return percent_of_mean(sums, self.metrics)

    task = Question()
    examples = list(read_examples(task, "toy", "test", 4, 0))
    statistics = [
        task.statistics(example, output)
        for example, output in zip(examples, [examples[0].references[0], "", "", ""], strict=True)
    ]
    assert task.aggregate(statistics)["exact"].value == 25.0
    assert task.resample(statistics, np.ones((3, 4))) == {"exact": pytest.approx([25.0] * 3)}
