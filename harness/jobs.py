"""Runs jobs that need one another, several at once in processes of their own, each as soon as what it needs is done."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

import torch
from tqdm import tqdm
from transformers.utils import logging

from harness.errors import UsageError
from harness.memory import keep_freed
from methods.cores import num_cores
from methods.errors import InputError
from tasks.errors import DataError

EXPECTED = (UsageError, DataError, InputError)  # errors whose message is meant for the user as it is
Work = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """``needs`` are keys of the jobs that must be done before, ``cost`` its relative time; ``work`` is given a line of the
    screen for its progress."""

    name: str
    needs: frozenset[Hashable]
    cost: float
    work: Work


def run(jobs: Mapping[Hashable, Job], workers: int | None = None) -> None:
    """Do all jobs, the costliest chain first. One that fails raises here, with its own message, and stops the others.

    ``workers``: processes (None: one per core of ours; 0: this one).
    """
    workers = num_cores() if workers is None else workers
    if workers == 0:
        waiting = dict(jobs)
        while waiting:
            waiting.pop(ready(waiting)[0]).work(0)
    elif jobs:
        _run_in_processes(jobs, min(workers, len(jobs)))


def ready(waiting: Mapping[Hashable, Job], unfinished: frozenset[Hashable] = frozenset()) -> list[Hashable]:
    """Which jobs could start, the most urgent first; ``unfinished`` have started."""
    chains: dict[Hashable, float] = {}

    def chain(key: Hashable) -> float:
        """Its own cost and the costliest way through what needs it."""
        if key not in chains:
            after = [chain(other) for other, job in waiting.items() if key in job.needs]
            chains[key] = waiting[key].cost + max(after, default=0.0)
        return chains[key]

    blocked = waiting.keys() | unfinished
    return sorted((key for key, job in waiting.items() if not job.needs & blocked), key=chain, reverse=True)


def _run_in_processes(jobs: Mapping[Hashable, Job], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    lock = context.RLock()
    tqdm.set_lock(lock)
    waiting, free = dict(jobs), set(range(workers))
    running: dict[Future[None], tuple[Hashable, int]] = {}
    with ProcessPoolExecutor(workers, context, _start_worker, (lock,)) as pool:
        try:
            while waiting or running:
                started = frozenset(key for key, _ in running.values())
                for key in ready(waiting, started)[: len(free)]:
                    line = min(free)
                    free.remove(line)
                    running[pool.submit(waiting.pop(key).work, line)] = key, line
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    key, line = running.pop(future)
                    free.add(line)
                    _raise_failure(jobs[key].name, future.exception())
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _raise_failure(name: str, error: BaseException | None) -> None:
    if isinstance(error, (*EXPECTED, OSError)):
        raise error
    if isinstance(error, BrokenProcessPool):
        raise UsageError(
            f"{name}: its process was killed (out of memory?); run the command again, it goes on from what was kept"
        ) from error
    if error is not None:
        raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error


def _start_worker(lock: object) -> None:
    """One thread a process, which keeps its memory; and no process outlives the one that started it."""
    torch.set_num_threads(1)
    keep_freed()
    tqdm.set_lock(lock)
    logging.disable_progress_bar()
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(process: BaseProcess) -> None:
    process.join()
    os._exit(1)
