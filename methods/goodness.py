"""Whether sampled outputs fit the target's law, end to end: through models, caches, drafters and rules.

Finds faults of plumbing (a cache off by one, a law that was not sampled from, a number used twice), down to a total variation
that each test states. Small biases of a rule are for ``methods.exactness``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from methods.sampling import Sampling, Uniforms
from methods.types import Inputs, Method, Session, Stop

FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Fit:
    """A goodness-of-fit test: ``p_value`` bounds the chance of so bad a fit if the law is kept, for any sample size.

    ``detectable_tv``: samples at least this far (total variation, averaged over contexts by sample) always fail.
    """

    num_samples: int
    divergence: float
    p_value: float
    detectable_tv: float

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
    return Fit(total, statistic, _tail(statistic, freedom), _detectable(freedom, total, false_alarm))


def _term(count: int, size: int, prob: float) -> float:
    return count * math.log(count / (size * prob)) if prob > 0 else math.inf


def _tail(statistic: float, freedom: int) -> float:
    if statistic <= freedom:
        return 1.0
    if freedom == 0 or math.isinf(statistic):
        return 0.0 if statistic > 1e-6 else 1.0
    return math.exp(freedom * (1 + math.log(statistic / freedom)) - statistic)


def _detectable(freedom: int, total: int, false_alarm: float) -> float:
    """By Pinsker, KL >= 2 tv**2: the distance at which the statistic surely passes the critical value."""
    low, high = float(freedom), freedom + 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > false_alarm else (low, middle)
    return math.sqrt(high / (2 * total)) if total else math.inf


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
    stop = Stop(max_new_tokens=max(num_draft + 1, num_positions))
    uniforms = Uniforms(seeds, stop.max_new_tokens, target.device)
    rows = method.generate(target, Inputs((tuple(prompt),) * len(seeds)), sampling, uniforms, stop)
    groups = {f"position {place}": [row.tokens[: place + 1] for row in rows] for place in range(num_positions)}
    for place in range(num_draft + 1):
        name = "bonus" if place == num_draft else f"draft {place}"
        reached = [row.tokens[: place + 1] for row in rows if row.steps[0].emitted > place]
        groups[name] = [tokens for tokens in reached if tokens]
    laws = _Laws(target, prompt, sampling, max_cells)
    return {name: _fit_group(texts, laws, min_samples, FALSE_ALARM / len(groups)) for name, texts in groups.items()}


class _Laws:
    """The target's law behind each context, from a forward pass of its own, and how its tokens are pooled."""

    def __init__(self, target: Session, prompt: Sequence[int], sampling: Sampling, max_cells: int) -> None:
        self.target, self.prompt, self.sampling, self.max_cells = target, tuple(prompt), sampling, max_cells
        self.known: dict[tuple[int, ...], tuple[list[float], dict[int, int]]] = {}

    def cells(self, context: tuple[int, ...]) -> tuple[list[float], dict[int, int]]:
        """The law of the cells (the last is what is pooled), and the cell of each token that has its own."""
        if context not in self.known:
            pending = self.target.prefill(Inputs((self.prompt,)))
            text = torch.tensor([[*pending, *context]], device=self.target.device)
            probs = self.sampling.probs(self.target.extend(text)[0, -1]).double()
            top = probs.topk(min(self.max_cells - 1, len(probs)))
            rest = [] if len(top.values) == len(probs) else [max(0.0, 1 - float(top.values.sum()))]
            own = {token: cell for cell, token in enumerate(top.indices.tolist())}
            self.known[context] = ([*top.values.tolist(), *rest], own)
        return self.known[context]


def _fit_group(texts: Sequence[Sequence[int]], laws: _Laws, min_samples: int, false_alarm: float) -> Fit:
    contexts: dict[tuple[int, ...], list[int]] = {}
    for text in texts:
        contexts.setdefault(tuple(text[:-1]), []).append(text[-1])
    counts, cell_laws = [], []
    for context, tokens in contexts.items():
        if len(tokens) >= min_samples:
            law, own = laws.cells(context)
            row = [0] * len(law)
            for token in tokens:
                row[own.get(token, len(law) - 1)] += 1
            counts.append(row)
            cell_laws.append(law)
    return goodness_of_fit(counts, cell_laws, false_alarm)
