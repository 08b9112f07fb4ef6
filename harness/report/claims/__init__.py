"""The papers' statements held against their own formulas: which hold, and which are contradicted, with the arithmetic."""

from harness.catalogue import published
from harness.report.claims import leviathan, optimized, ppd, specdec
from harness.report.claims.base import Claim, ClaimOf, Line

__all__ = ["CLAIMS", "Claim", "Line", "checked"]

CLAIMS: dict[str, tuple[ClaimOf, ...]] = {paper.PAPER: tuple(paper.CLAIMS) for paper in (ppd, leviathan, specdec, optimized)}


def checked() -> tuple[list[Claim], list[str]]:
    """All claims of the papers whose numbers are in this checkout, and the papers whose numbers are not."""
    here = [paper for paper in CLAIMS if (published.FOLDER / paper).is_dir()]
    return [claim() for paper in here for claim in CLAIMS[paper]], [paper for paper in CLAIMS if paper not in here]
