"""Our additive statistics against sacrebleu, rouge-score and SQuAD's rules, on the same texts."""

import random

import numpy as np
import pytest

from tasks import TASKS, get_task
from tasks.base import DataError, Example, ReferenceScore
from tasks.metrics import path
from tasks.sources.read import read_examples
from tasks.squad import answer_statistics, exact_match, f1, normalise

TRANSLATION = get_task("multi30k-en-de")  # which has every kind of BLEU


def noisy_pairs(num_pairs, seed=0):
    """(output, reference): references with words dropped, doubled or swapped, some outputs empty or wholly wrong."""
    rng, pairs = random.Random(seed), []
    for example in read_examples(TRANSLATION, "toy", "test", num_pairs, seed):
        words = example.references[0].split()
        kept = [word for word in words if rng.random() < 0.8] + words[: int(rng.random() * 2)]
        pairs.append((" ".join(kept) if rng.random() < 0.9 else rng.choice(["", "xyz", "-"]), example.references[0]))
    return pairs


def statistics_of(task, pairs):
    return [task.statistics(Example(str(at), {}, (reference,)), output) for at, (output, reference) in enumerate(pairs)]


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("sacrebleu", {}), ("sacrebleu_lc", {"lowercase": True}), ("bleu", {"tokenize": "intl", "smooth_method": "none"})],
)
def test_bleu_is_sacrebleus(num_pairs, name, settings):
    from sacrebleu.metrics import BLEU

    for seed in range(4):
        pairs = noisy_pairs(num_pairs, seed)
        metric = BLEU(**settings)
        expected = metric.corpus_score([output for output, _ in pairs], [[reference for _, reference in pairs]])
        found = TRANSLATION.aggregate(statistics_of(TRANSLATION, pairs))[name]
        assert found.value == pytest.approx(expected.score, abs=1e-9)
        assert found.signature == str(metric.get_signature())


@pytest.mark.parametrize("name", ["cnndm", "xsum"])
def test_rouge_is_rouge_scores(name):
    from rouge_score.rouge_scorer import RougeScorer

    task = get_task(name)
    examples = list(read_examples(task, "toy", "test", 20, 0))
    outputs = ["The " + example.inputs["article"][:150] for example in examples]
    found = task.aggregate([task.statistics(example, output) for example, output in zip(examples, outputs, strict=True)])
    scorer = RougeScorer(list(task.metrics), use_stemmer=True)
    for metric in ("rouge1", "rouge2", "rougeL"):
        scores = [scorer.score(example.references[0], output)[metric].fmeasure
                  for example, output in zip(examples, outputs, strict=True)]  # fmt: skip
        assert found[metric].value == pytest.approx(100 * np.mean(scores))
    assert set(found) == set(task.metrics)


def test_rouge_lsum_takes_sentences_of_the_output():
    task = get_task("cnndm")
    example = Example("1", {"article": "x"}, ("The king died.\nThe queen reigns.",))
    swapped = task.statistics(example, "The queen reigns. The king died.")
    assert swapped["rougeLsum"] == pytest.approx(1.0)
    assert swapped["rougeL"] < 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat!", "cat"),
        ("an apple, a pear", "apple pear"),
        ("U.S.A.", "usa"),
        ("theatre", "theatre"),
        ("the", ""),
        ("A.N. Other", "other"),
        ("don't", "dont"),
        ("It’s", "it’s"),
    ],
)
def test_squad_normalisation(text, expected):
    assert normalise(text) == expected


def test_squad_scores_by_hand():
    assert exact_match("The Denver Broncos.", "denver broncos") == 1.0
    assert f1("the Denver Broncos team", "Denver Broncos") == pytest.approx(0.8)
    assert f1("dog dog cat", "dog cat cat") == pytest.approx(2 / 3)
    assert f1("nothing", "else") == 0.0
    best = answer_statistics("in 1897", ["the year 1897", "1897"])
    assert best["exact_match"] == 0.0
    assert best["f1"] == pytest.approx(2 / 3)
    task = get_task("squad")
    example = Example("1", {}, ("Paris",))
    metrics = task.aggregate([task.statistics(example, " Paris\nAnd more"), task.statistics(example, "Rome")])
    assert (metrics["exact_match"].value, metrics["f1"].value, metrics["f1"].unit) == (50.0, 50.0, "%")


