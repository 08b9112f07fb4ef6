"""Where two outputs that should be equal part, and whether rounding explains it.

A divergence is a "near-tie" only if the token that the method emitted is within rounding of being right (of the largest logit;
when sampling, its share of [0, 1] of the random number) and replays of both arms in fp64 agree with each other; anything else
is a "bug". Where memory does not suffice for telling, it is "unresolved".
"""

from collections.abc import Sequence
from typing import Any

import torch

from harness.core.experiment import Experiment
from harness.core.messages import is_memory
from harness.core.records import Divergence, kind_of
from harness.models.fit import Models
from harness.run.build import build_method
from harness.run.decode import generate, outputs_of
from harness.run.prompts import Prompt, seed_of
from harness.run.replay import Reader, draw_off
from methods.sampling import Sampling, Uniforms


def classify(
    arms: tuple[Experiment, Experiment], tokens: tuple[list[int], list[int]], prompt: Prompt, repeat: int, models: Models
) -> Divergence:
    """``arms`` and ``tokens`` are the baseline's and the method's. Between beams no margin decides, only the replays."""
    position = first_difference(*tokens)
    try:
        first, second = (_replay(arm, prompt, repeat, models.in_fp64) for arm in arms)
        margin, bound = (None, None) if arms[0].method.num_beams > 1 else margin_at(arms[0], tokens, prompt, repeat, models)
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        return Divergence(position=position, margin=None, bound=None, replays_agree=False, kind="unresolved")
    agree = first == second
    return Divergence(position=position, margin=margin, bound=bound, replays_agree=agree, kind=kind_of(agree, margin, bound))


def margin_at(
    plain: Experiment, tokens: tuple[list[int], list[int]], prompt: Prompt, repeat: int, models: Models
) -> tuple[float, float]:
    """Measure how far the second output's first other token is from being the target's, and how far rounding may move that.

    Both are logits at temperature 0, else probabilities. An output that only ended elsewhere is not explained by rounding.
    """
    position = first_difference(*tokens)
    if position >= min(map(len, tokens)):
        return 1.0, 0.0
    window, before = _window_at(plain, tokens[0], position, prompt, models)
    target, observed, sampling = models.get(plain.target), tokens[1][position], Sampling.of(plain.sampling)
    reading = Reader(target, sampling, models).read(prompt.windows()[window], [*before, observed])
    logits = reading.logits[-1:].double()
    if sampling.greedy:
        return float(logits.max() - logits[0, observed]), float(reading.margin_bound[-1])
    number = Uniforms([seed_of(plain, prompt.example.id, repeat, window)], plain.max_new_tokens).sample([len(before)])
    off = draw_off(sampling.probs(logits), torch.tensor([observed]), number)
    return float(off), float(reading.law_bound[-1])


def first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    same = (index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next(same, min(len(ours), len(theirs)))


def _window_at(
    experiment: Experiment, tokens: list[int], position: int, prompt: Prompt, models: Models
) -> tuple[int, list[int]]:
    """Say in which window of its recording a token of an output is (0 for a text), and what that window said before it."""
    parts, first = outputs_of(experiment, prompt, tokens, models.get(experiment.target)), 0
    for number, part in enumerate(parts):
        if position < first + len(part) or number == len(parts) - 1:
            return number, part[: position - first]
        first += len(part)
    raise AssertionError("an output has at least one part")


def _replay(experiment: Experiment, prompt: Prompt, repeat: int, models: Models) -> list[int]:
    target = models.get(experiment.target)
    method = build_method(experiment.method, target, models)
    return generate(experiment, method, [prompt], target, target.session(), repeat)[0][0].tokens
