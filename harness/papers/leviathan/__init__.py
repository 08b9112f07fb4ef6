"""Leviathan et al., Fast Inference from Transformers via Speculative Decoding: setups, tables, figures, claims."""

from harness.papers.leviathan.alpha import ALPHA, TRADEOFF
from harness.papers.leviathan.claims import CLAIMS
from harness.papers.leviathan.figures import CURVES
from harness.papers.leviathan.generation import GENERATION, TRACE
from harness.papers.leviathan.lenience import LENIENCE
from harness.papers.leviathan.speed import EXPECTED, SPEED

__all__ = ["CLAIMS", "FIGURES", "INPUTS", "SHORT", "TABLES", "TITLE"]

TITLE = "Leviathan et al., Fast Inference from Transformers via Speculative Decoding"
SHORT = "Leviathan"
TABLES = (TRADEOFF, SPEED, ALPHA, EXPECTED, LENIENCE)
FIGURES = (GENERATION, *CURVES, TRACE)
INPUTS = ()
