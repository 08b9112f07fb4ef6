"""Recordings that rows refer to: a file beside the rows, bytes within them, or nothing where a row has none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.base import Recording
from tasks.errors import DataError
from tasks.sound import Sound, decode
from tasks.sources.dataset import Row


@dataclass(frozen=True)
class AudioFile:
    """``where`` is the row that names the file."""

    path: str
    where: str

    def sound(self) -> Sound:
        return decode(Path(self.path), f"{self.where}: audio {self.path!r}")


@dataclass(frozen=True)
class AudioBytes:
    """An encoded file inside a row, as Parquet files of the Hub have it."""

    data: bytes
    where: str

    def sound(self) -> Sound:
        return decode(self.data, f"{self.where}: audio")


@dataclass(frozen=True)
class NoAudio:
    """A row that should have a recording: asking for it says what is wrong, so that the other rows still count."""

    message: str

    def sound(self) -> Sound:
        raise DataError(self.message)


def recording_of(row: Row, where: str) -> tuple[str, Recording]:
    """(what to call it, the recording) of a row's field "audio": a path, bytes with a path, or something that has a sound."""
    audio: Any = row.get("audio")
    if hasattr(audio, "sound"):
        return repr(audio), audio
    if isinstance(audio, str) and audio:
        return audio, AudioFile(audio, where)
    if isinstance(audio, dict) and isinstance(audio.get("bytes"), bytes):
        return str(audio.get("path") or where), AudioBytes(audio["bytes"], where)
    if isinstance(audio, dict) and audio.get("path"):
        return str(audio["path"]), AudioFile(str(audio["path"]), where)
    found = f"is {str(audio)[:40]!r}" if "audio" in row else "is missing"
    return where, NoAudio(f"{where}: field 'audio' {found}, expected the path of a recording; add it or remove the row")
