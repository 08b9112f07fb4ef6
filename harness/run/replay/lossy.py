"""Decisions of lossy rules that keep what is good enough, by their definitions said again: nothing of their own code is used.

Each draft's distance from its rule's border, and the target's first choice behind those that stand.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from harness.run.replay.decisions import Decision, draw_off
from harness.run.replay.drafts import Place, Sampled, decided, ends_of
from harness.run.replay.reading import SAMPLE, Reading
from methods.sampling import Sampling
from methods.specdec.rules import TopBeta
from methods.speculative.engine_rules import TargetGreedy, Typical
from methods.speculative.rules import KernelRule, Lenience, SigmoidRule
from methods.types import VerifyRule

IN_ENTROPY = 1e-5  # what Medusa's code adds inside the logarithm


def is_said_again(rule: VerifyRule, sampling: Sampling) -> bool:
    """Say whether a lossy rule's decisions are replayed: those of rules below, of sigmoids, and of lenience.

    Not of a relaxed rule by what the drafter says of its drafts, nor of sigmoids of fp16, of which no bound is known.
    """
    if isinstance(rule, TopBeta):
        return sampling.greedy and rule.score == "verifier"
    if isinstance(rule, KernelRule):
        return sampling.greedy or (isinstance(rule, SigmoidRule) and not rule.half_logits)
    return isinstance(rule, Lenience | Typical | TargetGreedy)


def tolerated(
    rule: VerifyRule, tokens: Sequence[int], reading: Reading, rounds: Sequence[Place], output: Sampled | None
) -> Iterator[Decision]:
    """Yield how far drafts that were kept are beyond what the rule keeps, those that were not within it, and what follows.

    ``output``: of a text that is sampled; None at temperature 0.
    """
    places = decided(rounds)
    for one, (off, bound) in zip(places, _beyond(rule, reading, places, output), strict=True):
        if one.stands and tokens[one.position] != one.token:
            yield Decision(one.position, "accepted draft that was not emitted", 1.0, 0.0)
        if one.stands or _is_kept_as_last(rule, one, tokens):
            yield Decision(one.position, "acceptance", off, bound)
        else:
            yield Decision(one.position, "rejection", -off, bound)
    for one in ends_of(rounds):
        end, is_whole = one.position, one.place == len(one.step.drafted)
        if is_whole and output is not None and isinstance(rule, TargetGreedy):
            drawn = output.numbers[SAMPLE][[one.first]]
            off = float(draw_off(output.laws[[end]], torch.tensor([tokens[end]]), drawn))
            yield Decision(end, "drawn token", off, float(output.bounds[end]))
        elif is_whole or not _is_kept_as_last(rule, one, tokens):
            row = reading.logits[end].double()
            yield Decision(end, "choice", float(row.amax() - row[tokens[end]]), float(reading.margin_bound[end]))


def _is_kept_as_last(rule: VerifyRule, one: Place, tokens: Sequence[int]) -> bool:
    """Whether a round's last draft stands and counts as the target's own, as Eq. 4 of SpecDec bounds their number."""
    is_printed = isinstance(rule, TopBeta) and rule.cap == "printed"
    return is_printed and one.place == len(one.step.drafted) - 1 and tokens[one.position] == one.token


def _beyond(rule: VerifyRule, reading: Reading, places: Sequence[Place], output: Sampled | None) -> list[tuple[float, float]]:
    """Return how far each draft is beyond what the rule keeps, at most 0 where it is kept, and what rounding may move."""
    if not places:
        return []
    at, tokens = [one.position for one in places], [one.token for one in places]
    if output is not None and isinstance(rule, Typical):
        laws = output.laws[at]
        entropy = -(laws * (laws + IN_ENTROPY).log()).sum(-1)
        least = (rule.delta * (-entropy).exp()).clamp(max=rule.epsilon)
        off, bounds = least - laws[range(len(at)), tokens], output.bounds[at]
        return list(zip(off.tolist(), (bounds * (1 + rule.delta * math.log(laws.shape[-1]))).tolist(), strict=True))
    logits = reading.logits[at].double()
    own = logits[range(len(at)), tokens]
    off = logits.amax(-1) - own
    if isinstance(rule, TopBeta):
        least = logits.topk(min(rule.beta, logits.shape[-1])).values[:, -1]
        off = torch.maximum(off - rule.tau, least - own)
    elif isinstance(rule, Lenience):
        off = (off + math.log(rule.lenience)) * (-1 if rule.as_described else 1)
    return list(zip(off.tolist(), reading.margin_bound[at].tolist(), strict=True))
