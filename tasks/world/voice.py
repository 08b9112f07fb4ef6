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
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def speak(text: str, voice: str, words_per_minute: int, pitch: int, pitch_range: int) -> np.ndarray:
    """Samples [n] fp32 at 16 kHz, within -1 to 1.

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


def _synthesise(libc: Any, library: Any, text: str, voice: str, settings: dict[int, int]) -> np.ndarray:
    import espeakng_loader

    parts: list[np.ndarray] = []

    def collect(samples: Any, count: int, _: Any) -> int:
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
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
    return resample(np.concatenate(parts) / np.float32(2**15), rate)
