"""Naming the papers' tables and figures loads no model code, no drawing and no generated data."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "matplotlib", "triton", "tasks.world")


def test_the_catalogue_is_read_without_heavy_modules() -> None:
    code = f"import sys, harness.papers; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
