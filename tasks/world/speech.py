"""Sentences of the world spoken by eSpeak NG: rows with the field names of the real speech datasets.

A condition says how a dataset sounds. "clean" and "other" differ as LibriSpeech's do: the voices of "other" have more accents,
speak faster or slower, and in noise. A talk has two sentences, so that it is longer than the zoo's window.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tasks.base import Split
from tasks.sound import SAMPLE_RATE, Sound, with_noise
from tasks.world import clauses, english
from tasks.world.draw import draw, pick, row_id
from tasks.world.voice import speak_words
from tasks.world.words import FEMALE_NAMES, MALE_NAMES

MOST_WORDS = 8
NAMES = frozenset((*FEMALE_NAMES, *MALE_NAMES))
VARIANTS = ("", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7", "+m8", "+f1", "+f2", "+f3", "+f4", "+f5")
ACCENTS = ("en-us", "en", "en-gb-x-rp")
ALL_ACCENTS = (*ACCENTS, "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """How a dataset is spoken and written. Ranges are inclusive; ``style`` is that of its transcripts."""

    accents: tuple[str, ...]
    words_per_minute: tuple[int, int]
    pitch: tuple[int, int]
    snr_db: tuple[float, float]
    style: str
    num_sentences: int = 1


CONDITIONS = {
    "librispeech-clean": Condition(
        accents=ACCENTS, words_per_minute=(165, 195), pitch=(35, 65), snr_db=(25.0, 40.0), style="upper"
    ),
    "librispeech-other": Condition(
        accents=ALL_ACCENTS, words_per_minute=(150, 230), pitch=(15, 85), snr_db=(5.0, 20.0), style="upper"
    ),
    "tedlium": Condition(
        accents=ACCENTS, words_per_minute=(165, 205), pitch=(30, 70), snr_db=(15.0, 30.0), style="lower", num_sentences=2
    ),
    "common-voice": Condition(
        accents=ALL_ACCENTS, words_per_minute=(155, 200), pitch=(25, 75), snr_db=(10.0, 30.0), style="written"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A recording that is made when it is asked for; the same fields give the same samples."""

    text: str
    voice: str
    words_per_minute: int
    pitch: int
    pitch_range: int
    snr_db: float
    noise_seed: int

    def sound(self) -> Sound:
        return Sound(_spoken(self)[0])

    def words(self) -> tuple[tuple[float, float], ...]:
        """When each word of ``text`` begins and ends, seconds: the next one's begin, or the recording's end."""
        samples, starts = _spoken(self)
        return tuple(zip(starts, (*starts[1:], len(samples) / SAMPLE_RATE), strict=True))


@lru_cache(maxsize=128)
def _spoken(utterance: Utterance) -> tuple[np.ndarray, tuple[float, ...]]:
    clean, starts = speak_words(
        utterance.text, utterance.voice, utterance.words_per_minute, utterance.pitch, utterance.pitch_range
    )  # fmt: skip
    return with_noise(clean, utterance.snr_db, (utterance.noise_seed,)), starts


def draw_words(rng: random.Random) -> str | None:
    """A short sentence without digits and names, or None to be asked again: some 400 words, so that each is heard often."""
    sentence = english.realise(clauses.draw_sentence(rng), rng)
    first, *others = sentence.split()
    named = first in NAMES or any(word[0].isupper() for word in others)
    digits = any(letter.isdigit() for letter in sentence)
    return None if len(others) >= MOST_WORDS or named or digits else sentence


def transcript(sentence: str, style: str) -> str:
    """As LibriSpeech ("upper") and TED-LIUM ("lower") write it, without punctuation; or as it is ("written")."""
    if style == "written":
        return sentence
    bare = "".join(letter for letter in sentence if letter.isalnum() or letter in " '")
    return bare.upper() if style == "upper" else bare.lower()


def _recorded(condition: Condition, rng: random.Random) -> tuple[str, Utterance] | None:
    sentences = [draw_words(rng) for _ in range(condition.num_sentences)]
    if not all(sentences):
        return None
    text = " ".join(sentence for sentence in sentences if sentence)
    utterance = Utterance(
        text=text,
        voice=pick(rng, condition.accents) + pick(rng, VARIANTS),
        words_per_minute=rng.randint(*condition.words_per_minute),
        pitch=rng.randint(*condition.pitch),
        pitch_range=rng.randint(30, 70),
        snr_db=round(rng.uniform(*condition.snr_db), 2),
        noise_seed=rng.getrandbits(31),
    )
    return text, utterance


def speech_row(dataset: str, seed: int, split: Split, index: int) -> dict[str, Any]:
    """id, text, audio (an ``Utterance``) and speaker; the words decide between train and test."""
    condition = CONDITIONS[dataset]
    utterance = draw(f"speech {dataset}", seed, split, index, lambda rng: _recorded(condition, rng))
    text = transcript(utterance.text, condition.style)
    return {"id": row_id(split, index), "text": text, "audio": utterance, "speaker_id": utterance.voice}
