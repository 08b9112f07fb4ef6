"""Files that survive a kill: one line appended at a time, or a whole file replaced at once. Imports nothing heavy."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from harness.core.errors import UsageError


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
                raise OSError(28, "No space left on device")
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


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; a last one without a newline, which a killed process left, is not among them."""
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def replace_file(path: Path, content: str | bytes) -> Path:
    """Write a file beside the old one, then rename it: a reader, or a run after a kill, sees one of the two, whole.

    Raises:
        OSError: the file could not be written; the old one is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return path
