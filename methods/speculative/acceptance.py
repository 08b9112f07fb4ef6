"""The definitions of acceptance in the literature, computed from steps. They differ and are never interchangeable.

Each is a ratio of sums, so an example contributes (numerator, denominator) and an interval resamples examples. Nothing
behind a stopping EOS counts, neither as accepted nor as verified nor as drafted: the output ended before it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from operator import mul

from methods.steps import Step

Statistic = tuple[float, float]


def alpha_ratio(steps: Iterable[Step]) -> Statistic:
    """Mean of min(1, target / draft) over the drafts up to and including the first rejection: an alpha of the drafts."""
    pairs = ((step.target_probs, step.draft_probs, _num_verified(step)) for step in steps)
    drafted = (pair for target, draft, count in pairs for pair in zip(target[:count], draft[:count], strict=True))
    return _sums((_carried(1.0, pair), 1) for pair in drafted)


def alpha_point_mass(steps: Iterable[Step]) -> Statistic:
    """Mean of the target's probability over the same drafts: their alpha where a drawn draft is taken for a point mass.

    It estimates sum target draft: also the chance that a draft equals a token that is drawn from the target.
    """
    probs = (prob for step in steps for prob in step.target_probs[: _num_verified(step)])
    return _sums((prob, 1) for prob in probs)


def accepted_over_verified(steps: Iterable[Step]) -> Statistic:
    """Accepted drafts over those up to and including the first rejection: what happened where alpha_ratio has chances."""
    return _sums((step.num_accepted, _num_verified(step)) for step in steps)


def accepted_over_drafted(steps: Iterable[Step]) -> Statistic:
    """Accepted over all drafts. Not an alpha: drafts behind a rejection count against it (0.538 at alpha 0.8, gamma 5)."""
    return _sums((step.num_accepted, _num_drafted(step)) for step in steps)


def accepted_per_step(steps: Iterable[Step]) -> Statistic:
    """Accepted drafts a run of the target, the token that the target adds left out."""
    return _sums((step.num_accepted, 1) for step in steps)


def tokens_per_step(steps: Iterable[Step]) -> Statistic:
    """Emitted tokens a run of the target, the one it adds included: what Eq. 1 expects."""
    return _sums((step.emitted, 1) for step in steps)


def expected_token_wise(steps: Iterable[Step]) -> Statistic:
    """Drafts that Algorithm 1 of Leviathan et al. accepts on average of those that were made, a round, before any stop.

    i drafts or more stand with the product of their min(1, target / draft). Steps must satisfy ``has_all_probs``.
    """
    return _sums((sum(itertools.accumulate((_carried(1.0, pair) for pair in pairs), mul)), 1) for pairs in _probs(steps))


def expected_blocks(steps: Iterable[Step]) -> Statistic:
    """The same of block verification: i drafts or more stand with a chance of p_i = min(1, p_{i-1} target / draft).

    That is so given i drafts, whatever is drafted behind them (Sun et al. 2024, Algorithm 2).
    """
    carried = ([*itertools.accumulate(pairs, _carried, initial=1.0)] for pairs in _probs(steps))
    return _sums((sum(one[1:]), 1) for one in carried)


def has_all_probs(steps: Iterable[Step]) -> bool:
    """Say whether the probabilities of every draft are known; some kernels end with the first rejection."""
    return all(len(step.target_probs) == len(step.draft_probs) == len(step.drafted) for step in steps)


def accepted_over_all_drafted(steps: Iterable[Step]) -> Statistic:
    """Accepted over every draft that was made, those behind a stopping EOS too: what a counter in the drafting loop sees."""
    return _sums((step.num_accepted, len(step.drafted)) for step in steps)


def accepted_per_drafting_step(steps: Iterable[Step]) -> Statistic:
    """Accepted drafts a round that drafted: plain steps, such as the last before a length limit, are left out."""
    return _sums((step.num_accepted, 1) for step in steps if step.drafted)


def matches_per_step(steps: Iterable[Step]) -> Statistic:
    """Tokens a round but one: its accepted drafts, one less where it ends on one of them, which counts as the round's own."""
    return _sums((step.emitted - 1, 1) for step in steps)


def position_joint(position: int) -> Callable[[Iterable[Step]], Statistic]:
    """Rounds whose first ``position`` drafts all stand (counted from 1) over rounds that drafted anything."""

    def statistic(steps: Iterable[Step]) -> Statistic:
        return _sums((step.num_accepted >= position, 1) for step in steps if step.drafted)

    return statistic


def position_conditional(position: int) -> Callable[[Iterable[Step]], Statistic]:
    """Rounds whose draft at ``position`` stands over rounds that decided on it: those in which all drafts before it stand."""

    def statistic(steps: Iterable[Step]) -> Statistic:
        return _sums((step.num_accepted >= position, 1) for step in steps if _num_verified(step) >= position)

    return statistic


def _probs(steps: Iterable[Step]) -> Iterator[list[Statistic]]:
    """Yield (target, draft), the probabilities of the drafts of every round."""
    for step in steps:
        yield list(zip(step.target_probs, step.draft_probs, strict=True))


def _carried(before: float, probs: Statistic) -> float:
    """Return min(1, before target / draft), the chance that a draft stands too.

    A draft of target probability 0 never stands; any other one does where its draft probability is 0, or so small that the
    ratio is infinite: neither is a product with 0 or infinity.
    """
    target, draft = probs
    if not before or not target:
        return 0.0
    return min(1.0, before * (target / draft)) if draft else 1.0


def _sums(pairs: Iterable[Statistic]) -> Statistic:
    """Return the sums of numerators and denominators."""
    found = list(pairs)
    return float(sum(top for top, _ in found)), float(sum(bottom for _, bottom in found))


def _num_drafted(step: Step) -> int:
    """The drafts up to a stopping EOS, or all. A round that emits no token behind its drafts has ended on one of them."""
    ended = step.stop_reason == "eos" or step.emitted <= step.num_accepted
    return min(step.emitted, len(step.drafted)) if ended else len(step.drafted)


def _num_verified(step: Step) -> int:
    return min(step.num_accepted + 1, _num_drafted(step))
