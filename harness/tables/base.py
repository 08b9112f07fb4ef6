"""What a table, a cell and a figure are. A table declares which experiments feed it and makes cells of their records.

Nothing in the catalogue runs a model: ``plan`` says what to run, ``cells`` reads what was run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from harness.core.experiment import Comparison, Experiment, arms_of
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pairing import num_failed, succeeded
from harness.measures.statistics import Estimate, Missing, NotReached, Redrawn, Refused, Student
from harness.tables.evidence import Evidence
from harness.tables.published import Published

NOT_PUBLIC = "not public"
REFUSED = "refused"  # such a number's status
STATUSES = ("measured", "computed", "set", "not run", "failed", REFUSED, "not reached")
NUMBERS = ("measured", "computed", "set")  # of which there is a number; "set" is a setting that was taken over
BETWEEN_HEADS = " / "
ABSENT = ("impossible: ", "no model: ")  # what cannot be had at all, and what only the profile lacks
TIME_SHARE = "% of time"  # the unit of shares of a time, and of times that are saved
RATIO = "x"  # the unit of speed-ups, and of ratios of costs
TIMED_UNITS = ("s", "ms", "tokens/s", RATIO, TIME_SHARE)
SPEEDS = (RATIO, TIME_SHARE)  # units that a method has no number of whose audit is red, or tested nothing


@dataclass(frozen=True)
class Cell:
    """One number of a table. ``row`` joins its ``heads`` by BETWEEN_HEADS, as many as the table has row heads.

    ``published`` is None where the paper has no such number and "not recovered" where it has one that is lost to us.
    ``exact``: its interval is a binomial's own, not resampled.
    ``status`` is one of STATUSES, "no model: why" or "impossible: why"; ``note`` becomes a footnote. It "failed" if something
    went wrong, is "refused" if its number must not be shown, and was "not reached" if all went well and no output has what the
    number is of.
    ``printed`` is the published number with its digits, ``origin`` says who printed it and ``place`` where it stands in
    results/published. ``ran`` names the models behind the row. ``student``, ``freedom`` and ``redrawn`` are the estimate's, for
    findings, as is ``made_by``: the commits and processors that recorded what it was measured on.
    ``parts_differ``: it is a total, of which some parts lie clearly above the paper's and others clearly below.
    """

    row: str
    column: str
    published: Published = None
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    unit: str = ""
    status: str = "not run"
    note: str = ""
    exact: bool = False
    printed: str = ""
    origin: str = ""
    place: str = ""
    ran: str = ""
    parts_differ: bool = False
    student: Student | None = field(default=None, compare=False, repr=False)
    freedom: float | None = field(default=None, compare=False, repr=False)
    redrawn: Redrawn | None = field(default=None, compare=False, repr=False)
    made_by: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.status not in STATUSES and not self.status.startswith(ABSENT):
            expected = f"{', '.join(STATUSES)}, no model: why or impossible: why"
            raise ValueError(f"status {self.status!r}: expected {expected}")
        if (self.measured is None) == (self.status in NUMBERS):
            raise ValueError(f"cell {self.row!r}, {self.column!r}: status {self.status!r} with value {self.measured!r}")

    @property
    def heads(self) -> tuple[str, ...]:
        """The parts of its row's name, one a row head of the table."""
        return tuple(self.row.split(BETWEEN_HEADS))

    @property
    def paper_value(self) -> float | None:
        """The published number; None where there is none, or it is lost."""
        return self.published if isinstance(self.published, float | int) else None

    @property
    def digits(self) -> str:
        """The published number as it is printed, or as a file without prints has it; empty where there is none."""
        return self.printed or ("" if self.paper_value is None else f"{self.paper_value:g}")

    @property
    def num_decimals(self) -> int:
        """Decimal digits of the published number as it is printed: 0.80 is known better than 0.8."""
        return -min(0, int(Decimal(self.digits).as_tuple().exponent))

    @property
    def half_digit(self) -> float:
        """Half a unit of the published number's last digit, to which it is known; a little more, for rounding."""
        return 0.5 * 10.0**-self.num_decimals * (1 + 1e-9)

    @property
    def beside_paper(self) -> int:
        """1 above the published number, -1 below, 0 where the interval and half a unit of its last digit reach it."""
        if self.measured is None or self.paper_value is None:
            return 0
        half = self.half_digit
        low = (self.measured if self.low is None else self.low) - half
        high = (self.measured if self.high is None else self.high) + half
        return (low > self.paper_value) - (high < self.paper_value)

    @property
    def state(self) -> str:
        """The status without its reason."""
        return self.status.partition(": ")[0]

    @property
    def remark(self) -> str:
        """The reason why there is no number, or else the footnote."""
        return self.status.partition(": ")[2] or self.note

    @property
    def is_arithmetic(self) -> bool:
        """Tell what was computed of the paper's own numbers, or taken over from it, from what was measured."""
        return self.status in ("computed", "set") and self.n is None


@dataclass(frozen=True)
class Said:
    """A sentence of a finding, without its full stop. ``contradicts``: the paper found otherwise."""

    text: str
    contradicts: bool = False


Finding = Callable[[Sequence[Cell]], Said | None]


