"""Leviathan et al., Tables 2 and 4 (catalogue 8 and 10): measured speed-ups, and what the theory expected.

Both read the same comparisons: for a task and temperature the target alone and with each draft at the paper's gamma,
interleaved. The target's arm carries the overlap with every draft, so alpha and speed come from the same examples.
"""

from collections.abc import Callable
from dataclasses import dataclass

from harness.catalogue import published
from harness.catalogue.base import Cell, Published, RecordsOf, Settings, Table, cell_of, impossible, row_name
from harness.catalogue.leviathan_setup import (
    PAPER,
    SETUPS,
    Absent,
    autoregressive,
    drafter,
    drafters,
    model_notes,
    speculative,
)
from harness.costs import UNITS, account
from harness.experiment import Comparison, DrafterSpec, Experiment
from harness.pairing import Refused, num_near_ties
from harness.records import Record
from harness.statistics import Estimate

# Column title -> (name in harness.costs, whether it is arithmetic on measurements and theory rather than a measurement).
COSTS = {
    "verify cost": ("verify_ratio", False),
    "fixed cost": ("fixed_ratio", False),
    "tokens per run": ("tokens_per_step", False),
    "Eq. 1": ("tokens_per_step_eq1", True),
    "from costs": ("predicted_costs", True),
    "residual iid": ("residual_iid", True),
    "unexplained": ("residual_unexplained", True),
    "outside rounds": ("outside_rounds", False),
}
SPEED_COLUMNS = {
    "alpha": ("alpha", False),
    "speed": ("speedup", False),
    "c": ("cost_ratio", False),
    "Theorem 3.8": ("predicted_theorem", True),
    **COSTS,
}
THEORY_COLUMNS = {
    "alpha": ("alpha", False),
    "c": ("cost_ratio", False),
    "Exp": ("predicted_theorem", True),
    "Emp": ("speedup", False),
    **COSTS,
}
MEASURED_COSTS = ("verify cost", "fixed cost", "outside rounds", "tokens per run", "Eq. 1")
EXPLAINED = ("from costs", "residual iid", "unexplained")


@dataclass(frozen=True)
class Pair:
    """A row of Tables 2 and 4 and the two interleaved experiments that feed it; without a draft, why."""

    row: published.Row
    draft: DrafterSpec | Absent
    baseline: Experiment
    method: Experiment | None

    @property
    def name(self) -> str:
        return row_name(self.row["task"], self.row["draft"], self.row["temp"])


def pairs(settings: Settings, table: str) -> list[Pair]:
    """The rows of a published table with the experiments that measure them."""
    found = []
    for row in published.read(PAPER, table):
        setup = SETUPS[row["task"]]
        overlap = drafters(settings, setup, tuple(setup.drafts))
        baseline = autoregressive(settings, setup, float(row["temp"]), timed=True, overlap=overlap)
        draft = drafter(settings, setup, row["draft"])
        method = None if isinstance(draft, Absent) else speculative(baseline, draft, int(row["gamma"]))
        found.append(Pair(row, draft, baseline, method))
    return found


def plan(settings: Settings) -> list[Comparison]:
    """One comparison a task and temperature: the target alone, then with each draft."""
    arms: dict[Experiment, list[Experiment]] = {}
    for pair in pairs(settings, "table_2"):
        arms.setdefault(pair.baseline, [])
        if pair.method is not None:
            arms[pair.baseline].append(pair.method)
    return [Comparison((baseline, *methods)) for baseline, methods in arms.items()]


def speed_cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    return _cells(settings, records_of, "table_2", SPEED_COLUMNS, {"alpha": "alpha", "speed": "speed_x"})


def theory_cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    return _cells(settings, records_of, "table_4", THEORY_COLUMNS, {"alpha": "alpha", "c": "c", "Exp": "exp_x", "Emp": "emp_x"})


