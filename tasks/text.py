"""Plain text continuation, scored by how likely the model finds the true one; stands for lm1b (Chelba et al. 2013)."""

import math
import re
from collections.abc import Iterator
from itertools import islice

import numpy as np

from tasks.additive import AdditiveTask, Sums
from tasks.base import Example, PromptStyle, ReferenceScore, Statistics
from tasks.errors import DataError
from tasks.sources.dataset import Dataset, HubFiles, Row, text_field
from tasks.world import text_row

MAX_PROMPT_WORDS = 60
MIN_TEST_WORDS = 20
MIN_WORDS = 3
WORD = re.compile(r"\S+")


def split_prompt(text: str) -> tuple[str, str]:
    """The first third, at most 60 words, and the rest with the space before it: the two join to the text."""
    num_prompt_words = min(MAX_PROMPT_WORDS, max(1, len(text.split()) // 3))
    *_, last = islice(WORD.finditer(text), num_prompt_words)
    return text[: last.end()], text[last.end() :]


def _example(row: Row, where: str, row_id: str) -> Example | None:
    """Blank texts and those of one or two words, headings in WikiText, are passed over."""
    if isinstance(row.get("text"), str) and len(row["text"].split()) < MIN_WORDS:
        return None
    prompt, continuation = split_prompt(text_field(row, "text", where).strip())
    return Example(str(row.get("id", row_id)), {"prompt": prompt, "continuation": continuation}, (continuation,))


DATASET = Dataset(
    name="text",
    folders=("lm", "text"),
    test_stems=("books_valid", "test", "validation", "valid"),
    train_stems=("books_train", "train"),
    hub=HubFiles(
        repository="Salesforce/wikitext",
        revision="b08601e04326c79dfdd32d625aee71d232d685c3",
        train="wikitext-103-raw-v1/train-*.parquet",
        test="wikitext-103-raw-v1/test-*.parquet",
    ),
    toy_row=text_row,
    example=_example,
    group=lambda example: "".join(example.inputs.values()),
    testable=lambda example: len("".join(example.inputs.values()).split()) >= MIN_TEST_WORDS,
    reads_text_files=True,
)


class Text(AdditiveTask):
    """Perplexity per token and bits per byte of the reference continuation, given the prompt."""

    name = "text"
    dataset = DATASET
    metrics = ("perplexity", "bits_per_byte")
    scores_reference = True
    units = {"perplexity": "per token", "bits_per_byte": "bits"}  # noqa: RUF012

    def prompt(self, example: Example, style: PromptStyle) -> str:
        return example.inputs["prompt"]

    def training_pairs(self, source: str, limit: int | None, seed: int) -> Iterator[tuple[str, str]]:
        """("", whole text): there is nothing to condition on."""
        for text in self.training_text(source, limit, seed):
            yield "", text

    def training_text(self, source: str, limit: int | None, seed: int) -> Iterator[str]:
        for example in self.examples(source, "train", limit, seed):
            yield example.inputs["prompt"] + example.inputs["continuation"]

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        if reference is None:
            raise DataError(f"example '{example.id}' of task 'text': no score of its reference; give statistics() one")
        return {
            "log_prob_sum": reference.log_prob_sum,
            "num_tokens": float(reference.num_tokens),
            "num_bytes": float(reference.num_bytes),
        }

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return {
            "perplexity": np.exp(-sums["log_prob_sum"] / sums["num_tokens"]),
            "bits_per_byte": -sums["log_prob_sum"] / math.log(2) / sums["num_bytes"],
        }
