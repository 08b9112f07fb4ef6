"""The nouns of a task: an example, a data set and its rows, a metric, and the task itself.

A task gives flat statistics per example (numbers, or lists of one length) that add up over a corpus, so that a metric is a
function of their sums and an interval needs no second scoring. ``tasks.sources.read`` reads its examples: a task is defined
without it, so that naming one does not import the generated world.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

SAMPLE_RATE = 16_000  # of every sound that a model hears
PromptStyle = Literal["instruction", "t5"]
Split = Literal["train", "test"]
Statistics = Mapping[str, float | Sequence[float]]
Sums = Mapping[str, np.ndarray]
Row = Mapping[str, Any]
RowMaker = Callable[[int, Split, int], Row]  # a generated row from (seed, split, index)


class DataError(ValueError):
    """Data that is missing, gone or malformed: names the source, the file and line where there is one, and what to do."""


@dataclass(frozen=True, eq=False)
class Sound:
    """``samples`` [n] fp32, one channel at ``SAMPLE_RATE``. ``conversion`` says how a file was converted, if it was."""

    samples: np.ndarray
    conversion: str | None = None


class Recording(Protocol):
    """An audio recording. It is read, decoded or synthesised only when ``sound`` is called."""

    def sound(self) -> Sound:
        """Return the sound. DataError names a recording that is missing or cannot be decoded."""


@dataclass(frozen=True)
class Example:
    """One input of a task with its references. ``inputs`` has the task's own fields; the id is unique and stable in a source.

    ``audio`` is the recording of a speech task, whose ``inputs`` say where it is from.
    """

    id: str
    inputs: Mapping[str, str]
    references: tuple[str, ...]
    audio: Recording | None = None


@dataclass(frozen=True)
class ReferenceScore:
    """A model's score of the reference: its summed natural-log probability, and its length in tokens and bytes."""

    log_prob_sum: float
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True)
class Metric:
    """A corpus-level number with its unit and the settings it was computed with (a sacreBLEU signature, say)."""

    value: float
    unit: str
    signature: str = ""


