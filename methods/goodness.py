"""Whether sampled outputs fit the target's law, end to end: through models, caches, drafters and rules.

Finds faults of plumbing (a cache off by one, a law that was not sampled from, a number used twice), down to a total variation
that each test states. Small biases of a rule are for ``methods.exactness``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from methods.sampling import Sampling, Uniforms
from methods.types import Generation, Inputs, Method, Session, Stop

FALSE_ALARM = 1e-6
POWER, Z_POWER = 0.9, 1.2816  # and the normal quantile of it


@dataclass(frozen=True)
class Fit:
    """A goodness-of-fit test: ``p_value`` bounds the chance of so bad a fit if the law is kept, for any sample size.

    ``detectable_tv``: samples at least this far (total variation, averaged over contexts by sample) always fail. ``likely_tv``:
    samplers whose law is at least this far are found with a chance of ``POWER``, whatever the way in which they differ.
    """

    num_samples: int
    divergence: float
    p_value: float
    detectable_tv: float
    likely_tv: float

    def passes(self, false_alarm: float) -> bool:
        return self.p_value > false_alarm


def goodness_of_fit(counts: Sequence[Sequence[int]], laws: Sequence[Sequence[float]], false_alarm: float = FALSE_ALARM) -> Fit:
    """Tests counts of tokens, one row a context, against the law that each context gives.

    The statistic is the sum over contexts of samples times KL(sample, law). Its moment generating function is at most
    ``(1 - t)**-freedom`` (Agrawal 2020, "Concentration of the multinomial in relative entropy"), so by Chernoff's bound
    ``P(statistic >= x) <= (e x / freedom)**freedom exp(-x)``: no approximation, no least count. Freedom counts a
    context's tokens of positive law, less one.
    """
    statistic, freedom, total = 0.0, 0, 0
    for row, law in zip(counts, laws, strict=True):
        size = sum(row)
        total += size
        freedom += sum(prob > 0 for prob in law) - 1 if size else 0
        mass = math.fsum(law)
        statistic += sum(_term(count, size, prob / mass) for count, prob in zip(row, law, strict=True) if count)
    critical = _critical(freedom, false_alarm)
    bounds = (critical, _found_with_power(freedom, critical))
    always, likely = (math.sqrt(bound / (2 * total)) if total else math.inf for bound in bounds)
    return Fit(total, statistic, _tail(statistic, freedom), always, likely)


def _term(count: int, size: int, prob: float) -> float:
    return count * math.log(count / (size * prob)) if prob > 0 else math.inf


def _tail(statistic: float, freedom: int) -> float:
    if statistic <= freedom:
        return 1.0
    if freedom == 0 or math.isinf(statistic):
        return 0.0 if statistic > 1e-6 else 1.0
    return math.exp(freedom * (1 + math.log(statistic / freedom)) - statistic)


def _critical(freedom: int, false_alarm: float) -> float:
    """The least statistic that fails. By Pinsker, KL >= 2 tv**2: samples that are this far over 2 in tv**2 surely reach it."""
    low, high = float(freedom), freedom + 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > false_alarm else (low, middle)
    return high


def _found_with_power(freedom: int, critical: float) -> float:
    """Half the noncentrality at which the statistic passes ``critical`` with a chance of POWER.

    Twice the statistic is about noncentral chi-squared, here by its normal approximation. Its noncentrality, samples times
    chi-squared distance, is at least ``4 samples tv**2``: equal where half of the law's mass gains what the other loses.
    """
    low, high = 0.0, 4 * critical + 100.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = freedom + middle - Z_POWER * math.sqrt(2 * (freedom + 2 * middle)) >= 2 * critical
        low, high = (low, middle) if reached else (middle, high)
    return high / 2


@dataclass(frozen=True)
class Sampled:
    """Outputs that were drawn from one prompt (or source, or recording), one row a seed."""

    inputs: Inputs
    rows: list[Generation]


def sampled_fits(
    method: Method,
    target: Session,
    prompt: Sequence[int],
    sampling: Sampling,
    num_draft: int,
    seeds: Sequence[int],
    num_positions: int = 3,
    max_cells: int = 32,
    min_samples: int = 50,
) -> dict[str, Fit]:
    """Samples many outputs from one prompt and tests each position, each place in the first round, and its bonus, apart.

    Contexts are the tokens before: those seen fewer than ``min_samples`` times are left out (how often a context is seen does
    not depend on what follows it). A law's tokens beyond its ``max_cells - 1`` likeliest are pooled. ``method`` must
    draft ``num_draft`` tokens in its first round, or fewer. Compare each p-value with ``FALSE_ALARM`` over their number.
    """
    length = max(num_draft + 1, num_positions)
    sampled = draw_rows(method, target, Inputs((tuple(prompt),)), sampling, seeds, length)
    return fits_of([sampled], Laws(target, sampling, max_cells), num_draft, num_positions, min_samples)


def draw_rows(
    method: Method,
    target: Session,
    inputs: Inputs,
    sampling: Sampling,
    seeds: Sequence[int],
    length: int,
    batch: int | None = None,
    uniforms_of: Callable[..., Uniforms] = Uniforms,
) -> Sampled:
    """One output of ``length`` tokens a seed from the single row of ``inputs``, ``batch`` (or all) of them decoded together."""
    rows: list[Generation] = []
    for start in range(0, len(seeds), batch or len(seeds)):
        some = seeds[start : start + (batch or len(seeds))]
        features = None if inputs.features is None else inputs.features.expand(len(some), -1, -1)
        repeated = Inputs(inputs.prompts * len(some), features)
        uniforms = uniforms_of(some, length, target.device)
        rows += method.generate(target, repeated, sampling, uniforms, Stop(max_new_tokens=length))
    return Sampled(inputs, rows)


def fits_of(
    samples: Sequence[Sampled],
    laws: "Laws",
    num_draft: int,
    num_positions: int,
    min_samples: int = 50,
    false_alarm: float | None = None,
) -> dict[str, Fit]:
    """Every position and, of rounds that draft, every place of the first one and its bonus; samples of all prompts together.

    Each test is held against ``false_alarm``, by default FALSE_ALARM over their number.
    """
    groups = {f"position {place}": _texts(samples, place, lambda row: len(row.tokens)) for place in range(num_positions)}
    for place in range(num_draft + 1) if num_draft else ():
        name = "bonus" if place == num_draft else f"draft {place}"
        groups[name] = _texts(samples, place, lambda row: row.steps[0].emitted)
    level = false_alarm or FALSE_ALARM / len(groups)
    return {name: _fit_group(texts, laws, min_samples, level) for name, texts in groups.items()}


Text = tuple[Inputs, tuple[int, ...], int]  # a prompt, the tokens behind it, and the one that came next


def _texts(samples: Sequence[Sampled], place: int, reach: Callable[[Generation], int]) -> list[Text]:
    return [
        (one.inputs, tuple(row.tokens[:place]), row.tokens[place])
        for one in samples
        for row in one.rows
        if min(reach(row), len(row.tokens)) > place
    ]


class Laws:
    """The target's law behind each context, from a forward pass of its own, and how its tokens are pooled."""

    def __init__(self, target: Session, sampling: Sampling, max_cells: int = 32) -> None:
        self.target, self.sampling, self.max_cells = target, sampling, max_cells
        self.known: dict[tuple[int, tuple[int, ...]], tuple[list[float], dict[int, int]]] = {}
        self._prompts: list[Inputs] = []  # compared by identity: features have no equality of their own

    def number(self, inputs: Inputs) -> int:
        """Of a prompt, in the order in which they were met."""
        found = next((index for index, one in enumerate(self._prompts) if one is inputs), None)
        if found is None:
            self._prompts.append(inputs)
        return len(self._prompts) - 1 if found is None else found

    def cells(self, inputs: Inputs, context: tuple[int, ...]) -> tuple[list[float], dict[int, int]]:
        """The law of the cells (the last is what is pooled), and the cell of each token that has its own."""
        key = (self.number(inputs), context)
        if key not in self.known:
            text = torch.tensor([[*self.target.prefill(inputs), *context]], device=self.target.device)
            probs = self.sampling.probs(self.target.extend(text)[0, -1]).double()
            top = probs.topk(min(self.max_cells - 1, len(probs)))
            rest = [] if len(top.values) == len(probs) else [max(0.0, 1 - float(top.values.sum()))]
            own = {token: cell for cell, token in enumerate(top.indices.tolist())}
            self.known[key] = ([*top.values.tolist(), *rest], own)
        return self.known[key]


def _fit_group(texts: Sequence[Text], laws: Laws, min_samples: int, false_alarm: float) -> Fit:
    contexts: dict[tuple[int, tuple[int, ...]], tuple[Inputs, list[int]]] = {}
    for inputs, before, token in texts:
        contexts.setdefault((laws.number(inputs), before), (inputs, []))[1].append(token)
    counts, cell_laws = [], []
    for (_, before), (inputs, tokens) in contexts.items():
        if len(tokens) >= min_samples:
            law, own = laws.cells(inputs, before)
            row = [0] * len(law)
            for token in tokens:
                row[own.get(token, len(law) - 1)] += 1
            counts.append(row)
            cell_laws.append(law)
    return goodness_of_fit(counts, cell_laws, false_alarm)
