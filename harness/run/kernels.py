"""Time each verification kernel in turns with the baseline: Triton with CUDA graphs on a GPU, PyTorch's paths on a CPU.

Only the two pass through the caches meanwhile. Calls and rounds are mixed at random, so that a call seldom finds the rows of
its round in a cache (one that all cores share may hold half of the rounds at V = 32,000). A kernel's speed is shown only if it
decided as the reference does on random rounds just before.
"""

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers.generation.utils import _speculative_sampling

from harness.core.text import interval_text
from harness.measures.statistics import Estimate, as_told, halved, median, ratio_of_totals
from harness.run.instruments import num_waits
from kernels.capture import capture
from kernels.verify.check import DTYPES, Report, check, random_cases
from kernels.verify.reference import adjusted_logits, inverse_cdf
from kernels.verify.registry import KERNELS
from kernels.verify.sizes import FLOAT, bytes_moved
from kernels.verify.traffic import seconds_of
from methods.sampling import Sampling
from methods.types import Proposal

TRANSFORMERS = "transformers"  # the function of transformers: batch 1, draws its own random numbers
# transformers 5.17 also asks whether the drafts reach the end of the text.
NOT_DONE = {name: False for name in inspect.signature(_speculative_sampling).parameters if name == "is_done_candidate"}
NUM_ROUNDS = 8  # different inputs, at least, so that a call seldom finds its rows in the caches near its core
NUM_ROWS = 32  # of all rounds, at least: with fewer, the mean acceptance is far from the one asked for
NUM_RESAMPLED = 100  # rows of all rounds where an interval resamples rounds
BASELINE = "baseline"
SMALL = 32_000  # vocabularies of which a call takes longer to start than to look at a row
# Shares of the baseline's time that the CPU paths may take: with top-k, below SMALL, and everywhere else.
GOALS = {"fused": (0.5, 1.0, 0.25), "sigmoid": (None, None, 1.0), "sigmoid-released": (None, None, 1.0)}
SLEEP_CYCLES = 100_000  # some 50 us of a device: longer than the host takes to launch a graph
SWEEP_SIZE = 2048  # side of the fp32 matrix that each thread reads before a call with cold caches: 16 MiB


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One shape: rows of the batch, drafted tokens, vocabulary, and sum min(p, q) of the models (None: every draft stands).

    Both models sample at temperature 1 from their ``top_k`` largest logits (None: from all). ``cold`` (CPU only): a
    matrix-vector product before each call empties the caches near the core, as a forward pass may.
    """

    batch: int
    gamma: int
    vocab_size: int
    acceptance: float | None
    top_k: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    cold: bool = False

    def as_text(self) -> str:
        alpha = "all accepted" if self.acceptance is None else f"alpha {self.acceptance:g}"
        filtered = "" if self.top_k is None else f", top-k {self.top_k}"
        cold = ", cold caches" if self.cold else ""
        return f"batch {self.batch}, gamma {self.gamma}, V {self.vocab_size}, {alpha}{filtered}{cold}"

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=1.0, top_k=self.top_k)

    def goal(self, kernel: str) -> float | None:
        """Return the share of the baseline's time that a kernel may take at most; None where nothing is promised."""
        if self.device != "cpu" or kernel not in GOALS:
            return None
        filtered, small, other = GOALS[kernel]
        return filtered if self.top_k is not None else small if self.vocab_size < SMALL else other


