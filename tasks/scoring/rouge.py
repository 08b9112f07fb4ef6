"""ROUGE F-measures of one summary by rouge-score, with its Porter stemmer."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@cache
def _scorer(names: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(names), use_stemmer=True)


@cache
def signature() -> str:
    return f"stemmer:porter|statistic:fmeasure|mean over examples|rouge-score:{version('rouge-score')}"


def sentence_lines(text: str) -> str:
    """Put each sentence on a line, as rougeLsum wants it; text with line ends stays as it is."""
    return text if "\n" in text.strip() else SENTENCE_END.sub("\n", text.strip())


def rouge_statistics(prediction: str, references: Sequence[str], names: tuple[str, ...]) -> dict[str, float]:
    """Compute the F-measure of each of ``names`` (rouge1, rouge2, rougeL, rougeLsum), each the best over the references."""
    if "rougeLsum" in names:
        prediction, references = sentence_lines(prediction), [sentence_lines(reference) for reference in references]
    scores = _scorer(names).score_multi(list(references), prediction)
    return {name: float(scores[name].fmeasure) for name in names} | {"num_examples": 1.0}
