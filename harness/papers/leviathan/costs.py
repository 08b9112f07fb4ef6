"""What a round costs, what theory makes of it, and what is left over (Leviathan, Theorem 3.8 and A.3).

    measured speed-up = Theorem 3.8 at the measured alpha and c
                      + what the theorem leaves out of a round's cost (verifying gamma + 1 rows, fixed cost)
                      + residual_iid          (drafts are not accepted independently with one alpha)
                      + residual_unexplained  (prompts, means against medians, the machine)

Everything is computed from the same examples of two interleaved arms, so one bootstrap draw serves all of it.
"""

from collections.abc import Sequence

import numpy as np

from harness.core.records import Record
from harness.measures.pairing import incomparable, overlap_of, succeeded
from harness.measures.statistics import Estimate, Missing, interval
from methods.speculative import theory

RESAMPLES = 1000

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
    "residual_unexplained": "x",
    "outside_rounds": "frac",
}


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
    n = len(columns["tokens"])
    point = _quantities(columns, gamma)
    draws = np.random.default_rng(0).integers(0, n, size=(RESAMPLES, n))
    resampled = _quantities({name: values[draws] for name, values in columns.items()}, gamma)
    return {name: _estimate(float(point[name]), resampled[name], n, unit) for name, unit in UNITS.items()}


def _estimate(value: float, draws: np.ndarray, n: int, unit: str) -> Estimate | None:
    if not np.isfinite(value):
        return None
    return Estimate(value, *(interval(draws) if n > 1 else (None, None)), n, unit)


def _columns(baseline: Sequence[Record], method: Sequence[Record], drafter: str) -> dict[str, np.ndarray] | None:
    """[n] per example, the repeats that both arms completed taken together."""
    first, second = ({record.key: record for record in succeeded(records)} for records in (baseline, method))
    examples: dict[str, tuple[list[Record], list[Record]]] = {}
    for key, record in first.items():
        if key in second and second[key].run == record.run:
            mine, theirs = examples.setdefault(key[0], ([], []))
            mine.append(record)
            theirs.append(second[key])
    if not examples:
        return None
    rows = [_example_row(base, drafted, drafter) for base, drafted in examples.values()]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


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
        "base_s": sum(record.wall_s or np.nan for record in baseline),
        "base_tokens": sum(len(record.tokens or ()) for record in baseline),
        "method_s": sum(record.wall_s or np.nan for record in method),
        "tokens": sum(len(record.tokens or ()) for record in method),
        "steps": len(drafted),
        "drafted": drafted.sum(),
        "rounds_s": np.sum(round_s),
        "ar_s": _median(np.concatenate([_rounds(record)[3] for record in baseline])),
        "draft_s": _median(draft_s[drafting] / drafted[drafting]),
        "verify_s": _median(verify_s[full]),
        "fixed_s": _median((round_s - draft_s - verify_s)[full]),
    }


def _rounds(record: Record) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Drafted tokens and seconds of drafting, verifying and the whole, per round; NaN where no clock looked."""
    if record.steps is None:
        return (np.zeros(0),) * 4
    drafted = np.array([len(tokens) for tokens in record.steps.drafted], dtype=float)
    times = [record.steps.draft_s, record.steps.verify_s, record.steps.round_s]
    filled = [np.array(values, dtype=float) if values else np.full(len(drafted), np.nan) for values in times]
    return drafted, filled[0], filled[1], filled[2]


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else np.nan


def _quantities(columns: dict[str, np.ndarray], gamma: int) -> dict[str, np.ndarray]:
    """All quantities of UNITS, reducing the last axis: [n] for the value itself, [resamples, n] for its draws."""
    total = {name: (np.nansum if name in ("overlap", "positions") else np.sum)(values, -1) for name, values in columns.items()}
    seconds = {name: _median_of_known(columns[name]) for name in ("ar_s", "draft_s", "verify_s", "fixed_s")}
    with np.errstate(divide="ignore", invalid="ignore"):
        alpha = np.clip(total["overlap"] / total["positions"], 0, 1)
        tokens_per_step = total["tokens"] / total["steps"]
        drafted_per_step = total["drafted"] / total["steps"]
        eq1 = theory.expected_tokens(alpha, gamma)
        cost_ratio = seconds["draft_s"] / seconds["ar_s"]
        predicted_iid, predicted_costs = (
            theory.predicted_speedup(tokens, **seconds_of_round(seconds), gamma=drafted_per_step)
            for tokens in (eq1, tokens_per_step)
        )
        measured = (total["base_s"] / total["base_tokens"]) / (total["method_s"] / total["tokens"])
        return {
            "alpha": alpha,
            **seconds,
            "cost_ratio": cost_ratio,
            "verify_ratio": seconds["verify_s"] / seconds["ar_s"],
            "fixed_ratio": seconds["fixed_s"] / seconds["ar_s"],
            "tokens_per_step": tokens_per_step,
            "tokens_per_step_eq1": eq1,
            "predicted_theorem": theory.walltime_factor(alpha, gamma, cost_ratio),
            "predicted_iid": predicted_iid,
            "predicted_costs": predicted_costs,
            "speedup": measured,
            "residual_iid": predicted_costs - predicted_iid,
            "residual_unexplained": measured - predicted_costs,
            "outside_rounds": 1 - total["rounds_s"] / total["method_s"],
        }


def seconds_of_round(seconds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same seconds under the names that theory.predicted_speedup gives them."""
    return {
        "ar_s": seconds["ar_s"],
        "draft_s": seconds["draft_s"],
        "verify_s": seconds["verify_s"],
        "round_s": seconds["fixed_s"],
    }


def _median_of_known(values: np.ndarray) -> np.ndarray:
    """The median along the last axis of what is not NaN, NaN where nothing is known."""
    known = np.isfinite(values)
    ordered = np.sort(np.where(known, values, np.inf), -1)
    count = known.sum(-1)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, values.shape[-1] - 1)
    middle = (np.take_along_axis(ordered, low[..., None], -1) + np.take_along_axis(ordered, high[..., None], -1))[..., 0] / 2
    return np.where(count > 0, middle, np.nan)
