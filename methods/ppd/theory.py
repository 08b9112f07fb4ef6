"""The closed forms of PPD: Equations 3, 5 and 6, Theorem 4.1, the law of runs, and the same with measured costs.

``num_layers`` is the paper's d, ``early_layer`` its d-bar, ``num_tokens`` ell, ``num_candidates`` k, ``match_rate`` p_correct.
Time is in layers unless a function takes ``Costs``; a name that ends in ``_per_token`` without ``Costs`` is in units of d, as
the paper's figures are. All broadcast over ``match_rate``. Every form but Equations 3, 5 and 6 rests on one fact: a token whose
predecessor was matched costs the main process d-bar layers, any other token d.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from methods.errors import InputError

Array = NDArray[np.float64] | np.float64
Number = float | int
Rates = Number | NDArray[np.float64] | Sequence[float]
EarlyHead = Literal["main", "sub"]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What each part takes, in one unit of time (layers or seconds). The defaults are the paper's: a layer is 1, all else free.

    Attributes:
        layer: one layer on the main process.
        sub_layer: one layer on a sub-process (slower where one runs all candidates as a batch); None: as ``layer``.
        early_head: reading the candidates off the hidden state after layer d-bar.
        final_head: reading the token off the last hidden state.
        request: from the early prediction to the start of the sub-processes; the main process goes on meanwhile.
        hand_over: what the main process needs on a match before it can go on with the winner's hidden state.
    """

    layer: Number = 1.0
    sub_layer: Number | None = None
    early_head: Number = 0.0
    final_head: Number = 0.0
    request: Number = 0.0
    hand_over: Number = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < np.inf:
                raise InputError(f"{name} {value!r}: expected a finite time >= 0")

    @property
    def candidate_layer(self) -> Number:
        return self.layer if self.sub_layer is None else self.sub_layer


def half_depth_latency_per_token(match_rate: Rates) -> Array:
    """Eq. 3, in units of d: early prediction at d / 2 and many tokens."""
    return 1 - _rates(match_rate) / 2


def half_depth_compute_per_time_unit(match_rate: Rates, num_candidates: int) -> Array:
    """Eq. 5: units of compute that are busy on average, of the k + 1; early prediction at d / 2 and many tokens."""
    rate = _rates(match_rate)
    require_counts(num_candidates=num_candidates)
    return (num_candidates + 2 - rate) / (2 - rate)


def half_depth_compute_per_token(match_rate: Rates, num_candidates: int) -> Array:
    """Eq. 6, in units of d: early prediction at d / 2 and many tokens."""
    require_counts(num_candidates=num_candidates)
    return (2 + num_candidates - _rates(match_rate)) / 2


def latency(num_layers: int, early_layer: int, num_tokens: Number, match_rate: Rates) -> Array:
    """Theorem 4.1: expected time units (layers) for ``num_tokens`` tokens."""
    require_theorem(num_layers, early_layer)
    require_counts(num_tokens=num_tokens)
    return num_layers * num_tokens - (num_layers - early_layer) * (num_tokens - 1) * _rates(match_rate)


def latency_std(num_layers: int, early_layer: int, num_tokens: int, match_rate: Rates) -> Array:
    """Standard deviation of one generation's latency around Theorem 4.1 if matches are independent, as it assumes (layers)."""
    require_theorem(num_layers, early_layer)
    require_counts(num_tokens=num_tokens)
    rate = _rates(match_rate)
    return (num_layers - early_layer) * np.sqrt((num_tokens - 1) * rate * (1 - rate))


def compute(num_layers: int, early_layer: int, num_tokens: Number, num_candidates: int, match_rate: Rates) -> Array:
    """Theorem 4.1: expected compute (units x time units): the main process all the time, k more for d - d-bar layers a token.

    The last token's sub-processes count, although nothing can come of them (Algorithm 2 starts them).
    """
    require_counts(num_candidates=num_candidates)
    main = latency(num_layers, early_layer, num_tokens, match_rate)
    return main + num_candidates * (num_layers - early_layer) * num_tokens


def latency_per_token(num_layers: int, early_layer: int, match_rate: Rates) -> Array:
    """Theorem 4.1 for many tokens, in units of d: 1 - (1 - d-bar / d) p; Eq. 3 for any depth."""
    require_theorem(num_layers, early_layer)
    return 1 - (num_layers - early_layer) / num_layers * _rates(match_rate)


