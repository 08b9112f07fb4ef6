"""Predictive Pipelined Decoding: setups, tables, figures, claims."""

from harness.papers.ppd.claims import CLAIMS
from harness.papers.ppd.figure_theory import THEORY
from harness.papers.ppd.figure_timeline import TIMELINES
from harness.papers.ppd.match import BY_POSITION, MATCH_RATES, SAMPLING
from harness.papers.ppd.pipeline import PIPELINE
from harness.tables.published import InputTable

__all__ = ["CLAIMS", "FIGURES", "INPUTS", "SHORT", "TABLES", "TITLE"]

TITLE = "Predictive Pipelined Decoding"
SHORT = "PPD"
FIGURES = (*TIMELINES, *THEORY)
TABLES = (MATCH_RATES, PIPELINE, SAMPLING, *BY_POSITION)
INPUTS = (
    InputTable(
        paper="ppd",
        paper_number=1,
        title="prompts, generated tokens and test examples (the papers' prompt is a task's default)",
        label="dataset",
        value="prompt_newlines_as_backslash_n",
        details=("gen_tokens", "n_test"),
    ),
    InputTable(
        paper="ppd",
        paper_number=4,
        title="training of the heads of intermediate layers (the defaults of `foretoken heads`)",
        label="hyperparameter",
        value="value",
    ),
)
