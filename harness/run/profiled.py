"""Times every call of a verify rule: the whole call stack of speculative sampling, softmax included (Optimized, Section 4.1).

On a CPU the profiled time is the processor time of this process, all threads, so what else the machine does is not in it. On
CUDA it is the sum of the device's events that ran within the call, each counted once: ``total_average`` of torch's profiler,
which the paper's code logs, also adds up the operations that those events are nested in.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from harness.core.records import RuleTimes
from methods.sampling import Sampling
from methods.types import Guarantee, Proposal, Verdict, VerifyRule

Value = TypeVar("Value")
RANGE = "foretoken: verify"


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
        """What ``run`` returns, and the times of the calls that it made."""
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
    """Seconds of device events within each range, in the order of the ranges; their times are microseconds.

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
