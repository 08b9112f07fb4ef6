"""Leviathan et al., Table 5 and Section A.5 (catalogue 11): what lenience does to alpha and to speed."""

from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table, cell_of, computed, impossible, row_name
from harness.catalogue.leviathan import alpha_arm
from harness.catalogue.leviathan_setup import (
    LENIENCES,
    PAPER,
    SETUPS,
    Absent,
    autoregressive,
    drafter,
    model_notes,
    speculative,
)
from harness.experiment import Comparison, DrafterSpec, Experiment
from harness.measures import accepted_over_verified, alpha_overlap, speedup
from methods.speculative import theory

TIMED_DRAFT = "T5-small"
TASK = "EnDe"


def draft_name(row: published.Row) -> str:
    """The paper's name without the size: "T5-small (77M)" is "T5-small"."""
    return row["draft"].split(" (")[0]


def column_of(lenience: float) -> str:
    return f"l = {lenience:g}"


def gamma_of(temperature: float) -> int:
    """Temperature 0: the gamma of A.5. Temperature 1: that of Table 2's row, as A.5 names none."""
    if temperature == 0:
        rows = published.read(PAPER, "table_5")
        return next(int(row["gamma_used_for_computed"]) for row in rows if float(row["temp"]) == 0)
    rows = published.read(PAPER, "table_2")
    return next(int(row["gamma"]) for row in rows if (row["task"], row["draft"], row["temp"]) == (TASK, TIMED_DRAFT, "1"))


def timed_arms(settings: Settings, temperature: float) -> tuple[Experiment, dict[float, Experiment]]:
    """The target alone and, per lenience, with the small draft; none of the latter where the profile lacks it."""
    baseline = autoregressive(settings, SETUPS[TASK], temperature, timed=True)
    draft = drafter(settings, SETUPS[TASK], TIMED_DRAFT)
    if isinstance(draft, Absent):
        return baseline, {}
    return baseline, {value: speculative(baseline, draft, gamma_of(temperature), value) for value in LENIENCES}


def plan(settings: Settings) -> list[Comparison]:
    timed = [timed_arms(settings, temperature) for temperature in (1.0, 0.0)]
    return [
        Comparison((alpha_arm(settings, TASK, 1.0),)),
        *(Comparison((base, *arms.values())) for base, arms in timed if arms),
    ]


def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    rows = published.read(PAPER, "table_5")
    with_speed = [row for row in rows if row["speed_source"]]
    return [
        *(_alpha_cell(settings, records_of, row) for row in rows if float(row["temp"]) > 0),
        *(_greedy_alpha_cell(settings, records_of, row) for row in rows if float(row["temp"]) == 0),
        *(_speed_cell(settings, records_of, row) for row in with_speed),
        *(_theory_cell(row) for row in with_speed),
    ]


def _alpha_cell(settings: Settings, records_of: RecordsOf, row: published.Row) -> Cell:
    """Temperature 1: mean of sum min(p / l, q) on the target's own output (A.5)."""
    name, column, alpha = _place("alpha", row)
    draft = drafter(settings, SETUPS[TASK], draft_name(row))
    if not isinstance(draft, DrafterSpec):
        return impossible(name, column, alpha, draft.why)
    arm = alpha_arm(settings, TASK, float(row["temp"]))
    records = records_of(arm)
    return cell_of(name, column, alpha, [(arm, records)], lambda: alpha_overlap(records, draft.label, float(row["lenience"])))


def _greedy_alpha_cell(settings: Settings, records_of: RecordsOf, row: published.Row) -> Cell:
    """Temperature 0: the overlap of two point masses knows no lenience, so the rule itself is run and its decisions counted."""
    name, column, alpha = _place("alpha", row)
    _, arms = timed_arms(settings, float(row["temp"]))
    if not arms:
        return impossible(name, column, alpha, f"the profile has no {TIMED_DRAFT}")
    arm = arms[float(row["lenience"])]
    records = records_of(arm)
    return cell_of(name, column, alpha, [(arm, records)], lambda: accepted_over_verified(records))


def _speed_cell(settings: Settings, records_of: RecordsOf, row: published.Row) -> Cell:
    name, column, _ = _place("speed", row)
    speed = published.value(row, "speed_x")
    baseline, arms = timed_arms(settings, float(row["temp"]))
    if not arms:
        return impossible(name, column, speed, f"the profile has no {TIMED_DRAFT}", "x")
    arm = arms[float(row["lenience"])]
    alone, lenient = records_of(baseline), records_of(arm)
    return cell_of(name, column, speed, [(baseline, alone), (arm, lenient)], lambda: speedup(alone, lenient), "x")


def _theory_cell(row: published.Row) -> Cell:
    """Theorem 3.8 at the paper's own alpha and c: its best gamma at temperature 1, the paper's at temperature 0."""
    name, column, _ = _place("speed by Theorem 3.8", row)
    alpha, cost, printed = float(row["alpha"]), float(row["c"]), float(row["speed_x"])
    gamma = gamma_of(0) if float(row["temp"]) == 0 else theory.optimal_gamma(alpha, cost)
    value = float(theory.walltime_factor(alpha, gamma, cost))
    off = abs(value / printed - 1)
    note = f"the printed {printed:g} is {off:.0%} off Theorem 3.8 at gamma {gamma}, the best there is" if off > 0.02 else ""
    return computed(name, column, printed, value, "x", note)


def _place(quantity: str, row: published.Row) -> tuple[str, str, published.Published]:
    return row_name(quantity, row["draft"], row["temp"]), column_of(float(row["lenience"])), published.value(row, "alpha")


def notes(settings: Settings) -> list[str]:
    setup = SETUPS[TASK]
    return [
        "alpha at temperature 1: mean of sum min(p / l, q) on the target's own output. At temperature 0: accepted over "
        "verified drafts of the rule itself, which accepts a draft x if p(x) >= l max p; the paper prints the inequality "
        "reversed, which at l = 1 would accept everything.",
        f"speed: measured with {TIMED_DRAFT}, gamma {gamma_of(0)} at temperature 0 and {gamma_of(1)} at temperature 1, seconds "
        "per token, interleaved. The paper's speeds are not measured but computed from its alpha at c = 0.015.",
        "speed by Theorem 3.8: the theory at the paper's alpha and c, at temperature 1 with the gamma that is best there.",
        "Lenience changes the output distribution: no token becomes more than 1 / l times as likely.",
        *model_notes(settings, [setup.target, *setup.drafts.values()]),
    ]


LENIENCE = Table(
    number=11,
    paper=PAPER,
    paper_number=5,
    title="lenience: alpha and speed",
    row_heads=("quantity", "draft", "temp"),
    blocks=(tuple(column_of(value) for value in LENIENCES),),
    plan=plan,
    cells=cells,
    notes=notes,
)
