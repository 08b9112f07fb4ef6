"""Speech synthesis by eSpeak NG, from the shared library that the package espeakng-loader carries.

The library keeps random phases and a generator of its own between utterances, which no call resets. So it is loaded anew for
every utterance and its generators are seeded: the same words in the same voice are the same samples in every process.
"""

import ctypes
from typing import Any

import numpy as np

from tasks.errors import DataError
from tasks.sound import resample

SYNCHRONOUS, DO_NOT_EXIT, UTF8, CHARACTERS = 2, 0x8000, 1, 1  # of speak_lib.h
RATE, PITCH, PITCH_RANGE = 1, 3, 4
SEED = 1
LAST_EVENT, WORD_EVENT = 0, 1


class Event(ctypes.Structure):
    """``espeak_EVENT`` of speak_lib.h; ``text_position`` counts characters from 1, ``audio_position`` milliseconds."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "unique", "text_position", "length", "audio_position", "sample")),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))


def speak(text: str, voice: str, words_per_minute: int, pitch: int, pitch_range: int) -> np.ndarray:
    """Samples [n] fp32 at 16 kHz, within -1 to 1."""
    return speak_words(text, voice, words_per_minute, pitch, pitch_range)[0]


def speak_words(
    text: str, voice: str, words_per_minute: int, pitch: int, pitch_range: int
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Samples [n] fp32 at 16 kHz, within -1 to 1, and when each word begins, seconds; words spoken as one begin together.

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
    """By word; the library tells of the first only where it joins several ("of the")."""
    starts, position, last = list[float](), 0, 0.0
    for word in text.split():
        position = text.index(word, position)
        last = began.get(position, last)
        starts.append(last)
        position += len(word)
    return tuple(starts)
