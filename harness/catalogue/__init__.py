"""The catalogue: every table and figure of the four papers, by number and by name."""

from harness import plugins
from harness.catalogue.base import Cell, Figure, Settings, Table
from harness.catalogue.leviathan import ALPHA, TRADEOFF
from harness.catalogue.leviathan_figures import LEVIATHAN_FIGURES
from harness.catalogue.leviathan_lenience import LENIENCE
from harness.catalogue.leviathan_speed import EXPECTED, SPEED
from harness.catalogue.optimized_gamma import OPTIMIZED_FIGURES
from harness.catalogue.optimized_rules import QUALITY, STEPS, WALL_CLOCK
from harness.catalogue.optimized_scaling import SCALING, SCALING_ALL
from harness.catalogue.ppd_figures import PPD_FIGURES
from harness.catalogue.ppd_match import BY_POSITION, MATCH_RATES
from harness.catalogue.ppd_pipeline import PIPELINE
from harness.catalogue.ppd_sampling import SAMPLING
from harness.catalogue.specdec_blocks import BLOCK_TABLES
from harness.catalogue.specdec_figures import SPECDEC_FIGURES
from harness.catalogue.specdec_latency import SUMMARY_LATENCY, TRANSLATION_LATENCY
from harness.catalogue.specdec_memory import SUMMARY_MEMORY, TRANSLATION_MEMORY
from harness.catalogue.specdec_profile import PROFILE
from harness.catalogue.specdec_quality import QUALITY_TABLES
from harness.catalogue.specdec_traces import TRACES
from harness.errors import UsageError

_ALL = [
    *(MATCH_RATES, PIPELINE, SAMPLING, *BY_POSITION),
    *(TRADEOFF, SPEED, ALPHA, EXPECTED, LENIENCE),
    *(*QUALITY_TABLES, *BLOCK_TABLES),
    *(QUALITY, SCALING, WALL_CLOCK, STEPS, SCALING_ALL),
    *(TRANSLATION_MEMORY, SUMMARY_MEMORY, TRANSLATION_LATENCY, SUMMARY_LATENCY, PROFILE, TRACES),
]
TABLES: dict[int, Table] = {table.number: table for table in sorted(_ALL, key=lambda table: table.number)}
FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in (*PPD_FIGURES, *LEVIATHAN_FIGURES, *SPECDEC_FIGURES, *OPTIMIZED_FIGURES)
}

__all__ = ["FIGURES", "TABLES", "Cell", "Figure", "Settings", "Table", "get_figure", "get_table"]


def get_table(number: int) -> Table:
    """A table by its number in the catalogue."""
    if number not in TABLES:
        plugins.refuse_broken("table", number)
        raise UsageError(
            f"table {number}: expected a number from {min(TABLES)} to {max(TABLES)}; `foretoken tables` lists them"
        )
    return TABLES[number]


def get_figure(name: str) -> Figure:
    """A figure by its name, such as "leviathan-2"."""
    if name not in FIGURES:
        raise UsageError(f"figure {name!r}: expected one of {', '.join(FIGURES)}")
    return FIGURES[name]
