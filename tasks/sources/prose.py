"""Cuts a plain text file into documents, whichever of three common ways it is laid out in."""

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Literal

Lines = Iterator[tuple[int, str]]
Layout = Literal["line", "block", "story"]
NUM_LINES_LOOKED_AT = 5000
WRAPPED_WIDTH = 100
SEPARATOR = "<|endoftext|>"


def layout(lines: list[str]) -> Layout:
    """How the first lines of a file are laid out.

    ``line``: there are no blank lines, each line is a paragraph (books).
    ``block``: paragraphs between blank lines, their lines wrapped at some width.
    ``story``: long lines, paragraphs of one story parted by a blank line, a new story after a single line end
    (TinyStories as commonly published).
    """
    texts = [line for line in lines if line.strip()]
    num_blank = len(lines) - len(texts)
    if num_blank * 50 < len(texts):
        return "line"
    widths = sorted(map(len, texts))
    if not widths or widths[int(len(widths) * 0.95)] <= WRAPPED_WIDTH:
        return "block"
    adjacent = sum(1 for first, second in pairwise(lines) if first.strip() and second.strip())
    return "story" if adjacent * 20 >= len(texts) else "block"


def documents(open_lines: Callable[[], Lines]) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each document. ``open_lines`` is called twice: to look, then to read."""
    found = layout([line for _, line in islice(open_lines(), NUM_LINES_LOOKED_AT)])
    first, parts, after_blank = 0, list[str](), False
    for number, line in open_lines():
        text = line.strip()
        if not text:
            after_blank = True
            continue
        starts = found == "line" or (found == "block" and after_blank) or (found == "story" and not after_blank)
        if parts and (starts or text == SEPARATOR):
            yield first, _join(parts, found)
            parts = []
        if text != SEPARATOR:
            first = first if parts else number
            parts.append(text)
        after_blank = False
    if parts:
        yield first, _join(parts, found)


def _join(parts: list[str], found: Layout) -> str:
    return ("\n\n" if found == "story" else " ").join(parts)
