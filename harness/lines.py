"""Files that are appended to, a whole line at a time. Imports nothing heavy: writers of a cluster do nothing else."""

import fcntl
import os
from pathlib import Path
from typing import Self

from harness.errors import UsageError


class LineFile:
    """Appends one line at a time, flushed to the disk before the next one begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UsageError(f"records {path}: another process is writing them; wait for it, or choose --records") from error

        self._cut_torn_end()

    def _cut_torn_end(self) -> None:
        """What a killed process left of its last line goes; only the holder of the lock may do this."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            self._file.truncate(whole)

    def write(self, line: bytes) -> None:
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


def write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf8")
    os.replace(temporary, path)
