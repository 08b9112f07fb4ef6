"""Leviathan et al., Tables 2 and 4 (catalogue 8 and 10): measured speed-ups, and what the theory expected.

Both read the same comparisons: for a task and temperature the target alone and with each draft at the paper's gamma,
interleaved. The target's arm carries the overlap with every draft, so alpha and speed come from the same examples.

What a round costs, what theory makes of it, and what is left over (Theorem 3.8 and A.3):

    measured speed-up = Theorem 3.8 at the measured alpha and c
                      + what the theorem leaves out of a round's cost (verifying gamma + 1 rows, fixed cost)
                      + residual_iid          (drafts are not accepted independently with one alpha)
                      + residual_outside      (prompts and encoders, which no draft makes faster)
                      + residual_unexplained  (means against medians, the machine)

One bootstrap draw of the examples serves all of it.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np

from harness.core.experiment import Experiment
from harness.core.records import Record, Unit
from harness.core.settings import Settings
from harness.measures.pairing import REMEDY, incomparable, overlap_of, succeeded, wall_s
from harness.measures.statistics import Estimate, Missing, Redrawn, Refused, Statistic, interval, replicas_of, spread, widened
from harness.measures.verdicts import EXACT_KERNELS
from harness.papers.leviathan.claims import measured_speed
from harness.papers.leviathan.setup import (
    PAPER,
    TARGET,
    autoregressive,
    data_of,
    drafter,
    drafters,
    model_notes,
    overlaps,
    setup_of,
    speculative,
)
from harness.tables import published
from harness.tables.engine import Arm, Column, Known, Result, Row, Section, near_ties, row_name, table
from harness.tables.finding import FASTER, by_columns, order, side
from methods.speculative import theory

RESAMPLES = 1000
ALARM = "residual_unexplained"  # its ends are percentiles alone: a pause that it looks for must not silence it
MAX_UNEXPLAINED = 0.25  # of the speed-up; on a quiet machine it is a tenth or less

UNITS = {
    "alpha": "",
    "ar_s": "s",
    "draft_s": "s",
    "verify_s": "s",
    "fixed_s": "s",
    "cost_ratio": "x",
    "verify_ratio": "x",
    "fixed_ratio": "x",
    "tokens_per_step": "tokens",
    "tokens_per_step_eq1": "tokens",
    "predicted_theorem": "x",
    "predicted_iid": "x",
    "predicted_costs": "x",
    "speedup": "x",
    "residual_iid": "x",
    "residual_outside": "x",
    "residual_unexplained": "x",
    "outside_rounds": "frac",
}
SIGNED = ("residual_iid", "residual_outside", "residual_unexplained")  # differences of speeds
UNTIMED = ("alpha", "tokens_per_step", "tokens_per_step_eq1")


def account(
    baseline: Sequence[Record], method: Sequence[Record], drafter: str, gamma: int
) -> dict[str, Estimate | None] | Missing | None:
    """Costs, predictions, speed-up and residuals of a draft-and-verify arm against its interleaved baseline.

    Seconds are medians: of an example's rounds, then of examples. A quantity is None where its parts were not measured
    (no overlap with ``drafter``, no clock); the whole is None where the arms share no completed example.
    """
    if refusal := incomparable(baseline, method):
        return refusal
    columns = _columns(baseline, method, drafter)
    if columns is None:
        return None
    found = _estimates(*columns, gamma)
    return unexplained(found) or found


def unexplained(found: dict[str, Estimate | None]) -> Missing | None:
    """Refuse times whose parts do not make up the rounds: a remainder clear of zero and a large part of their speed-up."""
    rest, predicted = found[ALARM], found["predicted_costs"]
    if rest is None or predicted is None or rest.low is None or rest.high is None or rest.low <= 0 <= rest.high:
        return None
    speed = predicted.value + rest.value
    if abs(rest.value) <= MAX_UNEXPLAINED * speed:
        return None
    return Refused(
        f"refused: the costs of its rounds leave {rest.value:+.2f} of their speed of {speed:.2f} unexplained (at most "
        f"{MAX_UNEXPLAINED:.0%} is allowed); {REMEDY}"
    )


def untimed(baseline: Sequence[Record], method: Sequence[Record], drafter: str, gamma: int) -> dict[str, Estimate | None]:
    """Return the quantities of UNITS that no clock decides, which are there also where times must not be compared."""
    columns = _columns(baseline, method, drafter, in_one_process=False)
    return {} if columns is None else {name: found for name, found in _estimates(*columns, gamma).items() if name in UNTIMED}


def memory_access_factor_eq1(experiment: Experiment, found: Mapping[str, Estimate]) -> Estimate | None:
    """Return Eq. 1 at the alpha that a run measured: tokens for a run of the target where every round drafts gamma.

    At the lenient alpha for a lenient rule (A.5). None where Eq. 1 does not apply: another schedule, another lossy rule, a
    greedy lenient one, drafts of a block, of which alpha is the first one's.
    """
    method, greedy = experiment.method, experiment.sampling.greedy
    rule, drafter = method.values.get("rule"), method.drafter
    lenient = rule == "lenience" and method.values["lenience"] != 1
    exact = rule in ("speculative-sampling", *EXACT_KERNELS) or (rule == "lenience" and not lenient)
    if drafter is None or drafter.model_kind in ("block", "heads") or not method.has_constant_gamma or not (exact or lenient):
        return None
    alpha = found.get("alpha_overlap_lenient" if lenient else "alpha_overlap")
    if alpha is None or (lenient and greedy):
        return None
    return Estimate(float(theory.expected_tokens(min(alpha.value, 1.0), method.gamma)), None, None, alpha.n, "x")


def _estimates(columns: dict[str, np.ndarray], units: Sequence[Unit], gamma: int) -> dict[str, Estimate | None]:
    """Return all of UNITS; every draw of the examples gives a value of each, and so does every replica."""
    n = len(columns["tokens"])
    point = _quantities(columns, gamma)
    draws = np.random.default_rng(0).integers(0, n, size=(RESAMPLES, n))
    drawn, without = _quantities({name: own[draws] for name, own in columns.items()}, gamma), _without_each(columns, gamma)
    found: dict[str, Estimate | None] = {}
    for name, unit in UNITS.items():
        value, statistic, (least, most) = float(point[name]), _redrawing(columns, gamma, name), _ends(name, gamma)
        if not np.isfinite(value):
            found[name] = None
            continue
        if name == ALARM or n == 1:
            one = Estimate(value, *(interval(drawn[name]) if n > 1 else (None, None)), n, unit)
        else:
            one = spread(value, drawn[name], without[name], unit, least, most)
        one = widened(one, replicas_of(units), statistic, most, least)
        found[name] = replace(one, redrawn=Redrawn(tuple(units), statistic))
    return found


def _without_each(columns: dict[str, np.ndarray], gamma: int) -> dict[str, np.ndarray]:
    """Return [n] values of every one of UNITS, each without one example; so many at once as were drawn."""
    n = len(columns["tokens"])
    parts = []
    for block in np.array_split(np.arange(n), ceil(n / RESAMPLES)):
        rows = np.array([np.delete(np.arange(n), one) for one in block])
        parts.append(_quantities({name: own[rows] for name, own in columns.items()}, gamma))
    return {name: np.concatenate([part[name] for part in parts]) for name in UNITS}


def _ends(name: str, gamma: int) -> tuple[float | None, float | None]:
    """Return the least and the most that one of UNITS can be, as far as it has an end."""
    if name in SIGNED:
        return None, None
    if name in ("tokens_per_step", "tokens_per_step_eq1"):
        return 1.0, gamma + 1.0
    return 0.0, 1.0 if name in ("alpha", "outside_rounds") else None


def _redrawing(columns: dict[str, np.ndarray], gamma: int, name: str) -> Statistic:
    """Return what gives [k] a quantity from [k, n] how often each example counts."""

    def values_of(counts: np.ndarray) -> np.ndarray:
        drawn = [np.repeat(np.arange(len(row)), row.astype(int)) for row in counts]
        if len({len(rows) for rows in drawn}) == 1:
            return _quantities({column: values[np.array(drawn)] for column, values in columns.items()}, gamma)[name]
        parts = ({column: values[rows] for column, values in columns.items()} for rows in drawn)
        return np.array([_quantities(part, gamma)[name] for part in parts])

    return values_of


def _columns(
    baseline: Sequence[Record], method: Sequence[Record], drafter: str, in_one_process: bool = True
) -> tuple[dict[str, np.ndarray], list[Unit]] | None:
    """[n] per example, the repeats that both arms completed taken together, and each one's name with its replica.

    Times ask for those ``in_one_process``.
    """
    first, second = ({record.key: record for record in succeeded(records)} for records in (baseline, method))
    examples: dict[str, tuple[list[Record], list[Record]]] = {}
    for key, record in first.items():
        if key in second and (not in_one_process or second[key].run == record.run):
            mine, theirs = examples.setdefault(key[0], ([], []))
            mine.append(record)
            theirs.append(second[key])
    if not examples:
        return None
    rows = [_example_row(base, drafted, drafter) for base, drafted in examples.values()]
    units: list[Unit] = [base[0].unit for base, _ in examples.values()]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}, units


def _example_row(baseline: list[Record], method: list[Record], drafter: str) -> dict[str, float]:
    overlaps = [overlap_of(record, drafter) for record in baseline]
    known = [values for values in overlaps if values is not None]
    rounds = [_rounds(record) for record in method]
    drafted, draft_s, verify_s, round_s = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    drafting = drafted > 0
    full = drafting & (drafted == drafted.max(initial=0))
    return {
        "overlap": sum(map(sum, known)) if known else np.nan,
        "positions": sum(map(len, known)) if known else np.nan,
        "base_s": sum(map(wall_s, baseline)),
        "base_rounds_s": sum(np.sum(_rounds(record)[3]) for record in baseline),
        "base_tokens": sum(len(record.tokens or ()) for record in baseline),
        "method_s": sum(map(wall_s, method)),
        "tokens": sum(len(record.tokens or ()) for record in method),
        "steps": len(drafted),
        "drafted": drafted.sum(),
        "rounds_s": np.sum(round_s),
        "ar_s": _median(np.concatenate([_rounds(record)[3] for record in baseline])),
        "draft_s": _median(draft_s[drafting] / drafted[drafting]),
        "verify_s": _median(verify_s[full]),
        "fixed_s": _median((round_s - draft_s - verify_s)[full]),
        "verify_round_s": _usual(verify_s, drafted),
        "fixed_round_s": _usual(round_s - draft_s - verify_s, drafted),
    }


def _rounds(record: Record) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Drafted tokens and seconds of drafting, verifying and the whole, per round; NaN where no clock looked."""
    if record.steps is None:
        return (np.zeros(0),) * 4
    drafted = np.array([len(tokens) for tokens in record.steps.drafted], dtype=float)
    times = [record.steps.draft_s, record.steps.verify_s, record.steps.round_s]
    filled = [np.array(values, dtype=float) if values else np.full(len(drafted), np.nan) for values in times]
    return drafted, filled[0], filled[1], filled[2]


