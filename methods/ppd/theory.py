"""The closed forms of PPD: Equations 3 and 5, Theorem 4.1, and the same with measured costs.

``num_layers`` is the paper's d, ``early_layer`` its d-bar, ``num_tokens`` ell, ``num_candidates`` k, ``match_rate`` p_correct.
Time is in layers unless a function takes ``Costs``; a name that ends in ``_per_token`` without ``Costs`` is in units of d, as
the paper's figures are. All broadcast over ``match_rate``. Every form but Equations 3 and 5 rests on one fact: a token whose
predecessor was matched costs the main process d-bar layers, any other token d.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from methods.errors import InputError

Array = NDArray[np.float64] | np.float64
Number = float | int
Rates = Number | NDArray[np.float64] | Sequence[float]
PAPER_DEPTH = 40  # Vicuna-13B and Llama-2-13B (Section 4.3)


def scaled_layer(layer: int, depth: int) -> int:
    """Return the layer at the paper's fraction of another depth, to the nearest (a half up), inside the model."""
    return min(max((2 * layer * depth + PAPER_DEPTH) // (2 * PAPER_DEPTH), 1), depth - 1)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time of each part, in one unit (layers or seconds). The defaults are the paper's: a layer is 1, all else free.

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


def latency(num_layers: int, early_layer: int, num_tokens: Number, match_rate: Rates) -> Array:
    """Theorem 4.1: expected time units (layers) for ``num_tokens`` tokens."""
    require_theorem(num_layers, early_layer)
    require_counts(num_tokens=num_tokens)
    return num_layers * num_tokens - (num_layers - early_layer) * (num_tokens - 1) * _rates(match_rate)


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


def expected_latency(num_layers: int, early_layer: int, num_tokens: Number, match_rate: Rates, costs: Costs) -> Array:
    """Theorem 4.1 with measured costs: expected time of ``num_tokens`` tokens in the unit of ``costs``.

    ``num_tokens`` may be the mean of several generations if ``match_rate`` leaves their last tokens out: the form is linear.
    """
    require_counts(num_tokens=num_tokens)
    unmatched, saved = token_latency(num_layers, early_layer, costs)
    return num_tokens * unmatched - saved * (num_tokens - 1) * _rates(match_rate)


def token_latency(num_layers: int, early_layer: int, costs: Costs) -> tuple[float, float]:
    """Return the cost of a token that nobody began early, and the saving of one whose candidate was begun (unit of ``costs``).

    On a match the main process runs layers d - d-bar + 1..d-bar, the early head, layers d-bar + 1..d and the final head: it
    saves d - d-bar layers, less the hand-over and less what it must wait. It waits if the sub-process needs longer for its
    start and its d - d-bar layers than the main process for as many layers and the final head.
    Exact while whatever a sub-process does when it is discarded ends before its next request.
    """
    require_theorem(num_layers, early_layer)
    ahead = num_layers - early_layer
    candidate = costs.request + ahead * costs.candidate_layer
    wait = max(0.0, candidate - ahead * costs.layer - costs.final_head)
    unmatched = num_layers * costs.layer + costs.early_head + costs.final_head
    return float(unmatched), float(ahead * costs.layer - wait - costs.hand_over)


def require_depth(num_layers: int, early_layer: int) -> None:
    """Raise InputError unless ``early_layer`` is an inner layer of the model."""
    if not 1 <= early_layer < num_layers:
        raise InputError(
            f"early_layer {early_layer!r}: expected 1 to {num_layers - 1}, a layer before the last of {num_layers}"
        )


def require_theorem(num_layers: int, early_layer: int) -> None:
    """Raise InputError where Theorem 4.1 does not hold.

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
            f"use {(num_layers + 1) // 2} or more"
        )


def require_counts(**counts: Number) -> None:
    """Raise InputError for the first of the named counts that is below 1."""
    for name, count in counts.items():
        if not count >= 1:
            raise InputError(f"{name} {count!r}: expected at least 1")


def _rates(match_rate: Rates) -> NDArray[np.float64]:
    rates = np.asarray(match_rate, dtype=np.float64)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise InputError(f"match_rate {match_rate!r}: expected 0 <= match_rate <= 1")
    return rates
