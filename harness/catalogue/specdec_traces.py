"""SpecDec, Table 19 (catalogue 29): worked examples, iteration by iteration, strict and relaxed beside each other.

The cells count what the traces show: those of the shown sentences, of all sentences that were run, and of the paper's example.
"""

from collections.abc import Callable, Sequence

from harness.catalogue import published
from harness.catalogue.base import (
    Cell,
    Pieces,
    Published,
    RecordsOf,
    Settings,
    Table,
    cell_of,
    impossible,
    row_name,
)
from harness.catalogue.roles import Absent
from harness.catalogue.specdec_notes import arm_notes
from harness.catalogue.specdec_setup import (
    EN_DE,
    GREEDY,
    PAPER,
    QUALITY,
    STRICT,
    Arms,
    block_sizes,
    comparison_of,
    drafter_of,
    gamma_of,
    greedy,
    relaxed,
    strict,
)
from harness.experiment import Comparison, Experiment
from harness.pairing import num_near_ties, steps_of, succeeded
from harness.records import Record
from harness.render.traces import Trace, WorkedExample, printed_trace, trace_of
from harness.statistics import Estimate, ratio_of_examples
from methods.types import Step
from tasks import get_task

RELAXED = "SpecDec++"
BLOCK = 10
NUM_SHOWN = 3
LIMIT = {"toy": 60, "test": 4, "small": 60, "paper": 60}
MEAN, PAPERS = "mean", "the paper's"


def arms(settings: Settings) -> Arms:
    """Greedy decoding, which the strict output must equal, and both rules at the table's block size."""
    plain = greedy(settings, EN_DE, "traces")
    if isinstance(plain, Absent):
        return {GREEDY: plain, STRICT: plain, RELAXED: plain}
    plain = plain.replace(limit=settings.limit or LIMIT[settings.profile], repeats=1)
    role, gamma = drafting(settings)
    drafter = drafter_of(settings, role)
    return {GREEDY: plain, STRICT: strict(plain, drafter, gamma), RELAXED: relaxed(plain, drafter, gamma, QUALITY)}


def drafting(settings: Settings) -> tuple[str, int]:
    """The role of a drafter that can draft blocks of the table's size, and the size: the base drafter if it can or is the
    user's own, or the first of Table 2 that can; else the base drafter's."""
    sizes = {EN_DE.drafter: gamma_of(settings, EN_DE)} | {f"drafter-k{k}": k for k in block_sizes(settings)}
    fitting = [role for role, k in sizes.items() if k >= BLOCK]
    role = EN_DE.drafter if EN_DE.drafter in dict(settings.models) or not fitting else fitting[0]
    return role, min(BLOCK, sizes[role])


def plan(settings: Settings) -> list[Comparison]:
    return comparison_of(arms(settings))


def heading(name: str, settings: Settings) -> str:
    k = f"k = {drafting(settings)[1]}"
    return f"{name}, {k}" if name == STRICT else f"{name}, {k}, {QUALITY}"


def shown(settings: Settings, records_of: RecordsOf) -> list[tuple[Record, Record]]:
    """(strict, relaxed) records of the sentences that are shown.

    The first whose relaxed trace has a draft that stands without being the verifier's first choice; where they are too few,
    the first of the others.
    """
    both = [arm for name, arm in arms(settings).items() if name != GREEDY and isinstance(arm, Experiment)]
    if len(both) < 2:
        return []
    strictly = {record.example: record for record in traceable(records_of(both[0]))}
    pairs = [(strictly[record.example], record) for record in traceable(records_of(both[1])) if record.example in strictly]
    return sorted(pairs, key=lambda pair: num_relaxed(pair[1]) == 0)[:NUM_SHOWN]


def traceable(records: Sequence[Record]) -> list[Record]:
    """Those that noted the verifier's choices."""
    return [record for record in succeeded(records) if record.steps is not None and record.steps.choices]


def num_relaxed(record: Record) -> int:
    """Drafts in the output that are not the verifier's first choice."""
    return sum(draft != own for step in steps_of(record) for draft, own in _standing(step))


def _standing(step: Step) -> list[tuple[int, int]]:
    """The drafts that stand, each with the verifier's first choice there."""
    return list(zip(step.drafted, step.choices, strict=False))[: step.num_accepted]


def num_bifurcations(record: Record) -> int:
    """Iterations that ended with the verifier's own token in place of a draft."""
    return sum(step.num_accepted < min(step.emitted, len(step.drafted)) for step in steps_of(record))


# Column -> unit and count.
COUNTS: dict[str, tuple[str, Callable[[Record], int]]] = {
    "iterations": ("", lambda record: len(steps_of(record))),
    "tokens": ("tokens", lambda record: len(record.tokens or ())),
    "bifurcations": ("", num_bifurcations),
    "not first choice": ("", num_relaxed),
}


