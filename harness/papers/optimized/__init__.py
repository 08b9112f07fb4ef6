"""Optimized Speculative Sampling: setups, tables, figures, claims."""

from harness.papers.optimized.claims import CLAIMS
from harness.papers.optimized.figures import BY_DRAFTS
from harness.papers.optimized.tables import RULE_TABLES, SCALING_TABLES
from harness.papers.optimized.tiles import TILES

__all__ = ["CLAIMS", "FIGURES", "INPUTS", "SHORT", "TABLES", "TITLE"]

TITLE = "Optimized Speculative Sampling"
SHORT = "Optimized"
TABLES = (*RULE_TABLES, *SCALING_TABLES)
FIGURES = (*TILES, *BY_DRAFTS)
INPUTS = ()
