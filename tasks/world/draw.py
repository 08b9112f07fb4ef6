"""Random streams keyed by (seed, split, index), and the hash that keeps train and test apart."""

import itertools
import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from tasks.base import Split

TEST_SHARE_OF_256 = 64
T = TypeVar("T")


def side(key: str) -> Split:
    """Return the split that a content key belongs to: a quarter of all keys is for testing."""
    return "test" if blake2b(key.encode(), digest_size=1).digest()[0] < TEST_SHARE_OF_256 else "train"


def keyed_random(kind: str, seed: int, split: Split, index: int, attempt: int) -> random.Random:
    digest = blake2b(f"{kind}:{seed}:{split}:{index}:{attempt}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest))


def draw(kind: str, seed: int, split: Split, index: int, make: Callable[[random.Random], tuple[str, T] | None]) -> T:
    """Draw until the key belongs to ``split``. ``make`` gives (key, content), or None to be asked again."""
    for attempt in itertools.count():
        made = make(keyed_random(kind, seed, split, index, attempt))
        if made is not None and side(made[0]) == split:
            return made[1]
    raise AssertionError("itertools.count ended")


def choose(rng: random.Random | None, options: Sequence[T], share_of_others: float = 0.25) -> T:
    """Choose the first option, with ``share_of_others`` one of its synonyms; without a generator always the first."""
    if rng is None or len(options) == 1 or rng.random() >= share_of_others:
        return options[0]
    return options[1 + int(rng.random() * (len(options) - 1))]


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """Choose uniformly; several times faster than ``rng.choice``."""
    return options[int(rng.random() * len(options))]


def row_id(split: Split, index: int) -> str:
    return f"toy-{split}-{index}"
