"""English speech recognition: LibriSpeech (Panayotov et al. 2015), TED-LIUM 3 (Hernandez et al. 2018), Common Voice (Ardila
et al. 2020), which Optimized measures Whisper on (Section 4).

Scored by word error rate from edit counts that add up, after Whisper's English normaliser. It is transformers' (Radford et al.
2022, Appendix C), with the map of British to American spellings of OpenAI's repository, which the package
whisper-normalization carries. An empty hypothesis is all deletions: dropping it, as the code released with Optimized does,
would hide the worst outputs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tasks.base import (
    DataError,
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
from tasks.sound import Sound, decode

LIBRISPEECH = ("openslr/librispeech_asr", "71cacbfb7e2354c4226d01e70d77d5fca3d04ba1")
NOT_SCORED = "ignore_time_segment_in_scoring"  # how TED-LIUM's transcripts mark music and applause
COUNTS = ("hits", "substitutions", "deletions", "insertions")


@dataclass(frozen=True)
class _Stored:
    """A recording in a file, or its bytes inside a row, as the Hub has them. ``what`` names it in errors."""

    file: Path | bytes
    what: str

    def sound(self) -> Sound:
        return decode(self.file, self.what)


@dataclass(frozen=True)
class _Missing:
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
        return audio, _in_file(audio, where)
    if isinstance(audio, dict) and isinstance(audio.get("bytes"), bytes):
        return str(audio.get("path") or where), _Stored(audio["bytes"], f"{where}: audio")
    if isinstance(audio, dict) and audio.get("path"):
        return str(audio["path"]), _in_file(str(audio["path"]), where)
    found = f"is {str(audio)[:40]!r}" if "audio" in row else "is missing"
    return where, _Missing(f"{where}: field 'audio' {found}, expected the path of a recording; add it or remove the row")


def _in_file(path: str, where: str) -> Recording:
    return _Stored(Path(path), f"{where}: audio {path!r}")


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
        fields=tuple(dict.fromkeys(("id", "audio", text, "text", "speaker_id", "client_id"))),
    )


def _librispeech(kind: str, hours: int) -> Dataset:
    stems = [tuple(f"{split}{mark}{kind}" for mark in "_-.") for split in ("test", "train")]
    repository, revision = LIBRISPEECH
    hub = HubFiles(
        repository=repository, revision=revision, train=f"{kind}/train.{hours}/*.parquet", test=f"{kind}/test/*.parquet"
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

    def content(self, example: Example) -> str:
        """What is said: another recording of it counts as the same row."""
        return example.references[0]

    def statistics(self, example: Example, output_text: str, reference: ReferenceScore | None = None) -> Statistics:
        return edit_counts(output_text, example.references[0])

    def values_from_sums(self, sums: Sums) -> dict[str, np.ndarray]:
        return {"wer": rate_from_sums(sums)}

    def signature(self, metric: str) -> str:
        return wer_signature()


@cache
def _normaliser() -> Any:
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    spellings = files("whisper_normalization").joinpath("english.json").read_text(encoding="utf8")
    return EnglishTextNormalizer(json.loads(spellings))


def normalise(text: str) -> str:
    """Lower the case, drop punctuation, fillers and annotations, write numbers as digits, part contractions, spell American."""
    return str(_normaliser()(text)).strip()


def edit_counts(prediction: str, reference: str) -> dict[str, float]:
    """Count hits, substitutions, deletions and insertions of jiwer's alignment of the normalised words."""
    import jiwer

    found = jiwer.process_words(normalise(reference), normalise(prediction))
    return {name: float(getattr(found, name)) for name in COUNTS}


def rate_from_sums(sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute edits per reference word [...] from summed counts [...]; NaN where the references have no words."""
    edits = sums["substitutions"] + sums["deletions"] + sums["insertions"]
    num_words = sums["hits"] + sums["substitutions"] + sums["deletions"]
    return np.where(num_words > 0, edits / np.maximum(num_words, 1.0), np.nan)


@cache
def wer_signature() -> str:
    packages = "|".join(f"{name}:{version(name)}" for name in ("jiwer", "transformers", "whisper-normalization"))
    return f"normaliser:whisper-english|empty hypotheses:deletions|{packages}"
