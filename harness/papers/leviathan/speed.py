"""Leviathan et al., Tables 2 and 4 (catalogue 8 and 10): measured speed-ups, and what the theory expected.

Both read the same comparisons: for a task and temperature the target alone and with each draft at the paper's gamma,
interleaved. The target's arm carries the overlap with every draft, so alpha and speed come from the same examples.
"""

from collections.abc import Sequence
from functools import partial

from harness.core.experiment import Experiment
from harness.core.settings import Settings
from harness.measures.pairing import num_near_ties
from harness.measures.statistics import Estimate, Missing
from harness.papers.leviathan.costs import UNITS, account
from harness.papers.leviathan.setup import PAPER, SETUPS, autoregressive, drafter, drafters, model_notes, overlaps, speculative
from harness.tables import published
from harness.tables.engine import Arm, Column, Known, Result, Row, Section, row_name, table

TARGET = "target alone"


def sections(settings: Settings, name: str = "table_2") -> list[Section]:
    """One section a task and temperature: the target alone, then with each draft. ``name`` is the published table."""
    groups = published.groups(PAPER, name, "task", "temp")
    return [_section(settings, task, temperature, rows) for (task, temperature), rows in groups.items()]


def _section(settings: Settings, task: str, temperature: str, rows: Sequence[published.Row]) -> Section:
    setup = SETUPS[task]
    probes = overlaps(drafters(settings, setup, tuple(setup.drafts)))
    plain = autoregressive(settings, setup, float(temperature), timed="speed", probes=probes)
    drafted = {row["draft"]: speculative(plain, drafter(settings, setup, row["draft"]), int(row["gamma"])) for row in rows}
    shown = tuple(Row(row_name(task, row["draft"], temperature), row["draft"], row) for row in rows)
    return Section({TARGET: plain, **drafted}, shown)


def costs_of(baseline: Arm, method: Arm) -> dict[str, Estimate | None] | Missing | None:
    """What the rounds of a draft cost, and what theory makes of it (harness.papers.leviathan.costs)."""
    spec = method[0].method
    assert spec.drafter is not None
    return account(baseline[1], method[1], spec.drafter.label, spec.gamma)


def _cost(name: str, known: Known, row: Row) -> Result:
    result = known.once(costs_of, TARGET, row.arm)
    return result.get(name) if isinstance(result, dict) else result


def _gamma(known: Known, row: Row) -> Estimate:
    return Estimate(float(known[row.arm][0].method.gamma), None, None, 1)


def _near_ties(known: Known, row: Row) -> str:
    """Greedy outputs must be the baseline's; say beside the speed how many part from it at a near-tie."""
    method = known[row.arm][1]
    count = num_near_ties(method)
    return f"{count} of {len(method)} outputs part from the baseline's at a near-tie of two logits" if count else ""


def _column(title: str, name: str, *, derived: bool = False, published: str | None = None, note: str = "") -> Column:
    """A column of the quantity ``name`` of costs.py; ``derived``: it is arithmetic on measurements and theory."""
    return Column(
        title, partial(_cost, name), UNITS[name], note, published, (TARGET,),
        remark=_near_ties if name == "speedup" else lambda known, row: "",
        kind="derived" if derived else "measured",
    )  # fmt: skip


GAMMA = Column("gamma", _gamma, "tokens", published="gamma", kind="planned")
ALPHA_NOTE = (
    "alpha: alpha_overlap on the timed examples. speed, Emp: seconds per token of the target alone over those with the "
    "draft, totals over examples, arms interleaved; where outputs are equal this is the ratio of total times."
)
COST_NOTE = (
    "c, verify cost, fixed cost: medians of one draft run, of verifying gamma + 1 tokens and of what else a round costs, "
    "over the median of one autoregressive token. Theorem 3.8 and Exp take verify cost = 1 and fixed cost = 0."
)
COSTS = (
    _column("verify cost", "verify_ratio"),
    _column("fixed cost", "fixed_ratio"),
    _column(
        "from costs", "predicted_costs", derived=True,
        note="from costs = tokens per run / (drafts per run x c + verify cost + fixed cost). residual iid: the part of it that "
        "is due to tokens per run not following Eq. 1 at one alpha. unexplained: measured speed-up minus from costs. outside "
        "rounds: the share of the time spent on prompts and encoders, which the prediction leaves out.",
    ),
    _column("residual iid", "residual_iid", derived=True),
    _column("unexplained", "residual_unexplained", derived=True),
    _column("outside rounds", "outside_rounds"),
    _column(
        "tokens per run", "tokens_per_step",
        note="tokens per run also is the factor by which reads of the target's weights and cache shrink (Section 3.4), "
        "counted; Eq. 1 is its theory.",
    ),
    _column("Eq. 1", "tokens_per_step_eq1", derived=True),
)  # fmt: skip
MEASURED_COSTS = ("verify cost", "fixed cost", "outside rounds", "tokens per run", "Eq. 1")
EXPLAINED = ("from costs", "residual iid", "unexplained")


def _last_notes(settings: Settings, arms: Sequence[Experiment]) -> list[str]:
    setup = SETUPS["EnDe"]
    return [
        "The paper ran one TPU-v4 against T5X. Several of its measured values exceed what Theorem 3.8 allows at c = 0.",
        *model_notes(settings, [setup.target, *setup.drafts.values()]),
    ]


SPEED = table(
    number=8,
    paper=PAPER,
    paper_number=2,
    title="measured speed-ups",
    row_heads=("task", "draft", "temp"),
    blocks=(("gamma", "alpha", "speed"), ("c", *MEASURED_COSTS), ("Theorem 3.8", *EXPLAINED)),
    columns=(
        GAMMA,
        _column("alpha", "alpha", published="alpha", note=ALPHA_NOTE),
        _column("speed", "speedup", published="speed_x"),
        _column("c", "cost_ratio", note=COST_NOTE),
        _column("Theorem 3.8", "predicted_theorem", derived=True),
        *COSTS,
    ),
    sections=sections,
    last_notes=_last_notes,
)
EXPECTED = table(
    number=10,
    paper=PAPER,
    paper_number=4,
    title="expected against measured speed-ups",
    row_heads=("task", "draft", "temp"),
    blocks=(("gamma", "alpha", "c", "Exp", "Emp"), MEASURED_COSTS, EXPLAINED),
    columns=(
        GAMMA,
        _column("alpha", "alpha", published="alpha", note=ALPHA_NOTE),
        _column("c", "cost_ratio", published="c", note=COST_NOTE),
        _column("Exp", "predicted_theorem", derived=True, published="exp_x"),
        _column("Emp", "speedup", published="emp_x"),
        *COSTS,
    ),
    sections=partial(sections, name="table_4"),
    last_notes=_last_notes,
)
