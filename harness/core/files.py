"""What is stored: files that survive a kill, and JSON that is checked when it becomes a dataclass. Imports nothing heavy.

A file is appended to one line at a time, or replaced as a whole. In JSON a field that is unknown, of another type or no number
is refused by its name. msgspec is imported where JSON becomes a dataclass: what only replaces files does without it.
"""

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from harness.core.errors import UsageError

Made = TypeVar("Made")
CHECKSUM = '"checksum":"'  # before a line's last field


class LineFile:
    """Appends lines to a file; each is on the disk before the next begins. Opening it locks it and cuts a torn last line.

    A file that another process has open is refused, or with ``wait`` waited for.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            self._file.close()
            raise UsageError(f"records {path}: another process is writing them; wait for it, or choose --records") from error
        data = path.read_bytes()
        if (end := data.rfind(b"\n") + 1) != len(data):
            self._file.truncate(end)

    def write(self, line: bytes) -> None:
        """Append one line, which ends with a newline. A line that does not fit on the disk is taken back.

        Raises:
            UsageError: the line could not be written.
        """
        start = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._file.truncate(start)
            raise UsageError(
                f"records {self.path}: {error.strerror}; what was recorded before is kept: free space, run it again"
            ) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def digest_of(path: Path) -> str:
    """sha256 of a file's contents, in hex; a file is read again only where its size or time of change is another.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    found = regular(path)
    return _digest_of(path, found.st_size, found.st_mtime_ns)


def regular(path: Path) -> os.stat_result:
    """Return what is known of a file. OSError where it is no regular one: of a pipe or a device, say, there is no end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return found


@lru_cache(maxsize=1024)
def _digest_of(path: Path, size: int, changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_hash(text: str, digits: int = 16) -> str:
    """Return the first hexadecimal digits of a text's sha256: the identity of what the text describes."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def checksum_of(values: Any) -> str:
    """Return a checksum of what JSON holds, in the order in which it holds it."""
    return short_hash(json.dumps(values))


@contextmanager
def readable(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a stored file that is damaged leads to into a UsageError: ``what`` names it, ``remedy`` says what to do."""
    try:
        yield
    except UsageError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, OSError | ValueError) else repr(error)
        raise UsageError(f"{what}: cannot be read ({reason}); {remedy}") from error


def sealed(values: Any) -> str:
    """Return a line of JSON whose last field is a checksum of all before it, so that a change is seen."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=shallow)
    comma = "," if len(text) > 2 else ""
    return f'{text[:-1]}{comma}{CHECKSUM}{_checksum(text[:-1].encode())}"}}\n'


def unsealed(line: str | bytes) -> dict[str, Any]:
    """Return what a line of ``sealed`` holds, without its checksum; ValueError where it was changed."""
    values = parsed(line)
    checksum = taken_out(values)
    check_unchanged(line, checksum)
    return dict(values)


def taken_out(values: Any) -> Any:
    """Take the checksum out of what a line holds; None of what is no object or has none."""
    return values.pop("checksum", None) if isinstance(values, dict) else None


def check_unchanged(line: str | bytes, checksum: Any) -> None:
    """ValueError for a line that was changed after a run had written it, in whatever field."""
    text = line.encode() if isinstance(line, str) else line
    if checksum is None:
        raise ValueError("checksum: missing; an older version wrote the line, or somebody else")
    before, _, behind = text.rstrip().rpartition(CHECKSUM.encode())
    if checksum != _checksum(before.removesuffix(b",")):
        raise ValueError(f"checksum {checksum!r}: not the line's; it was changed after it was written")
    if behind != f'{checksum}"}}'.encode():  # of a field that a line has twice, readers take the last
        raise ValueError(f"checksum {checksum!r}: not the line's last field; it was changed after it was written")


def _checksum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; a last one without a newline, which a killed process left, is not among them.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    regular(path)
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def replace_file(path: Path, content: str | bytes) -> Path:
    """Write a file beside the old one, then rename it: a reader, or a run after a kill, sees one of the two, whole.

    Where ``path`` is a symbolic link, so is it afterwards: what it points to is replaced.

    Raises:
        OSError: the file could not be written, or is no regular one, as a pipe or a device; the old one is as it was.
    """
    own = Path(os.path.realpath(path))
    if path.is_symlink() and os.path.abspath(path).startswith(("/dev/", "/proc/")):  # another program's open file
        raise OSError(errno.EINVAL, "no regular file", str(path))
    temporary = own.with_name(f".{own.name}.{os.getpid()}")
    try:
        if own.exists():
            regular(own)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, own)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return path


def parsed(text: str | bytes) -> Any:
    """JSON that can be written again. ValueError also for NaN, infinities and half of a surrogate pair."""
    import msgspec

    return msgspec.json.decode(text)


def made(kind: type[Made], values: Any) -> Made:
    """Make an object of a dataclass from what JSON holds of it; ValueError, naming the field, where it does not fit."""
    import msgspec

    if isinstance(values, Mapping):
        _refuse_names(kind, values)
    found = msgspec.convert(values, kind)
    _refuse_unknown(values, found)
    return found


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@cache
def _known(kind: type) -> frozenset[str]:
    return frozenset(_names(kind))


def _refuse_names(kind: Any, values: Mapping[str, Any]) -> None:
    if not _known(kind).issuperset(values):
        known = _names(kind)
        unknown = next(name for name in values if name not in known)
        expected = f"expected one of {', '.join(known)}" if known else "expected none"
        raise ValueError(f"{kind.__name__} field {unknown!r}: not known to this version; {expected}")


def _refuse_unknown(values: Any, found: Any) -> None:
    """ValueError for a field, at any depth, that its dataclass does not have; msgspec leaves these out in silence."""
    if isinstance(values, dict) and is_dataclass(found):
        _refuse_names(type(found), values)
        for name, value in values.items():
            if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
                _refuse_unknown(value, getattr(found, name))
    elif isinstance(values, list) and values and isinstance(values[0], dict):
        for value, one in zip(values, found, strict=True):
            _refuse_unknown(value, one)


def shallow(thing: Any) -> dict[str, Any]:
    """The values of a dataclass by its fields' names, in their order, as they are. TypeError for anything else."""
    kind: type = type(thing)
    return {name: getattr(thing, name) for name in _names(kind)}


def plain(thing: Any) -> Any:
    """Dictionaries, lists and scalars of a dataclass, in the order of its fields."""
    if is_dataclass(thing):
        kind: type = type(thing)
        return {name: plain(getattr(thing, name)) for name in _names(kind)}
    return [plain(one) for one in thing] if isinstance(thing, list | tuple) else thing


def written(thing: Any, without: Collection[str] = ()) -> str:
    """Canonical JSON: keys sorted, floats at full precision, an integer where a float is declared as that float.

    Of a dataclass, fields ``without`` are left out.
    """
    import msgspec

    values = plain(made(type(thing), plain(thing)))
    kept = {name: value for name, value in values.items() if name not in without} if without else values
    return msgspec.json.encode(kept, order="sorted").decode()
