"""Draws the catalogue's figures from records: SVG and PNG, the same bytes from the same records."""

from pathlib import Path

from harness.catalogue.base import Figure, Pieces, RecordsOf, Settings


def draw(
    figure: Figure, settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None = None
) -> list[Path]:
    """The files written. ``pieces_of`` gives an experiment's decoder from ids to text, for figures that show text.

    Raises:
        UsageError: a figure that is made of records alone finds none.
    """
    return figure.draw(settings, records_of, folder, pieces_of)
