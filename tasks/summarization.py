"""CNN/DailyMail (Hermann et al. 2015, See et al. 2017) and XSum (Narayan et al. 2018); prompt of PPD Table 1, prefix of T5.

Optimized (A.3) prompts without instruction: "Summary:" after the article. What the paper puts between them is not recovered;
here it is a line end. Only what follows the prompt is the output, and so only that is scored.
"""

import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
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
    percent_of_mean,
    text_field,
)

SUMMARY_TEMPLATE = "{article}\nSummary:"  # an experiment's prompt_template
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def _example(article: str, summary: str, row: Row, where: str, row_id: str) -> Example:
    inputs = {"article": text_field(row, article, where)}
    return Example(id_field(row, row_id, where), inputs, (text_field(row, summary, where),))


CNNDM = Dataset(
    name="cnndm",
    folders=("cnn_dailymail", "cnndm"),
    hub=HubFiles(
        repository="abisee/cnn_dailymail",
        revision="96df5e686bee6baa90b8bee7c28b81fa3fa6223d",
        train="3.0.0/train-*.parquet",
        test="3.0.0/test-*.parquet",
    ),
    toy_row="cnndm",
    example=partial(_example, "article", "highlights"),
    group=lambda example: example.id,
    fields=("id", "article", "highlights"),
)
XSUM = Dataset(
    name="xsum",
    folders=("xsum",),
    # A commit of the Hub's own conversion: the main branch held a loading script and no Parquet when this was pinned.
    hub=HubFiles(
        repository="EdinburghNLP/xsum",
        revision="5484b3547a597693f9c099954c1cd6a8192a4573",
        train="default/xsum-train.parquet",
        test="default/xsum-test.parquet",
    ),
    toy_row="xsum",
    example=partial(_example, "document", "summary"),
    group=lambda example: example.id,
    fields=("id", "document", "summary"),
)


class Summarization(Task):
    """Summaries, scored by ROUGE F-measures with stemming, in percent. The harness cuts articles to the model's limit."""

    max_new_tokens = 128

    def __init__(self, dataset: Dataset, metrics: tuple[str, ...]) -> None:
        self.name, self.dataset, self.metrics = dataset.name, dataset, metrics

    def prompt(self, example: Example, style: PromptStyle) -> str:
        article = example.inputs["article"]
        return f"summarize: {article}" if style == "t5" else f"# Article\n{article}\n# Summarize the article\n### Assistant:"

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        return rouge_statistics(output_text.strip(), example.references, self.metrics)

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return percent_of_mean(sums, self.metrics)

    def signature(self, metric: str) -> str:
        return rouge_signature()


@cache
def _scorer(names: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(names), use_stemmer=True)


@cache
def rouge_signature() -> str:
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
