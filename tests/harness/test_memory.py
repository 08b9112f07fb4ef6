"""Peaks of memory against allocations of known size."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

from harness.run import instruments
from harness.run.instruments import reset_peak, resident_bytes, with_peak

MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _known() -> None:
    if (reason := reset_peak()) is not None:
        pytest.skip(reason)


# Linux adds up the pages of each core and kind in lots of dozens, so that one count may be off by a megabyte, whatever
# the size; and another thread's memory counts too. The middle one of several measurements is nearer.
TOLERANCE = MIB // 2


SIZES = (2 * MIB, 24 * MIB, 96 * MIB)


def peaks_of(size: int) -> list[int]:
    """Measure two tensors that are held together and freed before the end."""

    def action() -> torch.Tensor:
        pair = [torch.ones(size // 8) for _ in range(2)]
        kept = pair[0][:4].clone()
        del pair
        return kept

    action()  # loads what torch loads once
    peaks = []
    for _ in range(7):  # the first one's memory does not hide the second's
        kept, peak = with_peak("cpu", action)
        assert torch.equal(kept, torch.ones(4))
        assert peak is not None
        peaks.append(peak)
    return peaks


@pytest.fixture(scope="module")
def measured() -> dict[str, list[int]]:
    """Measure in a process of its own: what other tests leave in an allocator once moved each count by 1.3 megabytes."""
    code = f"import json; from {__name__} import *; print(json.dumps({{size: peaks_of(size) for size in SIZES}}))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


@pytest.mark.parametrize("size", SIZES)
def test_a_peak_is_what_was_held_at_once(measured: dict[str, list[int]], size: int) -> None:
    """Two tensors together; the smallest is what toy arms differ by."""
    peaks = measured[str(size)]
    assert abs(median(peaks) - size) < TOLERANCE, peaks


def test_nothing_held_is_almost_nothing() -> None:
    assert (with_peak("cpu", lambda: 3)[1] or 0) < MIB


def test_memory_held_before_does_not_count() -> None:
    held = torch.ones(64 * MIB // 4)
    assert (with_peak("cpu", lambda: held.sum().item())[1] or 0) < 4 * MIB
    assert (resident_bytes() or 0) > 64 * MIB


def test_where_it_cannot_be_measured_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "RESET", tmp_path / "absent" / "clear_refs")
    assert with_peak("cpu", lambda: "done") == ("done", None)
    assert "clear_refs cannot be written (No such file or directory)" in (reset_peak() or "")


def test_a_worker_that_keeps_what_is_freed_is_not_handed_pages_anew() -> None:
    """Tensors of megabytes made and dropped again and again: page faults, counted by the system, with and without."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("no mallopt in this C library")
    script = """
import resource, sys, torch
from harness.core.jobs import keep_freed
if sys.argv[1] == "keep":
    keep_freed()
def step():
    made = [torch.ones(2**20 * size) for size in (1, 3, 9)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", script, word], capture_output=True, text=True, check=True, cwd=ROOT).stdout)
        for word in ("keep", "give back")
    )
    if given_back < 40_000:  # of 13,312 pages of 4 KiB a step
        pytest.skip(f"{given_back} page faults without it: another allocator, or larger pages")
    assert kept < given_back / 5
