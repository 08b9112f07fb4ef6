"""Times the verification kernels, each in turns with the baseline: Triton with CUDA graphs on a GPU, PyTorch's paths on a CPU.

No third kernel passes through the caches meanwhile, and calls and rounds are mixed at random, so that a call seldom finds a
round's rows where the one before left them (a cache that all cores share may hold half of the rounds at V = 32,000). A kernel's
speed is shown only if it decided as the reference does on random rounds just before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers.generation.utils import _speculative_sampling

from harness.kernel_traffic import bytes_moved
from harness.statistics import Estimate, interval, ratio_of_totals
from kernels.verify.check import DTYPES, Report, check
from kernels.verify.reference import inverse_cdf
from kernels.verify.registry import KERNELS
from kernels.verify.rounds import random_cases
from methods.sampling import Sampling
from methods.types import Proposal

TRANSFORMERS = "transformers"  # its own function, batch 1, with its own random draws: the outside reference
DRAWN = Sampling(temperature=1.0)
NUM_ROUNDS = 8  # inputs that timing draws from, at least, so that a call seldom finds its rows in the caches near its core
NUM_ROWS = 32  # of all rounds: with fewer, what is accepted on average is far from what was asked for
BASELINE = "baseline"
SWEEP_SIZE = 2048  # of the square matrix, fp32, that each thread reads before a call where caches are to be cold: 16 MiB


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One shape: rows of the batch, drafted tokens, vocabulary, and sum min(p, q) of the models (None: every draft stands).

    ``cold``: before each call a matrix is multiplied with a vector, which leaves neither the call's data nor its code in the
    caches near the core, as at worst a model's forward pass would; on a CPU.
    """

    batch: int
    gamma: int
    vocab_size: int
    acceptance: float | None
    dtype: str = "float32"
    device: str = "cpu"
    cold: bool = False

    def as_text(self) -> str:
        alpha = "all accepted" if self.acceptance is None else f"alpha {self.acceptance:g}"
        return f"batch {self.batch}, gamma {self.gamma}, V {self.vocab_size}, {alpha}{', cold caches' if self.cold else ''}"


@dataclass(frozen=True)
class Rounds:
    """What kernels are given in turns, and how many drafts of each round stand."""

    proposals: Sequence[Proposal]
    targets: Sequence[Tensor]
    uniforms: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One kernel at one setting. Times are seconds a call: its median, and that of the baseline beside it.

    ``ratio`` is its time over that baseline's, both summed over rounds of which each is a median; None while it is red.

    ``memory_frac`` is the share of the measured memory bandwidth that ``bytes_moved`` in the median time makes up,
    ``empty_calls`` that time in empty launches (on a CPU: in-place additions to one number).
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

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def as_text(self) -> str:
        spread = "" if self.low_s is None or self.high_s is None else f" [{self.low_s * 1e6:.1f}, {self.high_s * 1e6:.1f}]"
        used = (
            f"{self.bytes_moved / 1e6:.2f} MB, {self.memory_frac:.0%} of memory bandwidth, {self.empty_calls:.1f} empty calls"
        )
        if self.ratio is None:
            shown = f"no speed-up shown: {self.check}"
        else:
            shown = f"{self.ratio.value:.3f} of baseline"
            if self.ratio.low is not None:
                shown += f" [{self.ratio.low:.3f}, {self.ratio.high:.3f}]"
            if self.kernel != BASELINE:
                shown += f", {self.baseline_s * 1e6:.1f} us beside it"
        return f"{self.kernel:17s} {self.median_s * 1e6:9.1f} us{spread}  {shown}  ({used})"