def test_text_perplexity_of_a_uniform_model():
    task = get_task("text")
    example = next(read_examples(task, "toy", "test", 1, 0))
    scores = [ReferenceScore(-np.log(8) * tokens, tokens, 3 * tokens) for tokens in (5, 17)]
    metrics = task.aggregate([task.statistics(example, "", score) for score in scores])
    assert metrics["perplexity"].value == pytest.approx(8)
    assert metrics["bits_per_byte"].value == pytest.approx(1)
    with pytest.raises(DataError, match="no score of its reference"):
        task.statistics(example, "anything")


def test_shot_mark_and_later_lines_do_not_count():
    example = Example("1", {}, ("Ein Haus steht hier .",))
    clean = TRANSLATION.statistics(example, "Ein Haus steht hier .")
    assert TRANSLATION.statistics(example, " Ein Haus steht hier . #\nEnglish: more") == clean


def test_a_number_sign_within_a_translation_counts():
    """It used to end the text there, whatever the prompt was."""
    statistics = TRANSLATION.statistics(Example("1", {}, ("Platz # 1 der Liste",)), "Platz # 1 der Liste")
    assert TRANSLATION.aggregate([statistics])["sacrebleu"].value == pytest.approx(100)


@pytest.mark.parametrize("name", ["squad", "wmt-en-de", "xsum"])
def test_resampling_equals_scoring_the_resampled_corpus(name):
    task, rng = get_task(name), np.random.default_rng(0)
    examples = list(read_examples(task, "toy", "test", 12, 0))
    statistics = [task.statistics(example, example.references[0][: 10 + 3 * at]) for at, example in enumerate(examples)]
    drawn = rng.integers(0, 12, size=(7, 12))
    weights = np.stack([np.bincount(row, minlength=12) for row in drawn])
    values = task.resample(statistics, weights)
    for row, indices in enumerate(drawn):
        expected = task.aggregate([statistics[index] for index in indices])
        for metric in task.metrics:
            assert values[metric][row] == pytest.approx(expected[metric].value)


def test_no_examples_is_an_error():
    with pytest.raises(DataError, match="at least one example"):
        TASKS["squad"].aggregate([])


@pytest.fixture
def local_evaluate(tmp_path, monkeypatch):
    """evaluate without a network, with its caches in a temporary folder."""
    import evaluate.config
    import evaluate.loading

    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(evaluate.loading.init_dynamic_modules, "__defaults__", (
        evaluate.config.MODULE_NAME_FOR_DYNAMIC_MODULES, str(tmp_path / "modules")))  # fmt: skip
    return lambda name: evaluate.load(path(name), cache_dir=str(tmp_path / "cache"), keep_in_memory=True)


def test_evaluate_modules_agree_with_the_tasks(local_evaluate):
    pairs = noisy_pairs(20)
    outputs, references = [output for output, _ in pairs], [[reference] for _, reference in pairs]
    expected = TRANSLATION.aggregate(statistics_of(TRANSLATION, pairs))
    for kind in ("sacrebleu", "bleu"):
        found = local_evaluate("sacrebleu_corpus").compute(predictions=outputs, references=references, kind=kind)
        assert found["score"] == pytest.approx(expected[kind].value)
        assert found["signature"] == expected[kind].signature
    rouge = local_evaluate("rouge_fmeasure").compute(predictions=outputs, references=references)
    cnndm = get_task("cnndm")
    assert rouge == pytest.approx({name: metric.value for name, metric in cnndm.aggregate(statistics_of(cnndm, pairs)).items()})
    squad = local_evaluate("squad_answers").compute(predictions=outputs, references=references)
    task = get_task("squad")
    assert squad == pytest.approx({name: metric.value for name, metric in task.aggregate(statistics_of(task, pairs)).items()})


def test_metric_classes_work_directly():
    from tasks.metrics.squad_answers import SquadAnswers

    found = SquadAnswers(keep_in_memory=True).compute(predictions=["the cat"], references=[["Cat", "dog"]])
    assert found == {"exact_match": 100.0, "f1": 100.0}
