"""What a claim is: a statement that a paper prints, the formula of the same paper that it is held against, and the arithmetic.

Every number comes from results/published/; a claim's verdict is computed, never typed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Literal

Verdict = Literal["holds", "only within rounding", "contradicted"]
VERDICTS: tuple[Verdict, ...] = ("contradicted", "only within rounding", "holds")  # worst first


@dataclass(frozen=True)
class Line:
    """One number of a claim: what is printed, what the formula gives for it, and how."""

    label: str
    printed: str
    computed: str
    arithmetic: str
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement with its lines. ``tables`` are catalogue numbers; ``sources`` files under results/published/<paper>/.

    ``paper`` is filled in by the catalogue, which knows whose folder a claim stands in.
    """

    title: str
    statement: str
    formula: str
    lines: tuple[Line, ...]
    tables: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    paper: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of its lines."""
        return next(verdict for verdict in VERDICTS if any(line.verdict == verdict for line in self.lines))

    @property
    def contradicted(self) -> int:
        return sum(line.verdict == "contradicted" for line in self.lines)


def rounding(printed: str) -> tuple[float, float]:
    """Return the numbers that a printed one may have been before it was rounded: half a unit of its last digit either way."""
    value = Decimal(printed)
    half = Decimal((0, (5,), int(value.as_tuple().exponent) - 1))
    return float(value - half), float(value + half)


def against(printed: str, computed: float, low: float | None = None, high: float | None = None) -> Verdict:
    """Holds if ``computed`` rounds to the printed digits; only within rounding if some of [low, high] does.

    [low, high] is what the formula gives over the rounding of the numbers that enter it.
    """
    least, most = rounding(printed)
    slack = 1e-9
    if least - slack <= computed <= most + slack:
        return "holds"
    overlaps = low is not None and high is not None and low <= most + slack and high >= least - slack
    return "only within rounding" if overlaps else "contradicted"


def line_of(
    label: str, printed: str, value: float, arithmetic: str, low: float | None = None, high: float | None = None
) -> Line:
    """The line of a number that a formula gives, held ``against`` the printed one."""
    return Line(label, printed, f"{value:.3f}", arithmetic, against(printed, value, low, high))


def corners(function: Callable[..., float], *printed: str) -> tuple[float, float]:
    """Least and greatest value of a function, monotone in each argument, over the rounding of its printed arguments."""
    values = [function(*arguments) for arguments in product(*map(rounding, printed))]
    return min(values), max(values)


def at_most(printed: str, bound: float, loosest: float) -> Verdict:
    """Compare a printed number with its bound: it holds at its digits, within the rounding of both, or not.

    ``loosest`` is the bound's greatest value over the rounding of what it is made of.
    """
    if float(printed) <= bound:
        return "holds"
    return "only within rounding" if rounding(printed)[0] <= loosest else "contradicted"


def yes(holds: bool) -> Verdict:
    return "holds" if holds else "contradicted"