def make_rounds(setting: Setting) -> Rounds:
    """Random logits whose overlap is the setting's; the draft hands over its log-sum-exp as a model drafter does."""
    generator = torch.Generator().manual_seed(setting.vocab_size)
    noise = 0.5 if setting.acceptance is None else noise_for(setting.acceptance, setting.vocab_size)
    proposals, targets, uniforms = [], [], []
    for _ in range(max(NUM_ROUNDS, NUM_ROWS // setting.batch)):
        target, draft = _models(generator, setting.batch, setting.gamma, setting.vocab_size, noise)
        numbers = torch.rand(setting.batch, setting.gamma, dtype=torch.float64, generator=generator)
        tokens = inverse_cdf(draft.softmax(-1), numbers)
        drawn = torch.rand(setting.batch, setting.gamma + 1, dtype=torch.float64, generator=generator)
        if setting.acceptance is None:
            drawn[:, :-1] = 0
        target, draft = (model.to(setting.device, DTYPES[setting.dtype]) for model in (target, draft))
        known, lengths = draft.float().logsumexp(-1), (setting.gamma,) * setting.batch
        proposals.append(Proposal(tokens.to(setting.device), lengths, draft, DRAWN, known))
        targets.append(target)
        uniforms.append(drawn.to(setting.device))
    return Rounds(proposals, targets, uniforms)


def noise_for(acceptance: float, vocab_size: int) -> float:
    """How much noise between the models' logits makes the mean of sum min(p, q) the one asked for, by bisection."""
    low, high, batch = 0.0, 16.0, max(2, 400_000 // vocab_size)
    for _ in range(16):
        middle = (low + high) / 2
        target, draft = _models(torch.Generator().manual_seed(0), batch, 4, vocab_size, middle)
        overlap = torch.minimum(target[:, :-1].softmax(-1), draft.softmax(-1)).sum(-1).mean()
        low, high = (middle, high) if float(overlap) > acceptance else (low, middle)
    return (low + high) / 2


def _models(generator: torch.Generator, batch: int, gamma: int, vocab_size: int, noise: float) -> tuple[Tensor, Tensor]:
    target = 3 * torch.randn(batch, gamma + 1, vocab_size, generator=generator)
    return target, target[:, :-1] + noise * torch.randn(batch, gamma, vocab_size, generator=generator)


def calls_for(names: Sequence[str], rounds: Rounds) -> dict[str, Callable[[int], object]]:
    """By kernel, what runs it on the i-th round."""

    def ours(name: str) -> Callable[[int], object]:
        return lambda i: KERNELS[name](rounds.proposals[i], rounds.targets[i], DRAWN, rounds.uniforms[i])

    def theirs(i: int) -> object:
        proposal = rounds.proposals[i]
        return _speculative_sampling(proposal.tokens, proposal.logits, proposal.tokens.shape[1], rounds.targets[i])

    return {name: theirs if name == TRANSFORMERS else ours(name) for name in names}


def time_on_cpu(calls: Sequence[Callable[[int], object]], num_rounds: int, repeats: int, cold: bool = False) -> np.ndarray:
    """[calls, repeats, rounds] seconds, one untimed pass first; calls and rounds are mixed at random."""
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
    """Every call on every round once, in a random order."""
    return [divmod(pair, num_rounds) for pair in generator.permutation(num_calls * num_rounds).tolist()]


def time_on_cuda(calls: Sequence[Callable[[int], object]], num_rounds: int, repeats: int, per_graph: int = 10) -> np.ndarray:
    """The same with events around CUDA graphs, each ``per_graph`` calls on one round, whose rows the device's cache holds from
    the second on if it can; what cannot be captured is launched."""
    graphs = [[_captured(call, index, per_graph) for index in range(num_rounds)] for call in calls]
    seconds, generator = np.zeros((len(calls), repeats, num_rounds)), np.random.default_rng(0)
    for repeat in range(repeats):
        for which, index in _mixed(len(calls), num_rounds, generator):
            seconds[which, repeat, index] = _event_seconds(graphs[which][index]) / per_graph
    return seconds


def _captured(call: Callable[[int], object], index: int, per_graph: int) -> Callable[[], object]:
    """A graph's replay, or the calls themselves where something in them waits for the host (transformers' function does)."""

    def run() -> None:
        for _ in range(per_graph):
            call(index)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return run
    return graph.replay


def _event_seconds(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def median_of(seconds: np.ndarray) -> tuple[float, float | None, float | None]:
    """The median of [repeats, rounds] seconds and its 95 % percentile bootstrap; no interval for a single number."""
    values = seconds.ravel()
    if len(values) == 1:
        return float(values[0]), None, None
    draws = np.random.default_rng(0).choice(values, size=(1000, len(values)))
    return float(np.median(values)), *interval(np.median(draws, 1))


def check_kernels(names: Sequence[str], num_rows: int, dtype: str, device: str) -> dict[str, Report]:
    """Random rounds against the reference, before anything is timed; transformers' function draws numbers of its own."""
    checked = [name for name in names if name != TRANSFORMERS]
    return {name: check(name, random_cases(num_rows, DTYPES[dtype], 0, 10), DTYPES[dtype], device=device) for name in checked}


def bench_setting(
    setting: Setting, names: Sequence[str], reports: dict[str, Report], repeats: int, bandwidth: float, empty_s: float
) -> list[KernelRow]:
    """Every kernel on the same rounds, which it and the baseline take in turns. ``bandwidth`` in bytes a second, ``empty_s``
    seconds of an empty launch."""
    names = [name for name in names if name != TRANSFORMERS or setting.batch == 1]
    rounds = make_rounds(setting)
    calls = calls_for(names, rounds)
    timer = time_on_cuda if setting.device.startswith("cuda") else partial(time_on_cpu, cold=setting.cold)
    others = [name for name in names if name != BASELINE] or [BASELINE]
    with torch.inference_mode():
        beside = {name: timer([calls[BASELINE], calls[name]], len(rounds.targets), repeats) for name in others}
    beside[BASELINE] = np.concatenate([np.stack((turns[0], turns[0])) for turns in beside.values()], 1)
    rows = []
    for name in names:
        base, seconds = beside[name]
        median, low, high = median_of(seconds)
        moved = bytes_moved(name, setting.batch, setting.gamma, setting.vocab_size, setting.dtype)
        red = [report for report in (reports.get(name), reports.get(BASELINE)) if report is not None and not report.passed]
        ratio = None if red else ratio_of_totals(_by_round(seconds), _by_round(base), "of baseline")
        rows.append(
            KernelRow(
                kernel=name,
                setting=setting,
                median_s=median,
                baseline_s=float(np.median(base)),
                low_s=low,
                high_s=high,
                bytes_moved=moved,
                memory_frac=moved / median / bandwidth,
                empty_calls=median / empty_s,
                check=red[0].as_text() if red else "green" if name in reports else "not checked",
                ratio=ratio,
            )
        )
    return rows


def _by_round(seconds: np.ndarray) -> np.ndarray:
    """[repeats, rounds] as medians over repeats: rounds are what an interval resamples."""
    return np.median(seconds, 0)
