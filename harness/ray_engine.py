"""The engine "ray": chunks of examples go to workers, processes of this machine or of a cluster, that hold the models.

The driver, which is the command, knows what is missing, hands each worker one chunk at a time, and appends records to their
files in the order in which one process would have made them. A worker prepares a comparison once; harness.placement says what
it takes of its node. Processes start slowly: until the first worker of this machine is ready, the driver itself makes what
nobody times. A writer, one a node, puts what the workers there made on the disk at once, in files of its own under the
records' folder: what a driver that is killed had not come to yet is found there by the next run, of any engine.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness import plugins
from harness.build import Models
from harness.decode import default_threads
from harness.errors import UsageError
from harness.experiment import Comparison, Experiment
from harness.placement import Node, Request, is_timed, request_of, room_for
from harness.prepared import Chunk
from harness.ray_cluster import TRIES, Cluster
from harness.ray_worker import Setup
from harness.ray_writer import Writer
from harness.records import PARTS, Record
from harness.runner import Runner, Value
from methods.cores import num_cores
from methods.errors import InputError, WorkerError
from tasks.errors import DataError

DEPTH = 2  # chunks that a worker has: one in hand, one that it begins without asking
SAID = (UsageError, InputError, DataError, WorkerError)  # what a command says in one line


class RayRunner(Runner):
    """``workers`` at most, None for as many as there is room for."""

    def __init__(
        self, folder: Path, cluster: Cluster, quiet: bool = False, workers: int | None = None, again: bool = False
    ) -> None:
        super().__init__(folder.resolve(), quiet, again)
        self.cluster, self.workers = cluster, workers
        self._relieved = False  # the driver, by a worker
        self._request: Request | None = None
        self._pool: list[Any] = []
        self._writers: dict[str, Any] = {}

    def made(self, comparison: Comparison, chunks: Sequence[Chunk]) -> Generator[list[list[Record]]]:
        waiting = deque(chunks)
        if self._may_begin(comparison):
            yield from self._made_here(comparison, waiting)
        if waiting:
            self._models = None
            yield from self._made_by_workers(comparison, list(waiting))

    def _may_begin(self, comparison: Comparison) -> bool:
        """Whether the driver makes the first records: on the CPU of this machine, where neither times nor memory are shown."""
        if self._relieved or not self.cluster.is_own or comparison.arms[0].device != "cpu":
            return False
        here = [Node(num_cores())]
        has_room = room_for(request_of(comparison, here, self.workers, None), here) > 0
        return has_room and not is_timed(comparison) and not comparison.arms[0].memory

    def _made_here(self, comparison: Comparison, waiting: "deque[Chunk]") -> Generator[list[list[Record]]]:
        """Chunks from the left of ``waiting``, until a worker is ready for those that are left."""
        preparing: list[Any] = []
        with self.prepared(comparison) as ready:
            while waiting and not self._relieved:
                yield ready.run(waiting.popleft())
                if not preparing and self.cluster.is_ready():
                    pool = self._hired(comparison, max(1, len(waiting)))
                    preparing = [worker.prepare.remote(self._setup(), comparison) for worker in pool]
                self._relieved = bool(preparing and ray.wait(preparing, num_returns=1, timeout=0)[0])

    def _made_by_workers(self, comparison: Comparison, chunks: Sequence[Chunk]) -> Generator[list[list[Record]]]:
        pool, setup, done = self._hired(comparison, len(chunks)), self._setup(), dict[int, list[list[Record]]]()
        waiting = deque(range(len(chunks)))
        places = pool * min(DEPTH, max(1, len(chunks) // len(pool)))
        running: dict[Any, tuple[Any, int | None]]
        running = {worker.prepare.remote(setup, comparison): (worker, None) for worker in places}
        try:
            for place in range(len(chunks)):
                while place not in done:
                    [ready], _ = ray.wait(list(running), num_returns=1)
                    worker, number = running.pop(ready)
                    value = _fetched(ready, chunks, number)
                    if waiting:  # at once, before anything is written
                        following = waiting.popleft()
                        running[worker.run.remote(setup, comparison, chunks[following])] = worker, following
                    if number is not None:
                        node, lines = value
                        self._writer(node).append.remote(ready)
                        done[number] = [[Record.from_line(line) for line in lines[arm.signature]] for arm in comparison.arms]
                yield done.pop(place)
        finally:
            self._close_writers()

    def with_models(self, experiment: Experiment, function: Callable[[Models], Value]) -> Value:
        """By a worker, which has the device, and after a run the models too."""
        pool = self._pool or self._hired(Comparison((experiment,)), 1)
        return _fetched(pool[0].with_models.remote(self._setup(), experiment, function), (), None)

    def _setup(self) -> Setup:
        return Setup(self.folder, default_threads(), tuple(plugins.files()))

    def _hired(self, comparison: Comparison, num_chunks: int) -> list[Any]:
        """As many workers as have room and work, each with what it takes of its node."""
        cluster = self.cluster
        cluster.wait()
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
            why = "timed arms take a device each" if is_timed(comparison) else "the cluster has no more room"
            print(f"foretoken: note: {wanted} of {self.workers} workers at once: {why}", file=sys.stderr)
        if cluster.is_own and on_cpu:  # nobody else is there: what takes no part is sent away, and so disturbs nothing
            request, self._pool, cluster.early = Request(0), self._pool + cluster.early, []
            dismissed = self._pool[wanted:]
        else:
            dismissed = [] if request == self._request else self._pool
        for worker in dismissed:
            ray.kill(worker)
        self._pool = [worker for worker in self._pool if worker not in dismissed]
        self._request = request
        self._pool += [cluster.hire(request.num_cpus, request.num_gpus) for _ in range(wanted - len(self._pool))]
        return self._pool[:wanted]

    def _writer(self, node: str) -> Any:
        if node not in self._writers:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": there}
            self._writers[node] = ray.remote(Writer).options(**options).remote(self.folder / PARTS, node)
        return self._writers[node]

    def _close_writers(self) -> None:
        """What the driver was given it writes itself: a writer that went down with its node takes nothing along."""
        closing = [writer.close.remote() for writer in self._writers.values()]
        for reference in closing:
            try:
                ray.get(reference)
            except RayActorError:
                continue


def nodes_here() -> list[Node]:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(resources.get("CPU", 0), resources.get("GPU", 0)) for resources in alive]


def gpu_bytes(nodes: Sequence[Node]) -> int | None:
    """Memory of a GPU of the cluster, which is taken to have one kind of them; None where it has none."""
    if not any(node.num_gpus for node in nodes):
        return None
    return ray.get(ray.remote(_gpu_bytes).options(num_cpus=0, num_gpus=0.01).remote())


def _gpu_bytes() -> int:
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def _fetched(reference: Any, chunks: Sequence[Chunk], number: int | None) -> Any:
    """What a worker returned; what went wrong there is raised here as it would have been."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, SAID):
            raise error.cause from None
        raise
    except RayError as error:
        what = "a worker" if number is None else f"the worker of example {chunks[number].keys[0][0]!r}"
        reason = next(line.strip() for line in str(error).splitlines() if line.strip())
        raise WorkerError(f"{what} died {TRIES} times ({reason}); what was recorded is kept") from error
