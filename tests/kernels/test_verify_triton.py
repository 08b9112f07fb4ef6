"""Runs ``interpreted_triton.py`` in a process of its own: Triton decides at import whether it interprets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.inputs import InputError
from kernels.verify.check import random_cases
from kernels.verify.registry import KERNELS

FILE = Path(__file__).with_name("interpreted_triton.py")
GROUPS = {"fused rounds": ("test_random_rounds and fused", 3), "all else": ("not (test_random_rounds and fused)", 30)}


@pytest.mark.parametrize("group", GROUPS)
def test_the_kernels_interpreted(group: str) -> None:
    chosen, least = GROUPS[group]
    command = [sys.executable, "-m", "pytest", str(FILE), "-k", chosen, "-p", "no:xdist", "-p", "no:cacheprovider"]
    # The interpreter's numpy warns where a device does not: 0 / 0 in lanes that nobody looks at.
    command += ["-W", "ignore::RuntimeWarning", "-rA"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, env={**environment, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, cwd=FILE.parents[2], check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= least, done.stdout[-2000:]


def test_triton_on_a_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    given = next(iter(random_cases(1, torch.float32, seed=0)))
    with pytest.raises(InputError, match="TRITON_INTERPRET=1"):
        KERNELS["fused"](*given, backend="triton")
