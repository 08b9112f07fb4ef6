"""CNN/DailyMail (Hermann et al. 2015, See et al. 2017) and XSum (Narayan et al. 2018); prompt of PPD Table 1, prefix of T5.

Optimized (A.3) prompts without instruction: "Summary:" after the article. What the paper puts between them is not recovered;
here it is a line end. Only what follows the prompt is the output, and so only that is scored.
"""

from functools import partial

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
from tasks.scoring import rouge

SUMMARY_TEMPLATE = "{article}\nSummary:"  # an experiment's prompt_template


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
        return rouge.rouge_statistics(output_text.strip(), example.references, self.metrics)

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return percent_of_mean(sums, self.metrics)

    def signature(self, metric: str) -> str:
        return rouge.signature()
