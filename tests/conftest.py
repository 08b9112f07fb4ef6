"""Shared fixtures. Shapes in annotations are checked while the tests run."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import shape_checks
import torch

os.environ.setdefault("FORETOKEN_PRODUCTS", "torch")  # of this machine nothing is measured, in subprocesses neither
# Two tests run at a time: threads of numpy and of commands that they start would wait for one another's cores.
for library in ("OMP", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
shape_checks.install(["methods", "kernels"])

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


def pytest_collection_finish() -> None:
    """Search what was imported and collected for garbage no more, and all else less often: it took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # or libraries complain at exit that what was frozen is still there


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _unhurried() -> Iterator[None]:
    """Waiting for the disk after every line takes longer than what is tested; what is killed here is no machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data and checkpoints of the development machines; users do not have them."""
    missing = [part for part in ("data", "models", "papers") if not (SHARED / part).is_dir()]
    if missing:
        pytest.skip(f"the real {' and '.join(missing)} are not on this machine")
    return SHARED


@pytest.fixture(scope="session")
def zoo_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty cache for the zoo, one for the session and all of xdist's workers: what a test trains, others reuse."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "zoo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETOKEN_CACHE", str(folder))
        yield folder
