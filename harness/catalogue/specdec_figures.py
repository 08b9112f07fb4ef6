"""SpecDec, Figures 1 to 5: what each is made of. The drawing (and matplotlib) is loaded when one is drawn."""

from harness.catalogue import specdec_traces
from harness.catalogue.base import Figure, Settings, drawn_by
from harness.catalogue.specdec_batches import BATCHES, arms_at
from harness.catalogue.specdec_setup import EN_DE, arms_of, comparison_of
from harness.experiment import Comparison


def _main(settings: Settings) -> list[Comparison]:
    """The comparison of Table 1."""
    return comparison_of(arms_of(settings, EN_DE))


def _batches(settings: Settings) -> list[Comparison]:
    """The timed comparisons of Table 16."""
    return [one for batch in BATCHES[settings.profile] for one in comparison_of(arms_at(settings, EN_DE, batch))]


SPECDEC_FIGURES = [
    Figure(
        name="specdec-1",
        title="an iteration: draft, verify, bifurcation",
        plan=specdec_traces.plan,
        draw=drawn_by("specdec_rounds", "draw_strict"),
    ),
    Figure(
        name="specdec-2",
        title="translation quality against speed",
        plan=_main,
        draw=drawn_by("specdec_speed", "draw_quality"),
    ),
    Figure(
        name="specdec-3",
        title="the same by SpecDec++: what a relaxed rule lets stand",
        plan=specdec_traces.plan,
        draw=drawn_by("specdec_rounds", "draw_relaxed"),
    ),
    Figure(
        name="specdec-4",
        title="how speed-ups of single sentences are distributed",
        plan=_main,
        draw=drawn_by("specdec_speed", "draw_distribution"),
    ),
    Figure(
        name="specdec-5",
        title="latency and speed by batch size and device",
        plan=_batches,
        draw=drawn_by("specdec_batches", "draw_batches"),
    ),
]
