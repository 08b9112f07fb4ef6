"""The closed forms of Leviathan et al.: Eq. 1, Theorems 3.8 and 3.11, and the choice of gamma. They broadcast over arrays.

``alpha`` is the expected acceptance rate, ``gamma`` the number of drafted tokens, ``cost_ratio`` (the paper's c) the time of
one draft run over one target run.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from methods.errors import InputError

Array = NDArray[np.float64] | np.float64
Numbers = float | int | np.ndarray | Sequence[float] | Sequence[int]


def expected_tokens(alpha: Numbers, gamma: Numbers) -> Array:
    """Eq. 1: (1 - alpha^(gamma+1)) / (1 - alpha) tokens a run of the target, gamma + 1 in the limit alpha = 1.

    NaN where alpha is, which is unknown then. Section 3.4: reads of the target's weights and cache shrink by the same factor.
    """
    rate, drafted = np.asarray(alpha, dtype=np.float64), np.asarray(gamma, dtype=np.float64)
    if np.any((rate < 0) | (rate > 1)) or np.any(drafted < 0):
        raise InputError(f"alpha {alpha!r}, gamma {gamma!r}: expected 0 <= alpha <= 1 and gamma >= 0")
    with np.errstate(divide="ignore", invalid="ignore"):
        log_rate = np.log(rate)
        geometric = np.expm1((drafted + 1) * log_rate) / np.expm1(log_rate)
    return np.where(rate == 1, drafted + 1, geometric)


def walltime_factor(alpha: Numbers, gamma: Numbers, cost_ratio: Numbers) -> Array:
    """Theorem 3.8: the expected speed-up if a run of the target costs the same for 1 and for gamma + 1 tokens."""
    with np.errstate(over="ignore"):
        return expected_tokens(alpha, gamma) / (np.asarray(gamma) * np.asarray(cost_ratio) + 1)


def operations_factor(alpha: Numbers, gamma: Numbers) -> Array:
    """Theorem 3.11: the factor by which the target's arithmetic operations grow, those of the draft left out."""
    return (np.asarray(gamma, dtype=np.float64) + 1) / expected_tokens(alpha, gamma)


def optimal_gamma(alpha: float, cost_ratio: float, maximum: int = 64) -> int:
    """The gamma of at most ``maximum`` that maximises Theorem 3.8 (Section 3.5); 0 where none improves.

    The smallest of equals: fewer drafts are less wasted arithmetic.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha {alpha!r}: expected 0 <= alpha <= 1")
    if not 0 <= cost_ratio < np.inf or maximum < 0:
        raise InputError(f"cost_ratio {cost_ratio!r}, maximum {maximum!r}: expected finite numbers >= 0")
    return int(np.argmax(walltime_factor(alpha, np.arange(maximum + 1), cost_ratio)))


def oracle_factor(alpha: Numbers, cost_ratio: Numbers) -> Array:
    """The speed-up if an oracle stopped drafting exactly before the first rejection (Section 3.5): 1 / (1 - alpha + c alpha).

    Differs from the paper: it prints the 1 / (1 - alpha) tokens of such a round; the cost of its alpha / (1 - alpha)
    accepted drafts is derived here. Infinite where alpha is 1 and drafts are free.
    """
    rate = np.asarray(alpha, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - rate + np.asarray(cost_ratio) * rate)


def predicted_speedup(
    tokens_per_step: Numbers, ar_s: Numbers, draft_s: Numbers, verify_s: Numbers, round_s: Numbers, gamma: Numbers
) -> Array:
    """Speed-up from measured parts: what the tokens of one round cost one by one, over what the round cost.

    Args (all per round or per call, seconds):
        ar_s: one autoregressive token. draft_s: one run of the draft. verify_s: the target over gamma + 1 tokens.
        round_s: what a round costs besides these. gamma: draft runs a round.
    """
    cost = np.asarray(gamma) * np.asarray(draft_s) + np.asarray(verify_s) + np.asarray(round_s)
    return np.asarray(tokens_per_step, dtype=np.float64) * np.asarray(ar_s) / cost
