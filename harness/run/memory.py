"""What this process holds, and the most that it held meanwhile, read from the operating system or the GPU's allocator."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

Value = TypeVar("Value")

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"


def resident_bytes() -> int | None:
    """Resident memory after garbage is collected and free heap pages are handed back; None where it cannot be known."""
    _hand_back()
    return _status_bytes("VmRSS") if STATUS.exists() else None


def with_peak(device: str, action: Callable[[], Value]) -> tuple[Value, int | None]:
    """What ``action`` returns, and the most bytes held while it ran above what was held before.

    On CUDA what torch's allocator gave out; on a CPU the process's resident memory (the kernel's high-water mark, set back
    before), so what the allocator keeps after a tensor is freed counts too. None where ``peak_unknown`` says why.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        value = action()
        torch.cuda.synchronize(device)
        return value, torch.cuda.max_memory_allocated(device) - held
    _hand_back()
    if peak_unknown(device) is not None:
        return action(), None
    held = _status_bytes("VmHWM")
    value = action()
    return value, _status_bytes("VmHWM") - held


def peak_unknown(device: str) -> str | None:
    """Why no peak can be measured here; None where it can, and on a CPU the high-water mark is then set back to the present."""
    if device.startswith("cuda"):
        return None
    try:
        RESET.write_text(RESET_PEAK, encoding="ascii")
    except OSError as error:
        return f"{RESET} cannot be written ({error.strerror}), so this system's peak of a process cannot be set back"
    return None if STATUS.exists() else f"{STATUS} is not there"


@contextmanager
def quick_collection() -> Iterator[None]:
    """While it lasts, garbage is looked for only among what was made since: the libraries' objects take a fifth of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _hand_back() -> None:
    """Collect garbage; return what glibc's heap keeps of freed memory (other C libraries have no such call)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if STATUS.exists() else None
    if trim is not None:
        trim(0)


def _status_bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