def _cells(
    settings: Settings, records_of: RecordsOf, table: str, columns: dict[str, tuple[str, bool]], printed: dict[str, str]
) -> list[Cell]:
    rows = pairs(settings, table)
    known = {arm: records_of(arm) for arm in dict.fromkeys(arm for pair in rows for arm in (pair.baseline, pair.method) if arm)}
    cells = []
    for pair in rows:
        published_of = {column: published.value(pair.row, name) for column, name in printed.items()}
        cells += _pair_cells(pair, known, columns, published_of)
    return cells


def _pair_cells(
    pair: Pair, known: dict[Experiment, list[Record]], columns: dict[str, tuple[str, bool]], printed: dict[str, Published]
) -> list[Cell]:
    gamma = float(pair.row["gamma"])
    if pair.method is None or isinstance(pair.draft, Absent):
        why = pair.draft.why if isinstance(pair.draft, Absent) else ""
        named = {"gamma": "tokens", **{column: UNITS[name] for column, (name, _) in columns.items()}}
        return [
            impossible(pair.name, column, gamma if column == "gamma" else printed.get(column), why, unit)
            for column, unit in named.items()
        ]
    arms = [(arm, known[arm]) for arm in (pair.baseline, pair.method)]
    baseline, method = arms[0][1], arms[1][1]
    result = account(baseline, method, pair.draft.label, pair.method.method.gamma) if baseline and method else None
    cells = [Cell(pair.name, "gamma", gamma, gamma, unit="tokens", status="computed")]
    for column, (name, derived) in columns.items():
        note = _near_ties(method) if name == "speedup" else ""
        status = "computed" if derived else "measured"
        cells.append(cell_of(pair.name, column, printed.get(column), arms, _pick(result, name), UNITS[name], status, note))
    return cells


def _pick(result: dict[str, Estimate | None] | Refused | None, name: str) -> Callable[[], Estimate | Refused | None]:
    return lambda: result.get(name) if isinstance(result, dict) else result


def _near_ties(method: list[Record]) -> str:
    """Greedy outputs must be the baseline's; how many part from it at a near-tie is said beside the speed."""
    count = num_near_ties(method)
    return f"{count} of {len(method)} outputs part from the baseline's at a near-tie of two logits" if count else ""


def notes(settings: Settings) -> list[str]:
    setup = SETUPS["EnDe"]
    return [
        "alpha: alpha_overlap on the timed examples. speed, Emp: seconds per token of the target alone over those with the "
        "draft, totals over examples, arms interleaved; where outputs are equal this is the ratio of total times.",
        "c, verify cost, fixed cost: medians of one draft run, of verifying gamma + 1 tokens and of what else a round costs, "
        "over the median of one autoregressive token. Theorem 3.8 and Exp take verify cost = 1 and fixed cost = 0.",
        "from costs = tokens per run / (drafts per run x c + verify cost + fixed cost). residual iid: the part of it that is "
        "due to tokens per run not following Eq. 1 at one alpha. unexplained: measured speed-up minus from costs. outside "
        "rounds: the share of the time spent on prompts and encoders, which the prediction leaves out.",
        "tokens per run also is the factor by which reads of the target's weights and cache shrink (Section 3.4), counted; "
        "Eq. 1 is its theory.",
        "The paper ran one TPU-v4 against T5X. Several of its measured values exceed what Theorem 3.8 allows at c = 0.",
        *model_notes(settings, [setup.target, *setup.drafts.values()]),
    ]


SPEED = Table(
    number=8,
    paper=PAPER,
    paper_number=2,
    title="measured speed-ups",
    row_heads=("task", "draft", "temp"),
    blocks=(("gamma", "alpha", "speed"), ("c", *MEASURED_COSTS), ("Theorem 3.8", *EXPLAINED)),
    plan=plan,
    cells=speed_cells,
    notes=notes,
)
EXPECTED = Table(
    number=10,
    paper=PAPER,
    paper_number=4,
    title="expected against measured speed-ups",
    row_heads=("task", "draft", "temp"),
    blocks=(("gamma", "alpha", "c", "Exp", "Emp"), MEASURED_COSTS, EXPLAINED),
    plan=plan,
    cells=theory_cells,
    notes=notes,
)
