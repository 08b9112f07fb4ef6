"""What a task says about its data, and the checks that turn a row into an :class:`~tasks.base.Example`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.base import Example, Split
from tasks.errors import DataError

Row = Mapping[str, Any]


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
    ``testable`` drops rows that make poor test prompts. ``hub`` is None for what the Hub does not hold as Parquet files.
    ``paths`` are fields that name a file, relative to the folder of the file that the row stands in.
    Unless it ``splits_one_file`` by a hash of the group, a set without a training part is all for testing.
    """

    name: str
    folders: tuple[str, ...]
    test_stems: tuple[str, ...] = ("test", "validation", "dev")
    train_stems: tuple[str, ...] = ("train",)
    hub: HubFiles | None
    toy_row: Callable[[int, Split, int], Row]
    example: Callable[[Row, str, str], Example | None]
    group: Callable[[Example], str]
    testable: Callable[[Example], bool] = always
    reads_text_files: bool = False
    reads_json_arrays: bool = False
    paths: tuple[str, ...] = ()
    splits_one_file: bool = True


def text_field(row: Row, field: str, where: str) -> str:
    """A non-empty string, or a DataError that says what stands there instead."""
    if field not in row:
        raise DataError(f"{where}: field '{field}' is missing (found: {', '.join(map(str, row)) or 'nothing'}); add it")
    value = row[field]
    if not isinstance(value, str):
        raise DataError(
            f"{where}: field '{field}' is {type(value).__name__} {str(value)[:40]!r}, expected text; correct the row"
        )
    if not value.strip():
        raise DataError(f"{where}: field '{field}' is empty, expected text; remove or correct the row")
    return value


def mapping_field(row: Row, field: str, where: str) -> Row:
    if field not in row:
        raise DataError(f"{where}: field '{field}' is missing (found: {', '.join(map(str, row)) or 'nothing'}); add it")
    if not isinstance(row[field], Mapping):
        raise DataError(f"{where}: field '{field}' is {type(row[field]).__name__}, expected an object; correct the row")
    return row[field]


def id_field(row: Row, row_id: str, where: str) -> str:
    """The row's own id where it has one, else ``row_id``."""
    return text_field(row, "id", where) if "id" in row else row_id