def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    found, run = _paper_cells(), arms(settings)
    rows: list[tuple[str, tuple[Record, Record] | None]] = [(pair[0].example, pair) for pair in shown(settings, records_of)]
    for label, pair in [*rows, (MEAN, None)]:
        for index, name in enumerate((STRICT, RELAXED)):
            found += _arm_cells(row_name(label, name), run[name], [pair[index]] if pair else None, records_of)
    return found


def _arm_cells(row: str, arm: Experiment | Absent, shown: list[Record] | None, records_of: RecordsOf) -> list[Cell]:
    """Means over the ``shown`` records; None: over all that the arm has."""
    if isinstance(arm, Absent):
        return [impossible(row, column, None, arm.why, unit) for column, (unit, _) in COUNTS.items()]
    records = records_of(arm)
    mine = traceable(records) if shown is None else shown

    def mean(count: Callable[[Record], int]) -> Callable[[], Estimate | None]:
        return lambda: ratio_of_examples([(record.example, count(record), 1) for record in mine])

    return [
        cell_of(row, column, None, [(arm, records)], mean(count), unit, note="" if shown is None else _verdict(mine[0]))
        for column, (unit, count) in COUNTS.items()
    ]


def _verdict(record: Record) -> str:
    if record.divergence is None:
        return ""
    if num_near_ties([record]):
        return "parts from greedy decoding's output at a near-tie of two logits"
    return "differs from greedy decoding's output, and not by rounding"


def _paper_cells() -> list[Cell]:
    """What the paper's traces show; which of its drafts stand without being the first choice is lost with its colours."""
    found = []
    for trace in printed():
        name = trace.heading.split(",")[0]
        counts: dict[str, Published] = {
            "iterations": float(len(trace.iterations)),
            "bifurcations": float(sum(one.bifurcation is not None for one in trace.iterations)),
            "tokens": float(sum(token.kind not in ("before", "dropped") for one in trace.iterations for token in one.verifier)),
        }
        why = "the paper's sentence by the paper's models, which are not public"
        found += [
            impossible(row_name(PAPERS, name), column, counts.get(column, "not recovered"), why, unit)
            for column, (unit, _) in COUNTS.items()
        ]
    return found


def printed() -> list[Trace]:
    """The paper's own traces."""
    rows = published.read(PAPER, "table_19")
    variants = dict.fromkeys((row["variant"], row["setting"]) for row in rows)
    return [
        printed_trace([row for row in rows if (row["variant"], row["setting"]) == variant], ", ".join(variant))
        for variant in variants
    ]


def examples(settings: Settings, records_of: RecordsOf, pieces_of: Pieces) -> list[WorkedExample]:
    """The paper's example, then ours."""
    pairs = shown(settings, records_of)
    found = [WorkedExample("The paper's example", None, tuple(printed()))]
    arm = arms(settings)[STRICT]
    if not pairs or isinstance(arm, Absent):
        return found
    decode, sources = pieces_of(arm), sources_of(arm)
    for pair in pairs:
        traces = tuple(
            trace_of(record, decode, heading(name, settings)) for name, record in zip((STRICT, RELAXED), pair, strict=True)
        )
        found.append(WorkedExample(f"Sentence {pair[0].example}", sources.get(pair[0].example), traces))
    return found


def sources_of(arm: Experiment) -> dict[str, str]:
    """What the sentences of an experiment are translated from."""
    rows = get_task(arm.task).examples(arm.source, "test", arm.limit, arm.seed)
    return {example.id: example.inputs["source"] for example in rows}


def notes(settings: Settings) -> list[str]:
    return [
        "iterations: drafts with their verification. tokens: of the output, its end included. bifurcations: iterations in "
        "which a draft did not stand and the verifier's own token took its place. not first choice: drafts that stand though "
        f"the verifier would have chosen another (top-beta, tau). {MEAN}: over all sentences that were run.",
        f"Shown are the first {NUM_SHOWN} sentences with a draft of the last kind, then the first others. The copy at hand of "
        "the paper's examples has lost its colours, and so which of SpecDec++'s drafts were of that kind: all look alike.",
        "Below (and as a page with colours, rules side by side): D is what the drafter wrote, V what the verifier made of it; "
        "behind an end of sentence nothing is shown.",
        *arm_notes(plan(settings)),
    ]


TRACES = Table(
    number=29,
    paper=PAPER,
    paper_number=19,
    title="worked examples",
    row_heads=("sentence", "method"),
    blocks=(tuple(COUNTS),),
    plan=plan,
    cells=cells,
    notes=notes,
    examples=examples,
)
