"""What a table, a cell and a figure are. A table declares which experiments feed it and makes cells of their records.

Nothing in the catalogue runs a model: ``plan`` says what to run, ``cells`` reads what was run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.audit.verdicts import red_reason
from harness.experiment import Comparison, Experiment
from harness.pairing import Refused, num_failed, succeeded
from harness.records import Record
from harness.statistics import Estimate

if TYPE_CHECKING:
    from harness.render.traces import WorkedExample

NOT_RECOVERED = "not recovered"
RATIO = "x"  # the unit of speed-ups, and of ratios of costs; a method whose audit is red has none
Published = float | Literal["not recovered"] | None
RecordsOf = Callable[[Experiment], list[Record]]
Pieces = Callable[[Experiment], Callable[[Sequence[int]], str]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user chooses for a table or figure; None leaves the choice to the table.

    ``models`` are (role, name) pairs that replace the profile's models, for example ("t5-small", "google/mt5-small").
    ``stop_at_eos`` ends outputs at EOS in experiments whose paper generates a fixed length instead (PPD).
    """

    profile: str = "toy"
    source: str = "toy"
    limit: int | None = None
    repeats: int | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    models: tuple[tuple[str, str], ...] = ()
    stop_at_eos: bool = False


@dataclass(frozen=True)
class Cell:
    """One number of a table. ``row`` joins its parts by " / ", as many as the table has row heads.

    ``published`` is None where the paper has no such number and "not recovered" where it has one that is lost to us.
    ``status`` is "measured", "computed", "not run", "failed" or "impossible: why"; ``note`` becomes a footnote.
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

    def __post_init__(self) -> None:
        if self.status not in ("measured", "computed", "not run", "failed") and not self.status.startswith("impossible: "):
            raise ValueError(f"status {self.status!r}: expected measured, computed, not run, failed or impossible: why")
        if (self.measured is None) == (self.status in ("measured", "computed")):
            raise ValueError(f"cell {self.row!r}, {self.column!r}: status {self.status!r} with value {self.measured!r}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the catalogue.

    ``blocks`` are its columns, printed a block below the other where one line cannot hold them. ``notes`` say what differs
    from the paper under the given settings. ``examples`` are generations to be read, shown below its
    cells.
    """

    number: int
    paper: str
    paper_number: int
    title: str
    row_heads: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    plan: Callable[[Settings], list[Comparison]]
    cells: Callable[[Settings, RecordsOf], list[Cell]]
    notes: Callable[[Settings], list[str]]
    examples: Callable[[Settings, RecordsOf, Pieces], "list[WorkedExample]"] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for block in self.blocks for column in block)

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.paper_number}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the catalogue. ``draw(settings, records_of, folder, pieces_of)`` writes its files and returns their paths."""

    name: str
    title: str
    plan: Callable[[Settings], list[Comparison]]
    draw: Callable[[Settings, RecordsOf, Path, Pieces | None], list[Path]]


def drawn_by(module: str, function: str) -> Callable[[Settings, RecordsOf, Path, Pieces | None], list[Path]]:
    """A figure's ``draw`` from ``harness.figures``, loaded (and matplotlib with it) when it is first called."""

    def draw(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
        return getattr(import_module(f"harness.figures.{module}"), function)(settings, records_of, folder, pieces_of)

    return draw


def row_name(*parts: object) -> str:
    return " / ".join(str(part) for part in parts)


def cell_of(
    row: str,
    column: str,
    published: Published,
    arms: Sequence[tuple[Experiment, list[Record]]],
    estimate: Callable[[], Estimate | Refused | None],
    unit: str = "",
    status: str = "measured",
    note: str = "",
) -> Cell:
    """A cell from the records of the arms that feed it. An arm without records makes it "not run"; one that only failed, an
    estimate that was refused, or a ratio of times of a method whose exactness audit is red, "failed" with the reason; failures
    beside successes are counted in the note."""
    if any(not records for _, records in arms):
        return Cell(row, column, published, unit=unit)
    if broken := next((records for _, records in arms if not succeeded(records)), None):
        return Cell(
            row, column, published, unit=unit, status="failed", note=f"all {len(broken)} failed, first: {broken[0].error}"
        )
    result = estimate()
    if isinstance(result, Estimate) and RATIO in (unit, result.unit) and (red := red_reason([arm for arm, _ in arms])):
        result = Refused(red)
    if isinstance(result, Refused):
        return Cell(row, column, published, unit=unit, status="failed", note=result.reason)
    if result is None:
        return Cell(row, column, published, unit=unit, status="failed", note="the records hold no such measurement")
    remarks = [note, *(_shortfall(experiment, records) for experiment, records in arms)]
    joined = "; ".join(dict.fromkeys(filter(None, remarks)))
    return Cell(row, column, published, result.value, result.low, result.high, result.n, unit or result.unit, status, joined)


def _shortfall(experiment: Experiment, records: Sequence[Record]) -> str:
    """What of an arm is not in the number."""
    parts = []
    if failed := num_failed(records):
        parts.append(f"{failed} of {len(records)} runs failed and are not in the number")
    if len(records) < experiment.limit * experiment.repeats:
        parts.append(f"{len(records)} of at most {experiment.limit * experiment.repeats} runs are recorded")
    return ", ".join(parts)


def computed(row: str, column: str, published: Published, value: float, unit: str = "", note: str = "") -> Cell:
    return Cell(row, column, published, value, unit=unit, status="computed", note=note)


def impossible(row: str, column: str, published: Published, why: str, unit: str = "") -> Cell:
    return Cell(row, column, published, unit=unit, status=f"impossible: {why}")
