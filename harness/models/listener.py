"""What a model hears of a recording: windows of features; and the text of several windows, which overlap, as one.

A recording that is longer than the model's window is cut into windows that share a third of their length, as transformers'
pipeline cuts it. They are decoded one after another, each from the forced tokens on; their outputs are kept one behind the
other, and the text is what remains when the words that two windows share are said once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.errors import UsageError
from methods.types import Inputs
from tasks.base import SAMPLE_RATE, Example, Recording
from tasks.sound import windows_of

SETTINGS = ("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft")


@dataclass(frozen=True, eq=False)
class Listener:
    """A model's feature extractor. ``label`` names the model in errors."""

    extractor: Any
    label: str

    def __post_init__(self) -> None:
        if self.extractor.sampling_rate != SAMPLE_RATE:
            raise UsageError(
                f"model {self.label}: its feature extractor wants {self.extractor.sampling_rate} Hz; expected {SAMPLE_RATE}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.extractor, name) for name in SETTINGS}

    def windows(self, recording: Recording, opening: tuple[int, ...]) -> tuple[Inputs, ...]:
        """One row for every window. Raises DataError for a recording that cannot be read."""
        cut = windows_of(recording.sound().samples, self.extractor.n_samples)
        return tuple(Inputs((opening,), self.features(samples)) for samples in cut)

    def features(self, samples: np.ndarray) -> Float[Tensor, "1 mels frames"]:
        return self.extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features


def joined(windows: Sequence[Inputs]) -> Inputs:
    """Rows of one batch."""
    features = [one.features for one in windows if one.features is not None]
    prompts = tuple(prompt for one in windows for prompt in one.prompts)
    return Inputs(prompts, torch.cat(features) if features else None)


def parts_of(tokens: Sequence[int], stop_ids: Collection[int], budget: int) -> list[list[int]]:
    """The outputs of windows, kept one behind the other: each ends with a stopping token, or is as long as it may be."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if parts[-1] and (parts[-1][-1] in stop_ids or len(parts[-1]) == budget):
            parts.append([])
        parts[-1].append(token)
    return parts


def merged(parts: Sequence[Sequence[int]], special: Collection[int]) -> list[int]:
    """The tokens of all windows, without special ones, what two neighbours share said once."""
    texts = [[token for token in part if token not in special] for part in parts]
    said, last = list[int](), texts[0]
    for text in texts[1:]:
        cut_last, cut_text = _change_over(last, text)
        said, last = said + last[:cut_last], text[cut_text:]
    return said + last


def _change_over(left: list[int], right: list[int]) -> tuple[int, int]:
    """Where to leave one text and to enter the next: in the middle of where they agree, laid over each other.

    The rule of transformers' pipeline: the share of tokens that agree decides, and of equal shares the longer stretch; a single
    token that agrees is chance.
    """
    best, cut = 0.0, (len(left), 0)
    for size in range(1, len(left) + len(right)):
        first, last = max(0, len(left) - size), min(len(left), len(left) + len(right) - size)
        begin = max(0, size - len(left))
        agree = sum(a == b for a, b in zip(left[first:last], right[begin:], strict=False))
        score = agree / size + size / 10_000
        if agree > 1 and score > best:
            best, cut = score, ((first + last) // 2, (2 * begin + last - first) // 2)
    return cut


def check_task(example: Example, task: str, hears: bool, model: str) -> None:
    """UsageError for a task of speech with a model that reads, and the other way round."""
    if hears and example.audio is None:
        raise UsageError(
            f"task {task!r}: model {model} hears, and this task has no recordings; expected a task such as tedlium"
        )
    if not hears and example.audio is not None:
        raise UsageError(
            f"task {task!r}: it is speech, and model {model} reads; expected a Whisper, such as zoo:whisper-target"
        )
