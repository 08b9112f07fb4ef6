"""Leviathan et al., Figures 1 to 5: what each is made of. The drawing (and matplotlib) is loaded when one is drawn."""

from harness.catalogue import leviathan_speed
from harness.catalogue.base import Figure, drawn_by
from harness.catalogue.leviathan_setup import generation_arm, trace_arms
from harness.experiment import Comparison

LEVIATHAN_FIGURES = [
    Figure(
        name="leviathan-1",
        title="a generation, round by round",
        plan=lambda settings: [Comparison((generation_arm(settings),))],
        draw=drawn_by("leviathan_generation", "draw_generation"),
    ),
    Figure(
        name="leviathan-2",
        title="expected tokens per run of the target against alpha",
        plan=leviathan_speed.plan,
        draw=drawn_by("leviathan_theory", "draw_expected_tokens"),
    ),
    Figure(
        name="leviathan-3",
        title="the best gamma against alpha",
        plan=leviathan_speed.plan,
        draw=drawn_by("leviathan_theory", "draw_optimal_gamma"),
    ),
    Figure(
        name="leviathan-4",
        title="speed against arithmetic operations",
        plan=leviathan_speed.plan,
        draw=drawn_by("leviathan_theory", "draw_tradeoff"),
    ),
    Figure(
        name="leviathan-5",
        title="where the time of a generation goes",
        plan=lambda settings: [Comparison(tuple(trace_arms(settings).values()))],
        draw=drawn_by("leviathan_trace", "draw_trace"),
    ),
]
