"""Statistics that add up: a corpus metric is a function of their sums, so an interval needs no second scoring.

A task gives flat statistics per example (numbers, or lists of one length) and ``values_from_sums``. Everything else
is here, vectorised over the rows of a resampling: ``bootstrap`` of 1000 x 500 takes milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from tasks.base import Example, Metric, PromptStyle, ReferenceScore, Split, Statistics
from tasks.errors import DataError
from tasks.sources import Dataset, fingerprint_of, read_examples

Sums = Mapping[str, np.ndarray]


def stack(statistics: Sequence[Statistics]) -> dict[str, np.ndarray]:
    """Per key an array [N] or [N, k], N examples."""
    if not statistics:
        raise DataError("no statistics to aggregate: expected those of at least one example")
    return {key: np.asarray([item[key] for item in statistics], dtype=np.float64) for key in statistics[0]}


class AdditiveTask:
    """The part of a task that is the same for all: reading, training pairs, aggregation.

    A subclass sets the class variables below and defines ``prompt``, ``statistics`` and ``values_from_sums``;
    ``signature`` where a metric has settings.
    """

    name: str
    dataset: Dataset
    max_new_tokens: int = 128
    metrics: tuple[str, ...] = ()
    scores_reference: bool = False
    units: ClassVar[Mapping[str, str]] = {}

    def examples(self, source: str, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
        """``source`` is "toy" (endless without a limit), "hub", or the path of a file or folder. Raises DataError."""
        return read_examples(self.dataset, source, split, limit, seed)

    def training_pairs(self, source: str, limit: int | None, seed: int) -> Iterator[tuple[str, str]]:
        """(prompt in T5 style, first reference) of the training split."""
        for example in self.examples(source, "train", limit, seed):
            yield self.prompt(example, "t5"), example.references[0]

    def fingerprint(self, source: str) -> str:
        """A short hash of what the data is, for cache keys."""
        return fingerprint_of(self.dataset, source)

    def aggregate(self, statistics: Sequence[Statistics]) -> dict[str, Metric]:
        """The metrics of a corpus; raises DataError without any example, and for statistics that are not this task's."""
        try:
            values = self.values_from_sums({key: array.sum(axis=0) for key, array in stack(statistics).items()})
        except DataError:
            raise
        except (LookupError, ValueError, TypeError) as error:
            raise DataError(
                f"statistics of task '{self.name}': not as it gives them ({type(error).__name__}: {error}); run it again"
            ) from error
        return {name: Metric(float(values[name]), self.units.get(name, "%"), self.signature(name)) for name in self.metrics}

    def resample(self, statistics: Sequence[Statistics], weights: np.ndarray) -> dict[str, np.ndarray]:
        """The metrics [R] of R resamplings; ``weights`` [R, N] says how often each of the N examples was drawn."""
        return self.values_from_sums({key: weights @ array for key, array in stack(statistics).items()})

    def prompt(self, example: Example, style: PromptStyle) -> str:
        """What the model reads; raises KeyError for an input that the example lacks."""
        raise TypeError(f"task '{self.name}' does not say how it prompts")

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        """Numbers of one example that add up over a corpus."""
        raise TypeError(f"task '{self.name}' does not say how it is scored")

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        """Metric values from summed statistics; keeps leading dimensions, so that it serves a whole resampling at once."""
        raise TypeError(f"task '{self.name}' does not say how it is aggregated")

    def signature(self, metric: str) -> str:
        """The settings that a metric was computed with."""
        return ""


def percent_of_mean(sums: Sums, names: Sequence[str]) -> dict[str, np.ndarray]:
    """100 times the mean over examples, for statistics that carry ``num_examples``."""
    return {name: 100.0 * sums[name] / sums["num_examples"] for name in names}
