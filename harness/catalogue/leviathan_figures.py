"""Leviathan et al., Figures 1 to 5: what each is made of. The drawing (and matplotlib) is loaded when one is drawn."""

from importlib import import_module
from pathlib import Path

from harness.catalogue import leviathan_speed
from harness.catalogue.base import Figure, Pieces, RecordsOf, Settings
from harness.catalogue.leviathan_setup import generation_arm, trace_arms
from harness.experiment import Comparison


def _drawn_by(module: str, function: str):  # type: ignore[no-untyped-def]
    def draw(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
        return getattr(import_module(f"harness.figures.{module}"), function)(settings, records_of, folder, pieces_of)

    return draw


LEVIATHAN_FIGURES = [
    Figure(
        name="leviathan-1",
        title="a generation, round by round",
        plan=lambda settings: [Comparison((generation_arm(settings),))],
        draw=_drawn_by("leviathan_generation", "draw_generation"),
    ),
    Figure(
        name="leviathan-2",
        title="expected tokens per run of the target against alpha",
        plan=leviathan_speed.plan,
        draw=_drawn_by("leviathan_theory", "draw_expected_tokens"),
    ),
    Figure(
        name="leviathan-3",
        title="the best gamma against alpha",
        plan=leviathan_speed.plan,
        draw=_drawn_by("leviathan_theory", "draw_optimal_gamma"),
    ),
    Figure(
        name="leviathan-4",
        title="speed against arithmetic operations",
        plan=leviathan_speed.plan,
        draw=_drawn_by("leviathan_theory", "draw_tradeoff"),
    ),
    Figure(
        name="leviathan-5",
        title="where the time of a generation goes",
        plan=lambda settings: [Comparison(tuple(trace_arms(settings).values()))],
        draw=_drawn_by("leviathan_trace", "draw_trace"),
    ),
]
