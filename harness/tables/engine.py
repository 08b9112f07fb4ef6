"""A table as sections by columns. Its plan, its cells, its notes and the arms behind it follow from these two.

A section is a comparison: arms that run together, and the rows that show them. A column is a quantity: its unit, how it is
measured, its note below the table, the paper's name for it. A new measure is a new column, and nothing else:

    def drafts_a_word(known: Known, row: Row) -> Result:
        experiment, records = known[row.arm]
        return ratio_of_examples([(one.example, num_drafts(one), num_words(one)) for one in succeeded(records)])

    def sections(settings: Settings) -> list[Section]:
        arms = {"plain": plain(settings), "draft": with_draft(settings)}
        return [Section(arms, (Row("T5-small", "draft", key=published.read("own", "table_1")[0]),))]

    DRAFTS = table(
        number=35, paper="own", paper_number=1, title="drafts a word", row_heads=("draft",), sections=sections,
        columns=(Column("drafts", drafts_a_word, published="drafts_a_word", note="drafts: those checked, a word of output."),),
    )

The published number is that of column "drafts_a_word" in the first line of results/published/own/table_1.csv.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from harness.core.experiment import Comparison, DrafterSpec, Experiment
from harness.core.records import Record
from harness.core.settings import REPLICAS, Settings
from harness.measures.of_run import output_perplexity
from harness.measures.pairing import num_near_ties, succeeded
from harness.measures.statistics import DESCRIPTIVE, Estimate, Missing
from harness.tables import published as published_numbers
from harness.tables.base import BETWEEN_HEADS, Appendix, Cell, Finding, Table, cell_of, computed, impossible, without_model
from harness.tables.evidence import Evidence
from harness.tables.published import Printed, Published

Arm = tuple[Experiment, list[Record]]
Arms = Mapping[str, Experiment | Missing]
Result = Estimate | Missing | None
Kind = Literal["measured", "derived", "planned", "set"]
T = TypeVar("T")


class Known(dict[str, Arm]):
    """The arms of a section that can be run, by name, each with its records. Arms that were not run have no records.

    ``evidence`` is where the records come from; it also has what the run noted of models and texts.
    """

    def __init__(self, arms: Mapping[str, Arm], evidence: Evidence) -> None:
        super().__init__(arms)
        self.evidence = evidence
        self._results: dict[tuple[Any, ...], Any] = {}

    def once(self, function: Callable[..., T], *names: str) -> T:
        """Return ``function(*arms)`` of the named arms; several columns of a row share the result."""
        key = (function, *names)
        if key not in self._results:
            self._results[key] = function(*(self[name] for name in names))
        return self._results[key]


@dataclass(frozen=True)
class Row:
    """A row: its name (``row_name`` of its heads), the arm that it shows, and what finds the paper's numbers for it.

    ``key`` is given to the table's ``published``; None where the paper has no such row. ``drafter`` is the draft that the row
    is of, where its arm does not run it (an overlap with it is measured).
    """

    name: str
    arm: str = ""
    key: Any = None
    drafter: DrafterSpec | None = None


def row_name(*parts: object) -> str:
    """Join the parts of a row's name, as many as the table has row heads."""
    return BETWEEN_HEADS.join(str(part) for part in parts)


Rows = tuple[Row, ...]


def _always(arm: Experiment | Missing | None, row: Row) -> bool:
    return True


@dataclass(frozen=True)
class Column:
    """A quantity of the arm ``row.arm`` among the ``known`` arms of its section.

    ``published`` is the paper's name for it (None: the paper has no such column). ``note`` explains it below the table.
    ``reads`` names the other arms that it needs: rows of sections without them have no such cell. ``applies`` says which rows
    have one. ``remark`` is a footnote of a single cell. ``kind``: "derived" is arithmetic on measurements and theory, "planned"
    follows from the plan, or from what the run noted of models, None until it did, "set" is a setting that the plan took over.
    ``optional``: it needs what may not be installed, and a refusal says what.
    ``parts``: what a cell is the total of, each beside the paper's number, so that a total does not agree whose parts do not.
    ``papers_arm`` names the arm whose published number stands beside a row, where it is not the row's own.
    """

    title: str
    measure: Callable[[Known, Row], Result] = lambda known, row: None
    unit: str = ""
    note: str | Callable[[], str] = ""
    published: Any = None
    reads: Callable[[str], tuple[str, ...]] | tuple[str, ...] = ()
    applies: Callable[[Experiment | Missing | None, Row], bool] = _always
    remark: Callable[[Known, Row], str] = lambda known, row: ""
    kind: Kind = "measured"
    optional: bool = False
    parts: Callable[["Known", "Row"], Iterable[tuple[Result, Published]]] = lambda known, row: ()
    papers_arm: Callable[[Known, str], str] = lambda known, arm: arm

    def arms_of(self, row: Row) -> tuple[str, ...]:
        """The arms that a cell reads, the row's own first."""
        others = self.reads(row.arm) if callable(self.reads) else self.reads
        return tuple(dict.fromkeys((*((row.arm,) if row.arm else ()), *others)))


