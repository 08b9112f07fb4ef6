"""The papers' own numbers, from results/published/; none is typed into code."""

import csv
from functools import lru_cache
from pathlib import Path

from harness.catalogue.base import NOT_RECOVERED, Published
from harness.errors import UsageError

FOLDER = Path(__file__).resolve().parents[2] / "results" / "published"
Row = dict[str, str]


@lru_cache(maxsize=64)
def read(paper: str, name: str) -> tuple[Row, ...]:
    """The rows of ``results/published/<paper>/<name>.csv``."""
    path = FOLDER / paper / f"{name}.csv"
    try:
        with path.open(newline="", encoding="utf8") as file:
            return tuple(csv.DictReader(file))
    except OSError as error:
        raise UsageError(
            f"published numbers {path}: cannot be read ({error.strerror}); run from a checkout of the repository"
        ) from error


def value(row: Row, column: str) -> Published:
    """A number; None where the paper has none; "not recovered" where it has one that the copy at hand has lost."""
    if row[column] != "":
        return float(row[column])
    return "not recovered" if NOT_RECOVERED in row["source"] else None


def claim(paper: str, prefix: str, column: str = "value") -> str:
    """One of the statements that a paper makes in its text."""
    return next(row[column] for row in read(paper, "text_claims") if row["claim"].startswith(prefix))