@dataclass(frozen=True)
class _Rounds:
    """Inputs of the kernels, one entry a round."""

    proposals: Sequence[Proposal]
    targets: Sequence[Tensor]
    uniforms: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One kernel at one setting. Times are seconds a call, medians; ``baseline_s`` is of the baseline timed in turns with it.

    ``ratio``: its time over the baseline's, both sums of medians by round; None where a check failed.
    ``goal``: what the ratio may be at most; None where nothing is promised.
    ``memory_frac``: ``bytes_moved`` in the median time, as a share of the measured memory bandwidth.
    ``empty_calls``: the median time in empty launches (on a CPU: in-place additions to one number).
    """

    kernel: str
    setting: Setting
    median_s: float
    baseline_s: float
    low_s: float | None
    high_s: float | None
    bytes_moved: int
    memory_frac: float
    empty_calls: float
    check: str
    ratio: Estimate | None
    goal: float | None

    @property
    def met(self) -> bool | None:
        """Say whether the ratio's whole interval is within the goal; None without a goal, and without a ratio."""
        if self.goal is None or self.ratio is None:
            return None
        return (self.ratio.value if self.ratio.high is None else self.ratio.high) <= self.goal

    def as_dict(self) -> dict[str, object]:
        return as_told(self)

    def as_text(self) -> str:
        low, high = (None if second is None else second * 1e6 for second in (self.low_s, self.high_s))
        spread = interval_text(low, high, ".1f")
        used = (
            f"{self.bytes_moved / 1e6:.2f} MB, {self.memory_frac:.0%} of memory bandwidth, {self.empty_calls:.1f} empty calls"
        )
        if self.ratio is None:
            shown = f"no speed-up shown: {self.check}"
        else:
            shown = f"{self.ratio.value:.3f} of baseline{interval_text(self.ratio.low, self.ratio.high, '.3f')}"
            if self.kernel != BASELINE:
                shown += f", {self.baseline_s * 1e6:.1f} us beside it"
        goal = "" if self.met is None else f" (goal <= {self.goal}: {'met' if self.met else 'MISSED'})"
        return f"{self.kernel:17s} {self.median_s * 1e6:9.1f} us{spread}  {shown}{goal}  ({used})"


def make_rounds(setting: Setting, num_rows: int = NUM_ROWS) -> _Rounds:
    """Draw random logits with the setting's overlap on its device; a proposal has its log-sum-exp, as a model drafter's has,
    of the type that it has there: on a CPU fp64, since drafts and their sums come out of one compiled call. ``num_rows``: of
    all rounds together, at least."""
    generator = torch.Generator(setting.device).manual_seed(setting.vocab_size)
    noise = 0.5 if setting.acceptance is None else noise_for(setting.acceptance, setting.vocab_size, setting.sampling)
    proposals, targets, uniforms = [], [], []
    for _ in range(max(NUM_ROUNDS, math.ceil(num_rows / setting.batch))):
        target, draft = _models(generator, setting.batch, setting.gamma, setting.vocab_size, noise)
        numbers = _uniforms(generator, setting.batch, setting.gamma)
        tokens = inverse_cdf(setting.sampling.probs(draft), numbers)
        drawn = _uniforms(generator, setting.batch, setting.gamma + 1)
        if setting.acceptance is None:
            drawn[:, :-1] = 0
        target, draft = (model.to(DTYPES[setting.dtype]) for model in (target, draft))
        wide = torch.float32 if draft.is_cuda else torch.float64
        known, lengths = draft.to(wide).logsumexp(-1), (setting.gamma,) * setting.batch
        proposals.append(Proposal(tokens, lengths, draft, setting.sampling, known))
        targets.append(target)
        uniforms.append(drawn)
    return _Rounds(proposals, targets, uniforms)


