"""English speech recognition: LibriSpeech (Panayotov et al. 2015), TED-LIUM 3 (Hernandez et al. 2018), Common Voice (Ardila
et al. 2020), which Optimized measures Whisper on (Section 4)."""

from functools import partial

import numpy as np

from tasks.additive import AdditiveTask, Sums
from tasks.base import Example, PromptStyle, ReferenceScore, Statistics
from tasks.scoring import wer
from tasks.sources.audio import recording_of
from tasks.sources.dataset import Dataset, HubFiles, Row, id_field, text_field
from tasks.world import speech_row

LIBRISPEECH = ("openslr/librispeech_asr", "71cacbfb7e2354c4226d01e70d77d5fca3d04ba1")
NOT_SCORED = "ignore_time_segment_in_scoring"  # how TED-LIUM's transcripts mark music and applause


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
    """A speaker stays on one side, and a lone file is a test set."""
    return Dataset(
        name=name,
        folders=(folder,),
        test_stems=test_stems,
        train_stems=train_stems,
        hub=hub,
        toy_row=partial(speech_row, name),
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


class Speech(AdditiveTask):
    """Word error rate (a fraction, as the paper prints it). There is no prompt: the model hears the example's audio."""

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
