"""Exact match and F1 of short answers, with the normalisation of the official SQuAD 1.1 evaluation."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower the case, then drop ASCII punctuation, articles and superfluous space, in this order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    return float(normalise(prediction) == normalise(reference))


def f1(prediction: str, reference: str) -> float:
    """Compute the harmonic mean of precision and recall of the words, as bags."""
    predicted, expected = normalise(prediction).split(), normalise(reference).split()
    num_same = sum((Counter(predicted) & Counter(expected)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(expected)
    return 2 * precision * recall / (precision + recall)


def answer_statistics(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """Return each metric's best over the references."""
    return {
        "exact_match": max(exact_match(prediction, reference) for reference in references),
        "f1": max(f1(prediction, reference) for reference in references),
        "num_examples": 1.0,
    }