def noise_for(acceptance: float, vocab_size: int, sampling: Sampling) -> float:
    """Find the noise between the models' logits that gives the wanted mean of sum min(p, q), by bisection."""
    batch = max(2, 400_000 // vocab_size)

    def accepts_more(noise: float) -> bool:
        target, draft = _models(torch.Generator().manual_seed(0), batch, 4, vocab_size, noise)
        overlap = torch.minimum(sampling.probs(target[:, :-1]), sampling.probs(draft)).sum(-1).mean()
        return float(overlap) > acceptance

    return halved(accepts_more, high=16.0, steps=16)


def _models(generator: torch.Generator, batch: int, gamma: int, vocab_size: int, noise: float) -> tuple[Tensor, Tensor]:
    draw = partial(torch.randn, generator=generator, device=generator.device)
    target = 3 * draw(batch, gamma + 1, vocab_size)
    return target, target[:, :-1] + noise * draw(batch, gamma, vocab_size)


def _uniforms(generator: torch.Generator, batch: int, count: int) -> Tensor:
    return torch.rand(batch, count, dtype=torch.float64, generator=generator, device=generator.device)


def calls_for(names: Sequence[str], rounds: _Rounds) -> dict[str, Callable[[int], object]]:
    """Return, for each kernel, a function that runs it on the i-th round."""

    def ours(name: str) -> Callable[[int], object]:
        return lambda i: KERNELS[name](rounds.proposals[i], rounds.targets[i], rounds.proposals[i].sampling, rounds.uniforms[i])

    def theirs(i: int) -> object:
        proposal = rounds.proposals[i]
        assert proposal.logits is not None
        target, draft = (adjusted_logits(logits, proposal.sampling) for logits in (rounds.targets[i], proposal.logits))
        return _speculative_sampling(proposal.tokens, draft, proposal.tokens.shape[1], target, **NOT_DONE)

    return {name: theirs if name == TRANSFORMERS else ours(name) for name in names}


def time_on_cpu(calls: Sequence[Callable[[int], object]], num_rounds: int, repeats: int, cold: bool = False) -> np.ndarray:
    """Return seconds [calls, repeats, rounds] after one untimed pass; calls and rounds are mixed at random."""
    seconds, generator = np.zeros((len(calls), repeats, num_rounds)), np.random.default_rng(0)
    weights = torch.ones(SWEEP_SIZE * torch.get_num_threads() if cold else 0, SWEEP_SIZE)
    vector = torch.ones(SWEEP_SIZE)
    for call in calls:
        for index in range(num_rounds):
            call(index)
    for repeat in range(repeats):
        for which, index in _mixed(len(calls), num_rounds, generator):
            if cold:
                torch.mv(weights, vector)
            start = time.perf_counter()
            calls[which](index)
            seconds[which, repeat, index] = time.perf_counter() - start
    return seconds


def _mixed(num_calls: int, num_rounds: int, generator: np.random.Generator) -> list[tuple[int, int]]:
    """Pair every call with every round once, in a random order."""
    return [divmod(pair, num_rounds) for pair in generator.permutation(num_calls * num_rounds).tolist()]


def time_on_device(
    calls: Sequence[Callable[[int], object]],
    num_rounds: int,
    repeats: int,
    device: str,
    *,
    captured: bool = True,
    flushed: bool = False,
    per_run: int = 10,
) -> np.ndarray:
    """Return seconds [calls, repeats, rounds] by the device's events around ``per_run`` calls on one round.

    ``captured``: the calls are a CUDA graph, unless they wait for the device, as transformers' function does; else they are
    launched one by one, and the host's time shows where it is the longer. Unless ``flushed``, what is timed has just run once
    (a call that took 7.5 us on an H200 took 9.6 behind graphs of other kernels). With ``flushed`` the device's cache is
    overwritten before every call, which is then timed alone. A graph is launched while the device still sleeps: how long the
    host takes to launch it is no part of the time. On a CPU, where this is rehearsed, calls are plain.
    """
    per_run = 1 if flushed else per_run
    runs = [[_launched(call, index, per_run) for index in range(num_rounds)] for call in calls]
    if captured and device.startswith("cuda"):
        runs = [
            own if num_waits(partial(call, 0), device) else [capture(run, torch.cuda.Stream(device)) for run in own]
            for call, own in zip(calls, runs, strict=True)
        ]
    cache = torch.empty(_cache_numbers(device) if flushed else 0, device=device)
    seconds, generator = np.zeros((len(calls), repeats, num_rounds)), np.random.default_rng(0)
    for repeat in range(repeats):
        for which, index in _mixed(len(calls), num_rounds, generator):
            if flushed:
                cache.zero_()
            else:
                runs[which][index]()
            if captured and device.startswith("cuda"):
                torch.cuda._sleep(SLEEP_CYCLES)
            seconds[which, repeat, index] = seconds_of(runs[which][index], device) / per_run
    return seconds


def _cache_numbers(device: str) -> int:
    """Count the fp32 numbers that fill the device's last cache twice; few on a CPU, where this is only rehearsed."""
    if not device.startswith("cuda"):
        return SWEEP_SIZE
    return 2 * torch.cuda.get_device_properties(device).L2_cache_size // FLOAT


def _launched(call: Callable[[int], object], index: int, per_run: int) -> Callable[[], object]:
    """Return so many calls one after another, after one that compiles what they need."""

    def run() -> None:
        for _ in range(per_run):
            call(index)

    call(index)
    return run


def launched(call: Callable[[int], object], device: str) -> list[tuple[str, float]] | None:
    """Return what one call launches on the device, copies too, with the seconds of each, by torch's profiler; None on a CPU."""
    cuda = device.startswith("cuda")
    call(0)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        call(0)
        if cuda:
            torch.cuda.synchronize(device)
    found = [one for one in profiler.events() or () if one.device_type == DeviceType.CUDA]
    return [(one.name, one.time_range.elapsed_us() / 1e6) for one in found] if cuda else None


def check_kernels(names: Sequence[str], num_rows: int, dtype: str, device: str) -> dict[str, Report]:
    """Check each kernel on random rounds against the reference. The function of transformers draws its own numbers."""
    checked = [name for name in names if name != TRANSFORMERS]
    return {name: check(name, random_cases(num_rows, DTYPES[dtype], 0, 10), DTYPES[dtype], device=device) for name in checked}


def bench_setting(
    setting: Setting, names: Sequence[str], reports: dict[str, Report], repeats: int, bandwidth: float, empty_s: float
) -> list[KernelRow]:
    """Time every kernel and the baseline in turns on the same rounds. ``bandwidth``: bytes a second of this machine's memory;
    ``empty_s``: seconds of an empty launch."""
    names = [name for name in names if name != TRANSFORMERS or setting.batch == 1]
    rounds = make_rounds(setting, NUM_RESAMPLED)
    calls = calls_for(names, rounds)
    if setting.device.startswith("cuda"):
        timer = partial(time_on_device, device=setting.device)
    else:
        timer = partial(time_on_cpu, cold=setting.cold)
    others = [name for name in names if name != BASELINE] or [BASELINE]
    with torch.inference_mode():
        beside = {name: timer([calls[BASELINE], calls[name]], len(rounds.targets), repeats) for name in others}
    beside[BASELINE] = np.concatenate([np.stack((turns[0], turns[0])) for turns in beside.values()], 1)
    rows = []
    for name in names:
        base, seconds = beside[name]
        typical = median(seconds.ravel(), "s")
        filtered = setting.top_k is not None
        moved = bytes_moved(name, setting.batch, setting.gamma, setting.vocab_size, setting.dtype, filtered)
        red = [report for report in (reports.get(name), reports.get(BASELINE)) if report is not None and not report.passed]
        ratio = None if red else ratio_of_totals(_by_round(seconds), _by_round(base), "of baseline")
        rows.append(
            KernelRow(
                kernel=name,
                setting=setting,
                median_s=typical.value,
                baseline_s=float(np.median(base)),
                low_s=typical.low,
                high_s=typical.high,
                bytes_moved=moved,
                memory_frac=moved / typical.value / bandwidth,
                empty_calls=typical.value / empty_s,
                check=red[0].as_text() if red else "green" if name in reports else "not checked",
                ratio=ratio,
                goal=setting.goal(name),
            )
        )
    return rows


def _by_round(seconds: np.ndarray) -> np.ndarray:
    """Reduce [repeats, rounds] to medians over repeats; an interval then resamples rounds."""
    return np.median(seconds, 0)
