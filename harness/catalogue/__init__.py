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
from harness.errors import UsageError

_ALL: list[Table | Planned] = [
    *PLANNED,
    *(MATCH_RATES, PIPELINE, SAMPLING, *BY_POSITION),
    *(TRADEOFF, SPEED, ALPHA, EXPECTED, LENIENCE),
]
TABLES: dict[int, Table | Planned] = {table.number: table for table in sorted(_ALL, key=lambda table: table.number)}
FIGURES: dict[str, Figure | str] = {figure.name: figure for figure in [*PPD_FIGURES, *LEVIATHAN_FIGURES]} | PLANNED_FIGURES

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
