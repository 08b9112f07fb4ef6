"""ROUGE F-measures in percent with the Porter stemmer, averaged over summaries."""

import datasets
import evaluate

import tasks.summarization

CITATION = "Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries"
NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class RougeFmeasure(evaluate.Metric):
    """``compute(predictions=[str], references=[[str]])`` gives rouge1, rouge2, rougeL and rougeLsum."""

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
        return evaluate.MetricInfo(description=__doc__, citation=CITATION, features=datasets.Features(features))

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float]:
        rows = zip(predictions, references, strict=True)
        statistics = [tasks.summarization.rouge_statistics(text, expected, NAMES) for text, expected in rows]
        return {name: 100.0 * sum(row[name] for row in statistics) / len(statistics) for name in NAMES}
