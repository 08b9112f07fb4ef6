"""Jobs in processes: each begins when what it needs is done, and what goes wrong is said by the parent."""

import os
import signal
import time
from functools import partial
from graphlib import CycleError
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.jobs import Job, _Queue, run, run_apart


def _fail(position: int) -> None:
    raise ValueError("the reason")


def _die(position: int) -> None:
    os._exit(9)


def test_failing_workers_speak_in_the_parent() -> None:
    with pytest.raises(RuntimeError, match="a-model: ValueError: the reason"):
        run({1: Job("a-model", frozenset(), 0.0, _fail)}, workers=1)
    with pytest.raises(UsageError, match="a-model: its process, or one beside it, was killed"):
        run({1: Job("a-model", frozenset(), 0.0, _die)}, workers=1)


def _be_interrupted(position: int) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_workers_do_not_see_ctrl_c() -> None:
    """A terminal sends it to every process, and each would print a traceback. This one does see it, and ends the others."""
    run({1: Job("a-model", frozenset(), 0.0, _be_interrupted)}, workers=1)
    run_apart("a-model", partial(_be_interrupted, 0))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _job(done: list[str], name: str, needs: str = "", cost: float = 1.0) -> Job:
    return Job(name, frozenset(needs), cost, lambda _: done.append(name))


def test_jobs_begin_when_what_they_need_is_done_the_costliest_chain_first() -> None:
    done: list[str] = []
    jobs = {
        "a": _job(done, "a"),
        "b": _job(done, "b", "a", cost=5.0),
        "c": _job(done, "c", cost=3.0),
        "d": _job(done, "d", "bc"),
        "e": _job(done, "e", cost=0.0),
    }
    queue = _Queue(jobs)
    assert queue.take(3) == ["a", "c", "e"]
    queue.finish("a")
    assert (queue.take(9), queue.take(9)) == (["b"], [])
    run(jobs, workers=0)
    assert done == ["a", "b", "c", "d", "e"]


def test_jobs_that_need_one_another_are_refused() -> None:
    with pytest.raises(CycleError):
        run({"a": _job([], "a", "b"), "b": _job([], "b", "a")}, workers=0)


def _meet(folder: Path, mine: str, other: str, line: int) -> None:
    (folder / mine).write_text(str(line))
    for _ in range(600):
        if (folder / other).exists():
            return
        time.sleep(0.05)
    raise RuntimeError(f"{other} did not run beside {mine}")


def test_a_job_does_not_wait_for_others_that_it_does_not_need(tmp_path: Path) -> None:
    """``last`` needs ``first`` alone, and ``long`` only ends once ``last`` has begun."""
    jobs = {
        "long": Job("long", frozenset(), 9.0, partial(_meet, tmp_path, "long", "last")),
        "first": Job("first", frozenset(), 1.0, partial(_meet, tmp_path, "first", "first")),
        "last": Job("last", frozenset({"first"}), 1.0, partial(_meet, tmp_path, "last", "long")),
    }
    run(jobs, workers=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"long": "0", "first": "1", "last": "1"}
