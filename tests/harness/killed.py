"""A command that is killed with SIGKILL in the middle, for tests of what a second one makes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 120
SAVES_ALWAYS = """
import sys, harness.zoo.state as c; c.CHECKPOINT_S = 0.0
from harness.cli.main import main; raise SystemExit(main(sys.argv[1:]))
"""


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


def kill_once_there(folder: Path, pattern: str, words: Sequence[str], zoo_cache: Path) -> None:
    """Run a command that trains and saves after every step; kill it once a folder holds what fits a pattern."""
    environment = {**os.environ, "FORETOKEN_CACHE": str(zoo_cache)}
    process = subprocess.Popen([sys.executable, "-c", SAVES_ALWAYS, *words], stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + SECONDS
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, "too slow"
        assert process.poll() is None, "it ended too soon"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
