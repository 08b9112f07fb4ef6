"""Exact match and F1 in percent, with the official SQuAD 1.1 normalisation."""

import datasets
import evaluate

import tasks.squad

CITATION = "Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text"


class SquadAnswers(evaluate.Metric):
    """``compute(predictions=[str], references=[[str]])`` gives exact_match and f1, the best over each row's references."""

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
        return evaluate.MetricInfo(description=__doc__, citation=CITATION, features=datasets.Features(features))

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float]:
        rows = zip(predictions, references, strict=True)
        statistics = [tasks.squad.answer_statistics(text, answers) for text, answers in rows]
        return {name: 100.0 * sum(row[name] for row in statistics) / len(statistics) for name in ("exact_match", "f1")}
