"""Connect to the Ray cluster of engine "ray". Imports nothing heavy, so that Ray starts beside the imports of the command."""

import atexit
import logging
import os
import socket
import threading
from concurrent.futures import Future, wait

from harness.core.errors import UsageError
from harness.core.messages import first_line
from methods.cores import num_cores

KNOCK_S = 10.0
START_S = 30.0
STORE_BYTES = 100 << 20  # memory that processes share: records are small


class Cluster:
    """The cluster at ``address``, or one of this machine alone (None), which is private and ends with this process.

    It connects in a thread; ``wait`` returns when it stands, or raises what went wrong.
    """

    def __init__(self, address: str | None, quiet: bool) -> None:
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Ray would print what it holds back after a command's last line
        import ray  # noqa: F401  here, because beside the caller's imports it would take twice as long

        self.is_private = address is None
        self._connected: Future[None] = Future()
        threading.Thread(target=self._connect, args=(address, quiet), daemon=True).start()
        # Ray's own exit handler runs after this one; it would leave processes of a half-started cluster behind.
        atexit.register(wait, [self._connected], START_S)

    def _connect(self, address: str | None, quiet: bool) -> None:
        try:
            connect(address, quiet)
            self._connected.set_result(None)
        except Exception as error:  # raised again by ``wait``
            self._connected.set_exception(error)
        threading.Event().wait()  # the system ends Ray's processes together with the thread that started them

    def wait(self) -> None:
        self._connected.result()


def connect(address: str | None, quiet: bool) -> None:
    """Connect to a running cluster; None starts one on this machine, which ends with this process."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_worker_niceness", "0")  # as the driver's: a busy machine would leave a nicer worker nothing
    private = {"address": "local", "num_cpus": num_cores(), "include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        if address is not None:
            _knock(address)
        ray.init(**(private if address is None else {"address": address}), logging_level=logging.ERROR, log_to_driver=not quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"address {address or 'of here'}: no cluster can be reached ({first_line(error)}); start one with `ray "
            "start --head`, set RAY_AUTH_MODE=token where it has a token, or leave --address out"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT (Ray itself would try for minutes); other addresses pass."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), KNOCK_S).close()
