"""A command that is killed with SIGKILL in the middle, for tests of what a second one makes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 120


def kill_at(num_lines: int, folder: Path, pattern: str, arguments: Sequence[str], zoo_cache: Path) -> None:
    """Run Python with these arguments; kill it once the files of a folder that fit a pattern have so many lines in all."""
    environment = {**os.environ, "FORETOKEN_CACHE": str(zoo_cache), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS
    while sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern)) < num_lines:
        assert time.monotonic() < deadline, "too slow"
        assert process.poll() is None, "it ended too soon"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
