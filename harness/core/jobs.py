"""Run jobs that depend on one another in several processes, each as soon as the jobs that it needs are done."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from multiprocessing.process import BaseProcess

import torch
from tqdm import tqdm
from transformers.utils import logging

from harness.core.errors import UsageError
from harness.core.messages import FOR_THE_USER
from methods.cores import num_cores

Work = Callable[[int], None]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT_BYTES, LEAST_KEPT_BYTES = 2**30, 2**25  # an older glibc accepts at most the second


@dataclass(frozen=True)
class Job:
    """A piece of work. ``needs`` are keys of the jobs that must be done before, ``cost`` is its relative time; ``work`` is
    called with the line of the screen where it shows its progress."""

    name: str
    needs: frozenset[Hashable]
    cost: float
    work: Work


def run(jobs: Mapping[Hashable, Job], workers: int | None = None) -> None:
    """Do all jobs, the costliest chain first. One that fails raises here, with its own message, and stops the others.

    ``workers``: processes (None: one per core; 0: do the jobs in this process, one after the other).
    """
    workers = num_cores() if workers is None else workers
    queue = _Queue(jobs)
    if workers == 0:
        while chosen := queue.take(1):
            jobs[chosen[0]].work(0)
            queue.finish(chosen[0])
    elif jobs:
        _run_in_processes(jobs, queue, min(workers, len(jobs)))


class _Queue:
    """The jobs that can start, the most urgent first."""

    def __init__(self, jobs: Mapping[Hashable, Job]) -> None:
        graph = {key: job.needs & jobs.keys() for key, job in jobs.items()}
        self._order, self._ready = TopologicalSorter(graph), list[Hashable]()
        self._order.prepare()
        self._chains = dict.fromkeys(jobs, 0.0)  # each job's cost and that of the costliest chain of jobs that need it
        for key in reversed([*TopologicalSorter(graph).static_order()]):
            self._chains[key] += jobs[key].cost
            for need in graph[key]:
                self._chains[need] = max(self._chains[need], self._chains[key])

    def take(self, count: int) -> list[Hashable]:
        """Return at most ``count`` jobs, which count as started."""
        if self._order.is_active():
            self._ready += self._order.get_ready()
        self._ready.sort(key=self._chains.__getitem__, reverse=True)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def finish(self, key: Hashable) -> None:
        self._order.done(key)


def _run_in_processes(jobs: Mapping[Hashable, Job], queue: _Queue, workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    lock = context.RLock()
    tqdm.set_lock(lock)
    free = set(range(workers))
    running: dict[Future[None], tuple[Hashable, int]] = {}
    with ProcessPoolExecutor(workers, context, _start_worker, (lock,)) as pool:
        try:
            while True:
                for key in queue.take(len(free)):
                    line = min(free)
                    free.remove(line)
                    with _without_interrupts():
                        running[pool.submit(jobs[key].work, line)] = key, line
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    key, line = running.pop(future)
                    free.add(line)
                    _raise_failure(jobs[key].name, future.exception())
                    queue.finish(key)
        except BaseException:
            _terminate(pool)
            raise


def run_apart(name: str, work: Callable[[], None]) -> None:
    """Do work in a new process that ends with this one; its failure raises here."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        try:
            with _without_interrupts():
                future = pool.submit(work)
            _raise_failure(name, future.exception())
        except BaseException:
            _terminate(pool)
            raise


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that never see Ctrl-C, which a terminal sends to every process: the first one ends the others.

    One that comes meanwhile is not lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _terminate(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(cancel_futures=True)


def _raise_failure(name: str, error: BaseException | None) -> None:
    if isinstance(error, (*FOR_THE_USER, OSError, ModuleNotFoundError)):
        raise error
    if isinstance(error, BrokenProcessPool):
        raise UsageError(
            f"{name}: its process, or one beside it, was killed (out of memory?) or crashed; run the command again, it goes on "
            "from what was kept"
        ) from error
    if error is not None:
        raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error


def _start_worker(lock: object) -> None:
    """Set up a worker: one thread, memory that is kept, and an end together with the process that started it."""
    torch.set_num_threads(1)
    keep_freed()
    tqdm.set_lock(lock)
    logging.disable_progress_bar()
    end_with_parent()


def end_with_parent() -> None:
    """Let this process, which another one started, end when that one does, however it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def keep_freed() -> None:
    """Let this process keep the memory of freed tensors, up to KEPT_BYTES at the heap's end, instead of returning it.

    Rows decoded in a batch allocate and drop megabytes in every step; new pages each time took a quarter of an audit's time.
    Only glibc has this call. Do not use it in a process whose memory is measured.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    if mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) or mallopt(M_MMAP_THRESHOLD, LEAST_KEPT_BYTES):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)  # alone it would freeze the other threshold at its smallest


def _end_with(process: BaseProcess) -> None:
    process.join()
    os._exit(1)