def always(_: Example) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class HubFiles:
    """Parquet files of one dataset at one commit; ``train`` and ``test`` are patterns inside the repository."""

    repository: str
    revision: str
    train: str
    test: str


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset in all its sources. Rows have the Hub's field names wherever they come from.

    ``folders`` are the names of its folder in a layout that holds several datasets. ``test_stems`` and ``train_stems``
    are file names without ending, the first that exists wins for testing, all count for training, earlier ones first.
    ``example(row, where, row_id)`` checks a row (raises DataError naming ``where``) or gives None for one without content.
    ``group`` names what must stay on one side when a single file is split by a hash.
    ``toy_row`` generates a row, or names one of ``tasks.world.TOY_ROWS``.
    ``testable`` drops rows that make poor test prompts. ``hub`` is None for what the Hub does not hold as Parquet files.
    ``paths`` are fields that name a file, relative to the folder of the file that the row stands in.
    Unless it ``splits_one_file`` by a hash of the group, a set without a training part is all for testing, but where a source
    asks for its parts (``tasks.sources.source.PARTED``).
    ``fields`` are all of a row that ``example`` may read; empty where nobody says. ``either`` are those of which one is enough,
    so that a column that a user names for one replaces the others.
    """

    name: str
    folders: tuple[str, ...]
    test_stems: tuple[str, ...] = ("test", "validation", "dev")
    train_stems: tuple[str, ...] = ("train",)
    hub: HubFiles | None
    toy_row: str | RowMaker
    example: Callable[[Row, str, str], Example | None]
    group: Callable[[Example], str]
    testable: Callable[[Example], bool] = always
    reads_text_files: bool = False
    reads_json_arrays: bool = False
    paths: tuple[str, ...] = ()
    splits_one_file: bool = True
    fields: tuple[str, ...] = ()
    either: tuple[str, ...] = ()


class Task:
    """A task: its data set, prompts, per-example statistics and metrics.

    A subclass sets the class variables below and defines ``prompt``, ``statistics`` and ``values_from_sums``;
    ``signature`` where a metric has settings. ``continues_prompt``: outputs and references go on with the prompt's
    text, whose end therefore stays where it is too long.
    """

    name: str
    dataset: Dataset
    max_new_tokens: int = 128
    metrics: tuple[str, ...] = ()
    scores_reference: bool = False
    continues_prompt: bool = False
    units: ClassVar[Mapping[str, str]] = {}

    def training_pair(self, example: Example) -> tuple[str, str]:
        """Return (prompt in T5 style, first reference)."""
        return self.prompt(example, "t5"), example.references[0]

    def aggregate(self, statistics: Sequence[Statistics]) -> dict[str, Metric]:
        """Return the metrics of a corpus. DataError: no example, or statistics of another task."""
        try:
            values = self.values_from_sums({key: array.sum(axis=0) for key, array in stack(statistics).items()})
        except DataError:
            raise
        except (LookupError, ValueError, TypeError) as error:
            raise DataError(
                f"statistics of task '{self.name}': not as it gives them ({type(error).__name__}: {error}); remove the line "
                "that was edited, and it is run again"
            ) from error
        return {name: Metric(float(values[name]), self.units.get(name, "%"), self.signature(name)) for name in self.metrics}

    def resample(self, statistics: Sequence[Statistics], weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the metrics [R] of R resamplings; ``weights`` [R, N] says how often each of the N examples was drawn."""
        return self.values_from_sums({key: weights @ array for key, array in stack(statistics).items()})

    def prompt(self, example: Example, style: PromptStyle) -> str:
        """Return the prompt; KeyError where the example lacks an input."""
        raise TypeError(f"task '{self.name}' does not say how it prompts")

    def content(self, example: Example) -> str:
        """Return what makes a row this one, by which it is known again in other data: what it asks."""
        return self.prompt(example, "instruction")

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        """Return the numbers of one example; they add up over a corpus."""
        raise TypeError(f"task '{self.name}' does not say how it is scored")

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        """Compute the metrics from summed statistics. Leading dimensions stay, so that one call serves a whole resampling."""
        raise TypeError(f"task '{self.name}' does not say how it is aggregated")

    def signature(self, metric: str) -> str:
        """Return the settings that a metric is computed with."""
        return ""


def stack(statistics: Sequence[Statistics]) -> dict[str, np.ndarray]:
    """Stack the statistics of N examples: an array [N] or [N, k] for each key."""
    if not statistics:
        raise DataError("no statistics to aggregate: expected those of at least one example")
    return {key: np.asarray([item[key] for item in statistics], dtype=np.float64) for key in statistics[0]}


def percent_of_mean(sums: Sums, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return 100 times the mean over examples; ``sums`` must have ``num_examples``."""
    return {name: 100.0 * sums[name] / sums["num_examples"] for name in names}


def text_field(row: Row, field: str, where: str) -> str:
    """Return a field's text. DataError says what was found where it is missing, empty or no string."""
    value = _field(row, field, where)
    if not isinstance(value, str):
        raise DataError(
            f"{where}: field '{field}' is {type(value).__name__} {str(value)[:40]!r}, expected text; correct the row"
        )
    if not value.strip():
        raise DataError(f"{where}: field '{field}' is empty, expected text; remove or correct the row")
    return value


def mapping_field(row: Row, field: str, where: str) -> Row:
    """Return a field's object; DataError where it is missing or something else."""
    value = _field(row, field, where)
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: field '{field}' is {type(value).__name__}, expected an object; correct the row")
    return value


def _field(row: Row, field: str, where: str) -> Any:
    if field not in row:
        found = ", ".join(map(str, row)) or "nothing"
        raise DataError(f"{where}: field '{field}' is missing (found: {found}); add it, or name its column by --field")
    return row[field]


def id_field(row: Row, row_id: str, where: str) -> str:
    """Return the row's own id, of a number its text; ``row_id`` where it has none. DataError where it is null or empty."""
    value = row.get("id", row_id)
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{where}: field 'id' is {type(value).__name__} {str(value)[:40]!r}, expected a text or a number; correct the row, "
            "or leave the field out"
        )
    return value
