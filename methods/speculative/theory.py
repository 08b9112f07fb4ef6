"""The closed forms of Leviathan et al.: alpha, Eq. 1, Theorems 3.8 and 3.11, the choice of gamma, and A.2 and A.5.

``alpha`` is the expected acceptance rate, ``gamma`` the number of drafted tokens, ``cost_ratio`` (the paper's c) the time of
one draft run over one target run, ``operations_ratio`` (c hat) the same for arithmetic. Functions of numbers broadcast over
arrays; functions of distributions take [..., V] and reduce the last axis.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from methods.errors import InputError

Array = NDArray[np.float64] | np.float64
Numbers = float | int | np.ndarray | Sequence[float] | Sequence[int]


def divergence(target_probs: Numbers, draft_probs: Numbers) -> Array:
    """D_LK (Definition 3.2): the distance of either law from their mean; 1 minus their overlap (Lemma 3.3)."""
    target, draft = _pair(target_probs, draft_probs)
    return np.abs(target - (target + draft) / 2).sum(-1)


def acceptance_rate(target_probs: Numbers, draft_probs: Numbers, lenience: float = 1.0) -> Array:
    """beta (Theorem 3.5): the chance that a drafted token stands; with ``lenience`` the form of A.5."""
    if not 0 < lenience <= 1:
        raise InputError(f"lenience {lenience!r}: expected 0 < lenience <= 1")
    target, draft = _pair(target_probs, draft_probs)
    return np.minimum(target / lenience, draft).sum(-1)


def rejection_sampling_rate(target_probs: Numbers, draft_probs: Numbers) -> Array:
    """Chance that non-iterative rejection sampling keeps the draft (A.2): 1 / max(target / draft), at most beta.

    Tokens that neither law can emit do not count; one that only the target can emit makes the rate 0.
    """
    target, draft = _pair(target_probs, draft_probs)
    ratio = np.divide(draft, target, out=np.full(np.broadcast(target, draft).shape, np.inf), where=target > 0)
    return ratio.min(-1)


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


def operations_factor(alpha: Numbers, gamma: Numbers, operations_ratio: Numbers = 0.0) -> Array:
    """Theorem 3.11: the factor by which arithmetic operations grow."""
    drafted = np.asarray(gamma, dtype=np.float64)
    return (drafted * np.asarray(operations_ratio) + drafted + 1) / expected_tokens(alpha, gamma)


def memory_access_factor(alpha: Numbers, gamma: Numbers) -> Array:
    """Section 3.4: reads of the target's weights and cache a token, as a fraction of one read a token."""
    return 1 / expected_tokens(alpha, gamma)


def guaranteed_factor(alpha: Numbers, cost_ratio: Numbers) -> Array:
    """Corollary 3.9: where alpha exceeds the cost ratio some gamma gains at least (1 + alpha) / (1 + c); 1 elsewhere."""
    rate, cost = np.asarray(alpha, dtype=np.float64), np.asarray(cost_ratio, dtype=np.float64)
    return np.where(rate > cost, (1 + rate) / (1 + cost), 1.0)


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


def _pair(target_probs: Numbers, draft_probs: Numbers) -> tuple[Array, Array]:
    return np.asarray(target_probs, dtype=np.float64), np.asarray(draft_probs, dtype=np.float64)
