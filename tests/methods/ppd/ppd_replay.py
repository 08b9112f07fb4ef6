"""What Theorem 4.1 leaves out, from measured matches: their dependence, the last token, and what communication costs.

Latency is linear in the matches, so the following is exact for any dependence and any lengths:
    - At the rate of all tokens but each generation's last, the theorem's mean is the measured one: dependence alone changes
      nothing.
    - At the rate of all tokens (the paper's p-hat) it is too low by (d - d-bar) (rate of last tokens - rate of all) layers a
      generation: the last token's match saves nothing.
Dependence does change how far generations spread around that mean, and how long runs are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import ppd_laws
from numpy.typing import NDArray

from methods.errors import InputError
from methods.ppd import theory
from methods.ppd.theory import Costs

Matches = Sequence[NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Measured matches against independent ones. Latencies are sums over generations, in layers except ``with_costs``.

    Attributes:
        match_rate: of all tokens (the paper's p-hat).
        useful_rate: of all tokens but the last of each generation, whose match saves nothing. None: no such token.
        after_match_rate, after_miss_rate: of the tokens whose predecessor in the generation matched, or did not; equal if
            neighbours are independent. None: no such token.
        latency: replayed exactly, a layer 1, all else free.
        theorem: Theorem 4.1 at ``match_rate`` and each generation's length (at ``useful_rate`` it would be ``latency``).
        with_costs: replayed with the costs given, in their unit. greedy_with_costs: greedy decoding's.
        dispersion: variance of the number of matches in a generation, over that of independent matches at ``useful_rate`` (more
            than 1 if easy tokens or easy texts come together). None: fewer than two generations, or a rate of 0 or 1.
        run_counts: runs of length 1, 2, ... up to the longest generation.
        independent_run_counts: how many to expect at ``useful_rate`` if matches were independent.
    """

    num_generations: int
    num_tokens: int
    match_rate: float
    useful_rate: float | None
    after_match_rate: float | None
    after_miss_rate: float | None
    latency: float
    theorem: float
    with_costs: float
    greedy_with_costs: float
    dispersion: float | None
    run_counts: NDArray[np.int64]
    independent_run_counts: NDArray[np.float64]


def replay(generations: Matches, num_layers: int, early_layer: int, costs: Costs) -> Replay:
    """``generations``: for each, one boolean an output token: was it among the candidates? Lengths may differ.

    Raises:
        InputError: no generation, an empty one, or a layer for which Theorem 4.1 does not hold.
    """
    if not len(generations):
        raise InputError("generations []: expected at least one measured sequence of matches")
    rows = [np.asarray(row, dtype=bool) for row in generations]
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    theory.require_counts(num_tokens=min(lengths))
    every = np.concatenate(rows)
    useful_rate = _mean(np.concatenate([row[:-1] for row in rows]))
    rate = 0.0 if useful_rate is None else useful_rate
    return Replay(
        num_generations=len(rows),
        num_tokens=len(every),
        match_rate=float(every.mean()),
        useful_rate=useful_rate,
        after_match_rate=_mean(np.concatenate([row[1:][row[:-1]] for row in rows])),
        after_miss_rate=_mean(np.concatenate([row[1:][~row[:-1]] for row in rows])),
        latency=sum(float(ppd_laws.sequence_latency(row, num_layers, early_layer)) for row in rows),
        theorem=sum(float(theory.latency(num_layers, early_layer, n, every.mean())) for n in lengths),
        with_costs=sum(float(ppd_laws.sequence_latency(row, num_layers, early_layer, costs)) for row in rows),
        greedy_with_costs=len(every) * ppd_laws.greedy_latency_per_token(num_layers, costs),
        dispersion=_dispersion(rows, rate),
        run_counts=_sum_counts([np.bincount(run_lengths(row)) for row in rows], longest + 1)[1:],
        independent_run_counts=_sum_counts([ppd_laws.expected_run_counts(n, rate) for n in lengths], longest),
    )


def run_lengths(matches: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Lengths of one generation's runs, in order: a run ends where a token does not match, and at the end."""
    ends = np.flatnonzero(~np.append(np.asarray(matches[:-1], dtype=bool), False))
    return np.diff(ends, prepend=-1)


def _sum_counts(counts: Sequence[NDArray], size: int) -> NDArray:
    """Adds histograms of different lengths."""
    return np.sum([np.pad(row, (0, size - len(row))) for row in counts], axis=0)


def _dispersion(rows: Matches, rate: float) -> float | None:
    useful = np.array([len(row) - 1 for row in rows])
    if len(rows) < 2 or not useful.sum() * rate * (1 - rate):
        return None
    matched = np.array([row[:-1].sum() for row in rows])
    squares = ((matched - useful * rate) ** 2).sum() * len(rows) / (len(rows) - 1)
    return float(squares / (useful.sum() * rate * (1 - rate)))


def _mean(values: NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None
