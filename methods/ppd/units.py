"""The compute units beside the main process. They run the first layers on candidates for the next token (PPD Algorithm 2).

``post`` starts candidates in slots 0, 1, ...; ``wait`` gives the one that proved right, and the others are ignored.
``SubProcesses`` really runs them in parallel: k processes with a candidate each, or one that runs all as a batch. ``Simulated``
runs them here, one after another, on a clock that pretends they had run side by side.
"""

import multiprocessing
import os
import platform
import signal
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from methods.errors import InputError, WorkerError
from methods.models.base import Stack
from methods.ppd.memory import ORDERED_STORES, Candidates, Mailbox
from methods.types import Clock

LOOK_S = 0.1  # how often a waiting main process looks whether the awaited sub-process lives
WATCH_S = 1.0  # how often it looks at all of them while it need not wait
START_S = 120.0  # a spawned process imports torch, and on a GPU makes a context, before it can work
SPINS = 200  # looks at the mailbox, some 20 us, before the core is offered to others


@dataclass
class _Served:
    """The data of a sub-process, inherited by fork or pickled by spawn (tensors go as handles, not as copies)."""

    stack: Stack
    mailbox: Mailbox
    num_slots: int
    spins: bool
    num_threads: int
    parent: int


def start_method(stack: Stack, num_threads: int) -> str:
    """Return how sub-processes start: a fork inherits neither a GPU nor other threads."""
    return "fork" if stack.device.type == "cpu" and num_threads == 1 else "spawn"


