"""Recognise rows again by hashes of what they ask: in another order, in another file, in another format."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self
from unicodedata import normalize

from tasks.base import Example, Task

HASH_BYTES = 6  # so that of a thousand rows one is taken for another's with a chance of a millionth
MOST_ROWS = 200_000  # that are noted: 1.6 MB


def plain_words(text: str) -> str:
    """Return a text whatever its capitals, its white space and the form of its characters."""
    return " ".join(normalize("NFC", text).casefold().split())


def row_hash(task: Task, example: Example) -> bytes:
    """Hash what makes a row of a task this one, as ``plain_words``."""
    return blake2b(plain_words(task.content(example)).encode(), digest_size=HASH_BYTES).digest()


@dataclass(frozen=True)
class Rows:
    """Hashes of the rows of a training. ``is_whole``: they are of all its rows, not of the first ``MOST_ROWS`` alone."""

    hashes: frozenset[bytes]
    is_whole: bool

    @classmethod
    def of(cls, learned: Iterable[tuple[Task, Example]]) -> Self:
        """Note the first rows; what comes behind them is not read on."""
        hashes = set[bytes]()
        for task, example in learned:
            if len(hashes) == MOST_ROWS:
                return cls(frozenset(hashes), False)
            hashes.add(row_hash(task, example))
        return cls(frozenset(hashes), True)

    def as_dict(self) -> dict[str, Any]:
        """Return them as JSON; hashes have nothing in common, so they are written one behind the other in base64."""
        return {"hashes": b64encode(b"".join(sorted(self.hashes))).decode(), "is_whole": self.is_whole}

    @classmethod
    def from_dict(cls, told: Any) -> Self | None:
        """Read ``as_dict`` back; None where nothing was noted, or something else."""
        try:
            whole = b64decode(told["hashes"], validate=True) if isinstance(told, Mapping) else b""
        except (LookupError, ValueError, TypeError):
            return None
        if not whole or len(whole) % HASH_BYTES:
            return None
        hashes = (whole[place : place + HASH_BYTES] for place in range(0, len(whole), HASH_BYTES))
        return cls(frozenset(hashes), told.get("is_whole") is True)