def compute_per_token(num_layers: int, early_layer: int, num_candidates: int, match_rate: Rates) -> Array:
    """Theorem 4.1 for many tokens, in units of d; Eq. 6 for any depth."""
    require_counts(num_candidates=num_candidates)
    ahead = (num_layers - early_layer) / num_layers
    return latency_per_token(num_layers, early_layer, match_rate) + num_candidates * ahead


def compute_per_time_unit(num_layers: int, early_layer: int, num_candidates: int, match_rate: Rates) -> Array:
    """Theorem 4.1 for many tokens: units busy on average; Eq. 5 for any depth."""
    spent = compute_per_token(num_layers, early_layer, num_candidates, match_rate)
    return spent / latency_per_token(num_layers, early_layer, match_rate)


def speedup(num_layers: int, early_layer: int, num_tokens: Number, match_rate: Rates) -> Array:
    """Greedy decoding's d layers a token over Theorem 4.1's latency."""
    return num_layers * num_tokens / latency(num_layers, early_layer, num_tokens, match_rate)


def expected_num_runs(num_tokens: int, match_rate: Rates) -> Array:
    """E[N] = ell - (ell - 1) p (proof of Theorem 4.1)."""
    require_counts(num_tokens=num_tokens)
    return num_tokens - (num_tokens - 1) * _rates(match_rate)


def num_runs_probs(num_tokens: int, match_rate: Rates) -> NDArray[np.float64]:
    """P(N = n) for n = 1..ell in the last axis: N = 1 + Bin(ell - 1, 1 - p) (proof of Theorem 4.1)."""
    require_counts(num_tokens=num_tokens)
    rate = _rates(match_rate)[..., None]
    law = np.zeros((*rate.shape[:-1], num_tokens))
    law[..., 0] = 1
    for _ in range(num_tokens - 1):
        law[..., 1:] = rate * law[..., 1:] + (1 - rate) * law[..., :-1]
        law[..., :1] *= rate
    return law


def run_length_probs(num_tokens: int, match_rate: Rates) -> NDArray[np.float64]:
    """P(X = x) for x = 1..ell in the last axis, of a run that starts with ``num_tokens`` tokens to go: min(Geom(1 - p), ell).

    Differs from the paper: its "Geom(1 - p) except for the last run" is not a law, since a run is the last one or not by what
    it turns out to be. Truncated by what is left, it is exact; the last run, seen from the end, has the first run's law.
    """
    require_counts(num_tokens=num_tokens)
    rate = _rates(match_rate)[..., None]
    lengths = np.arange(1, num_tokens + 1)
    return rate ** (lengths - 1) * np.where(lengths < num_tokens, 1 - rate, 1.0)


def expected_run_counts(num_tokens: int, match_rate: Rates) -> NDArray[np.float64]:
    """Expected number of runs of length x = 1..ell (last axis) in one generation; they sum to E[N], times x to ell.

    A run that ends before the text does needs its own miss; all but the first also need one just before them.
    """
    require_counts(num_tokens=num_tokens)
    rate = _rates(match_rate)[..., None]
    lengths = np.arange(1, num_tokens + 1)
    ended = (1 - rate) * (2 + (num_tokens - 1 - lengths) * (1 - rate))
    return rate ** (lengths - 1) * np.where(lengths < num_tokens, ended, 1.0)


def sequence_latency(
    matches: NDArray[np.bool_],
    num_layers: int,
    early_layer: int,
    costs: Costs | None = None,
    early_head: EarlyHead = "main",
) -> Array:
    """Time of generations whose matches are known, [..., ell] booleans: what Theorem 4.1 takes the mean of.

    Token t's match saves time on token t + 1, so the last one counts for nothing. With ``costs``: see ``expected_latency``.
    """
    matches = np.asarray(matches, dtype=bool)
    require_counts(num_tokens=matches.shape[-1])
    unmatched, saved = token_latency(num_layers, early_layer, costs or Costs(), early_head)
    return matches.shape[-1] * unmatched - saved * matches[..., :-1].sum(-1)


def expected_latency(
    num_layers: int, early_layer: int, num_tokens: Number, match_rate: Rates, costs: Costs, early_head: EarlyHead = "main"
) -> Array:
    """Theorem 4.1 with measured costs: expected time of ``num_tokens`` tokens in the unit of ``costs``.

    ``num_tokens`` may be the mean of several generations if ``match_rate`` leaves their last tokens out: the form is linear.
    """
    require_counts(num_tokens=num_tokens)
    unmatched, saved = token_latency(num_layers, early_layer, costs, early_head)
    return num_tokens * unmatched - saved * (num_tokens - 1) * _rates(match_rate)


