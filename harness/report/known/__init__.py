"""Known answers: what is decided, read, made, counted and reckoned of cases that are made here, for what toy models never meet.

Rounds are drawn from a seed in fp64, weights and records are written by hand: every processor gives the same.
"""

from collections.abc import Callable, Mapping

from harness.report.known import (
    arms,
    borders,
    clocks,
    decoding,
    forms,
    inputs,
    judged,
    loops,
    networks,
    records,
    replays,
    rules,
)

Answer = float | str
AREAS = (rules, inputs, networks, loops, records, arms, clocks, decoding, forms, judged, replays, borders)
GROUPS: tuple[Callable[[], Mapping[str, Answer]], ...] = tuple(group for area in AREAS for group in area.GROUPS)


def answers() -> dict[str, Answer]:
    """Return every known answer by its name: numbers, and hashes of what is no number."""
    return {name: one for group in GROUPS for name, one in group().items()}
