"""The engine "ray": workers, processes of this machine or of a cluster, hold the models and decode chunks of examples.

The driver (the command) knows what is missing, hands each worker one chunk at a time, and appends records to their files in
the order in which one process would have made them. A worker prepares a comparison once; placement.py says how much of its
node it takes. Ray starts a worker that dies again and repeats the chunk that it was at.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, Experiment
from harness.core.messages import FOR_THE_USER
from harness.core.record_files import RecordFile
from harness.core.records import Record
from harness.models.fit import Models
from harness.run.comparison import Chunk, Replay
from harness.run.decode import default_threads
from harness.run.ray.cluster import Cluster
from harness.run.ray.placement import Share, request_of, room_for
from harness.run.runner import Runner, Value
from methods.errors import WorkerError

TRIES = 3  # of a chunk whose worker dies
DEPTH = 2  # chunks that a worker has: one in hand, one that it begins without asking
MESSAGES = (*FOR_THE_USER, WorkerError)  # errors that the command prints as one line


@dataclass(frozen=True)
class _Setup:
    """The set-up of a worker: the driver's folder of records, CPU threads (another number may round sums differently),
    plug-in files and what is replayed. Sent with every call, because a worker that was started again knows nothing."""

    folder: Path
    threads: int
    plugin_files: tuple[str, ...]
    replay: Replay


class _Worker:
    """An actor of Ray: a process that holds the models of one comparison."""

    def __init__(self) -> None:
        self.setup: _Setup | None = None
        self.comparison: Comparison | None = None
        self.stack = ExitStack()

    def run(self, setup: _Setup, packed: bytes) -> list[list[Record]]:
        """Return the new records of each arm. Loads, builds and warms up what the comparison takes, unless the last call did.

        ``packed``: the comparison and a chunk, which name plug-ins that must be loaded before they are unpickled.
        """
        self._set_up(setup)
        comparison, chunk = cloudpickle.loads(packed)
        if comparison != self.comparison:
            self._prepare(comparison)
        return self.prepared.run(chunk)

    def with_models(self, setup: _Setup, packed: bytes) -> Any:
        self._set_up(setup)
        experiment, function = cloudpickle.loads(packed)
        return self.runner.with_models(experiment, function)

    def _set_up(self, setup: _Setup) -> None:
        if setup == self.setup:
            return
        torch.set_num_threads(setup.threads)
        assert default_threads() == setup.threads
        plugins.load(setup.plugin_files)
        self.runner, self.setup = Runner(setup.folder, quiet=True, replay=setup.replay), setup

    def _prepare(self, comparison: Comparison) -> None:
        self.comparison = None
        self.stack.close()
        description = RecordFile(self.runner.folder, comparison.arms[0]).path.with_suffix(".json")
        if not description.exists():
            raise UsageError(
                f"records {self.runner.folder}: node {os.uname().nodename} does not see what the driver wrote there; "
                "expected a folder that all nodes share: choose --records"
            )
        self.prepared = self.stack.enter_context(self.runner.prepared(comparison))
        self.comparison = comparison


class RayRunner(Runner):
    """A runner with at most ``workers`` workers, None for as many as there is room for."""

    starts_processes = False

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        quiet: bool = False,
        workers: int | None = None,
        again: bool = False,
        replay: Replay = "sample",
    ) -> None:
        super().__init__(folder.resolve(), quiet, again, replay)
        self.cluster, self.workers = cluster, workers
        self._request: Share | None = None
        self._pool: list[Any] = []

    def made(self, comparison: Comparison, chunks: Sequence[Chunk]) -> Generator[list[list[Record]]]:
        idle, setup = deque(self._hire(comparison, len(chunks)) * DEPTH), self._setup()
        waiting = deque(range(len(chunks)))
        running: dict[Any, tuple[Any, int]] = {}
        done: dict[int, list[list[Record]]] = {}
        for number in range(len(chunks)):
            while number not in done:
                while idle and waiting:
                    worker, following = idle.popleft(), waiting.popleft()
                    running[worker.run.remote(setup, cloudpickle.dumps((comparison, chunks[following])))] = worker, following
                [ready], _ = ray.wait(list(running), num_returns=1)
                worker, finished = running.pop(ready)
                idle.append(worker)
                done[finished] = fetch(ready, f"the worker of example {chunks[finished].keys[0][0]!r}")
            yield done.pop(number)

    def with_models(self, experiment: Experiment, function: Callable[[Models], Value]) -> Value:
        """Call the function in a worker, which has the device, and after a run the models too."""
        pool = self._pool or self._hire(Comparison((experiment,)), 1)
        return fetch(pool[0].with_models.remote(self._setup(), cloudpickle.dumps((experiment, function))), "a worker")

    def _setup(self) -> _Setup:
        return _Setup(self.folder, default_threads(), tuple(plugins.files()), self.replay)

    def _hire(self, comparison: Comparison, num_chunks: int) -> list[Any]:
        """Hire as many workers as there is room and work for. Those of the last comparison stay if they take the same share."""
        self.cluster.wait()
        nodes = nodes_here()
        on_cpu = comparison.arms[0].device == "cpu"
        request = request_of(comparison, nodes, self.workers, None if on_cpu else gpu_bytes(nodes))
        room = room_for(request, nodes)
        if room == 0:
            raise UsageError(
                f"engine 'ray': a worker takes {request.num_cpus:g} CPUs and {request.num_gpus:g} GPUs, no node has as many; "
                "choose --threads, --device or another cluster"
            )
        wanted = min(self.workers or room, room, num_chunks)
        if wanted < min(self.workers or 0, num_chunks) and not self.quiet:
            why = "timed arms take a device each" if comparison.is_timed else "the cluster has no more room"
            print(f"foretoken: note: {wanted} of {self.workers} workers at once: {why}", file=sys.stderr)
        if self.cluster.is_private and on_cpu:  # nobody else takes anything there, so Ray need not reserve what was counted
            request = Share(0)
        if request != self._request:
            for worker in self._pool:
                ray.kill(worker)
            self._pool, self._request = [], request
        options = {"num_cpus": request.num_cpus, "num_gpus": request.num_gpus}
        hired = ray.remote(_Worker).options(**options, max_restarts=-1, max_task_retries=TRIES - 1)
        self._pool += [hired.remote() for _ in range(wanted - len(self._pool))]
        return self._pool[:wanted]


def nodes_here() -> list[Share]:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Share(resources.get("CPU", 0), resources.get("GPU", 0)) for resources in alive]


def gpu_bytes(nodes: Sequence[Share]) -> int | None:
    """Memory of a GPU of the cluster, which is taken to have one kind of them; None where it has none."""
    if not any(node.num_gpus for node in nodes):
        return None
    return ray.get(ray.remote(_gpu_bytes).options(num_cpus=0, num_gpus=0.01).remote())


def _gpu_bytes() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def fetch(reference: Any, who: str) -> Any:
    """Return a worker's result, or raise its error as one process would. ``who`` is named if the worker died."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, MESSAGES):
            raise error.cause from None
        raise
    except RayError as error:
        reason = next(line.strip() for line in str(error).splitlines() if line.strip())
        raise WorkerError(f"{who} died {TRIES} times ({reason}); what was recorded is kept") from error