def _usual(seconds: np.ndarray, drafted: np.ndarray) -> float:
    """Return the mean over rounds of the median of those with as many drafts: a drafter may have fewer to propose, or none."""
    kinds = [seconds[drafted == count] for count in np.unique(drafted)]
    return sum(len(own) * _median(own) for own in kinds) / len(drafted) if len(drafted) else np.nan


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else np.nan


def _quantities(columns: dict[str, np.ndarray], gamma: int) -> dict[str, np.ndarray]:
    """All quantities of UNITS, reducing the last axis: [n] for the value itself, [resamples, n] for its draws."""
    total = {name: (np.nansum if name in ("overlap", "positions") else np.sum)(values, -1) for name, values in columns.items()}
    ar_s, draft_s, verify_s, fixed_s, verify_round_s, fixed_round_s = (
        _median_of_known(columns[f"{part}_s"]) for part in ("ar", "draft", "verify", "fixed", "verify_round", "fixed_round")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        alpha = np.clip(total["overlap"] / total["positions"], 0, 1)
        tokens_per_step = total["tokens"] / total["steps"]
        drafted_per_step = total["drafted"] / total["steps"]
        eq1 = theory.expected_tokens(alpha, gamma)
        cost_ratio = draft_s / ar_s
        predicted_iid, predicted_costs = (
            theory.predicted_speedup(tokens, ar_s, draft_s, verify_round_s, fixed_round_s, drafted_per_step)
            for tokens in (eq1, tokens_per_step)
        )
        measured, of_rounds = (
            (total[f"base_{part}"] / total["base_tokens"]) / (total[method] / total["tokens"])
            for part, method in (("s", "method_s"), ("rounds_s", "rounds_s"))
        )
        return {
            "alpha": alpha,
            "ar_s": ar_s,
            "draft_s": draft_s,
            "verify_s": verify_s,
            "fixed_s": fixed_s,
            "cost_ratio": cost_ratio,
            "verify_ratio": verify_s / ar_s,
            "fixed_ratio": fixed_s / ar_s,
            "tokens_per_step": tokens_per_step,
            "tokens_per_step_eq1": eq1,
            "predicted_theorem": theory.walltime_factor(alpha, gamma, cost_ratio),
            "predicted_iid": predicted_iid,
            "predicted_costs": predicted_costs,
            "speedup": measured,
            "residual_iid": predicted_costs - predicted_iid,
            "residual_outside": measured - of_rounds,
            "residual_unexplained": of_rounds - predicted_costs,
            "outside_rounds": 1 - total["rounds_s"] / total["method_s"],
        }


def _median_of_known(values: np.ndarray) -> np.ndarray:
    """The median along the last axis of what is not NaN, NaN where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of an example of which nothing is known
        return np.asarray(np.nanmedian(values, -1))


# Tables


def sections(settings: Settings, name: str = "table_2") -> list[Section]:
    """One section a task and temperature: the target alone, then with each draft. ``name`` is the published table."""
    groups = published.groups(PAPER, name, "task", "temp")
    return [_section(settings, task, temperature, rows) for (task, temperature), rows in groups.items()]


def _section(settings: Settings, task: str, temperature: str, rows: Sequence[published.Row]) -> Section:
    setup = setup_of(settings, task)
    probes = overlaps(drafters(settings, setup, tuple(setup.drafts)))
    plain = autoregressive(settings, setup, float(temperature), timed="speed", probes=probes)
    drafted = {row["draft"]: speculative(plain, drafter(settings, setup, row["draft"]), int(row["gamma"])) for row in rows}
    shown = tuple(Row(row_name(task, row["draft"], temperature), row["draft"], row) for row in rows)
    return Section({TARGET: plain, **drafted}, shown)


def costs_of(baseline: Arm, method: Arm) -> dict[str, Estimate | None] | Missing | None:
    """Measure what the rounds of a draft cost, and compute what theory makes of it."""
    spec = method[0].method
    assert spec.drafter is not None
    return account(baseline[1], method[1], spec.drafter.label, spec.gamma)


def counts_of(baseline: Arm, method: Arm) -> dict[str, Estimate | None]:
    """Measure what a spoiled clock leaves."""
    spec = method[0].method
    assert spec.drafter is not None
    return untimed(baseline[1], method[1], spec.drafter.label, spec.gamma)


def _column(title: str, name: str, *, derived: bool = False, published: str | None = None, note: str = "") -> Column:
    """A column of the quantity ``name``; ``derived``: it is arithmetic on measurements and theory."""

    def quantity(known: Known, row: Row) -> Result:
        result = known.once(costs_of, TARGET, row.arm)
        if isinstance(result, Missing) and name in UNTIMED:
            return known.once(counts_of, TARGET, row.arm).get(name)
        return result.get(name) if isinstance(result, dict) else result

    return Column(
        title, quantity, UNITS[name], note, published, (TARGET,),
        remark=partial(near_ties, whose="the baseline's") if name == "speedup" else lambda known, row: "",
        kind="derived" if derived else "measured",
    )  # fmt: skip


GAMMA = Column(
    "gamma", lambda known, row: Estimate(float(known[row.arm][0].method.gamma), None, None, 1), "tokens", published="gamma",
    kind="set",
)  # fmt: skip
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
        note="from costs = tokens per run / (drafts per run x c + verify cost + fixed cost), with the costs that rounds of "
        "fewer drafts than gamma have for these. residual iid: the part of it that is due to tokens per run not following "
        "Eq. 1 at one alpha. unexplained: the rounds' own speed-up minus from costs. "
        "residual outside: the whole's minus the rounds', due to prompts and encoders, which take the share outside rounds.",
    ),
    _column("residual iid", "residual_iid", derived=True),
    _column("residual outside", "residual_outside", derived=True),
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
EXPLAINED = ("from costs", "residual iid", "residual outside", "unexplained")


def _last_notes(settings: Settings, arms: Sequence[Experiment]) -> list[str]:
    setup = setup_of(settings, "EnDe")
    beyond = [f"{line.printed} ({line.label})" for line in measured_speed().lines if line.verdict == "contradicted"]
    return [
        "The paper ran one TPU-v4 against T5X. Theorem 3.8 is no bound on what is measured; with a free draft (c = 0) "
        f"1 / (1 - alpha) is, whatever acceptance depends on. Of the paper's values {len(beyond)} exceed that: "
        f"{', '.join(beyond)}.",
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
    data=data_of,
    findings=(
        side("speed", 1, "speculative decoding", FASTER, "than the target alone", "pairs"),
        # Counted tokens and Equation 1's are of the same examples: the residual pairs them, and has their difference's sign.
        side(
            "residual iid",
            0,
            "the number of tokens a run",
            ("higher", "lower"),
            "as counted than by Equation 1",
            "pairs",
        ),
    ),
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
    data=data_of,
    findings=(
        side("Emp", 1, "speculative decoding", FASTER, "than the target alone", "pairs"),
        order(by_columns("Emp", "Exp"), "the speed-up", "as measured (Emp)", "as expected (Exp)", "pairs"),
    ),
)
