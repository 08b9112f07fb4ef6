"""The cluster that engine "ray" works on. It starts beside the imports of the driver, which take as long."""

import atexit
import logging
import os
import signal
import socket
import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.ray_worker import Worker
from methods.cores import num_cores

TRIES = 3  # of a chunk whose worker dies
KNOCK_S = 10.0
START_S = 30.0
STORE_BYTES = 100 << 20  # of memory that processes share: records are small


class Cluster:
    """Nodes to hire workers on, once they are connected: ``address``, or this machine alone, which is then nobody else's.

    An own cluster hires ``num_early`` workers as soon as it stands.
    """

    def __init__(self, address: str | None, quiet: bool, num_early: int) -> None:
        self.is_own = address is None
        self.early: list[Any] = []
        self._connected: Future[None] = Future()
        threading.Thread(target=self._start, args=(address, quiet, num_early), daemon=True).start()
        # Ray's own end, which comes after this, would leave processes of a half-started cluster behind.
        atexit.register(wait, [self._connected], START_S)

    def _start(self, address: str | None, quiet: bool, num_early: int) -> None:
        try:
            connect(address, quiet)
            if self.is_own:
                _end_autoscaler()
            self.early = [self.hire() for _ in range(num_early)] if self.is_own else []
            self._connected.set_result(None)
        except Exception as error:  # raised where the cluster is waited for
            self._connected.set_exception(error)
        threading.Event().wait()  # the system ends processes with the thread that started them

    def is_ready(self) -> bool:
        """Whether ``wait`` returns, or raises, at once."""
        return self._connected.done()

    def wait(self) -> None:
        self._connected.result()

    def hire(self, num_cpus: float = 0, num_gpus: float = 0) -> Any:
        """A worker, which Ray starts again where it dies, and then repeats the call that it was at."""
        import ray

        options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_restarts": -1, "max_task_retries": TRIES - 1}
        return ray.remote(Worker).options(**options).remote()


def begin(address: str | None, quiet: bool, num_early: int) -> Cluster:
    """One that connects while the caller does something else."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # what Ray holds back to count it comes behind the last line of a command
    import ray  # noqa: F401  before the caller's imports: beside them it would take twice as long

    return Cluster(address, quiet, num_early)


def connect(address: str | None, quiet: bool) -> None:
    """To a running cluster; None starts one on this machine, which ends with this process."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_worker_niceness", "0")  # as the driver's: a busy machine would leave a nicer worker nothing
    own = {"address": "local", "num_cpus": num_cores(), "include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        if address is not None:
            _knock(address)
        ray.init(**(own if address is None else {"address": address}), logging_level=logging.ERROR, log_to_driver=not quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"address {address or 'of here'}: no cluster can be reached ({str(error).splitlines()[0]}); start one with `ray "
            "start --head`, set RAY_AUTH_MODE=token where it has a token, or leave --address out"
        ) from error


def _end_autoscaler() -> None:
    """A cluster of this machine alone asks nobody for nodes, and the process that would takes a second to end later."""
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # some other thread or child of this process, at its end
            for pid in children.read_text().split():
                if b"/ray/autoscaler/" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)


def _knock(address: str) -> None:
    """OSError where nobody listens; Ray itself would try for minutes. Only for HOST:PORT."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), KNOCK_S).close()
