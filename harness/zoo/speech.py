"""Recordings of a corpus as features and token ids: computed once, read by every model of the group."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerFast, WhisperFeatureExtractor

import tasks
from harness.core.errors import UsageError
from harness.zoo.corpus import new_order, ragged, read_rows, tokenizer_for, write_corpus
from harness.zoo.descriptions import SpeechCorpus
from harness.zoo.recipes import data_of
from tasks.base import SAMPLE_RATE, Recording
from tasks.sound import starts_of, windows_of
from tasks.sources.read import read_examples
from tasks.world.speech import Utterance, transcript

# At the vocabulary's end, as in Whisper: transformers takes tokens above the last of them for timestamps.
START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS = "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"


@dataclass(frozen=True)
class SpeechRows:
    """Rows of one corpus: features [N, mels, frames] in fp16, and ragged targets as in ``zoo.corpus.Encoded``."""

    features: Float[Tensor, "N mels frames"]
    target: Int[Tensor, "T"]
    target_ends: Int[Tensor, "N"]
    part: Int[Tensor, "N"]

    def __len__(self) -> int:
        return len(self.part)

    def tokens(self, index: int) -> list[int]:
        """A row's transcript, with the end of text."""
        first = int(self.target_ends[index - 1]) if index else 0
        return self.target[first : self.target_ends[index]].tolist()


def feature_extractor(corpus: SpeechCorpus) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(
        feature_size=corpus.num_mel_bins, hop_length=corpus.hop_length, chunk_length=corpus.window_s
    )  # fmt: skip


def build_speech(corpus: SpeechCorpus, folder: Path, source: str, position: int = 0) -> None:
    """Read the tasks' training recordings, learn the tokenizer, encode, and write it all to ``folder``."""
    source = data_of(corpus, source)
    rows = list(_recordings(corpus, source, position))
    order = new_order(corpus, len(rows), source)
    texts = [text for _, text, _ in rows]
    tokenizer = speech_tokenizer(corpus, texts)
    encoded = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts, add_special_tokens=False).input_ids]
    kept = [index for index in order if len(encoded[index]) <= corpus.max_target]
    tensors = {
        "features": torch.stack([rows[index][2] for index in kept]),
        **ragged("target", [encoded[index] for index in kept]),
        "part": torch.tensor([rows[index][0] for index in kept]),
    }
    write_corpus(folder, corpus, source, tensors, tokenizer)


def _recordings(corpus: SpeechCorpus, source: str, position: int) -> Iterator[tuple[int, str, Float[Tensor, "mels frames"]]]:
    """(part, text in lower case without punctuation, features) of every recording that fits the window, or of its windows."""
    extractor, total = feature_extractor(corpus), sum(part.num_examples for part in corpus.parts)
    with tqdm(total=total, desc=f"read {corpus.name}", position=position, mininterval=1.0) as bar:
        for number, part in enumerate(corpus.parts):
            for example in read_examples(tasks.get_task(part.task), source, "train", part.num_examples, corpus.seed):
                bar.update()
                if example.audio is None:
                    raise UsageError(f"task '{part.task}': it has no recordings; expected a task of speech")
                for text, samples in labelled_windows(example.audio, example.references[0], corpus.window_s * SAMPLE_RATE):
                    yield number, transcript(text, "lower"), features_of(extractor, samples)[0].half()


def labelled_windows(recording: Recording, text: str, size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (text, samples) of a recording of at most ``size`` samples. A longer one of toy speech is cut as it is for
    decoding, and a word belongs to the windows that have its middle; of real ones nobody knows when words are spoken, and
    they are left out."""
    samples = recording.sound().samples
    if len(samples) <= size:
        yield text, samples
    elif isinstance(recording, Utterance):
        words = [
            (word, (begin + end) / 2 * SAMPLE_RATE)
            for word, (begin, end) in zip(recording.text.split(), recording.words(), strict=True)
        ]
        for start, window in zip(starts_of(len(samples), size), windows_of(samples, size), strict=True):
            yield " ".join(word for word, middle in words if start <= middle < start + size), window


def features_of(extractor: WhisperFeatureExtractor, samples: np.ndarray) -> Float[Tensor, "1 mels frames"]:
    """Log-Mel features of samples at 16 kHz, which silence fills up to the window."""
    return extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features


def speech_tokenizer(corpus: SpeechCorpus, texts: list[str]) -> PreTrainedTokenizerFast:
    """The corpus's own, with the tokens that a transcription begins with, or a public Whisper's."""
    tokenizer = tokenizer_for(corpus, texts)
    tokenizer.add_tokens([START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS], special_tokens=True)
    return tokenizer


def generation_settings(tokenizer: PreTrainedTokenizerFast, position_limit: int) -> GenerationConfig:
    """The settings that Whisper's checkpoints have: forced tokens by name, and no text that ends before it begins."""
    names = (START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS)
    start, english, transcribe, no_timestamps = (tokenizer.convert_tokens_to_ids(name) for name in names)
    end = tokenizer.eos_token_id
    return GenerationConfig(
        decoder_start_token_id=start, bos_token_id=end, eos_token_id=end, pad_token_id=end, max_length=position_limit,
        begin_suppress_tokens=[end], suppress_tokens=[start, english, transcribe, no_timestamps], is_multilingual=True,
        lang_to_id={ENGLISH: english}, task_to_id={"transcribe": transcribe}, no_timestamps_token_id=no_timestamps,
        language="en", task="transcribe", return_timestamps=False,
    )  # fmt: skip


def read_speech(folder: Path) -> SpeechRows:
    """Read the rows that ``build_speech`` wrote; UsageError if they cannot be read."""
    return read_rows(folder, SpeechRows)
