"""Known answers: what is decided, read, made, counted and reckoned of cases that are made here, for what toy models never meet.

Rounds are drawn from a seed in fp64, weights and records are written by hand: every processor gives the same.
"""

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


def answers() -> dict[str, Answer]:
    """Return every known answer by its name: numbers, and hashes of what is no number."""
    return {
        **rules.decided(),
        **rules.defaults(),
        **rules.scheduled(),
        **rules.searched(),
        **rules.overlapping(),
        **inputs.read(),
        **networks.made(),
        **loops.asked(),
        **records.counted(),
        **records.timed(),
        **arms.compared(),
        **clocks.clocked(),
        **decoding.decoded(),
        **forms.predicted(),
        **forms.inferred(),
        **forms.belonging(),
        **forms.parted(),
        **judged.concluded(),
        **replays.faulted(),
        **borders.judged(),
    }