def token_latency(num_layers: int, early_layer: int, costs: Costs, early_head: EarlyHead = "main") -> tuple[float, float]:
    """What a token costs that nobody began early, and how much less one costs whose candidate was begun (unit of ``costs``).

    On a match the main process runs layers d - d-bar + 1..d-bar, the early head, layers d-bar + 1..d and the final head: it
    saves d - d-bar layers, less the hand-over and less what it must wait. It waits if the sub-process needs longer for its
    start and its d - d-bar layers than the main process for as many layers and the final head.

    With ``early_head="sub"`` (not in the paper) each sub-process reads the candidates itself, beside the main process: the
    early head then costs only what exceeds the final one, and nothing where there is no match. Exact while whatever a
    sub-process does when it is discarded ends before its next request.
    """
    require_theorem(num_layers, early_layer)
    ahead = num_layers - early_layer
    on_main, on_sub = (costs.early_head, 0.0) if early_head == "main" else (0.0, costs.early_head)
    candidate = costs.request + on_sub + ahead * costs.candidate_layer
    wait = max(0.0, candidate - ahead * costs.layer - costs.final_head)
    return float(num_layers * costs.layer + on_main + costs.final_head), float(ahead * costs.layer - wait - costs.hand_over)


def greedy_latency_per_token(num_layers: int, costs: Costs) -> float:
    """Greedy decoding's d layers and one head (unit of ``costs``)."""
    return float(num_layers * costs.layer + costs.final_head)


def attainable(num_layers: int, early_layer: int, num_tokens: Number, match_rate: Rates, costs: Costs) -> Array:
    """Time a token that PPD as printed saves over greedy once both heads are counted, and nothing else (unit of ``costs``).

    Greedy: d layers and the final head. PPD: after a match d-bar layers and both heads, else d layers and both heads. So
    ``(1 - 1 / ell) p (d - d-bar) layer - early_head``: negative where reading candidates costs more than matches save.
    Hand-over, requests and slower sub-processes are left out: they are what an implementation loses of this. Theorem 4.1 is
    ``early_head = final_head = 0``. ``match_rate`` is that of all tokens but the last of each generation.
    """
    require_theorem(num_layers, early_layer)
    ideal = Costs(layer=costs.layer, early_head=costs.early_head, final_head=costs.final_head)
    ppd = expected_latency(num_layers, early_layer, num_tokens, match_rate, ideal) / num_tokens
    return greedy_latency_per_token(num_layers, costs) - ppd


def require_depth(num_layers: int, early_layer: int) -> None:
    """Raises InputError unless ``early_layer`` is an inner layer of the model."""
    if not 1 <= early_layer < num_layers:
        raise InputError(
            f"early_layer {early_layer!r}: expected 1 to {num_layers - 1}, a layer before the last of {num_layers}"
        )


def require_theorem(num_layers: int, early_layer: int) -> None:
    """Raises InputError where Theorem 4.1 does not hold.

    It counts d-bar layers for a token after a match, so tokens start d-bar layers apart and d / d-bar of them are on their way
    at once. k + 1 units hold two: the token that is being finished, and its successor's candidates. Below d / 2 a candidate
    passes layer d-bar while its own fate is still open, d - 2 d-bar layers before the verdict; keeping the pace would mean
    starting k further candidates of each of the k then, and all k sub-processes are still busy. Algorithm 2 would also have the
    main process go on from layer d - d-bar "to" layer d-bar, which lies behind it.
    """
    require_depth(num_layers, early_layer)
    if 2 * early_layer < num_layers:
        raise InputError(
            f"early_layer {early_layer}: expected at least half of the {num_layers} layers; below it a sub-process runs "
            f"{num_layers - early_layer} layers and passes layer {early_layer} before its token is verified, so Theorem 4.1's "
            f"{early_layer} layers a matched token would need candidates of candidates on more than k + 1 units; "
            f"use {(num_layers + 1) // 2} or more, or simulate it (methods.ppd.simulate)"
        )


def require_counts(**counts: Number) -> None:
    """Raises InputError for the first of the named counts that is below 1."""
    for name, count in counts.items():
        if not count >= 1:
            raise InputError(f"{name} {count!r}: expected at least 1")


def _rates(match_rate: Rates) -> NDArray[np.float64]:
    rates = np.asarray(match_rate, dtype=np.float64)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise InputError(f"match_rate {match_rate!r}: expected 0 <= match_rate <= 1")
    return rates
