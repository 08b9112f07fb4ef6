"""The cluster that engine "ray" works on. It starts beside the imports of the driver, which take as long."""

import logging
import os
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from harness.errors import UsageError
from harness.ray_worker import Worker

TRIES = 3  # of a chunk whose worker dies
KNOCK_S = 10.0
STORE_BYTES = 100 << 20  # of memory that processes share: records are small


@dataclass
class Cluster:
    """Nodes to hire workers on. ``is_own``: this machine alone, started by this process, and nobody else's."""

    is_own: bool
    early: list[Any] = field(default_factory=list)

    def hire(self, num_cpus: float = 0, num_gpus: float = 0) -> Any:
        """A worker, which Ray starts again where it dies, and then repeats the call that it was at."""
        import ray

        options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_restarts": -1, "max_task_retries": TRIES - 1}
        return ray.remote(Worker).options(**options).remote()


def begin(address: str | None, quiet: bool, num_early: int) -> "Future[Cluster]":
    """Connect while the caller does something else; in a cluster of its own hire so many workers as well."""
    import ray  # noqa: F401  before the caller's imports: beside them it would take twice as long

    cluster: Future[Cluster] = Future()

    def start() -> None:
        try:
            cluster.set_result(connect(address, quiet, num_early))
        except Exception as error:  # raised where the result is asked for
            cluster.set_exception(error)
        threading.Event().wait()  # the system ends processes with the thread that started them

    threading.Thread(target=start, daemon=True).start()
    return cluster


def connect(address: str | None, quiet: bool, num_early: int = 0) -> Cluster:
    """To a running cluster; None starts one on this machine, which ends with this process."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_worker_niceness", "0")  # as the driver's: a busy machine would leave a nicer worker nothing
    own = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        if address is not None:
            _knock(address)
        ray.init(**(own if address is None else {"address": address}), logging_level=logging.ERROR, log_to_driver=not quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"address {address or 'of here'}: no cluster can be reached ({str(error).splitlines()[0]}); start one with `ray "
            "start --head`, set RAY_AUTH_MODE=token where it has a token, or leave --address out"
        ) from error
    cluster = Cluster(address is None)
    cluster.early = [cluster.hire() for _ in range(num_early)] if cluster.is_own else []
    return cluster


def _knock(address: str) -> None:
    """OSError where nobody listens; Ray itself would try for minutes. Only for HOST:PORT."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), KNOCK_S).close()