@dataclass(frozen=True)
class Section:
    """Arms that run together, and the rows that show them.

    ``rows`` may be a function of the known arms, where records decide what is shown. ``columns`` replace the table's.
    ``printed_only``: rows of arms that cannot be run have only the cells in which the paper has a number.
    """

    arms: Arms
    rows: Rows | Callable[[Known], Rows]
    columns: Sequence[Column] = ()
    printed_only: bool = False


Sections = Callable[[Settings], Sequence[Section]]
Lookup = Callable[[Any, Any], Published]  # a row's key and a column's published name -> the paper's number
Notes = Callable[[Settings], Sequence[str]]


def no_notes(settings: Settings) -> list[str]:
    return []


def of_records(measure: Callable[[list[Record]], Result]) -> Callable[[Known, Row], Result]:
    """A measure of the records of the row's own arm."""
    return lambda known, row: measure(known[row.arm][1])


def _perplexity(known: Known, row: Row) -> Result:
    return output_perplexity(known[row.arm][1]) or Missing("no replay read these texts")


PERPLEXITY = Column(
    "perplexity", _perplexity, optional=True,
    note="perplexity: the target's, at temperature 1, a token of the row's own outputs, of those that a replay read: what a "
    "lossy method gives up for its speed.",
)  # fmt: skip


def near_ties(known: Known, row: Row, whose: str = "greedy decoding's") -> str:
    """Count beside a speed the outputs that are not the baseline's; the runner found each at a near-tie."""
    records = known[row.arm][1]
    count = num_near_ties(records)
    return f"{count} of {len(records)} outputs part from {whose} at a near-tie of two logits" if count else ""


def plan_of(sets: Iterable[Arms]) -> list[Comparison]:
    """A comparison of each set of arms, or of each of its replicas: those that can be run. Equal ones are named once."""
    found = (tuple(dict.fromkeys(arm for arm in arms.values() if isinstance(arm, Experiment))) for arms in sets)
    return list(dict.fromkeys(part for arms in found if arms for part in Comparison(arms).divided()))


def known_arms(arms: Arms, evidence: Evidence) -> Known:
    """The arms that can be run, each with its records."""
    found = {name: (arm, evidence.records_of(arm)) for name, arm in arms.items() if isinstance(arm, Experiment)}
    return Known(found, evidence)


def table(
    *,
    number: int,
    paper: str,
    paper_number: int,
    title: str,
    row_heads: tuple[str, ...],
    columns: Sequence[Column],
    sections: Sections,
    blocks: tuple[tuple[str, ...], ...] | None = None,
    published: Lookup = published_numbers.value,
    first_notes: Notes = no_notes,
    last_notes: Callable[[Settings, Sequence[Experiment]], Sequence[str]] = lambda settings, arms: [],
    appendix: Callable[[Settings, Evidence], Appendix] | None = None,
    findings: Sequence[Finding] = (),
    data: Callable[[Settings, Sequence[Experiment]], str] = lambda settings, arms: "",
    is_committed: bool = True,
) -> Table:
    """A table whose cells are the ``columns`` named in ``blocks`` (default: all, in one block) of every row of ``sections``.

    ``published`` looks up the paper's numbers; by default a row's key is a line of a CSV file, and a column's ``published``
    its head. Notes are ``first_notes``, those of the columns in the order of ``columns``, and ``last_notes`` of the arms.
    ``data`` says which data of the arms stand in for the paper's.
    """
    blocks = blocks or (tuple(column.title for column in columns),)
    titles = [title for block in blocks for title in block]
    shown = [column for column in columns if column.title in titles]

    def plan(settings: Settings) -> list[Comparison]:
        return plan_of(section.arms for section in sections(settings))

    def planned(settings: Settings) -> list[Experiment]:
        return [arm for comparison in plan(settings) for arm in comparison.arms]

    def cells(settings: Settings, evidence: Evidence) -> list[Cell]:
        return [cell for section in sections(settings) for cell in section_cells(section, shown, titles, published, evidence)]

    def notes(settings: Settings) -> list[str]:
        arms = planned(settings)
        own = (column.note() if callable(column.note) else column.note for column in shown)
        divided = replicas_note(arms, plan(replace(settings, replicas=REPLICAS)))
        return [*first_notes(settings), *dict.fromkeys(filter(None, own)), *last_notes(settings, arms), *divided]

    return Table(
        number=number,
        paper=paper,
        paper_number=paper_number,
        title=title,
        row_heads=row_heads,
        blocks=blocks,
        plan=plan,
        cells=cells,
        notes=notes,
        appendix=appendix,
        findings=tuple(findings),
        data=lambda settings: data(settings, planned(settings)),
        is_committed=is_committed,
    )


