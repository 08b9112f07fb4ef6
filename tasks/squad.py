"""SQuAD 1.1: answer a question about a passage (Rajpurkar et al. 2016); prompt of PPD Table 1.

Answers are scored by exact match and F1, with the normalisation of the official evaluation.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.base import (
    DataError,
    Dataset,
    Example,
    HubFiles,
    PromptStyle,
    ReferenceScore,
    Row,
    Statistics,
    Sums,
    Task,
    id_field,
    mapping_field,
    percent_of_mean,
    text_field,
)

RULE = "———————"
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def _example(row: Row, where: str, row_id: str) -> Example:
    answers: Any = mapping_field(row, "answers", where).get("text")
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not answers or not all(isinstance(text, str) and text.strip() for text in answers):
        raise DataError(
            f"{where}: field 'answers' has text {str(answers)[:40]!r}, expected at least one answer, a text or a list of texts"
        )
    inputs = {field: text_field(row, field, where) for field in ("context", "question")}
    title = row["title"] if isinstance(row.get("title"), str) and row["title"] else inputs["context"]
    return Example(id_field(row, row_id, where), inputs | {"title": title}, tuple(answers))


DATASET = Dataset(
    name="squad",
    folders=("squad",),
    hub=HubFiles(
        repository="rajpurkar/squad",
        revision="7b6d24c440a36b6815f21b70d25016731768db1f",
        train="plain_text/train-*.parquet",
        test="plain_text/validation-*.parquet",
    ),
    toy_row="squad",
    example=_example,
    group=lambda example: example.inputs["title"],
    fields=("id", "title", "context", "question", "answers"),
)


class Squad(Task):
    """Question answering, scored by exact match and F1 of the output's first line, the best over the references."""

    name = "squad"
    dataset = DATASET
    max_new_tokens = 16
    metrics = ("exact_match", "f1")

    def prompt(self, example: Example, style: PromptStyle) -> str:
        context, question = example.inputs["context"], example.inputs["question"]
        if style == "t5":
            return f"question: {question} context: {context}"
        return (
            f"We have provided context information below.\n{RULE}\n{context}\n{RULE}\n"
            f"### Given this information, please answer the question: {question}\n### Assistant:"
        )

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        return answer_statistics(output_text.strip().split("\n")[0], example.references)

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return percent_of_mean(sums, self.metrics)


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
