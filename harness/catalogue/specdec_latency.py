"""SpecDec, Tables 16 and 17 (catalogue 26 and 27): latency and peak memory by batch size.

The paper's are of T5-large, to say that latency, not memory, is the bottleneck; of its numbers only what the text says is left.
Ours also show what SpecDec does about it.
"""

from dataclasses import replace
from functools import partial

from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table, row_name
from harness.catalogue.specdec_batches import BATCHES, MEMORY, MIN_BATCHES, TIMES, arms_at, at_batch
from harness.catalogue.specdec_notes import arm_notes
from harness.catalogue.specdec_rows import Row, Section, cells_of, plan_of
from harness.catalogue.specdec_setup import CNNDM, EN_DE, GREEDY, PAPER, Setup, greedy
from harness.experiment import Comparison

T5 = "T5-large"
T5_KEY = (T5, "cells")
NAMES = {EN_DE: "base", CNNDM: "BART"}


def sections(setup: Setup, settings: Settings, *, memory: bool) -> list[Section]:
    """T5-large by greedy decoding, as in the paper, then our arms; each at every batch size."""
    large = greedy(settings, replace(setup, verifier="t5-large"), "batches")
    found = []
    for batch in BATCHES[settings.profile]:
        row = Row(row_name(T5, GREEDY, batch), GREEDY, T5_KEY)
        found.append(Section({GREEDY: at_batch(large, settings, batch, memory)}, (row,)))
    for batch in BATCHES[settings.profile]:
        arms = arms_at(settings, setup, batch, memory=memory)
        found.append(Section(arms, tuple(Row(row_name(NAMES[setup], name, batch), name) for name in arms)))
    return found


def plan(setup: Setup, settings: Settings) -> list[Comparison]:
    return [one for memory in (False, True) for one in plan_of(partial(sections, setup, memory=memory))(settings)]


def cells(table: str, setup: Setup, settings: Settings, records_of: RecordsOf) -> list[Cell]:
    """Times and memory are of runs of their own; rows bring them together."""
    timed = cells_of(table, partial(sections, setup, memory=False), tuple(TIMES), TIMES)
    held = cells_of(table, partial(sections, setup, memory=True), tuple(MEMORY), MEMORY)
    return [*timed(settings, records_of), *held(settings, records_of)]


def said(table: str) -> str:
    """What the paper's text says of its table."""
    rows = [row for row in published.read(PAPER, table) if row["value"]]
    return "; ".join(f"{row['model']}, {row['setting']}: {row['metric']} {row['value']}" for row in rows)


def notes(table: str, setup: Setup, settings: Settings) -> list[str]:
    stands_in = " and here a small model of its architecture" if settings.profile in ("toy", "test") else ""
    return [
        f"{T5} is the paper's model{stands_in}, decoded greedily; all that is left of its numbers is in its text: "
        f"{said(table)}. The other rows are ours.",
        "latency: ms until a batch is done, encoders included; a sentence: the same over its sentences. speed, over greedy: "
        "over AT of the same batch size with beam 5, the faster of our search and transformers', and with b = 1, arms "
        f"interleaved. Intervals resample batches (n); there is none of fewer than {MIN_BATCHES}.",
        "MiB. peak: weights of verifier and drafter and the most that any batch took above the loaded models; decoding: the "
        "mean over batches of what one took. Measured in a run without a clock.",
        *arm_notes(plan(setup, settings)),
    ]


def _table(number: int, paper_number: int, title: str, setup: Setup) -> Table:
    name = f"table_{paper_number}"
    return Table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("model", "method", "batch"),
        blocks=(tuple(TIMES), tuple(MEMORY)),
        plan=partial(plan, setup),
        cells=partial(cells, name, setup),
        notes=partial(notes, name, setup),
    )


TRANSLATION_LATENCY = _table(26, 16, "latency and memory, translation", EN_DE)
SUMMARY_LATENCY = _table(27, 17, "latency and memory, CNN/DM", CNNDM)
