"""Decisions of block verification, by intervals of its chances: rounding may have moved the laws that these come from.

Nothing of the rule's own code is used (Sun et al. 2024, Algorithm 2, said again): what is wrong there is found here.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.run.replay.decisions import Decision, draw_off
from harness.run.replay.drafts import Drafts, Sampled
from harness.run.replay.reading import ACCEPT, SAMPLE
from methods.steps import Step

TINY = 1e-300
ROUNDED = 5e-8  # what seven digits of a record leave open of a probability that it states


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def blocks(output: Sampled, drafts: Drafts) -> Iterator[Decision]:
    """Yield, of each round, why so many drafts stand, and how its last token was drawn.

    Behind the first draft that does not stand the text says nothing of the laws: there the last draft alone is looked at, whose
    chance the rule states itself.
    A round that a stop has cut may have accepted more than it emitted and is left out.
    """
    laws, accepts, shares = output.laws, output.numbers[ACCEPT], output.shares.tolist()
    bounds = [drafts.bound(position) for position in range(len(output.tokens))]
    for one in output.rounds:
        step, kept, length = one.step, one.step.num_accepted, len(one.step.drafted)
        if step.emitted != kept + 1:
            continue
        places = [one._replace(place=place) for place in range(min(kept + 1, length))]
        known, known_laws = drafts.laws_of(places)
        rows = dict(zip((at.place for at in known), known_laws, strict=True))
        own = [float(laws[at.position, at.token]) for at in places]
        theirs = [float(rows[at.place][at.token]) if at.place in rows else step.draft_probs[at.place] for at in places]
        stated = [0.0 if at.place in rows else ROUNDED for at in places]
        bound, share = ([part[at.position] for at in places] for part in (bounds, shares))
        reached = _carried(own, theirs, bound, share, stated)
        end, all_stand = one.start + kept, kept == length
        if kept and (all_stand or kept in rows):
            ours, taken = (None, None) if all_stand else (laws[end], rows[kept])
            chance = _standing(reached[kept], ours, taken, bounds[end])
            yield Decision(end - 1, "acceptance", float(accepts[one.first + kept - 1]) - chance.high, 0.0)
        if kept == length - 1:
            yield Decision(end, "rejection", reached[length].low - float(accepts[one.first + kept]), 0.0)
        elif kept < length == len(step.target_probs) == len(step.draft_probs):
            yield Decision(end, "rejection", _whole(step).low - float(accepts[one.first + length - 1]), 0.0)
        if all_stand or kept in rows:
            p = reached[kept]
            weights = laws[end] if all_stand else ((p.low + p.high) / 2 * laws[end] - rows[kept]).clamp(min=0)
            off = float(draw_off(weights[None], torch.tensor([output.tokens[end]]), output.numbers[SAMPLE][[one.first]]))
            yield Decision(end, "drawn token", off, bounds[end] + (0.0 if all_stand else p.width))


def _whole(step: Step) -> Interval:
    """Return the chance that all drafts of a round stand, by the probabilities that the rule states."""
    nothing, written = [0.0] * len(step.drafted), [ROUNDED] * len(step.drafted)
    lowered = [max(0.0, prob - ROUNDED) for prob in step.target_probs]
    return _carried(lowered, step.draft_probs, nothing, nothing, written)[-1]


def _carried(
    target_probs: Sequence[float],
    draft_probs: Sequence[float],
    bounds: Sequence[float],
    shares: Sequence[float],
    stated: Sequence[float],
) -> list[Interval]:
    """Return p_0 to p_k of k drafted tokens, whose probabilities are off by at most ``bounds``, and by ``shares`` of them.

    ``stated``: what a record leaves open of a draft's.
    """
    found = [Interval(1.0, 1.0)]
    for target, draft, bound, share, rounded in zip(target_probs, draft_probs, bounds, shares, stated, strict=True):
        own, other = min(bound, share * target), min(bound, share * draft) + rounded
        low = found[-1].low * max(0.0, target - own) / max(draft + other, TINY)
        most, least = found[-1].high * (target + own), max(0.0, draft - other)
        found.append(Interval(min(1.0, low), 1.0 if most >= least else most / least))
    return found


def _standing(
    reached: Interval, target_law: Float[Tensor, "V"] | None, draft_law: Float[Tensor, "V"] | None, bound: float
) -> Interval:
    """Return h of the drafts that led to p = ``reached``, behind which these laws are; p itself behind the last (None)."""
    if target_law is None or draft_law is None:
        return reached
    low, high = (float((p * target_law.double() - draft_law.double()).clamp(min=0).sum()) for p in reached)
    return Interval(_share(max(0.0, low - bound), reached.low), _share(high + bound, reached.high))


def _share(mass: float, reached: float) -> float:
    return 1.0 if reached >= 1 else mass / (mass + 1 - reached)
