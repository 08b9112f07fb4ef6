"""Patience with other programs: what they take of the processors while something is timed, and waiting until they are done.

Whether an example is decoded again is decided by the work of others alone, never by how long the example took: its times are
not chosen by their outcome.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from harness.core.errors import UsageError

Value = TypeVar("Value")

MOST_SHARE = 0.05  # of this process's processors, what others may take while something is timed
LEAST_S = 0.1  # of others' processor time: the system counts all processors' together in ticks of 0.01 s
LOOK_S = 1.0  # so long a look at the machine takes while others are waited for
VARIABLE = "FORETOKEN_PATIENCE"  # minutes for which one process waits for others in all, and decodes again what they disturbed


class Others:
    """What processes other than this one and those that it started take of the processors that it may use."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._since, self._all, self._own = time.perf_counter(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """Return the share that others took since the last look, 0 where it is too little to tell; the next look begins."""
        since, every, own = self._since, self._all, self._own
        self._begin()
        taken = (self._all - every) - (self._own - own)
        seconds = (self._since - since) * len(_processors())
        return taken / seconds if taken > LEAST_S else 0.0

    def disturb(self) -> bool:
        return self.share() > MOST_SHARE


@dataclass
class Patience:
    """Has work done again that other processes disturbed, once they are done; when no seconds of it are left, no more."""

    left_s: float = 0.0

    def undisturbed(self, work: Callable[[], Value]) -> Value:
        """Return what ``work`` returns: of the first time that others left it alone, or, out of patience, of the last."""
        if self.left_s <= 0:
            return work()
        others = Others()
        value = work()
        if (share := others.share()) <= MOST_SHARE:
            return value
        begin = time.perf_counter()
        print(
            f"foretoken: note: other processes took {share:.0%} of the processors while an example was timed; it is decoded "
            f"again when they are done (or in {self.left_s / 60:.0f} minutes at most)",
            file=sys.stderr,
        )
        while time.perf_counter() - begin < self.left_s:
            time.sleep(LOOK_S)
            if others.disturb():
                continue
            value = work()
            if not others.disturb():
                break
        self.left_s -= time.perf_counter() - begin
        return value


def asked_for() -> Patience:
    """Return the patience that the environment variable asks for: none without it, since of two that wait none would begin.

    Raises:
        UsageError: no number of minutes.
    """
    said = os.environ.get(VARIABLE) or "0"
    if not said.isascii() or not said.isdecimal():
        raise UsageError(f"{VARIABLE} {said!r}: expected whole minutes to wait for other programs, such as 10")
    return Patience(60.0 * int(said))


def _processors() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _busy_seconds() -> float:
    """Return the seconds that this process's processors were not idle since the machine started; a host's share counts."""
    import psutil  # a GPU machine may lack it, where nobody looks

    times = psutil.cpu_times(percpu=True)
    idle = ("idle", "iowait", "guest", "guest_nice")  # guests are counted as users, too
    return sum(
        sum(seconds for name, seconds in one._asdict().items() if name not in idle)
        for number, one in enumerate(times)
        if number in _processors()
    )


def _own_seconds() -> float:
    """Return the processor time of this process and of all that it started, those that ended and were waited for included."""
    import psutil

    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # its own, as user and in the kernel, and that of ended children
        except psutil.NoSuchProcess:
            continue  # its time is its parent's now
    return total
