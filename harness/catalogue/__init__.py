"""The catalogue: every table and figure of the four papers, by number and by name."""

from harness.catalogue.base import Cell, Figure, Planned, Settings, Table
from harness.catalogue.leviathan import ALPHA, TRADEOFF
from harness.catalogue.leviathan_figures import LEVIATHAN_FIGURES
from harness.catalogue.leviathan_lenience import LENIENCE
from harness.catalogue.leviathan_speed import EXPECTED, SPEED
from harness.catalogue.planned import PLANNED, PLANNED_FIGURES
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

_ALL: list[Table | Planned] = [
    *PLANNED,
    *(MATCH_RATES, PIPELINE, SAMPLING, *BY_POSITION),
    *(TRADEOFF, SPEED, ALPHA, EXPECTED, LENIENCE),
    *(*QUALITY_TABLES, *BLOCK_TABLES),
    *(TRANSLATION_MEMORY, SUMMARY_MEMORY, TRANSLATION_LATENCY, SUMMARY_LATENCY, PROFILE, TRACES),
]
TABLES: dict[int, Table | Planned] = {table.number: table for table in sorted(_ALL, key=lambda table: table.number)}
_FIGURES = [*PPD_FIGURES, *LEVIATHAN_FIGURES, *SPECDEC_FIGURES]
FIGURES: dict[str, Figure | str] = {figure.name: figure for figure in _FIGURES} | PLANNED_FIGURES

__all__ = ["FIGURES", "TABLES", "Cell", "Figure", "Planned", "Settings", "Table", "get_figure", "get_table"]


def get_table(number: int) -> Table:
    """A table by its number in the catalogue."""
    if number not in TABLES:
        raise UsageError(
            f"table {number}: expected a number from {min(TABLES)} to {max(TABLES)}; `foretoken tables` lists them"
        )
    table = TABLES[number]
    if isinstance(table, Planned):
        raise UsageError(f"table {number} ({table.title}): {table.status}; `foretoken tables` lists what there is")
    return table


def get_figure(name: str) -> Figure:
    """A figure by its name, such as "leviathan-2"."""
    if name not in FIGURES:
        raise UsageError(f"figure {name!r}: expected one of {', '.join(FIGURES)}")
    figure = FIGURES[name]
    if isinstance(figure, str):
        raise UsageError(f"figure {name!r}: {figure}; `foretoken tables` lists what there is")
    return figure
