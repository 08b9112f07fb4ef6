"""The papers' own numbers, from results/published/; none is typed into code."""

import csv
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Literal, Self

from harness.core.errors import UsageError

NOT_RECOVERED = "not recovered"
Published = float | Literal["not recovered"] | None
FOLDER = Path(__file__).resolve().parents[2] / "results" / "published"
PAPER = "paper"  # the origin of what a paper prints
MOST = {"alpha": 1.0, "match_rate_pct": 100.0}  # of shares; none is negative
# Columns that say of what a line's numbers are; where a file has none of them, its first two do.
HEADS = {
    "claim", "dataset", "draft", "early_top_k_hat", "final_sampling", "hyperparameter", "iteration", "k", "key", "layer",
    "lenience", "method", "metric", "model", "role", "row_index", "row_kind", "sampling_param", "setting", "subset", "target",
    "task", "temp", "token_position", "trained", "variant",
}  # fmt: skip
NEWLINE = "\\n"  # as the CSV files write it inside a prompt


class Row(dict[str, str]):
    """A line of a file; ``place`` says which."""

    place: str = ""

    def __missing__(self, column: str) -> str:
        raise UsageError(f"published numbers {self.place}: no column {column!r}; run from a checkout of the repository")


class Printed(float):
    """A number as it is printed: ``text`` has its digits, ``origin`` says where, ``place`` is file, line and column."""

    text: str
    origin: str
    place: str

    def __new__(cls, value: str | float, origin: str = PAPER, place: str = "") -> Self:
        try:
            made = super().__new__(cls, value)
            if not isfinite(made):
                raise ValueError
        except ValueError as error:
            raise UsageError(f"published numbers {place}: {value!r}; expected a number, as the paper prints it") from error
        made.text = value.strip() if isinstance(value, str) else f"{value:g}"
        made.origin, made.place = origin, place
        return made


def origin_of(source: str) -> str:
    """Say where a number stands that the paper does not print: its code's README, its first version, or nowhere."""
    if "paper text" in source:
        return PAPER
    if "readme.md" in source:
        return "README"
    if "public text" in source:
        return "arXiv v1"
    return "derived" if source.startswith("computed") else PAPER


@lru_cache(maxsize=64)
def read(paper: str, name: str) -> tuple[Row, ...]:
    """The rows of ``results/published/<paper>/<name>.csv``."""
    path = FOLDER / paper / f"{name}.csv"
    try:
        with path.open(newline="", encoding="utf8") as file:
            rows = tuple(map(Row, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"published numbers {path}: cannot be read ({reason}); run from a checkout of the repository"
        ) from error
    if not rows:
        raise UsageError(f"published numbers {path}: no line below its columns; `git checkout` brings back the committed one")
    heads, seen = [column for column in rows[0] if column in HEADS] or list(rows[0])[:2], set[tuple[str, ...]]()
    for number, row in enumerate(rows, start=2):
        row.place = f"{paper}/{name}.csv, line {number}"
        if None in row or None in row.values():
            raise UsageError(
                f"published numbers {row.place}: not as many values as columns; `git checkout` brings back the committed one"
            )
        if (key := tuple(row[column] for column in heads)) in seen:
            name = ", ".join(filter(None, key))
            raise UsageError(
                f"published numbers {row.place}: a second line of {name}; `git checkout` brings back the committed one"
            )
        seen.add(key)
    return rows


def value(row: Row, column: str) -> Published:
    """A number; None where the paper has none; "not recovered" where it has one that the copy at hand has lost."""
    if row[column] != "":
        printed = Printed(row[column], origin_of(row["source"]), f"{row.place}, {column}")
        if column in MOST and not 0 <= printed <= MOST[column]:
            raise UsageError(f"published numbers {printed.place}: {printed.text}; expected 0 to {MOST[column]:g}, of a share")
        return printed
    return "not recovered" if NOT_RECOVERED in row["source"] else None


def groups(paper: str, name: str, *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows of a table, those together that agree in ``columns``."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in read(paper, name):
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def claim(paper: str, prefix: str, column: str = "value") -> str:
    """One of the statements that a paper makes in its text."""
    return next(row[column] for row in read(paper, "text_claims") if row["claim"].startswith(prefix))


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A table of settings; ``label`` and ``value`` name the columns that say what is set and to what."""

    paper: str
    paper_number: int
    title: str
    label: str
    value: str
    details: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.paper_number}"

    def entries(self) -> list[tuple[str, str]]:
        """Return what is set, with its details, and to what; prompts have real line breaks."""
        rows = read(self.paper, f"table_{self.paper_number}")
        return [(", ".join((row[self.label], *self._details(row))), row[self.value].replace(NEWLINE, "\n")) for row in rows]

    def _details(self, row: Row) -> list[str]:
        return [f"{name} {row[name]}" for name in self.details]
