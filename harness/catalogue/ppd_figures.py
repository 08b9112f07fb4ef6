"""PPD, Figures 1 to 4: what each is made of. The drawing (and matplotlib) is loaded when one is drawn."""

from harness.catalogue import ppd_match, ppd_pipeline
from harness.catalogue.base import Figure, Settings, drawn_by
from harness.experiment import Comparison


def _timed(settings: Settings) -> list[Comparison]:
    """The comparison of Table 3 that the timelines are taken from."""
    return [ppd_pipeline.comparison(settings, ppd_pipeline.SHOWN)]


PPD_FIGURES = [
    Figure(
        name="ppd-1",
        title="three candidates begin while the token is still being computed",
        plan=_timed,
        draw=drawn_by("ppd_timeline", "draw_overview"),
    ),
    Figure(
        name="ppd-2",
        title="a run of matched tokens in the pipeline",
        plan=_timed,
        draw=drawn_by("ppd_timeline", "draw_flow"),
    ),
    Figure(
        name="ppd-3",
        title="latency against compute units busy on average",
        plan=ppd_match.MATCH_RATES.plan,
        draw=drawn_by("ppd_theory", "draw_average"),
    ),
    Figure(
        name="ppd-4",
        title="latency against compute per token",
        plan=ppd_match.MATCH_RATES.plan,
        draw=drawn_by("ppd_theory", "draw_per_token"),
    ),
]
