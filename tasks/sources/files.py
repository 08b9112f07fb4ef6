"""Reads rows out of files, one at a time, each with the place it stands at: ``file:line`` or ``file:row N``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import DataError
from tasks.sources.dataset import Row
from tasks.sources.prose import documents

ROW_FORMATS = (".jsonl", ".parquet")
# What libraries raise about files that are damaged somewhere inside.
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, SystemError)
Located = tuple[str, Row]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without line end); raises DataError where the bytes are not UTF-8."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}); convert the file to UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error


def json_lines(path: Path) -> Iterator[Located]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = _parsed(line, where)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}); expected one object a line") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: is {type(row).__name__}, expected one JSON object a line; correct the line")
        yield where, row


def _parsed(text: str, where: str) -> Any:
    """JSON that the project can go on with. Raises JSONDecodeError for what is none, DataError for what Python cannot hold."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():  # half of a pair of escapes: a string that no encoding has bytes for
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: has the lone surrogate {error.object[error.start]!r}, not text; correct it") from error
    except (ValueError, RecursionError) as error:
        reason = "a number of too many digits" if isinstance(error, ValueError) else "it is nested too deeply"
        raise DataError(f"{where}: cannot be read ({reason}); correct it") from error
    return value


def json_array(path: Path) -> Iterator[Located]:
    """One file that is one list of objects."""
    try:
        rows = _parsed("\n".join(line for _, line in numbered_lines(path)), str(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}); expected one list of objects") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: is not a list of objects; expected one, or a .jsonl file with one object a line")
    for number, row in enumerate(rows, 1):
        yield f"{path}:row {number}", row


def parquet_rows(path: Path) -> Iterator[Located]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}:row {number}", row
    except (pyarrow.ArrowException, *DAMAGED) as error:
        raise DataError(f"{path}: not a readable Parquet file ({_reason(error)}); write it again or give JSON Lines") from error


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def text_rows(path: Path) -> Iterator[Located]:
    for number, text in documents(lambda: numbered_lines(path)):
        yield f"{path}:{number}", {"text": text}


def file_rows(path: Path) -> Iterator[Located]:
    readers = {".jsonl": json_lines, ".json": json_array, ".parquet": parquet_rows, ".txt": text_rows}
    return readers[path.suffix](path)


def is_saved_to_disk(folder: Path) -> bool:
    """Whether ``datasets`` wrote this folder with ``save_to_disk``."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_splits(folder: Path) -> list[Path]:
    """The folders of the splits of a saved DatasetDict; of a saved Dataset the folder itself."""
    if (folder / "state.json").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/state.json"))


def undecoded(rows: Any) -> Any:
    """Recordings as the bytes that are stored: the tasks decode them themselves."""
    import datasets

    for name, feature in (rows.features or {}).items():
        if isinstance(feature, datasets.Audio):
            rows = rows.cast_column(name, datasets.Audio(decode=False))
    return rows


def saved_rows(folder: Path) -> Iterator[Located]:
    import datasets

    try:
        for number, row in enumerate(undecoded(datasets.load_from_disk(str(folder))), 1):
            yield f"{folder}:row {number}", row
    except DAMAGED as error:
        raise DataError(f"{folder}: not a readable save_to_disk folder ({_reason(error)}); save it again") from error


def rows_of(path: Path) -> Iterator[Located]:
    return saved_rows(path) if path.is_dir() else file_rows(path)
