"""Work in a process of its own that has a deadline: a kernel that hangs, or breaks the device's context, harms no other part.

The process is forked, so that it has the libraries that this one imported; this one must not have touched the device.
"""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

from harness.core.jobs import end_with_parent

GRACE_S = 3.0  # between the signal that a process may answer and the one that it may not


def run_apart(work: Callable[[], None], seconds: float) -> str | None:
    """Do work in another process; return None where it returned, else how it ended: at its deadline, or by an error."""
    process = get_context("fork").Process(target=_alone, args=(work,))
    process.start()
    try:
        process.join(max(0.0, seconds))
        if process.exitcode is None:
            return f"ended at its deadline, after {seconds:.0f} s"
    finally:
        _end(process)
    if not process.exitcode:
        return None
    return f"its process ended with {f'signal {-process.exitcode}' if process.exitcode < 0 else f'status {process.exitcode}'}"


def _alone(work: Callable[[], None]) -> None:
    """Lead a group of one's own, with whatever processes the work starts, and end when the parent does."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    work()


def _end(process: BaseProcess) -> None:
    """End what still runs of a process and of those that it started."""
    assert process.pid is not None
    for one in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, one)
        except ProcessLookupError:  # it has ended with all of them, or leads no group yet
            process.kill()
        process.join(GRACE_S)
