"""A process that imports what decoding takes while Ray still starts, and then decodes for one worker of engine "ray".

Both take seconds, as long as some runs. The driver starts it, for a cluster of its own; the worker that knows its address hands
it every call. It ends with either of them, and a worker whose process here has died dies too: Ray starts it again, and then it
works alone.
"""

import gc
import os
import pickle
import subprocess
import sys
import threading
from multiprocessing.connection import Client, Listener
from tempfile import mkdtemp
from typing import Any

_running: list[subprocess.Popen] = []  # the pipes to them stay open while they are held


def start(count: int) -> list[str]:
    """The addresses of so many processes: sockets, each in a folder that is this user's alone."""
    addresses = [os.path.join(mkdtemp(prefix="foretoken-"), "socket") for _ in range(count)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for address in addresses:
        # in a session of its own, since Ctrl-C is for the driver
        command = [sys.executable, "-m", "harness.ray_ahead", address]
        _running.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True))
    return addresses


class Ahead:
    """What a worker knows of such a process. Raises OSError where it is gone."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address)

    def answer(self, call: bytes) -> Any:
        try:
            self._connection.send_bytes(call)
            error, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)
        if error is not None:
            raise error
        return value


def _serve(address: str) -> None:
    with Listener(address) as listener:
        gc.disable()  # imports leave nothing to collect
        from harness.ray_worker import Decoder

        decoder = Decoder()
        gc.enable()
        connection = listener.accept()
    os.rmdir(os.path.dirname(address))
    while True:
        call = connection.recv_bytes()
        try:
            answer: tuple[Exception | None, Any] = None, decoder.answer(call)
        except Exception as error:  # it is raised in the worker
            answer = error, None
        connection.send_bytes(pickle.dumps(answer))


def _end_with_parent() -> None:
    """Its end of the pipe closes however it ends."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _serve(sys.argv[1])
    except (EOFError, OSError):  # the worker is gone
        os._exit(0)
