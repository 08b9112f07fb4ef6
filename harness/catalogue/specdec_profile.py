"""SpecDec, Table 18 (catalogue 28): where the time of SpecDec++ goes; encoders side by side, and one for both."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from harness.block_measures import MODULES, module_shares
from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table
from harness.catalogue.roles import Absent
from harness.catalogue.specdec_columns import SPECULATIVE, Column, Known, Result
from harness.catalogue.specdec_notes import arm_notes
from harness.catalogue.specdec_rows import Row, Section, cells_of, plan_of
from harness.catalogue.specdec_setup import (
    EFFICIENCY,
    EN_DE,
    GREEDY,
    PAPER,
    drafter_of,
    gamma_of,
    greedy,
    relaxed,
)
from harness.measures import tokens_per_step
from harness.pairing import Refused, succeeded
from harness.records import Record
from harness.sentence_speed import sentence_speedup
from harness.statistics import Estimate, ratio_of_examples

OWN, CONCURRENT, SHARED = "one after the other", "side by side", "one for both"
ENCODERS = "both encoders"


def sections(settings: Settings) -> list[Section]:
    """The paper's arm, and the two that it names as future work."""
    plain, gamma = greedy(settings, EN_DE, "profile"), gamma_of(settings, EN_DE)
    rows = tuple(Row(name, name) for name in (OWN, CONCURRENT, SHARED))
    if isinstance(plain, Absent):
        return [Section(dict.fromkeys((OWN, CONCURRENT, SHARED), plain), rows)]
    drafters = {
        OWN: drafter_of(settings, EN_DE.drafter),
        CONCURRENT: drafter_of(settings, EN_DE.drafter, encoder="concurrent"),
        SHARED: drafter_of(settings, "drafter-shared", encoder="shared"),
    }
    alone = plain.replace(num_threads=1) if plain.device == "cpu" else plain  # as encoders side by side need it
    plains = {OWN: plain, CONCURRENT: alone, SHARED: plain}
    arms = {name: relaxed(plains[name], drafter, gamma, EFFICIENCY) for name, drafter in drafters.items()}
    return [Section({GREEDY: plain, **arms}, rows)]


def encoders_pct(records: Sequence[Record]) -> Estimate | None:
    """Percent of all time that the two encoders take."""
    rows = [(record.example, record.encode_s, record.draft_encode_s, record.wall_s) for record in succeeded(records)]
    return ratio_of_examples([(name, 100.0 * (at + nat), wall) for name, at, nat, wall in rows if at and nat and wall], "%")


def _share(module: str, known: Known, name: str) -> Result:
    return module_shares(known[name][1]).get(module)


def _gain(known: Known, name: str) -> Result:
    return sentence_speedup(known[GREEDY][1], known[OWN][1], known[name][1])


def _sentence_ms(known: Known, name: str) -> Result:
    """Refused where a speed over greedy decoding is."""
    greedy = known[GREEDY][1]
    if isinstance(over_greedy := sentence_speedup(greedy, greedy, known[name][1]), Refused):
        return over_greedy
    rows = [(record.example, 1e3 * record.wall_s, 1.0) for record in succeeded(known[name][1]) if record.wall_s is not None]
    return ratio_of_examples(rows, "ms")


COLUMNS = {
    **{module: Column(measure=partial(_share, module), unit="%") for module in MODULES},
    ENCODERS: Column(measure=lambda known, name: encoders_pct(known[name][1]), unit="%"),
    "a sentence": Column(measure=_sentence_ms, unit="ms", needs=(GREEDY,)),
    "gain": Column(measure=_gain, unit="x", needs=(GREEDY, OWN)),
    "emitted": Column(measure=lambda known, name: tokens_per_step(known[name][1]), unit="tokens", methods=SPECULATIVE),
}


def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    """The paper's own row is the first."""
    found = cells_of("table_18", sections, tuple(COLUMNS), COLUMNS)(settings, records_of)
    return [replace(cell, published=_printed(cell.column)) if cell.row == OWN else cell for cell in found]


def _printed(column: str) -> published.Published:
    if column not in (*MODULES, ENCODERS):
        return None
    metric = "time share of the two encoders pct" if column == ENCODERS else "time share pct"
    row = next(row for row in published.read(PAPER, "table_18") if row["metric"] == metric)
    return published.value(row, "value")


def notes(settings: Settings) -> list[str]:
    order = next(row["value"] for row in published.read(PAPER, "table_18") if row["metric"] == "order")
    return [
        f"Percent of all time of SpecDec++ ({EFFICIENCY}) at batch 1. The paper's text has the encoders' share, approximately, "
        f"and the order {order}; its other numbers are not recovered.",
        "AT encoder: the verifier's prefill, NAT encoder: the drafter's, each with the keys and values that its decoder reads. "
        "NAT decoder: drafting. AT decoder: verification, the rule included. others: the rest of a round.",
        "Rows: how the source is encoded. Side by side, the AT encoder's share is what passes until it is done and the NAT "
        "encoder's what passes after that. gain: seconds a sentence of the first row over this one's, arms interleaved. "
        "emitted: tokens a round.",
        *arm_notes(plan_of(sections)(settings)),
    ]


PROFILE = Table(
    number=28,
    paper=PAPER,
    paper_number=18,
    title="profile by module",
    row_heads=("encoders",),
    blocks=(MODULES, (ENCODERS, "a sentence", "gain", "emitted")),
    plan=plan_of(sections),
    cells=cells,
    notes=notes,
)
