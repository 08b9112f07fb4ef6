"""Read rows out of files, one at a time, each with the place it stands at: ``file:line`` or ``file:row N``.

A plain text file is cut into documents, whichever of three common ways it is laid out in.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from tasks.base import DataError, Row

ROW_FORMATS = (".jsonl", ".parquet", ".csv", ".tsv")
# What libraries raise about files that are damaged somewhere inside.
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, SystemError)
Located = tuple[str, Row]
Lines = Iterator[tuple[int, str]]
Layout = Literal["line", "block", "story"]
NUM_LINES_LOOKED_AT = 5000
WRAPPED_WIDTH = 100
SEPARATOR = "<|endoftext|>"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end); DataError where the bytes are not UTF-8."""
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
    """Parse JSON. JSONDecodeError: it is none. DataError: Python cannot hold it, or its text has no encoding."""
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
    """Yield the rows of a file that is one list of objects."""
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


def table_rows(path: Path) -> Iterator[Located]:
    """Yield the rows of a CSV or TSV file. The first line names the fields; a field in quotes may hold several lines."""
    csv.field_size_limit(2**31 - 1)  # an article may be longer than Python's own limit
    delimiter, read = "\t" if path.suffix == ".tsv" else ",", list[tuple[int, str]]()
    lines = csv.reader(_noted(numbered_lines(path), read), delimiter=delimiter, strict=True)
    names = list[str]()
    try:
        for values in lines:
            where, row = f"{path}:{lines.line_num}", read.copy()
            read.clear()
            if not values:
                continue
            if not names:
                names = values
                if odd := [name for name in names if not name.strip() or names.count(name) > 1]:
                    raise DataError(f"{where}: field {odd[0]!r}; expected a name for every field, each once, in the first line")
            elif len(values) != len(names):
                place = _quoted(path, row, delimiter)
                raise DataError(
                    f"{place}: {len(values)} fields, the first line names {len(names)}; correct the row, or quote it"
                )
            elif delimiter == "\t" and len(row) > 1 < len(names) and all(_is_row(line, len(names)) for _, line in row):
                place = _quoted(path, row, delimiter)
                raise DataError(
                    f"{place}: each line has the {len(names)} fields of a row, which the quote joins to one; close the quote, "
                    "or put the field in quotes and write each quote of its text twice"
                )
            else:
                yield where, dict(zip(names, values, strict=True))
    except csv.Error as error:
        raise DataError(f"{_quoted(path, read, delimiter)}: not a row of a table ({error}); correct the line") from error


def _noted(lines: Lines, read: list[tuple[int, str]]) -> Iterator[str]:
    """Yield lines with their ends, and note them."""
    for number, line in lines:
        read.append((number, line))
        yield f"{line}\n"


def _is_row(line: str, num_fields: int) -> bool:
    return line.count("\t") == num_fields - 1


def _quoted(path: Path, lines: Sequence[tuple[int, str]], delimiter: str) -> str:
    """Return where the last quote of a row was opened; the row's last line where none was, or where it was opened there."""
    last, is_open = lines[-1][0], False
    opened = last
    for number, line in lines:
        before = delimiter
        for one in line.replace('""', ""):
            if one == '"' and (is_open or before == delimiter):
                is_open = not is_open
                opened = number if is_open else opened
            before = one
    return f"{path}:{opened}" + (f": the quote that opens here goes on to line {last}" if opened < last else "")


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def layout(lines: list[str]) -> Layout:
    """Decide how a file is laid out, by its first lines.

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
    """Yield (number of the first line, text) of each document. ``open_lines`` is called twice: to look, then to read."""
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


def text_rows(path: Path) -> Iterator[Located]:
    for number, text in documents(lambda: numbered_lines(path)):
        yield f"{path}:{number}", {"text": text}


def file_rows(path: Path) -> Iterator[Located]:
    readers = {".jsonl": json_lines, ".json": json_array, ".parquet": parquet_rows, ".txt": text_rows}
    readers |= {".csv": table_rows, ".tsv": table_rows}
    return readers[path.suffix](path)


def is_saved_to_disk(folder: Path) -> bool:
    """Return whether ``datasets`` wrote this folder with ``save_to_disk``."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_splits(folder: Path) -> list[Path]:
    """Return the folders of the splits of a saved DatasetDict; for a saved Dataset the folder itself."""
    if (folder / "state.json").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/state.json"))


def undecoded(rows: Any) -> Any:
    """Leave recordings as the stored bytes: the tasks decode them themselves."""
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
