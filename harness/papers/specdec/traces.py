"""SpecDec, Table 19 (catalogue 29): worked examples, iteration by iteration, strict and relaxed beside each other.

The cells count what the traces show: those of the shown sentences, of all sentences that were run, and of the paper's example.
"""

from collections.abc import Callable, Sequence

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pairing import num_near_ties, steps_of, succeeded
from harness.measures.statistics import Missing, ratio_of_examples
from harness.papers.specdec import setup
from harness.papers.specdec.columns import arm_notes
from harness.papers.specdec.examples import (
    Trace,
    WorkedExample,
    html_examples,
    markdown_examples,
    printed_trace,
    terminal_examples,
    trace_of,
)
from harness.tables import published
from harness.tables.base import Appendix
from harness.tables.engine import Column, Known, Result, Row, Section, known_arms, row_name, table
from harness.tables.evidence import Evidence
from harness.tables.published import Published
from methods.steps import Step

RELAXED = "SpecDec++"
BLOCK = 10
NUM_SHOWN = 3
MEAN, PAPERS = "mean", "the paper's"
NOT_PUBLIC = Missing("the paper's sentence by the paper's models, which are not public")


def arms(settings: Settings) -> setup.Arms:
    """Greedy decoding, which the strict output must equal, and both rules at the table's block size."""
    plain = setup.greedy(settings, setup.EN_DE, "traces")
    if isinstance(plain, Experiment):
        plain = plain.replace(limit=settings.limit or setup.SIZES[settings.profile].trace_limit, repeats=1)
    role, gamma = drafting(settings)
    drafter = setup.drafter_of(settings, role)
    return {
        setup.GREEDY: plain,
        setup.STRICT: setup.strict(plain, drafter, gamma),
        RELAXED: setup.relaxed(plain, drafter, gamma, setup.QUALITY),
    }


def drafting(settings: Settings) -> tuple[str, int]:
    """The role of a drafter that can draft blocks of the table's size, and the size: the base drafter if it can or is the
    user's own, or the first of Table 2 that can and that the profile has; else the base drafter's."""
    sizes = {setup.EN_DE.drafter: setup.gamma_of(settings, setup.EN_DE)} | {
        f"drafter-k{k}": k for k in setup.block_sizes(settings)
    }
    fitting = [role for role, k in sizes.items() if k >= BLOCK and not isinstance(setup.drafter_of(settings, role), Missing)]
    role = setup.EN_DE.drafter if setup.EN_DE.drafter in dict(settings.models) or not fitting else fitting[0]
    return role, min(BLOCK, sizes[role])


def heading(name: str, settings: Settings) -> str:
    k = f"k = {drafting(settings)[1]}"
    return f"{name}, {k}" if name == setup.STRICT else f"{name}, {k}, {setup.QUALITY}"


def shown(known: Known) -> list[tuple[Record, Record]]:
    """Choose the sentences that are shown, as (strict, relaxed) records.

    They are the first whose relaxed trace has a draft that stands without being the verifier's first choice; where they are too
    few, the first of the others.
    """
    if setup.STRICT not in known or RELAXED not in known:
        return []
    strictly = {record.example: record for record in traceable(known[setup.STRICT][1])}
    pairs = [(strictly[record.example], record) for record in traceable(known[RELAXED][1]) if record.example in strictly]
    return sorted(pairs, key=lambda pair: num_relaxed(pair[1]) == 0)[:NUM_SHOWN]


def traceable(records: Sequence[Record]) -> list[Record]:
    """The completed records that have the verifier's choices."""
    return [record for record in succeeded(records) if record.steps is not None and record.steps.choices]


def num_relaxed(record: Record) -> int:
    """Count the drafts in the output that are not the verifier's first choice."""
    return sum(draft != own for step in steps_of(record) for draft, own in _standing(step))


def _standing(step: Step) -> list[tuple[int, int]]:
    """The drafts that stand, each with the verifier's first choice there."""
    return list(zip(step.drafted, step.choices, strict=False))[: step.num_accepted]


def num_bifurcations(record: Record) -> int:
    """Count the iterations that ended with the verifier's own token in place of a draft."""
    return sum(step.num_accepted < min(step.emitted, len(step.drafted)) for step in steps_of(record))


def _mean(count: Callable[[Record], int]) -> Callable[[Known, Row], Result]:
    """The mean of a count over all records of an arm, or of the one record that the row shows."""

    def measure(known: Known, row: Row) -> Result:
        records = traceable(known[row.arm][1]) if row.key is None else [row.key]
        return ratio_of_examples([(record.example, count(record), 1) for record in records])

    return measure