@dataclass(frozen=True, kw_only=True)
class Appendix:
    """The part of a table below its cells: as Markdown, as a page of its own, and in a terminal with or without colour."""

    markdown: str
    html: str
    terminal: Callable[[bool], str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the catalogue.

    ``blocks`` are its columns, printed a block below the other where one line cannot hold them. ``notes`` say what differs
    from the paper under the given settings. ``appendix`` is what is to be read below its cells. ``paper`` names files,
    ``paper_title`` titles. ``scores`` names those that a model gives outputs when records are made ("comet"). ``findings`` are
    what harness.tables.finding says on top of it, behind ``data``: a sentence about the data that stand in for the paper's,
    empty where none do. ``is_committed`` is False of a table that has neither a number beside a
    published one nor a finding that decides anything: the default run leaves it out, and it can be made.
    """

    number: int
    paper: str
    paper_number: int
    title: str
    row_heads: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    plan: Callable[[Settings], list[Comparison]]
    cells: Callable[[Settings, Evidence], list[Cell]]
    notes: Callable[[Settings], list[str]]
    appendix: Callable[[Settings, Evidence], "Appendix"] | None = None
    scores: tuple[str, ...] = ()
    paper_title: str = ""
    findings: tuple[Finding, ...] = ()
    data: Callable[[Settings], str] = lambda settings: ""
    is_committed: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for block in self.blocks for column in block)

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.paper_number}"

    def arms(self, settings: Settings) -> frozenset[Experiment]:
        """The experiments that feed it."""
        return frozenset(arms_of(self.plan(settings)))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the catalogue. ``draw(settings, evidence, folder)`` writes its files and returns their paths."""

    name: str
    title: str
    plan: Callable[[Settings], list[Comparison]]
    draw: Callable[[Settings, Evidence, Path], list[Path]]

    @property
    def paper(self) -> str:
        return self.name.rsplit("-", 1)[0]

    def arms(self, settings: Settings) -> frozenset[Experiment]:
        """The experiments that it is drawn from."""
        return frozenset(arms_of(self.plan(settings)))


def without_idle_replicas(item: Table | Figure, settings: Settings) -> Settings:
    """Return the settings with a single replica where the item has no more under any."""
    single = replace(settings, replicas=1)
    return single if item.plan(single) == item.plan(settings) else settings


def cell_of(
    evidence: Evidence,
    row: str,
    column: str,
    published: Published,
    arms: Sequence[Experiment],
    estimate: Callable[[], Estimate | Missing | None],
    unit: str = "",
    status: str = "measured",
    note: str = "",
) -> Cell:
    """Make a cell from the records of the arms that feed it.

    An arm without records makes it "not run", one that only failed "failed". An estimate that was refused, or a ratio or share
    of times of a method whose exactness audit is red, makes it "refused", with the reason; outputs without what it measures
    make it "not reached". The note counts failures beside successes.
    """
    known = {arm: evidence.records_of(arm) for arm in arms}
    if not all(known.values()):
        return Cell(row, column, published, unit=unit)
    if broken := next((records for records in known.values() if not succeeded(records)), None):
        return Cell(
            row, column, published, unit=unit, status="failed", note=f"all {len(broken)} failed, first: {broken[0].error}"
        )
    result = estimate()
    is_speed = isinstance(result, Estimate) and (unit in SPEEDS or result.unit in SPEEDS)
    if is_speed and (red := evidence.reason_against_speed(arms)):
        result = Refused(red)
    if isinstance(result, Missing):
        status = REFUSED if isinstance(result, Refused) else "not reached" if isinstance(result, NotReached) else "failed"
        return Cell(row, column, published, unit=unit, status=status, note=result.why)
    if result is None:
        return Cell(row, column, published, unit=unit, status="failed", note="the records hold no such measurement")
    remarks = [note, *(_shortfall(experiment, records) for experiment, records in known.items())]
    joined = "; ".join(dict.fromkeys(filter(None, remarks)))
    return Cell(
        row,
        column,
        published,
        measured=result.value,
        low=result.shown.low,
        high=result.shown.high,
        n=result.n,
        unit=unit or result.unit,
        status=status,
        note=joined,
        exact=result.exact,
        student=result.student,
        freedom=result.freedom,
        redrawn=result.redrawn,
        made_by=evidence.made_by(record for records in known.values() for record in records),
    )


def _shortfall(experiment: Experiment, records: Sequence[Record]) -> str:
    """Say which runs of an arm are not in the number."""
    parts = []
    if failed := num_failed(records):
        parts.append(f"{failed} of {len(records)} runs failed and are not in the number")
    if len(records) < experiment.num_runs:
        parts.append(f"{len(records)} of at most {experiment.num_runs} runs are recorded")
    return ", ".join(parts)


def computed(
    row: str, column: str, published: Published, value: float, unit: str = "", note: str = "", status: str = "computed"
) -> Cell:
    return Cell(row, column, published, value, unit=unit, status=status, note=note)


def impossible(row: str, column: str, published: Published, why: str, unit: str = "") -> Cell:
    return Cell(row, column, published, unit=unit, status=f"impossible: {why}")


def without_model(row: str, column: str, published: Published, why: str, unit: str = "") -> Cell:
    """Make a cell of an arm that lacks a model: one that nobody can have, or one that this profile has not."""
    return Cell(row, column, published, unit=unit, status=f"{'impossible' if NOT_PUBLIC in why else 'no model'}: {why}")


def explained(cells: list[Cell], unavailable: Sequence[str]) -> list[Cell]:
    """Cells that could not be run because of what is not available say so."""
    if not unavailable:
        return cells
    status = "impossible: " + "; ".join(" ".join(reason.split()) for reason in unavailable)
    return [replace(cell, status=status) if cell.status == "not run" else cell for cell in cells]
