"""English speech recognition: LibriSpeech (Panayotov et al. 2015), TED-LIUM 3 (Hernandez et al. 2018), Common Voice (Ardila
et al. 2020), which Optimized measures Whisper on (Section 4)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.base import (
    Dataset,
    Example,
    HubFiles,
    PromptStyle,
    Recording,
    ReferenceScore,
    Row,
    Statistics,
    Sums,
    Task,
    id_field,
    text_field,
)
from tasks.errors import DataError
from tasks.scoring import wer
from tasks.sound import Sound, decode

LIBRISPEECH = ("openslr/librispeech_asr", "71cacbfb7e2354c4226d01e70d77d5fca3d04ba1")
NOT_SCORED = "ignore_time_segment_in_scoring"  # how TED-LIUM's transcripts mark music and applause


@dataclass(frozen=True)
class AudioFile:
    """A recording in a file; ``where`` is the row that names it."""

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
    """The missing recording of a row. ``sound`` raises the error, so that the other rows still count."""

    message: str

    def sound(self) -> Sound:
        raise DataError(self.message)


def recording_of(row: Row, where: str) -> tuple[str, Recording]:
    """Return (name, recording) of a row's field "audio": a path, bytes with a path, or an object with ``sound``."""
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


def _example(text: str, row: Row, where: str, row_id: str) -> Example | None:
    transcript = text_field(row, text if text in row else "text", where)
    if transcript.strip() == NOT_SCORED:
        return None
    name, recording = recording_of(row, where)
    speaker = str(row.get("speaker_id") or row.get("client_id") or "")
    return Example(id_field(row, row_id, where), {"audio": name, "speaker": speaker}, (transcript,), recording)


def dataset(
    name: str, folder: str, test_stems: tuple[str, ...], train_stems: tuple[str, ...], hub: HubFiles | None, text: str = "text"
) -> Dataset:
    """Describe a speech data set: a speaker stays on one side, and a lone file is a test set."""
    return Dataset(
        name=name,
        folders=(folder,),
        test_stems=test_stems,
        train_stems=train_stems,
        hub=hub,
        toy_row=name,
        example=partial(_example, text),
        group=lambda example: example.inputs["speaker"] or example.id,
        paths=("audio",),
        splits_one_file=False,
    )


def _librispeech(kind: str, hours: int) -> Dataset:
    stems = [tuple(f"{split}{mark}{kind}" for mark in "_-.") for split in ("test", "train")]
    repository, revision = LIBRISPEECH
    hub = HubFiles(
        repository=repository,
        revision=revision,
        train=f"{kind}/train.{hours}/*.parquet",
        test=f"{kind}/test/*.parquet",
    )
    return dataset(f"librispeech-{kind}", "librispeech", (*stems[0], f"test.{kind}"), (*stems[1], f"train.{kind}.{hours}"), hub)


CLEAN, OTHER = _librispeech("clean", 100), _librispeech("other", 500)
# TED-LIUM 3 is a loading script on the Hub, and no commit that holds it as Parquet is known.
TEDLIUM = dataset("tedlium", "tedlium", ("test", "test_ted_like"), ("train",), None)
# Differs from the paper: release 17. The repository of release 16 is gated and holds no Parquet.
COMMON_VOICE = dataset(
    "common-voice",
    "common_voice",
    ("test",),
    ("train",),
    HubFiles(
        repository="fixie-ai/common_voice_17_0",
        revision="34f78a43893414e7b6e271ba94c1d5e05f18b239",
        train="en/train-*.parquet",
        test="en/test-*.parquet",
    ),
    text="sentence",
)


class Speech(Task):
    """Speech recognition, scored by word error rate (a fraction, as the paper prints it). There is no prompt."""

    max_new_tokens = 256
    metrics = ("wer",)
    units = {"wer": "WER"}  # noqa: RUF012

    def __init__(self, dataset: Dataset) -> None:
        self.name, self.dataset = dataset.name, dataset

    def prompt(self, example: Example, style: PromptStyle) -> str:
        return ""

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        return wer.edit_counts(output_text, example.references[0])

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return {"wer": wer.rate_from_sums(sums)}

    def signature(self, metric: str) -> str:
        return wer.signature()
