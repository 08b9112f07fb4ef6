"""A foreign log as entries, each with the place that an error names, and checked fields of what JSON holds."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import UsageError

Made = TypeVar("Made")
LARGEST = 10**15  # no counter of a log goes so far
DATA = "data:"
EVENTS = (DATA, "event:", "id:", "retry:", ":")  # begins of a line of server-sent events; others than DATA hold no entry
MOST_TORN = 0.1  # of the lines: a log in which more hold no JSON is something else
ROUNDING = 1e-9  # of what an engine writes as double precision


@dataclass(frozen=True)
class Entry:
    """A line of a log (text, or what its JSON holds), or an element of a JSON document; ``place`` says which."""

    path: Path
    place: str
    value: Any

    def made(self, read: Callable[[Any], Made]) -> Made:
        """Read the entry.

        Raises:
            UsageError: it does not fit; the error names the file, the place and the field.
        """
        try:
            return read(self.value)
        except ValueError as error:
            raise self.error(str(error)) from error

    def error(self, reason: str) -> UsageError:
        """Return the error of an entry, which names the file and the place."""
        return UsageError(f"log {self.path}: {self.place}: {reason}")


def entries_of(path: Path) -> list[Entry]:
    """Read a file's entries, as ``read_entries`` does."""
    return read_entries(path)[0]


def read_entries(path: Path) -> tuple[list[Entry], list[str]]:
    """Read a file: one JSON document (a list's elements, or itself), JSON Lines, server-sent events, or lines of text.

    Lines of JSON Lines that hold no JSON are passed over, and their places returned: a process was killed within a line, or two
    wrote at once, whatever the lines say.

    Raises:
        UsageError: it cannot be read, is empty, or more than ``MOST_TORN`` of its lines hold no JSON.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # with a byte order mark or without
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"log {path}: cannot be read ({reason}); expected a text file that an engine wrote") from error
    if not text.strip():
        raise UsageError(f"log {path}: empty; expected what an engine wrote")
    lines = [(f"line {number}", line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines[0][1].startswith(EVENTS) and any(line.startswith(DATA) for _, line in lines):
        events = [(place, line.removeprefix(DATA).strip()) for place, line in lines if line.startswith(DATA)]
        lines = [(place, line) for place, line in events if line != "[DONE]"]
    elif lines[0][1][0] not in "[{" and not (len(lines) > 1 and lines[1][1][0] == "{" and _document(lines[1][1]) is not None):
        return [Entry(path, place, line) for place, line in lines], []
    elif (document := _document(text)) is not None:
        if document == []:
            raise UsageError(f"log {path}: an empty list; expected what an engine wrote")
        if not isinstance(document, list):
            return [Entry(path, "line 1" if len(lines) == 1 else "the document", document)], []
        return [Entry(path, f"element {place}", value) for place, value in enumerate(document, start=1)], []
    read = [(place, _document(line)) for place, line in lines]
    found = [Entry(path, place, value) for place, value in read if value is not None]
    torn = [place for place, value in read if value is None]
    is_last_alone = torn == [lines[-1][0]] and not text.endswith("\n")  # which a killed process leaves
    if not found or (len(torn) > MOST_TORN * len(lines) and not is_last_alone):
        of_all = f"{len(torn)} of {len(lines)} lines" if len(torn) > 1 else "the line"
        raise UsageError(
            f"log {path}: {torn[0]}: no JSON; expected one JSON document, or one on each line: mend or remove {of_all}"
        )
    return found, torn


def _document(text: str) -> Any:
    """Return what JSON holds; None where it is none (a log's entry is never ``null``)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def part(values: Any, *names: str) -> Mapping[str, Any] | None:
    """Return the object that lies under these names, or None."""
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else None


def count(values: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0 on; ValueError, naming the field, for anything else."""
    value = values.get(name)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise ValueError(f"field {name!r}: {_shown(values, name)}; expected a whole number from 0 on")
    return value


def count_or_none(values: Mapping[str, Any], name: str) -> int | None:
    return None if values.get(name) is None else count(values, name)


def counts(values: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of whole numbers from 0 on."""
    value = values.get(name)
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < LARGEST for one in value):
        raise ValueError(f"field {name!r}: {_shown(values, name)}; expected a list of whole numbers from 0 on")
    return tuple(value)


def number(values: Mapping[str, Any], name: str) -> float:
    """Return a finite number."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"field {name!r}: {_shown(values, name)}; expected a number")
    return float(value)


def numbers(values: Mapping[str, Any], name: str) -> list[float]:
    """Return a list of finite numbers."""
    value = values.get(name)
    if not isinstance(value, list):
        raise ValueError(f"field {name!r}: {_shown(values, name)}; expected a list of numbers")
    return [number({name: one}, name) for one in value]


def keyed(values: Mapping[str, Any], name: str, lowest: int = 0) -> dict[int, Any]:
    """Return an object whose names are whole numbers, by number."""
    value = values.get(name)
    if not isinstance(value, dict) or not all(key.isascii() and key.isdecimal() and len(key) < 7 for key in value):
        raise ValueError(f"field {name!r}: {_shown(values, name)}; expected an object whose names are whole numbers")
    found = {int(key): one for key, one in value.items()}
    if min(found, default=lowest) < lowest:
        raise ValueError(f"field {name!r}: names {min(found)}; expected numbers from {lowest} on")
    return found


def sparse(values: Mapping[str, Any], name: str, lowest: int = 0) -> tuple[int, ...]:
    """Return a histogram that is written as {number: count}, as a list that begins with the lowest number."""
    found = {key: count({name: one}, name) for key, one in keyed(values, name, lowest).items()}
    return tuple(found.get(key, 0) for key in range(lowest, max(found, default=lowest) + 1))


def agree(values: Mapping[str, Any], name: str, expected: float, rounding: float = ROUNDING) -> None:
    """Raise ValueError where a log states another value than its own counts give; fields that are absent are not asked for."""
    if values.get(name) is None:
        return
    if abs(number(values, name) - expected) > rounding * max(1.0, abs(expected)):
        raise ValueError(f"field {name!r}: {values[name]}, but its own counts give {expected!r}; an impossible log")


def over(numerator: float, denominator: float, empty: float) -> float:
    """Return a ratio as engines do: ``empty`` where nothing was counted."""
    return numerator / denominator if denominator else empty


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "absent"
    text = json.dumps(values[name])
    return text if len(text) <= 60 else text[:57] + "..."


def left_out(found: Sequence[Made | None]) -> tuple[list[Made], int]:
    """Return what was made of entries, and how many of them tell nothing."""
    kept = [one for one in found if one is not None]
    return kept, len(found) - len(kept)
