"""Speak sentences of the world by eSpeak NG: rows with the field names of the real speech datasets.

A condition says how a dataset sounds. "clean" and "other" differ as LibriSpeech's do: the voices of "other" have more accents,
speak faster or slower, and in noise. A talk has two sentences, so that it is longer than the zoo's window.

eSpeak NG is the shared library that the package espeakng-loader carries. It keeps random phases and a generator of its own
between utterances, which no call resets. So it is loaded anew for every utterance and its generators are seeded: the same words
in the same voice are the same samples in every process.
"""

import ctypes
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tasks.base import SAMPLE_RATE, DataError, Split
from tasks.sound import Sound, resample, with_noise
from tasks.world import clauses
from tasks.world.draw import draw, pick, row_id
from tasks.world.english import ENGLISH
from tasks.world.lexicon import FEMALE_NAMES, MALE_NAMES

SYNCHRONOUS, DO_NOT_EXIT, UTF8, CHARACTERS = 2, 0x8000, 1, 1  # of speak_lib.h
RATE, PITCH, PITCH_RANGE = 1, 3, 4
SEED = 1
LAST_EVENT, WORD_EVENT = 0, 1
MOST_WORDS = 8
NAMES = frozenset((*FEMALE_NAMES, *MALE_NAMES))
VARIANTS = ("", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7", "+m8", "+f1", "+f2", "+f3", "+f4", "+f5")
ACCENTS = ("en-us", "en", "en-gb-x-rp")
ALL_ACCENTS = (*ACCENTS, "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc")


@dataclass(frozen=True, kw_only=True)
class _Condition:
    """The way a dataset is spoken and written. Ranges are inclusive; ``style`` is that of its transcripts."""

    accents: tuple[str, ...]
    words_per_minute: tuple[int, int]
    pitch: tuple[int, int]
    snr_db: tuple[float, float]
    style: str
    num_sentences: int = 1


CONDITIONS = {
    "librispeech-clean": _Condition(
        accents=ACCENTS, words_per_minute=(165, 195), pitch=(35, 65), snr_db=(25.0, 40.0), style="upper"
    ),
    "librispeech-other": _Condition(
        accents=ALL_ACCENTS, words_per_minute=(150, 230), pitch=(15, 85), snr_db=(5.0, 20.0), style="upper"
    ),
    "tedlium": _Condition(
        accents=ACCENTS, words_per_minute=(165, 205), pitch=(30, 70), snr_db=(15.0, 30.0), style="lower", num_sentences=2
    ),
    "common-voice": _Condition(
        accents=ALL_ACCENTS, words_per_minute=(155, 200), pitch=(25, 75), snr_db=(10.0, 30.0), style="written"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A recording that is synthesised on demand; the same fields give the same samples."""

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
        """Return each word's (begin, end) in seconds; a word ends with the next one's begin, or with the recording."""
        samples, starts = _spoken(self)
        return tuple(zip(starts, (*starts[1:], len(samples) / SAMPLE_RATE), strict=True))


@lru_cache(maxsize=128)
def _spoken(utterance: Utterance) -> tuple[np.ndarray, tuple[float, ...]]:
    clean, starts = speak_words(
        utterance.text, utterance.voice, utterance.words_per_minute, utterance.pitch, utterance.pitch_range
    )  # fmt: skip
    return with_noise(clean, utterance.snr_db, (utterance.noise_seed,)), starts


def draw_words(rng: random.Random) -> str | None:
    """Draw a short sentence without digits and names, of some 400 words; None to be asked again."""
    sentence = ENGLISH.realise(clauses.draw_sentence(rng), rng)
    first, *others = sentence.split()
    named = first in NAMES or any(word[0].isupper() for word in others)
    digits = any(letter.isdigit() for letter in sentence)
    return None if len(others) >= MOST_WORDS or named or digits else sentence


def transcript(sentence: str, style: str) -> str:
    """Write a sentence as LibriSpeech ("upper") or TED-LIUM ("lower") does, without punctuation, or as it is ("written")."""
    if style == "written":
        return sentence
    bare = "".join(letter for letter in sentence if letter.isalnum() or letter in " '")
    return bare.upper() if style == "upper" else bare.lower()


def _recorded(condition: _Condition, rng: random.Random) -> tuple[str, Utterance] | None:
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
    """Make a row: id, text, audio (an ``Utterance``), speaker. The words decide between train and test."""
    condition = CONDITIONS[dataset]
    utterance = draw(f"speech {dataset}", seed, split, index, lambda rng: _recorded(condition, rng))
    text = transcript(utterance.text, condition.style)
    return {"id": row_id(split, index), "text": text, "audio": utterance, "speaker_id": utterance.voice}


class _Event(ctypes.Structure):
    """``espeak_EVENT`` of speak_lib.h; ``text_position`` counts characters from 1, ``audio_position`` milliseconds."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "unique", "text_position", "length", "audio_position", "sample")),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


def speak_words(
    text: str, voice: str, words_per_minute: int, pitch: int, pitch_range: int
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return samples [n] fp32 at 16 kHz, within -1 to 1, and each word's begin in seconds; words spoken as one begin together.

    Args:
        voice: an eSpeak voice with or without a variant, such as "en-us+f3".
        words_per_minute: 80 to 450.
        pitch, pitch_range: 0 to 100.

    Raises:
        DataError: a voice that the library does not have, or no library for this machine.
    """
    libc, library = ctypes.CDLL(None), _load()
    try:
        return _synthesise(libc, library, text, voice, {RATE: words_per_minute, PITCH: pitch, PITCH_RANGE: pitch_range})
    finally:
        library.espeak_Terminate()
        libc.dlclose(ctypes.c_void_p(library._handle))


def _load() -> Any:
    import espeakng_loader

    try:
        return ctypes.CDLL(espeakng_loader.get_library_path())
    except OSError as error:
        raise DataError(
            f"toy speech: eSpeak NG's library cannot be loaded ({error}); install espeakng-loader for this machine, or give "
            "--data a folder"
        ) from error


def _synthesise(
    libc: Any, library: Any, text: str, voice: str, settings: dict[int, int]
) -> tuple[np.ndarray, tuple[float, ...]]:
    import espeakng_loader

    parts: list[np.ndarray] = []
    began: dict[int, float] = {}

    def collect(samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != LAST_EVENT:
            if events[index].type == WORD_EVENT:
                began.setdefault(events[index].text_position - 1, events[index].audio_position / 1000)
            index += 1
        return 0

    callback = CALLBACK(collect)
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), DO_NOT_EXIT)
    library.espeak_SetSynthCallback(callback)
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise DataError(f"voice {voice!r}: eSpeak NG has no such voice; expected one such as 'en-us' or 'en-us+f3'")
    for parameter, value in settings.items():
        library.espeak_SetParameter(parameter, value, 0)
    libc.srand(SEED)
    library.espeak_ng_SetRandSeed(ctypes.c_long(SEED))
    spoken = text.encode() + b"\0"
    arguments = (spoken, ctypes.c_size_t(len(spoken)), 0, CHARACTERS, 0, UTF8, None, None)
    library.espeak_Synth(*arguments)
    library.espeak_Synchronize()
    return resample(np.concatenate(parts) / np.float32(2**15), rate), _word_starts(text, began)


def _word_starts(text: str, began: dict[int, float]) -> tuple[float, ...]:
    """Return each word's begin. Where the library joins several ("of the") it reports the first only."""
    starts, position, last = list[float](), 0, 0.0
    for word in text.split():
        position = text.index(word, position)
        last = began.get(position, last)
        starts.append(last)
        position += len(word)
    return tuple(starts)
