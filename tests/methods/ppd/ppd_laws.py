"""Laws of PPD that only tests need: runs, spreads, known matches, and heads that sub-processes read for themselves.

Closed forms as in ``methods.ppd.theory``, which the product computes with. ``early_head="sub"`` (not in the paper): each
sub-process reads the candidates itself, beside the main process, so that the early head costs only what exceeds the final one.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from methods.ppd import theory
from methods.ppd.theory import Array, Costs, Number, Rates, latency, require_counts, require_theorem

EarlyHead = Literal["main", "sub"]


def _rates(match_rate: Rates) -> NDArray[np.float64]:
    return np.asarray(match_rate, dtype=np.float64)


def half_depth_compute_per_token(match_rate: Rates, num_candidates: int) -> Array:
    """Eq. 6, in units of d: early prediction at d / 2 and many tokens."""
    require_counts(num_candidates=num_candidates)
    return (2 + num_candidates - _rates(match_rate)) / 2


def latency_std(num_layers: int, early_layer: int, num_tokens: int, match_rate: Rates) -> Array:
    """Standard deviation of one generation's latency around Theorem 4.1 if matches are independent, as it assumes (layers)."""
    require_theorem(num_layers, early_layer)
    require_counts(num_tokens=num_tokens)
    rate = _rates(match_rate)
    return (num_layers - early_layer) * np.sqrt((num_tokens - 1) * rate * (1 - rate))


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
    ppd = theory.expected_latency(num_layers, early_layer, num_tokens, match_rate, ideal) / num_tokens
    return greedy_latency_per_token(num_layers, costs) - ppd


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
