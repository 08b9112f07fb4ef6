"""Text for terminals and reports: intervals, and tables that are aligned by spaces."""

from collections.abc import Sequence


def interval_text(low: float | None, high: float | None, form: str) -> str:
    """Return `` [low, high]`` in a format of numbers, to stand behind a value; nothing where there is no interval."""
    return "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the columns of rows of equal length, a line a row; the last column has no spaces behind it."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def markdown_lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a Markdown table whose source is aligned too; a "|" within a text is escaped."""
    whole = [[text.replace("|", "\\|") for text in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    whole.insert(1, ["-" * width for width in widths])
    return ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in whole]
