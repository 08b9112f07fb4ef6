"""Judge how a measured number relates to the published one, and why it misses it.

A published number is known to its printed digits only, so half a unit of its last digit is added to our interval on either
side. A measurement without an interval decides nothing, and one whose interval reaches far from the published number agrees
with nothing. A value that was computed needs no interval; where it is the paper's own number, that is arithmetic and no
agreement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.settings import Settings
from harness.measures.statistics import DESCRIPTIVE
from harness.tables.base import NOT_PUBLIC, REFUSED, TIMED_UNITS, Cell
from harness.tables.published import NOT_RECOVERED

Relation = Literal["agrees", "above", "below", "not comparable"]
SIZE_UNITS = ("MiB", "GiB")
MODELS = {"toy": "toy models", "test": "toy models", "pocket": "stand-in models", "small": "stand-in models"}
NEAR = 0.1  # of the published number: an interval that reaches further from it shows no agreement
PARTS_DIFFER = "parts differ"
NOTED = "disagrees: see note"
REPEATED = "repeated"  # a published number that stands beside another of ours too

REASONS = {
    "toy models": "models of the same family as the paper's, far smaller, trained here; their numbers need not be the paper's",
    "stand-in models": "public models, or ones trained here on real data, stand in for the paper's",
    "replaced models": "the command put other models in the place of the profile's",
    "hardware": "a time or a ratio of times, on another machine than the paper's, and of kernels in another language",
    "other measure": "the memory of a process here, of a device there: two quantities that share a name",
    "model not public": "the paper's models cannot be had",
    "no model": "this profile has no model for it; another profile does, or one can be named",
    NOT_RECOVERED: "the paper has this number, but the copy of it at hand has lost it",
    NOTED: "neither models nor hardware explain it; the note below the table says what is known",
    "not run": "nothing is recorded yet; the command beside the table runs it",
    "failed": "it was run and gave no number; the note says why",
    REFUSED: "it was run and its number must not be shown; the note says why",
    "not reached": "it was run, and no output has what the number is of: nothing failed",
    "impossible": "it cannot be run; the note says why",
    "arithmetic": "computed from the paper's own numbers, or a setting taken from it: nothing was measured",
    "too wide": f"the published number lies in the interval, which reaches further than {NEAR:.0%} of it from it: no agreement",
    PARTS_DIFFER: "it agrees in total alone: some of its parts lie clearly above the paper's, others clearly below",
    "too few": f"measured on fewer than {DESCRIPTIVE} examples, which describes these alone",
    "no interval": "measured without an interval, which decides nothing",
    "no published number": "the paper has no such number",
}


@dataclass(frozen=True)
class Judged:
    """A cell, its relation to the published number, and the reason codes of a miss, joined by "; "."""

    cell: Cell
    relation: Relation
    reason: str

    @property
    def is_comparison(self) -> bool:
        return self.cell.published is not None


def judge(cells: Sequence[Cell], settings: Settings) -> list[Judged]:
    return [_judged(cell, settings) for cell in cells]


def _judged(cell: Cell, settings: Settings) -> Judged:
    if (why := _incomparable(cell)) is not None:
        return Judged(cell, "not comparable", why)
    if not cell.beside_paper:
        return Judged(cell, "not comparable", why) if (why := _no_agreement(cell)) else Judged(cell, "agrees", "")
    return Judged(cell, "above" if cell.beside_paper > 0 else "below", _reason(cell, settings))


def _no_agreement(cell: Cell) -> str:
    """Say why a number that meets the published one does not show that they agree; empty if it does."""
    if cell.is_arithmetic:
        return "arithmetic"
    if cell.parts_differ:
        return PARTS_DIFFER
    paper = cell.paper_value or 0.0
    reach = max((abs(end - paper) for end in (cell.low, cell.high) if end is not None), default=0.0)
    return "too wide" if reach > NEAR * abs(paper) + cell.half_digit else ""


def _incomparable(cell: Cell) -> str | None:
    """Say why a cell has nothing to compare, its own status first; None if it has both numbers."""
    if cell.published is None:
        return "no published number"
    codes = []
    if cell.measured is None:
        codes.append("model not public" if NOT_PUBLIC in cell.status else cell.state)
    if cell.published == NOT_RECOVERED:
        codes.append(NOT_RECOVERED)
    if not codes and cell.status == "measured" and (cell.low is None or cell.high is None):
        codes.append("too few" if cell.n is not None and cell.n < DESCRIPTIVE else "no interval")
    return "; ".join(codes) or None


def _reason(cell: Cell, settings: Settings) -> str:
    """Name the reasons of a miss. Models explain no number that was computed from the paper's own, except a model's size."""
    if cell.is_arithmetic and cell.unit not in SIZE_UNITS:
        return NOTED
    codes = ["replaced models"] if settings.models else [MODELS[settings.profile]] if settings.profile in MODELS else []
    codes += ["hardware"] if cell.unit in TIMED_UNITS else []
    codes += ["other measure"] if cell.unit in SIZE_UNITS and cell.status == "measured" else []
    return "; ".join(codes) or NOTED


def tally(judged: Sequence[Judged]) -> Mapping[str, int]:
    """Count distinct published numbers by relation, and those that cannot be compared by their reason.

    A number that stands beside several of ours counts once, by the first of them that can be compared; "repeated" counts the
    others. What is lost, and what was copied or computed from the paper ("arithmetic"), is apart.
    """
    counts: dict[str, int] = {"agrees": 0, "above": 0, "below": 0}
    first: dict[str, Judged] = {}
    for one in judged:
        if one.is_comparison:
            place = one.cell.place or f"{len(first)}"
            if place in first:
                counts[REPEATED] = counts.get(REPEATED, 0) + 1
            if place not in first or first[place].relation == "not comparable":
                first[place] = one
    for one in first.values():
        key = one.reason if one.relation == "not comparable" else one.relation
        counts[key] = counts.get(key, 0) + 1
    return counts
