"""Corpus BLEU from counts per sentence: sacreBLEU's default (kind "sacrebleu") and tokenised BLEU (kind "bleu")."""

import datasets
import evaluate
import numpy as np

import tasks.translation

CITATION = "Papineni et al. 2002, BLEU; Post 2018, A Call for Clarity in Reporting BLEU Scores"


class SacrebleuCorpus(evaluate.Metric):
    """``compute(predictions=[str], references=[[str]], kind="sacrebleu")`` gives score and signature."""

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
        return evaluate.MetricInfo(description=__doc__, citation=CITATION, features=datasets.Features(features))

    def _compute(
        self, predictions: list[str], references: list[list[str]], kind: tasks.translation.Kind = "sacrebleu"
    ) -> dict[str, float | str]:
        rows = zip(predictions, references, strict=True)
        counts = np.asarray([tasks.translation.bleu_counts(kind, text, expected) for text, expected in rows])
        score = float(tasks.translation.bleu_from_sums(kind, counts.sum(axis=0)))
        return {"score": score, "signature": tasks.translation.bleu_signature(kind, len(references[0]))}
