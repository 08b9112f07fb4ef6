"""Where two outputs that should be equal part, and whether rounding explains it.

A divergence is a "near-tie" only if the two largest logits there (when sampling: the random number and the border between
the two tokens' shares) are closer than rounding can move them and replays of both arms in fp64 agree with each other; anything
else is a "bug".
"""

from typing import Literal

import torch

from harness.core.experiment import Experiment
from harness.core.records import Divergence
from harness.run.build import Models, build_method
from harness.run.decode import generate, outputs_of
from harness.run.prompts import Prompt, seed_of
from methods.sampling import Sampling, Uniforms
from methods.types import Inputs

NEAR_TIE_FLOAT32 = 1e-4
ULPS = 8
Kind = Literal["near-tie", "bug"]


def classify(
    arms: tuple[Experiment, Experiment], tokens: tuple[list[int], list[int]], prompt: Prompt, repeat: int, models: Models
) -> Divergence:
    """``arms`` and ``tokens`` are the baseline's and the method's. Between beams no margin decides, only the replays."""
    position = first_difference(*tokens)
    exact = Models(models.device, "float64")
    replays = [_replay(arm, prompt, repeat, exact) for arm in arms]
    agree = replays[0] == replays[1]
    if arms[0].method.num_beams > 1:
        return Divergence(position=position, margin=None, bound=None, replays_agree=agree, kind="near-tie" if agree else "bug")
    margin, bound = margin_at(arms, tokens[0], position, prompt, repeat, models)
    kind: Kind = "near-tie" if margin < bound and agree else "bug"
    return Divergence(position=position, margin=margin, bound=bound, replays_agree=agree, kind=kind)


def margin_at(
    arms: tuple[Experiment, Experiment], tokens: list[int], position: int, prompt: Prompt, repeat: int, models: Models
) -> tuple[float, float]:
    """Measure how close the baseline's choice at a position was, by a forward pass, and how far rounding may move that."""
    window, before = _window_at(arms[0], tokens, position, prompt, models)
    logits = _logits_at(arms[0], before, prompt.windows()[window], models)
    bound = bound_of(arms[1].dtype, logits)
    if arms[0].sampling.greedy:
        top = logits.double().topk(2).values
        return float(top[0] - top[1]), bound
    return _distance_to_border(arms[0], logits, seed_of(arms[0], prompt.example.id, repeat, window), len(before)), bound


def _distance_to_border(experiment: Experiment, logits: torch.Tensor, seed: int, position: int) -> float:
    """Say how far the random number that drew a token is from the nearest border between two tokens' shares of [0, 1]."""
    uniforms = Uniforms([seed], experiment.max_new_tokens)
    borders = Sampling.of(experiment.sampling).probs(logits.double()).cumsum(-1)
    return float((borders - uniforms.sample([position])).abs().min())


def first_difference(ours: list[int], theirs: list[int]) -> int:
    same = (index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next(same, min(len(ours), len(theirs)))


def bound_of(dtype: str, logits: torch.Tensor) -> float:
    """Bound how far rounding moves a margin: measured for fp32; below it a few units in the last place of the largest logit."""
    if dtype in ("bfloat16", "float16"):
        return ULPS * torch.finfo(getattr(torch, dtype)).eps * float(logits[logits.isfinite()].abs().max())
    return NEAR_TIE_FLOAT32


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


def _logits_at(experiment: Experiment, before: list[int], inputs: Inputs, models: Models) -> torch.Tensor:
    session = models.get(experiment.target).session()
    pending = session.prefill(inputs)
    return session.extend(torch.tensor([[pending[0], *before]], device=session.device))[0, -1]


def _replay(experiment: Experiment, prompt: Prompt, repeat: int, models: Models) -> list[int]:
    target = models.get(experiment.target)
    method = build_method(experiment.method, target, models)
    return generate(experiment, method, [prompt], target, target.session(), repeat)[0][0].tokens
