"""The description of a machine names the checkout's commit, and says where product files differ from it."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.core import environment
from harness.core.checkout import ROOT, commit


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True, capture_output=True)


def test_changed_product_files_are_told(tmp_path: Path) -> None:
    assert (ROOT / "pyproject.toml").exists()  # the checkout, whose four rooms are looked at
    assert commit(tmp_path) == "unknown"
    for room in ("harness", "methods", "kernels", "tasks", "docs"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "docs" / "a.py").write_text("1")
    assert len(commit(tmp_path)) == 12
    (tmp_path / "harness" / "a.py").write_text("1")
    assert commit(tmp_path).endswith("+changes")


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1}, raising=False)
    environment.describe.cache_clear()
    assert environment.describe()["cores"] == 1
    environment.describe.cache_clear()
