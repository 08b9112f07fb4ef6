"""How an answer is written: a number that moves where any of several does, a hash of what is no number, an interval's text."""

import re
from typing import Any

import numpy as np

from harness.core.files import short_hash
from harness.measures.statistics import Estimate

NUMBER = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"


def folded(values: Any) -> float:
    """Return the sum of an array's numbers, each weighed by its place."""
    flat = np.asarray(values, dtype=float).ravel()
    return float(flat @ (1 + np.arange(len(flat)) / 8))


def hashed(value: object) -> str:
    return short_hash(repr(value), 8)


def numbers_in(said: str) -> str:
    """Return the numbers of a sentence, whose words may change."""
    return ", ".join(re.findall(NUMBER, said))


def told(found: Estimate | None) -> str:
    """Return a number with its interval and how many examples it is of."""
    return "-" if found is None else f"{found.as_text('.6f')} n={found.n}"