def replicas_note(arms: Sequence[Experiment], divided: Sequence[Comparison]) -> list[str]:
    """Say what the intervals of a table are wide enough for; nothing of one that is never ``divided``."""
    count = max((arm.replicas for arm in arms), default=1)
    parts = [arm for comparison in divided for arm in comparison.arms if arm.replicas > 1]
    if not parts:
        return []
    retrained = any("@" in arm.target.name for arm in parts)
    what = "processes, and models trained by other seeds," if retrained else "processes"
    if count == 1:
        once = " and one training of each model" if retrained else ""
        return [f"One process{once}: intervals hold nothing of what other {what} would give. REPLICAS={REPLICAS} does."]
    each = ", each with its own training of every model" if retrained else ""
    if all(arm.limit < DESCRIPTIVE for arm in parts):
        return [f"{count} processes share the examples{each}."]
    models = "" if retrained else " of the same models"
    return [
        f"{count} processes share the examples{each}: 95 % of what another recording{models}, on such a machine, would print "
        "lies in the intervals."
    ]


def section_cells(
    section: Section, columns: Sequence[Column], titles: Sequence[str], published: Lookup, evidence: Evidence
) -> Iterator[Cell]:
    """The cells of a section, row by row, in the order of ``titles``."""
    known = known_arms(section.arms, evidence)
    rows = section.rows(known) if callable(section.rows) else section.rows
    keys = {row.arm: row.key for row in rows}
    shown = [column for column in section.columns or columns if column.title in titles]
    ordered = sorted(shown, key=lambda column: titles.index(column.title))
    for row in rows:
        ran = _ran(row, ordered, known)
        for column in ordered:
            other = column.papers_arm(known, row.arm)
            key = row.key if other == row.arm else keys.get(other)
            printed = None if key is None or column.published is None else published(key, column.published)
            if (cell := _cell(section, row, column, known, printed)) is not None:
                yield replace(cell, ran=ran, **_as_printed(printed))


def _ran(row: Row, columns: Sequence[Column], known: Known) -> str:
    """Name the models behind a row: those of its own arm, else of the arms that its cells read."""
    read = [name for column in columns if column.applies(None, row) for name in column.arms_of(row) if name in known]
    names = [row.arm] if row.arm in known else read
    return known.evidence.ran([known[name][0] for name in names], row.drafter, (arm for arm, _ in known.values()))


def _as_printed(printed: Published) -> dict[str, Any]:
    if not isinstance(printed, float | int):
        return {}
    number = printed if isinstance(printed, Printed) else Printed(printed)
    return {"printed": number.text, "origin": number.origin, "place": number.place}


def _cell(section: Section, row: Row, column: Column, known: Known, printed: Published) -> Cell | None:
    """A cell, or None where the row has no such quantity."""
    arms, place, names = section.arms, (row.name, column.title, printed), column.arms_of(row)
    if not column.applies(arms.get(row.arm), row):
        return None
    if absent := next((arm for name in names if isinstance(arm := arms.get(name), Missing)), None):
        return None if section.printed_only and printed is None else without_model(*place, absent.why, column.unit)
    if column.kind in ("planned", "set"):
        return _planned(place, column, column.measure(known, row), column.remark(known, row))
    if not all(name in known for name in names):
        return None
    read = [known[name][0] for name in names]
    if not all(succeeded(known[name][1]) for name in names):
        return cell_of(known.evidence, *place, read, lambda: None, column.unit)
    result = column.measure(known, row)
    if column.optional and isinstance(result, Missing):
        return impossible(*place, result.why, column.unit)
    status = "computed" if column.kind == "derived" else "measured"
    cell = cell_of(known.evidence, *place, read, lambda: result, column.unit, status, column.remark(known, row))
    return replace(cell, parts_differ=cell.measured is not None and _differ(column.parts(known, row)))


def _differ(parts: Iterable[tuple[Result, Published]]) -> bool:
    """Say whether some parts lie clearly above the paper's and others clearly below; one without an interval tells nothing."""
    sides = set()
    for found, printed in parts:
        if isinstance(found, Estimate) and found.shown.low is not None:
            part = Cell("", "", printed, found.value, found.low, found.high, found.n, status="measured")
            sides.add(replace(part, **_as_printed(printed)).beside_paper)
    return {1, -1} <= sides


def _planned(place: tuple[str, str, Published], column: Column, result: Result, remark: str) -> Cell:
    if result is None:
        return Cell(*place, unit=column.unit)
    if isinstance(result, Estimate):
        status = "set" if column.kind == "set" else "computed"
        return computed(*place, result.value, column.unit or result.unit, remark, status)
    return impossible(*place, result.why, column.unit)
