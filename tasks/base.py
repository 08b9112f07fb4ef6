"""What every task offers; see tasks/__init__.py for the dictionary of all of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from tasks.sound import Sound

PromptStyle = Literal["instruction", "t5"]
Split = Literal["train", "test"]
Statistics = Mapping[str, float | Sequence[float]]


class Recording(Protocol):
    """Something to be heard; it is read, decoded or spoken when its sound is asked for."""

    def sound(self) -> Sound:
        """Raises DataError, naming where it should be, for one that is missing or cannot be decoded."""


@dataclass(frozen=True)
class Example:
    """One thing to generate from. ``inputs`` has the task's own fields; the id is unique and stable within a source.

    What a task of speech has heard is ``audio``, and its ``inputs`` say where that is from.
    """

    id: str
    inputs: Mapping[str, str]
    references: tuple[str, ...]
    audio: Recording | None = None


@dataclass(frozen=True)
class ReferenceScore:
    """How likely a model found the reference: the sum of natural-log probabilities over ``num_tokens`` and its bytes."""

    log_prob_sum: float
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True)
class Metric:
    """A corpus-level number with its unit and the settings it was computed with (a sacreBLEU signature, say)."""

    value: float
    unit: str
    signature: str = ""


class Task(Protocol):
    """A constructor does no I/O. Statistics are per example and add up, so that intervals need no second scoring."""

    name: str
    max_new_tokens: int
    metrics: tuple[str, ...]
    scores_reference: bool

    def examples(self, source: str, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
        """``source`` is "toy", "hub" or a path. Test and train never share a row."""

    def prompt(self, example: Example, style: PromptStyle) -> str: ...

    def training_pairs(self, source: str, limit: int | None, seed: int) -> Iterator[tuple[str, str]]:
        """(prompt in T5 style, reference) of the training split."""

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics: ...

    def aggregate(self, statistics: Sequence[Statistics]) -> dict[str, Metric]: ...

    def resample(self, statistics: Sequence[Statistics], weights: np.ndarray) -> dict[str, np.ndarray]:
        """The metrics [R] of R resamplings; ``weights`` [R, N] says how often each of N examples was drawn."""

    def fingerprint(self, source: str) -> str:
        """A short hash of what the data is."""
