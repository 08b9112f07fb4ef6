"""Leviathan's forms that only tests need: alpha from two laws (Theorem 3.5, A.5), A.2, and Corollary 3.9.

Functions of distributions take [..., V] and reduce the last axis.
"""

import numpy as np

from methods.speculative.theory import Array, Numbers


def divergence(target_probs: Numbers, draft_probs: Numbers) -> Array:
    """D_LK (Definition 3.2): the distance of either law from their mean; 1 minus their overlap (Lemma 3.3)."""
    target, draft = _pair(target_probs, draft_probs)
    return np.abs(target - (target + draft) / 2).sum(-1)


def acceptance_rate(target_probs: Numbers, draft_probs: Numbers, lenience: float = 1.0) -> Array:
    """beta (Theorem 3.5): the chance that a drafted token stands; with ``lenience`` the form of A.5."""
    target, draft = _pair(target_probs, draft_probs)
    return np.minimum(target / lenience, draft).sum(-1)


def rejection_sampling_rate(target_probs: Numbers, draft_probs: Numbers) -> Array:
    """Chance that non-iterative rejection sampling keeps the draft (A.2): 1 / max(target / draft), at most beta.

    Tokens that neither law can emit do not count; one that only the target can emit makes the rate 0.
    """
    target, draft = _pair(target_probs, draft_probs)
    ratio = np.divide(draft, target, out=np.full(np.broadcast(target, draft).shape, np.inf), where=target > 0)
    return ratio.min(-1)


def guaranteed_factor(alpha: Numbers, cost_ratio: Numbers) -> Array:
    """Corollary 3.9: where alpha exceeds the cost ratio some gamma gains at least (1 + alpha) / (1 + c); 1 elsewhere."""
    rate, cost = np.asarray(alpha, dtype=np.float64), np.asarray(cost_ratio, dtype=np.float64)
    return np.where(rate > cost, (1 + rate) / (1 + cost), 1.0)


def _pair(target_probs: Numbers, draft_probs: Numbers) -> tuple[Array, Array]:
    return np.asarray(target_probs, dtype=np.float64), np.asarray(draft_probs, dtype=np.float64)