def _verdict(known: Known, row: Row) -> str:
    """Say beside a shown sentence that its output is not greedy decoding's."""
    if row.key is None or row.key.divergence is None:
        return ""
    if num_near_ties([row.key]):
        return "parts from greedy decoding's output at a near-tie of two logits"
    return "differs from greedy decoding's output, and not by rounding"


def _column(name: str, count: Callable[[Record], int], unit: str = "") -> Column:
    return Column(name, _mean(count), unit, published=name, remark=_verdict)


COLUMNS = (
    _column("iterations", lambda record: len(steps_of(record))),
    _column("tokens", lambda record: len(record.tokens or ()), "tokens"),
    _column("bifurcations", num_bifurcations),
    _column("not first choice", num_relaxed),
)


def sections(settings: Settings) -> list[Section]:
    """The paper's example, then ours: the shown sentences and the mean of all."""
    names = [(trace, trace.heading.split(",")[0]) for trace in printed()]
    rows = tuple(Row(row_name(PAPERS, name), name, trace) for trace, name in names)
    return [Section({name: NOT_PUBLIC for _, name in names}, rows), Section(arms(settings), _rows)]


def _rows(known: Known) -> tuple[Row, ...]:
    found: list[tuple[str, tuple[Record | None, Record | None]]] = [(pair[0].example, pair) for pair in shown(known)]
    return tuple(
        Row(row_name(label, name), name, record)
        for label, pair in [*found, (MEAN, (None, None))]
        for name, record in zip((setup.STRICT, RELAXED), pair, strict=True)
    )


def _printed_count(key: Trace | Record, column: str) -> Published:
    """A count of the paper's traces; which of its drafts stand without being the first choice is lost with its colours."""
    if isinstance(key, Record):
        return None
    tokens = (token for one in key.iterations for token in one.verifier)
    counts = {
        "iterations": len(key.iterations),
        "bifurcations": sum(one.bifurcation is not None for one in key.iterations),
        "tokens": sum(token.kind not in ("before", "dropped") for token in tokens),
    }
    return float(counts[column]) if column in counts else "not recovered"


def printed() -> list[Trace]:
    """The paper's own traces."""
    rows = published.read(setup.PAPER, "table_19")
    variants = dict.fromkeys((row["variant"], row["setting"]) for row in rows)
    return [
        printed_trace([row for row in rows if (row["variant"], row["setting"]) == variant], ", ".join(variant))
        for variant in variants
    ]


def examples(settings: Settings, evidence: Evidence) -> list[WorkedExample]:
    """The paper's example, then ours."""
    known = known_arms(arms(settings), evidence)
    found, pairs = [WorkedExample("The paper's example", None, tuple(printed()))], shown(known)
    if not pairs:
        return found
    arm = known[setup.STRICT][0]
    decode, sources = evidence.decoder_of(arm), evidence.sources_of(arm)
    for pair in pairs:
        traces = tuple(
            trace_of(record, decode, heading(name, settings))
            for name, record in zip((setup.STRICT, RELAXED), pair, strict=True)
        )
        found.append(WorkedExample(f"Sentence {pair[0].example}", sources.get(pair[0].example), traces))
    return found


def appendix(settings: Settings, evidence: Evidence) -> Appendix:
    """The examples, to be read."""
    found = examples(settings, evidence)
    return Appendix(
        markdown=markdown_examples(found),
        html=html_examples(found, f"{setup.TITLE}, Table {TRACES.paper_number}: {TRACES.title}"),
        terminal=lambda colour: terminal_examples(found, colour),
    )


def notes(settings: Settings) -> list[str]:
    return [
        "iterations: drafts with their verification. tokens: of the output, its end included. bifurcations: iterations in "
        "which a draft did not stand and the verifier's own token took its place. not first choice: drafts that stand though "
        f"the verifier would have chosen another (top-beta, tau). {MEAN}: over all sentences that were run.",
        f"Shown are the first {NUM_SHOWN} sentences with a draft of the last kind, then the first others. The copy at hand of "
        "the paper's examples has lost its colours, and so which of SpecDec++'s drafts were of that kind: all look alike.",
        "Below (and as a page with colours, rules side by side): D is what the drafter wrote, V what the verifier made of it; "
        "behind an end of sentence nothing is shown.",
    ]


TRACES = table(
    number=29,
    paper=setup.PAPER,
    paper_number=19,
    title="worked examples",
    row_heads=("sentence", "method"),
    columns=COLUMNS,
    sections=sections,
    published=_printed_count,
    first_notes=notes,
    last_notes=arm_notes,
    appendix=appendix,
    data=setup.data_of,
    is_committed=False,
)
