"""SpecDec, Table 18 (catalogue 28): where the time of SpecDec++ goes; encoders side by side, and one for both."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.of_run import tokens_per_step
from harness.measures.pairing import succeeded
from harness.measures.statistics import Estimate, Missing, ratio_of_examples
from harness.papers.specdec.columns import SPECULATIVE, arm_notes, speed_over
from harness.papers.specdec.measures import MODULES, module_shares
from harness.papers.specdec.setup import EFFICIENCY, EN_DE, GREEDY, PAPER, data_of, drafter_of, gamma_of, greedy, relaxed
from harness.tables import published
from harness.tables.base import TIME_SHARE
from harness.tables.engine import Column, Known, Result, Row, Section, of_records, table
from harness.tables.finding import FASTER, against, by_columns, order, side

OWN, CONCURRENT, SHARED = "one after the other", "side by side", "one for both"
ENCODERS = "both encoders"


def sections(settings: Settings) -> list[Section]:
    """The paper's arm, and the two that it names as future work."""
    plain, gamma = greedy(settings, replace(EN_DE, limit=100), "profile"), gamma_of(settings, EN_DE)
    keys = {OWN: PAPER}  # the paper's own row is the first
    rows = tuple(Row(name, name, keys.get(name)) for name in (OWN, CONCURRENT, SHARED))
    drafters = {
        OWN: drafter_of(settings, EN_DE.drafter),
        CONCURRENT: drafter_of(settings, EN_DE.drafter, encoder="concurrent"),
        SHARED: drafter_of(settings, "drafter-shared", encoder="shared"),
    }
    plains = dict.fromkeys(drafters, plain)
    if isinstance(plain, Experiment) and plain.device == "cpu":
        plains[CONCURRENT] = plain.replace(num_threads=1)  # as encoders side by side need it
    arms = {name: relaxed(plains[name], drafter, gamma, EFFICIENCY) for name, drafter in drafters.items()}
    return [Section({GREEDY: plain, **arms}, rows)]


def encoders_pct(records: Sequence[Record]) -> Estimate | None:
    """Percent of all time that is the two encoders'."""
    rows = [(record.unit, record.encode_s, record.draft_encode_s, record.wall_s) for record in succeeded(records)]
    return ratio_of_examples([(name, 100.0 * (at + nat), wall) for name, at, nat, wall in rows if at and nat and wall], "%")


def _share(module: str, records: Sequence[Record]) -> Estimate | None:
    return module_shares(records).get(module)


def _sentence_ms(records: Sequence[Record]) -> Estimate | None:
    times = [(record.unit, 1e3 * record.wall_s, 1.0) for record in succeeded(records) if record.wall_s is not None]
    return ratio_of_examples(times, "ms")


def _timed(
    title: str, measure: Callable[[list[Record]], Result], unit: str = TIME_SHARE, published: str | None = None
) -> Column:
    """A column of times or their shares, refused where a speed over greedy decoding is."""

    def measured(known: Known, row: Row) -> Result:
        over_greedy = speed_over(known, GREEDY, row)
        return over_greedy if isinstance(over_greedy, Missing) else measure(known[row.arm][1])

    return Column(title, measured, unit, published=published, reads=(GREEDY,))


COLUMNS = (
    *(_timed(module, partial(_share, module), published="time share pct") for module in MODULES),
    _timed(ENCODERS, encoders_pct, published="time share of the two encoders pct"),
    _timed("a sentence", _sentence_ms, "ms"),
    Column("gain", lambda known, row: speed_over(known, OWN, row), "x", reads=(GREEDY, OWN)),
    Column("emitted", of_records(tokens_per_step), "tokens", applies=SPECULATIVE),
)


def _printed(key: str, metric: str) -> published.Published:
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
    ]


PROFILE = table(
    number=28,
    paper=PAPER,
    paper_number=18,
    title="profile by module",
    row_heads=("encoders",),
    columns=COLUMNS,
    blocks=(MODULES, (ENCODERS, "a sentence", "gain", "emitted")),
    sections=sections,
    published=_printed,
    first_notes=notes,
    last_notes=arm_notes,
    data=data_of,
    findings=(
        order(
            by_columns("NAT decoder", "AT decoder", lambda parts: parts[0] == OWN),
            "the share of the time",
            "in the NAT decoder",
            "in the AT decoder",
            "ways to encode",
            told=1,  # its text: NAT decoder > AT decoder
        ),
        side(
            "gain",
            1,
            "decoding with both encoders side by side",
            FASTER,
            "than with one after the other",
            "ways to encode",
            lambda parts: parts[0] == CONCURRENT,  # one encoder for both has another drafter
        ),
        against("the encoders' share of time"),
    ),
)
