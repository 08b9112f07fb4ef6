"""What a Whisper's draft learns to hear (`foretoken draft`): recordings, and mixtures of them where there are few.

A mixture is several recordings one behind the other, each faster or slower, with pauses and, every other time, noise. Whatever
is said in it, the target's law of it is what is learned: no transcript is read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from harness.core.errors import UsageError
from tasks.base import SAMPLE_RATE, Example, Recording
from tasks.sound import resample, windows_of, with_noise

MOST = 1000  # windows: what a target's encoder makes of one is kept, 1.5 MB of Whisper base
SPEEDS = (0.9, 0.95, 1.0, 1.05, 1.1)
PAUSES_S = (0.1, 0.8)
SNR_DB = (15.0, 35.0)

Sounds = Iterator[tuple[str, Callable[[], np.ndarray]]]


def recordings(examples: Iterable[tuple[str, Example]], size: int, num_alone: int, seed: int) -> Sounds:
    """Yield the group of a window of ``size`` samples at most, and what makes its samples: those of all rows, then mixtures.

    Mixtures have nothing of the first ``num_alone`` windows, among which some are held out. A row is a group of its own.

    Raises:
        DataError: a recording that cannot be read.
        UsageError: a row without a recording.
    """
    count, mixed = 0, list[Recording]()
    for name, example in examples:
        if example.audio is None:
            raise UsageError(f"task {name!r}: the target hears, and this task has no recordings; expected one of speech")
        windows = windows_of(example.audio.sound().samples, size)
        if count >= num_alone and len(windows) == 1:
            mixed.append(example.audio)
        for window in windows[: MOST - count]:
            count += 1
            yield f"{name} {example.id}", partial(np.asarray, window)
        if count == MOST:
            return
    for number in range(MOST - count if mixed else 0):
        yield f"mixture {number}", partial(mixture, mixed, size, (seed, number))


def mixture(of: Sequence[Recording], size: int, seed: Sequence[int]) -> np.ndarray:
    """Put recordings one behind the other until the next would not fit into so many samples, at least one."""
    random = np.random.default_rng(seed)
    room, parts = int(random.uniform(0.3, 1.0) * size), list[np.ndarray]()
    while True:
        samples = of[int(random.integers(len(of)))].sound().samples
        part = resample(samples, round(SAMPLE_RATE * random.choice(SPEEDS)))[:size]
        pause = np.zeros(int(random.uniform(*PAUSES_S) * SAMPLE_RATE), np.float32)
        if parts and len(part) + len(pause) > room:
            break
        parts += [part, pause]
        room -= len(part) + len(pause)
    mixed = np.concatenate(parts)[:size]
    return with_noise(mixed, random.uniform(*SNR_DB), [*seed, 1]) if random.random() < 0.5 else mixed
