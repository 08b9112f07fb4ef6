"""Optimized Speculative Sampling: setups, tables, figures, claims."""

from harness.papers.optimized.claims import CLAIMS
from harness.papers.optimized.figures import OPTIMIZED_FIGURES as FIGURES
from harness.papers.optimized.rules import RULE_TABLES
from harness.papers.optimized.scaling import SCALING_TABLES

__all__ = ["CLAIMS", "FIGURES", "INPUTS", "SHORT", "TABLES", "TITLE"]

TITLE = "Optimized Speculative Sampling"
SHORT = "Optimized"
TABLES = (*RULE_TABLES, *SCALING_TABLES)
INPUTS = ()
