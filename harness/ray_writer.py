"""The process that writes what the workers of one node make (harness.ray_engine)."""

from pathlib import Path

from harness.errors import UsageError
from harness.lines import LineFile

Lines = dict[str, list[str]]  # by signature


class Writer:
    """``folder`` is that of the records, ``node`` the file's name; a line that is sent twice is left to the reader."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder, self.node = folder, node
        self.files: dict[str, LineFile] = {}

    def append(self, made: tuple[str, Lines]) -> None:
        """Where these lines go is said by their node, which is this one, and their signatures."""
        for signature, lines in made[1].items():
            for line in lines:
                self._file(signature).write(line.encode())

    def _file(self, signature: str) -> LineFile:
        if signature not in self.files:
            path = self.folder / signature / f"{self.node}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.files[signature] = LineFile(path)
            except OSError as error:
                raise UsageError(
                    f"records {path}: cannot be written ({error.strerror}); free space or choose --records"
                ) from error
        return self.files[signature]

    def close(self) -> None:
        """Everything that was sent before is on the disk when this returns."""
        for file in self.files.values():
            file.close()
        self.files.clear()
