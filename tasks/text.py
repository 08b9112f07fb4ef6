"""Continuation of plain text, scored by the true continuation's likelihood; stands for lm1b (Chelba et al. 2013).

Of a row's ``text`` a part is the prompt and the rest the reference. A ``prompt`` is one whole; its ``continuation``, where the
row has one, is the reference, and without a reference nothing is scored.
"""

import math
import re
from itertools import islice

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
    text_field,
)

MAX_PROMPT_WORDS = 60
MIN_TEST_WORDS = 20
MIN_WORDS = 3
WORD = re.compile(r"\S+")


def split_prompt(text: str) -> tuple[str, str]:
    """Split a text into its first third (at most 60 words) and the rest, which begins with the space between them."""
    num_prompt_words = min(MAX_PROMPT_WORDS, max(1, len(text.split()) // 3))
    *_, last = islice(WORD.finditer(text), num_prompt_words)
    return text[: last.end()], text[last.end() :]


def _example(row: Row, where: str, row_id: str) -> Example | None:
    """Make an example; None for blank texts and for those of one or two words, headings in WikiText."""
    if "prompt" in row:
        return _of_prompt(row, where, row_id)
    if isinstance(row.get("text"), str) and len(row["text"].split()) < MIN_WORDS:
        return None
    prompt, continuation = split_prompt(text_field(row, "text", where).strip())
    return Example(id_field(row, row_id, where), {"prompt": prompt, "continuation": continuation}, (continuation,))


def _of_prompt(row: Row, where: str, row_id: str) -> Example:
    """Make an example of a prompt that is used as it is."""
    references = (text_field(row, "continuation", where),) if row.get("continuation") else ()
    return Example(id_field(row, row_id, where), {"prompt": text_field(row, "prompt", where)}, references)


def is_cut(example: Example) -> bool:
    """Say whether the prompt is a part of a text."""
    return "continuation" in example.inputs


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
    toy_row="text",
    example=_example,
    group=lambda example: "".join(example.inputs.values()).strip(),
    testable=lambda example: not is_cut(example) or len("".join(example.inputs.values()).split()) >= MIN_TEST_WORDS,
    reads_text_files=True,
    fields=("id", "text", "prompt", "continuation"),
    either=("text", "prompt"),
)


class Text(Task):
    """Text continuation, scored by perplexity per token and bits per byte of the reference, given the prompt."""

    name = "text"
    dataset = DATASET
    metrics = ("perplexity", "bits_per_byte")
    scores_reference = True
    continues_prompt = True
    units = {"perplexity": "per token", "bits_per_byte": "bits"}  # noqa: RUF012

    def prompt(self, example: Example, style: PromptStyle) -> str:
        return example.inputs["prompt"]

    def content(self, example: Example) -> str:
        """Return the whole text, also of one that is cut: so it is the same row however it is asked."""
        return "".join(example.inputs.values())

    def training_pair(self, example: Example) -> tuple[str, str]:
        """Return ("", the whole text): nothing precedes it."""
        return "", example.inputs["prompt"] + "".join(example.references)

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
