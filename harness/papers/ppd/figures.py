"""PPD, Figures 1 to 4: what each is made of. The drawing (and matplotlib) is loaded when one is drawn."""

from harness.core.experiment import Comparison
from harness.core.settings import Settings
from harness.papers.ppd.figure_theory import draw_average, draw_per_token
from harness.papers.ppd.figure_timeline import draw_flow, draw_overview
from harness.papers.ppd.match import MATCH_RATES
from harness.papers.ppd.pipeline import SHOWN, comparison
from harness.tables.base import Figure


def _timed(settings: Settings) -> list[Comparison]:
    """The comparison of Table 3 that the timelines are taken from."""
    return [comparison(settings, SHOWN)]


PPD_FIGURES = [
    Figure(
        name="ppd-1",
        title="three candidates begin while the token is still being computed",
        plan=_timed,
        draw=draw_overview,
    ),
    Figure(
        name="ppd-2",
        title="a run of matched tokens in the pipeline",
        plan=_timed,
        draw=draw_flow,
    ),
    Figure(
        name="ppd-3",
        title="latency against compute units busy on average",
        plan=MATCH_RATES.plan,
        draw=draw_average,
    ),
    Figure(
        name="ppd-4",
        title="latency against compute per token",
        plan=MATCH_RATES.plan,
        draw=draw_per_token,
    ),
]
