"""Decode audio files to what models hear: one channel of fp32 samples at 16 kHz."""

import re
from collections.abc import Sequence
from io import BytesIO
from math import gcd
from os.path import isfile  # unlike Path's it answers for names that no file can have
from pathlib import Path

import numpy as np

from tasks.base import SAMPLE_RATE, DataError, Sound

GUARD_S = 0.05  # of silence behind a signal that is resampled: Fourier's signals are periodic, and its end would meet its start
# libsndfile notes where a header announces more bytes of sound than the file holds, and reads what is there.
CUT_OFF = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN_BYTES = 2**31 - 2**20  # announced by programs that write a header before they know how much follows


def decode(file: Path | bytes, what: str) -> Sound:
    """Read an audio file or its bytes: channels are averaged, other rates resampled. ``what`` names it in errors.

    Raises DataError for one that is missing, empty, cut off, or no audio. A cut-off MP3 is a shorter recording: its header
    need not say how long it is.
    """
    import soundfile

    try:
        with soundfile.SoundFile(BytesIO(file) if isinstance(file, bytes) else file) as opened:
            samples, rate, notes = opened.read(dtype="float32", always_2d=True), opened.samplerate, opened.extra_info
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise DataError(
            f"{what}: cannot be decoded ({_reason(file, error)}); expected FLAC, WAV, OGG or MP3: correct the file or remove "
            "the row"
        ) from error
    cut_off = CUT_OFF.search(notes)
    if cut_off and int(cut_off[1]) < UNKNOWN_BYTES:
        raise DataError(
            f"{what}: it is cut off ({cut_off[2]} bytes, its header announces {cut_off[1]}); copy it again or remove the row"
        )
    if len(samples) == 0:
        raise DataError(f"{what}: it has 0 samples, expected a recording; correct the file or remove the row")
    if not np.isfinite(samples).all():
        raise DataError(f"{what}: its samples are not all finite, expected numbers; correct the file or remove the row")
    return to_mono(samples, rate)


def _reason(file: Path | bytes, error: Exception) -> str:
    if isinstance(file, bytes):
        return "0 bytes" if not file else "not audio"
    if not isfile(file):
        return "no such file"
    return "0 bytes" if file.stat().st_size == 0 else str(error).splitlines()[0].removeprefix(f"Error opening {str(file)!r}: ")


def to_mono(samples: np.ndarray, rate: int) -> Sound:
    """Convert samples [n, channels] at ``rate`` Hz to one channel at ``SAMPLE_RATE``."""
    num_channels, done = samples.shape[1], []
    if num_channels > 1:
        done.append(f"{num_channels} channels averaged")
    if rate != SAMPLE_RATE:
        done.append(f"resampled from {rate} to {SAMPLE_RATE} Hz")
    mono = samples.mean(axis=1) if num_channels > 1 else samples[:, 0]
    return Sound(resample(mono, rate), ", ".join(done) or None)


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Resample [n] at ``rate`` Hz to [ceil(n 16000 / rate)] at 16 kHz, band-limited: the spectrum is cut or filled."""
    if rate == SAMPLE_RATE:
        return np.ascontiguousarray(samples, dtype=np.float32)
    common = gcd(rate, SAMPLE_RATE)
    period_in, period_out = rate // common, SAMPLE_RATE // common
    periods = -(-(len(samples) + int(GUARD_S * rate)) // period_in)
    spectrum = np.fft.rfft(samples, periods * period_in)
    resampled = np.fft.irfft(spectrum[: periods * period_out // 2 + 1], periods * period_out) * (period_out / period_in)
    return resampled[: -(-len(samples) * SAMPLE_RATE // rate)].astype(np.float32)


def with_noise(samples: np.ndarray, snr_db: float, seed: Sequence[int]) -> np.ndarray:
    """Add white noise ``snr_db`` decibels below the mean power of the samples."""
    noise = np.random.default_rng(seed).standard_normal(len(samples), dtype=np.float32)
    power = float(np.mean(np.square(samples, dtype=np.float64)))
    return samples + noise * np.float32((power * 10 ** (-snr_db / 10)) ** 0.5)


def windows_of(samples: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut samples into windows of at most ``size``, each sharing a third with the one before; the last has their end."""
    return [samples[start : start + size] for start in starts_of(len(samples), size)]


def starts_of(num_samples: int, size: int) -> range:
    """Return the first sample of every window of ``size``.

    Neighbours share two sixths of a window, each rounded as transformers' pipeline rounds its default stride.
    """
    hop = size - 2 * round(size / 6)
    return range(0, max(1, num_samples - size + hop), hop)
