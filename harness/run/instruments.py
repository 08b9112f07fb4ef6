"""What a run measures with: the clock of its loops, the peak of memory, and the times of every call of a verify rule.

Memory is read from the operating system or the GPU's allocator. A rule's call is timed whole: the call stack of speculative
sampling, softmax included (Optimized, Section 4.1). On a CPU the profiled time is the processor time of this process, all
threads, so what else the machine does is not in it. On CUDA it is the sum of the device's events that ran within the call, each
counted once: ``total_average`` of torch's profiler, which the paper's code logs, also adds up the operations that those events
are nested in.
"""

import ctypes
import gc
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from harness.core.records import RuleTimes
from methods.sampling import Sampling
from methods.types import Clock, Generation, Guarantee, Proposal, Verdict, VerifyRule

Value = TypeVar("Value")

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
RANGE = "foretoken: verify"
WAITED = "called a synchronizing CUDA operation"  # torch's words for a wait


def clock_for(device: str) -> Clock:
    """On a CPU the performance counter itself; on CUDA the device is waited for first, at every reading."""
    if not device.startswith("cuda"):
        return time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


class Moment:
    """A place in a device's work, marked without waiting for it. The seconds between two are known to whoever asks later."""

    def __init__(self, device: str) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(torch.cuda.current_stream(device))

    def __sub__(self, before: "Moment") -> "Lapse":
        return Lapse(before.event, self.event)


class Lapse:
    """The seconds between two moments; ``float`` waits until the device has come past the second one."""

    def __init__(self, begin: Any, end: Any) -> None:
        self._begin, self._end = begin, end

    def __float__(self) -> float:
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def marking_clock(device: str) -> Callable[[], Any]:
    """Return a clock that nobody waits for: the performance counter on a CPU, moments of the device's work on CUDA.

    Differences of its readings are seconds, or lapses that ``settled`` makes seconds of.
    """
    return partial(Moment, device) if device.startswith("cuda") else time.perf_counter


def settled(generations: list[Generation]) -> list[Generation]:
    """Return generations whose times are numbers: what a marking clock saw is waited for here, once the text is done."""
    for generation in generations:
        generation.encode_s, generation.draft_encode_s = float(generation.encode_s), float(generation.draft_encode_s)
        for step in generation.steps:
            step.draft_s, step.verify_s, step.round_s = float(step.draft_s), float(step.verify_s), float(step.round_s)
    return generations


def resident_bytes() -> int | None:
    """Resident memory after garbage is collected and free heap pages are handed back; None where it cannot be known."""
    _hand_back()
    return _status_bytes("VmRSS") if STATUS.exists() else None


def held_bytes() -> int:
    """Return the bytes of all tensors that Python holds, each storage once: views and tied weights share theirs."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def with_peak(device: str, action: Callable[[], Value]) -> tuple[Value, int | None]:
    """Return what ``action`` returns, and the most bytes held while it ran above what was held before.

    On CUDA what torch's allocator gave out; on a CPU the process's resident memory (the kernel's high-water mark, set back
    before), so what the allocator keeps after a tensor is freed counts too. None where ``reset_peak`` says why.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        value = action()
        torch.cuda.synchronize(device)
        return value, torch.cuda.max_memory_allocated(device) - held
    _hand_back()
    if reset_peak() is not None:
        return action(), None
    held = _status_bytes("VmHWM")
    value = action()
    return value, _status_bytes("VmHWM") - held


def reset_peak() -> str | None:
    """Set this process's high-water mark of memory back to the present; return why that cannot be, None where it was done."""
    try:
        RESET.write_text(RESET_PEAK, encoding="ascii")
    except OSError as error:
        return f"{RESET} cannot be written ({error.strerror}), so this system's peak of a process cannot be set back"
    return None if STATUS.exists() else f"{STATUS} is not there"


def num_waits(action: Callable[[], object], device: str) -> int:
    """Count how often the host waits for the device in ``action``: values read back, copies from pageable memory, nonzero.

    Torch itself tells, by a warning each (``set_sync_debug_mode``, whose own first notice is none of them); 0 on a CPU, which
    nobody waits for.
    """
    if not device.startswith("cuda"):
        action()
        return 0
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum(WAITED in str(one.message) for one in seen)


@contextmanager
def quick_collection() -> Iterator[None]:
    """Look for garbage only among what is made from now on: the libraries' objects take a fifth of a second."""
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


class ProfiledRule:
    """A rule that decides as the one it holds, and notes how long each call took."""

    def __init__(self, rule: VerifyRule, device: str) -> None:
        self.guarantee: Guarantee = rule.guarantee
        self.rule, self.device = rule, device
        self.cuda = device.startswith("cuda")
        self._reset()

    def _reset(self) -> None:
        self._cpu_s, self._wall_s, self._events = list[float](), list[float](), list[tuple[Any, Any]]()

    def profile(self, run: Callable[[], Value]) -> tuple[Value, RuleTimes]:
        """Return what ``run`` returns, and the times of the calls that it made."""
        self._reset()
        if not self.cuda:
            value = run()
            return value, RuleTimes(profiled_s=self._cpu_s, wall_s=self._wall_s)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            value = run()
        profiled_s = device_seconds(profiler.events() or ())
        if len(profiled_s) != len(self._wall_s):
            raise RuntimeError(f"profiler: it saw {len(profiled_s)} of {len(self._wall_s)} calls of the verify rule")
        event_s = [begin.elapsed_time(end) / 1e3 for begin, end in self._events]
        return value, RuleTimes(profiled_s=profiled_s, wall_s=self._wall_s, event_s=event_s)

    def verify(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "B n_plus_1 V"],
        sampling: Sampling,
        uniforms: Float[Tensor, "B n_plus_1"],
    ) -> Verdict:
        arguments = (proposal, target_logits, sampling, uniforms)
        return self._on_cuda(*arguments) if self.cuda else self._on_cpu(*arguments)

    def _on_cpu(self, *arguments: Any) -> Verdict:
        wall, cpu = time.perf_counter(), time.process_time()
        verdict = self.rule.verify(*arguments)
        self._cpu_s.append(time.process_time() - cpu)
        self._wall_s.append(time.perf_counter() - wall)
        return verdict

    def _on_cuda(self, *arguments: Any) -> Verdict:
        """Nothing else is on the device while the range is open, so every event in it is the rule's."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        with record_function(RANGE):
            wall = time.perf_counter()
            begin.record()
            verdict = self.rule.verify(*arguments)
            end.record()
            torch.cuda.synchronize(self.device)
            self._wall_s.append(time.perf_counter() - wall)
        self._events.append((begin, end))
        return verdict


def device_seconds(events: Iterable[Any]) -> list[float]:
    """Return seconds of device events within each range, in the order of the ranges; their times are microseconds.

    A range has a copy of itself among the device's events, which is no work.
    """
    found: Sequence[Any] = list(events)
    ranges = sorted(
        (one.time_range.start, one.time_range.end) for one in found if one.name == RANGE and one.device_type == DeviceType.CPU
    )
    starts, seconds = [start for start, _ in ranges], [0.0] * len(ranges)
    for one in found:
        if one.device_type == DeviceType.CUDA and one.name != RANGE:
            index = bisect_right(starts, one.time_range.start) - 1
            if index >= 0 and one.time_range.start <= ranges[index][1]:
                seconds[index] += (one.time_range.end - one.time_range.start) / 1e6
    return seconds
