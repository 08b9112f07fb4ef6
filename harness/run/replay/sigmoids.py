"""Decisions of the sigmoid rules (Optimized, Eqs. 5 to 7), said again in fp64: nothing of the kernels is used."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from harness.run.replay.decisions import Decision, draw_off
from harness.run.replay.drafts import Drafts, Place, Sampled, decided, ends_of
from harness.run.replay.reading import ACCEPT, SAMPLE, Reading, scores_of
from kernels.verify.sigmoid import Scaling

ROUNDING = 1e-6  # of a sigmoid in fp32, of which every step is rounded, and of one that a record states
IN_SUM, LEAST_SHARE = 1e-6, 1e-5  # what the released code adds to a sum, and the least that it leaves a token


def sigmoids(scaling: Scaling, output: Sampled, reading: Reading, drafts: Drafts) -> Iterator[Decision]:
    """Yield how far each acceptance is from the ratio of two sigmoids, and each last token from what its number draws.

    Places at which rounding may move a token across a filter's border are left out: its sigmoid is 0 or about a half.
    """

    def is_sure(one: Place) -> bool:
        return float(reading.border[one.position]) + drafts.border_at(one.position) == 0

    places, ends = (list(filter(is_sure, found(output.rounds))) for found in (decided, ends_of))
    scores = scores_of(reading.logits, drafts.sampling).double()
    taken = drafts.scores_of([*places, *(one for one in ends if one.place < len(one.step.drafted))])
    moved = reading.margin_bound.double() / drafts.sampling.temperature  # a scaled logit, by rounding
    off = ROUNDING + moved / (4 * (scaling.beta - scaling.alpha))  # a sigmoid rises by a quarter at most
    accepts = output.numbers[ACCEPT].tolist()
    for one in places:
        step, position, bound = one.step, one.position, 2 * float(off[one.position])
        if one.stands and output.tokens[position] != one.token:
            yield Decision(position, "accepted draft that was not emitted", 1.0, 0.0)
        own = float(activated(scaling, scores[position, one.token]))
        if one.place < len(step.target_probs):
            yield Decision(position, "target's sigmoid of a draft", abs(step.target_probs[one.place] - own), bound)
        if position in taken:
            theirs = float(activated(scaling, taken[position][one.token]))
            if one.place < len(step.draft_probs):
                yield Decision(position, "draft's sigmoid", abs(step.draft_probs[one.place] - theirs), bound)
            what, sign = ("acceptance", 1) if one.stands else ("rejection", -1)
            yield Decision(position, what, sign * (accepts[one.number] * theirs - own), bound)
    for one in ends:
        end, row = one.position, scores[one.position]
        if one.place == len(one.step.drafted):
            weights, each = _of_bonus(scaling, row, float(moved[end]), float(off[end]))
        elif end in taken:
            weights, each = _of_residual(scaling, row, taken[end], 2 * float(off[end]))
        else:
            continue
        total, rounding = float(weights.sum()), len(weights) * each
        if rounding < total:  # else all of it may be rounding, and what stands in for it is as likely
            drawn = output.numbers[SAMPLE][[one.first]]
            far = float(draw_off(weights[None] / total, torch.tensor([output.tokens[end]]), drawn))
            yield Decision(end, "drawn token", far, float(output.bounds[end]) + 2 * rounding / total)


def activated(scaling: Scaling, scores: Float[Tensor, "*V"]) -> Float[Tensor, "*V"]:
    """Return each score's sigmoid (Eq. 5); as the code was released, 0 below alpha and 1 above beta."""
    found = ((scores.double() - scaling.alpha) / (scaling.beta - scaling.alpha)).sigmoid()
    if not scaling.as_released:
        return found
    return found.masked_fill(scores < scaling.alpha, 0.0).masked_fill(scores > scaling.beta, 1.0)


def _of_bonus(scaling: Scaling, row: Float[Tensor, "V"], moved: float, off: float) -> tuple[Float[Tensor, "V"], float]:
    """Return the weights behind drafts that all stand, and how far each may be off: released code has no sigmoid there."""
    return (row.clamp(min=LEAST_SHARE), moved) if scaling.as_released else (activated(scaling, row), off)


def _of_residual(
    scaling: Scaling, row: Float[Tensor, "V"], taken: Float[Tensor, "V"], off: float
) -> tuple[Float[Tensor, "V"], float]:
    """Return the weights behind a rejection, the sigmoids' positive difference (Eq. 7), and how far each may be off."""
    left = (activated(scaling, row) - activated(scaling, taken)).clamp(min=0)
    if not scaling.as_released:
        return left, off
    total = left.sum() + IN_SUM
    return (left / total).clamp(min=LEAST_SHARE), off / float(total)
