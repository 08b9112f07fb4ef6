"""What ``foretoken run`` says of an arm once it is recorded: metrics, the audit's verdict, remarks and the exit status."""

import math
from collections.abc import Sequence
from typing import Any

from harness.core.experiment import Comparison, Experiment, MethodSpec
from harness.core.notes import Notes
from harness.core.records import Record
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import decode_speedup, measure_run, ms_per_token, tokens_per_s
from harness.measures.pairing import incomparable
from harness.measures.statistics import Estimate
from harness.measures.verdicts import NOT_KEPT
from harness.papers.leviathan.speed import account, memory_access_factor_eq1
from harness.report.grid import Point
from harness.run.build import specs_of
from harness.run.own_data import learned_rows, notes
from harness.run.runner import Runner
from tasks.base import DataError

THEORY = ("cost_ratio", "predicted_theorem", "predicted_costs")  # of what a round costs, and what theory makes of it


def judged(runner: Runner, comparison: Comparison, records: list[list[Record]]) -> tuple[Point, dict[str, Any]]:
    """Return the last arm's metrics beside the plain ones, and the document that holds them with the audit's verdict."""
    method, metrics = comparison.arms[-1], measure_run(comparison, records)
    if "memory_access_factor" in metrics and (eq1 := memory_access_factor_eq1(method, metrics)) is not None:
        metrics["memory_access_factor_eq1"] = eq1
    if incomparable(records[0], records[-1]) is None:
        metrics |= rates(records)
        rounds_alone = decode_speedup(records[0], records[-1]) if len(records) > 1 else None
        metrics |= {"decode_speedup": rounds_alone} if isinstance(rounds_alone, Estimate) else {}
    facts = Notes(runner.folder)
    learned = {arm.signature: learned_rows(arm, specs_of(arm)) for arm in comparison.arms}
    for signature, told in learned.items():
        if told:
            facts.note_learned(signature, told)
    drafter, gamma, costs = method.method.drafter, method.method.gamma, None
    if drafter is not None and gamma and len(records) > 1:
        costs = account(records[0], records[-1], drafter.label, gamma)
    audit = judge_run(comparison, records, runner.with_models)
    point = Point(method, metrics, costs, why_refused(records), audit["verdict"])
    metrics |= {name: value for name in THEORY if (value := point.value(name)) is not None}  # the point's, too
    document: dict[str, Any] = {
        "signature": method.signature,
        "weights": {spec.name: words for spec in specs_of(method) if (words := facts.model(spec).get("weights"))},
        "learned_rows": learned[method.signature],
        "records": str(runner.path(method)),
        "baseline_records": str(runner.path(comparison.arms[0])) if len(comparison.arms) > 1 else None,
        "audit": audit,
        "metrics": {name: finite(estimate.as_dict()) for name, estimate in metrics.items()},
        "refused": point.refused,
        "beam_budget": _beam_budget(method.method),
        "peers": [],
    }
    return point, document


def why_refused(arms: Sequence[Sequence[Record]]) -> str | None:
    """Return why the last arm has no speed over one of the others; None where it has one over each."""
    found = next(filter(None, (incomparable(baseline, arms[-1]) for baseline in arms[:-1])), None)
    return found.why if found else None


def rates(records: list[list[Record]]) -> dict[str, Estimate]:
    """Tokens a second and milliseconds a token of the last arm and, where there is one, of the plain arm."""
    arms = {"": records[-1]} | ({"baseline_": records[0]} if len(records) > 1 else {})
    found = {f"{arm}{rate.__name__}": rate(of_arm) for arm, of_arm in arms.items() for rate in (tokens_per_s, ms_per_token)}
    return {name: rate for name, rate in found.items() if rate is not None}


def remarks(method: Experiment, arms: Sequence[Sequence[Record]]) -> list[str]:
    """Return what a user is told about the examples: which were tested, and how many failed; one that did in two arms once."""
    told, known = notes(method, len({record.example for record in arms[-1]})), set[str]()
    for number, records in enumerate(reversed(arms)):
        if failed := [record for record in records if record.status == "failed" and record.example not in known]:
            known |= {record.example for record in failed}
            whose = "plain decoding's " if number else ""
            told.append(f"{len(failed)} of {whose}{len(records)} examples failed; the first: {failed[0].error}")
    if alone := _failed_alone(arms[-1], arms[0]):
        told.append(f"plain decoding decoded {alone} of those that failed, so the status is 1; --again records them anew")
    return told


def status_of(arms: Sequence[Sequence[Record]], document: dict[str, Any]) -> int:
    """Return the exit status: 1 where a guarantee is broken, or too much failed.

    That is half or more of an arm's examples that could be read, or one that the first arm, plain decoding, decoded.
    """
    failed = any(map(_most_failed, arms)) or _failed_alone(arms[-1], arms[0]) > 0
    return 1 if failed or document["audit"]["verdict"] in NOT_KEPT else 0


def _most_failed(records: Sequence[Record]) -> bool:
    readable = _readable(records)
    return 2 * sum(record.status == "failed" for record in readable) >= len(readable)


def _failed_alone(records: Sequence[Record], plain: Sequence[Record]) -> int:
    """Return how many generations failed whose example plain decoding decoded."""
    decoded = {(record.example, record.repeat) for record in plain if record.status != "failed"}
    failed = [record for record in _readable(records) if record.status == "failed"]
    return sum((record.example, record.repeat) in decoded for record in failed)


def _readable(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if not (record.error or "").startswith(DataError.__name__)]


def finite(value: Any) -> Any:
    """JSON has no infinities: what is not finite is unknown."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _beam_budget(method: MethodSpec) -> int | None:
    """Contexts that a round of speculative beam search may ask the target for, w + u gamma (Leviathan A.4)."""
    width = getattr(method.options, "draft_width", None)
    return None if width is None else int(method.num_beams + width * method.gamma)
