"""SQuAD 1.1: answer a question about a passage (Rajpurkar et al. 2016); prompt of PPD Table 1."""

from typing import Any

import numpy as np

from tasks.base import (
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
from tasks.errors import DataError
from tasks.scoring.answers import answer_statistics

RULE = "———————"


def _example(row: Row, where: str, row_id: str) -> Example:
    answers: Any = mapping_field(row, "answers", where).get("text")
    if not isinstance(answers, list) or not answers or not all(isinstance(text, str) and text.strip() for text in answers):
        raise DataError(f"{where}: field 'answers' has text {str(answers)[:40]!r}, expected a list of at least one answer")
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
