"""Optimized, Figures 3 to 5: time a call and peak memory of the rules, for initial numbers of drafts from 1 to 20."""

from harness.catalogue.base import Figure, Settings, drawn_by
from harness.catalogue.optimized_setup import (
    CV16,
    FILTERED,
    PLAIN,
    READERS,
    RULES,
    WHISPERS,
    XSUM,
    Arms,
    Case,
    comparison_of,
    models_of,
    plain_arm,
    ruled,
)
from harness.catalogue.roles import Absent
from harness.experiment import Comparison

GAMMAS = {"toy": (1, 3, 5, 8, 12, 16, 20), "test": (1, 20), "small": tuple(range(1, 21)), "paper": tuple(range(1, 21))}
SPEECH_CASES = [Case(data=CV16, pair=pair, sampling=FILTERED) for pair in WHISPERS]
SUMMARY_CASES = [Case(data=XSUM, pair=pair, sampling=FILTERED) for pair in READERS]


def timed_arms(settings: Settings, case: Case, gamma: int) -> Arms | Absent:
    """Plain decoding, which shows whether the machine drifted, and every rule."""
    plain, models = plain_arm(settings, case, f"gamma {gamma}", sampled=True), models_of(settings, case.pair)
    if isinstance(plain, Absent) or isinstance(models, Absent):
        return plain if isinstance(plain, Absent) else Absent("no draft")
    plain = plain.replace(overlap=())
    return {PLAIN: plain} | {rule: ruled(plain, case, rule, draft=models[1], gamma=gamma) for rule in RULES}


def memory_arms(settings: Settings, case: Case, gamma: int) -> Arms | Absent:
    arms = timed_arms(settings, case, gamma)
    if isinstance(arms, Absent):
        return arms
    return {name: arm.replace(profiled=False, memory=True) for name, arm in arms.items() if name != PLAIN}


def timed_plan(settings: Settings) -> list[Comparison]:
    return [
        one
        for case in (*SUMMARY_CASES, *SPEECH_CASES)
        for gamma in GAMMAS[settings.profile]
        for one in comparison_of(timed_arms(settings, case, gamma))
    ]


def _memory_plan(settings: Settings, cases: list[Case]) -> list[Comparison]:
    return [
        one for case in cases for gamma in GAMMAS[settings.profile] for one in comparison_of(memory_arms(settings, case, gamma))
    ]


OPTIMIZED_FIGURES = [
    Figure(
        name="optimized-1",
        title="tiles of the exact kernel",
        plan=lambda settings: [],
        draw=drawn_by("optimized_tiles", "draw_exact"),
    ),
    Figure(
        name="optimized-2",
        title="tiles of the sigmoid kernel",
        plan=lambda settings: [],
        draw=drawn_by("optimized_tiles", "draw_sigmoid"),
    ),
    Figure(
        name="optimized-3",
        title="time a call by initial number of drafts",
        plan=timed_plan,
        draw=drawn_by("optimized_gamma", "draw_time"),
    ),
    Figure(
        name="optimized-4",
        title="peak memory by initial number of drafts, summaries",
        plan=lambda settings: _memory_plan(settings, SUMMARY_CASES),
        draw=drawn_by("optimized_gamma", "draw_summary_memory"),
    ),
    Figure(
        name="optimized-5",
        title="peak memory by initial number of drafts, speech",
        plan=lambda settings: _memory_plan(settings, SPEECH_CASES),
        draw=drawn_by("optimized_gamma", "draw_speech_memory"),
    ),
]