class SubProcesses:
    """Sub-processes that share weights, cache and mailbox with this one. They sleep while no generation is under way.

    One that has not answered for ``answer_s`` seconds is taken for dead.

    By fork where each has one CPU thread: the weights are the parent's own pages. By spawn elsewhere: neither CUDA nor OpenMP's
    threads survive a fork.

    Raises:
        InputError: a processor on which another core may see a process's writes in another order.
        WorkerError: a sub-process that does not come up.
    """

    def __init__(
        self,
        stack: Stack,
        capacity: int,
        num_slots: int,
        slots_per_unit: int,
        num_threads: int,
        spins: bool,
        answer_s: float,
    ) -> None:
        if not ORDERED_STORES:
            raise InputError(
                f"execution: processes on {platform.machine()} may see each other's writes out of order; expected an x86-64 "
                "processor: use --execution simulated"
            )
        self.slots_per_unit, self._spins, self._answer_s = slots_per_unit, spins, answer_s
        self.num_units = num_slots // slots_per_unit
        context: Any = multiprocessing.get_context(start_method(stack, num_threads))
        self._mailbox = Mailbox(stack, capacity, num_slots, self.num_units, context)
        self.storage = self._mailbox.storage
        self._round = 0
        self._requests, self._answers = self._mailbox.requests, self._mailbox.answers
        self._wake = [context.Semaphore(0) for _ in range(self.num_units)]
        self._done = [context.Semaphore(0) for _ in range(self.num_units)]
        served = _Served(stack, self._mailbox, num_slots, self._spins, num_threads, os.getpid())
        self._processes = [
            context.Process(
                target=_serve,
                args=(served, unit, slots_per_unit, self._wake[unit], self._done[unit]),
                name=f"ppd-{unit + 1}",
                daemon=True,
            )
            for unit in range(self.num_units)
        ]
        self.stop = weakref.finalize(self, _stop, self._processes)
        for process in self._processes:
            process.start()
        self._await_start()
        self._behind_s, self._answered = [0.0] * self.num_units, [0] * self.num_units
        self._watched = time.monotonic()

    def open(self) -> None:
        """Wake the sub-processes for one generation."""
        self._watch()
        if self._spins:
            self._requests[:, Mailbox.RUNNING] = 1
            for wake in self._wake:
                wake.release()

    def close(self) -> None:
        """Let the sub-processes sleep. What they are computing is finished and ignored."""
        self._requests[:, Mailbox.RUNNING] = 0

    def now(self, clock: Clock) -> float:
        return clock()

    def post(self, tokens: Sequence[int], length: int, num_layers: int) -> None:
        """Start candidates; WorkerError if a sub-process has died or has answered none of its rounds for too long."""
        if time.monotonic() - self._watched > WATCH_S:
            self._watch()
        self._round += 1
        self._posted = range(-(-len(tokens) // self.slots_per_unit))
        for unit in self._posted:
            own = tokens[unit * self.slots_per_unit : (unit + 1) * self.slots_per_unit]
            request = self._requests[unit]
            self._mailbox.tokens[unit, : len(own)] = own
            request[Mailbox.LENGTH], request[Mailbox.LAYERS], request[Mailbox.COUNT] = length, num_layers, len(own)
            request[Mailbox.ROUND] = self._round
            if not self._spins:
                self._wake[unit].release()

    def wait(self, slot: int) -> Float[Tensor, "1 1 D"]:
        """Wait for the winner; WorkerError if its sub-process has died or does not answer."""
        unit, answer = slot // self.slots_per_unit, self._answers[slot // self.slots_per_unit]
        waited_s, last = 0.0, time.monotonic()
        while answer[Mailbox.ROUND] != self._round:
            if self._spins:
                for _ in range(SPINS):
                    if answer[Mailbox.ROUND] == self._round:
                        break
                os.sched_yield()
            else:
                self._done[unit].acquire(timeout=LOOK_S)
            if (now := time.monotonic()) - last > LOOK_S:
                waited_s += min(now - last, 2 * LOOK_S)  # a machine that was suspended has not waited
                last = now
                self._look(unit, waited_s)
        return self._mailbox.hidden[slot].clone().view(1, 1, -1)

    def times(self) -> list[float]:
        """Return begin and end of each unit's work for the last post; empty where one has not finished or none was posted."""
        if self._round == 0 or any(self._answers[unit, Mailbox.ROUND] != self._round for unit in self._posted):
            return []
        return self._mailbox.times[: len(self._posted), :2].flatten().tolist()

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_S
        for unit, done in enumerate(self._done):
            while not done.acquire(timeout=LOOK_S):
                self._look(unit, waited_s=0.0)
                if time.monotonic() > deadline:
                    raise WorkerError(f"sub-process {unit + 1} of {self.num_units} did not start within {START_S:g} s")

    def _watch(self) -> None:
        """Check every sub-process: one whose candidate never proves right is never waited for."""
        now = time.monotonic()
        for unit in range(self.num_units):
            asked, answered = self._requests[unit, Mailbox.ROUND], int(self._answers[unit, Mailbox.ROUND])
            stuck = answered == self._answered[unit] and answered != asked
            self._behind_s[unit] = self._behind_s[unit] + min(now - self._watched, 2 * WATCH_S) if stuck else 0.0
            self._answered[unit] = answered
            self._look(unit, waited_s=self._behind_s[unit])
        self._watched = now

    def _look(self, unit: int, waited_s: float) -> None:
        """Raise WorkerError if a sub-process is dead or must be taken for dead."""
        process = self._processes[unit]
        if not process.is_alive():
            raise WorkerError(
                f"sub-process {unit + 1} of {self.num_units} died (exit code {process.exitcode}) while the pipeline ran; "
                "the records so far are kept: look for a lack of memory, then run the command again"
            )
        if waited_s > self._answer_s:
            raise WorkerError(
                f"sub-process {unit + 1} of {self.num_units} has not answered for {self._answer_s:g} s; "
                "the records so far are kept: run the command again, with fewer candidates if the machine is overloaded"
            )


class Simulated:
    """No process but this one. Each candidate runs alone when it is posted; ``now`` leaves that time out and ``wait`` adds what
    would have been waited for, so that the clock reads as if k + 1 units had worked side by side."""

    def __init__(self, stack: Stack, capacity: int, num_slots: int, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        context = multiprocessing.get_context()
        mailbox = Mailbox(stack, capacity, num_slots, num_slots, context)
        self.storage, self._hidden = mailbox.storage, mailbox.hidden
        self._units = [Candidates(stack, self.storage, num_slots, range(slot, slot + 1)) for slot in range(num_slots)]
        self._ahead = 0.0
        self._times: list[float] = []

    def open(self) -> None:
        self._ahead, self._times = 0.0, []

    def close(self) -> None: ...

    def now(self, clock: Clock) -> float:
        return clock() - self._ahead

    def post(self, tokens: Sequence[int], length: int, num_layers: int) -> None:
        begin = self.now(self._clock)
        self._times = []
        for slot, token in enumerate(tokens):
            before = self._clock()
            self._hidden[slot] = self._units[slot].run([token], length, num_layers)[0]
            took = self._clock() - before
            self._ahead += took
            self._times += [begin, begin + took]

    def wait(self, slot: int) -> Float[Tensor, "1 1 D"]:
        self._ahead -= max(self._times[2 * slot + 1] - self.now(self._clock), 0.0)
        return self._hidden[slot].clone().view(1, 1, -1)

    def times(self) -> list[float]:
        return list(self._times)


Units = SubProcesses | Simulated


def _stop(processes: Sequence[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def _serve(served: _Served, unit: int, slots_per_unit: int, wake: Any, done: Any) -> None:
    """Live as a sub-process: wait for a round, run its candidates, answer. It ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what a fork inherits is the parent's
    torch.set_num_threads(served.num_threads)
    slots = range(unit * slots_per_unit, (unit + 1) * slots_per_unit)
    candidates = Candidates(served.stack, served.mailbox.storage, served.num_slots, slots)
    mailbox, seen = served.mailbox, 0
    request, answer, times, tokens = mailbox.requests[unit], mailbox.answers[unit], mailbox.times[unit], mailbox.tokens[unit]
    hidden = mailbox.hidden[slots.start : slots.stop]
    done.release()  # ready
    while True:
        seen = _next_round(request, seen, served, wake)
        began = time.perf_counter()
        count = int(request[Mailbox.COUNT])
        try:
            states = candidates.run(tokens[:count].tolist(), int(request[Mailbox.LENGTH]), int(request[Mailbox.LAYERS]))
        except Exception as error:  # whatever it is, nobody is above to catch it: it is said, and the parent sees the exit
            said = f"foretoken: sub-process {unit + 1}: {type(error).__name__}: {error}\n"
            os.write(2, said.encode())  # at once: lines of several do not run into one another
            os._exit(1)
        hidden[:count].copy_(states)
        if hidden.is_cuda:
            torch.cuda.synchronize(hidden.device)
        times[0], times[1] = began, time.perf_counter()
        answer[Mailbox.ROUND] = seen
        if not served.spins:
            done.release()


def _next_round(request: Any, seen: int, served: _Served, wake: Any) -> int:
    """Block, or spin while a generation is under way, until there is a new round."""
    while request[Mailbox.ROUND] == seen:
        if served.spins and request[Mailbox.RUNNING]:
            for _ in range(SPINS):
                if request[Mailbox.ROUND] != seen:
                    break
            os.sched_yield()
        else:
            wake.acquire(timeout=1.0)
        if os.getppid() != served.parent:
            os._exit(1)
    return int(request[Mailbox.ROUND])
