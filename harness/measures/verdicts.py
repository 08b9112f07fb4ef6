"""The verdict of an experiment's method from the stored audits, which a table shows beside a speed-up or which bars it.

A verdict belongs to what is plugged together (``key_of``), not to sizes. Of several subjects with one key (models, batches,
samplings) the worst counts. ``label_of`` is what tables and audits call a method.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec
from kernels.inputs import SamplingSpec

FOLDER = Path(__file__).resolve().parents[2] / "results" / "audit"  # the repository's own
ZOO = "zoo-toy"  # the audit that every table reads; one of a user's own models counts for these models
GREEN = ("identical", "near-tie", "same distribution", "lossy", "no difference found")
LOSSY = ("lossy", "no difference found")
Row = Mapping[str, Any]


def shown_sampling(sampling: SamplingSpec) -> str:
    filters = (("top-k", sampling.top_k), ("top-p", sampling.top_p))
    shown = "".join(f", {name} {value:g}" for name, value in filters if value is not None)
    return "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}{shown}"


def label_of(method: MethodSpec, numbers: bool = True) -> str:
    """Name a method with what is plugged into it, as far as that is not the default; ``numbers``: with its rule's."""
    parts, values = [method.name], method.values
    if method.drafter is not None:
        encoder = values.get("encoder", "own")
        parts.append(method.drafter.kind + (f" ({encoder} encoder)" if encoder != "own" else ""))
    if method.rule is not None:
        rule = method.rule.name
        parts.append(rule + (getattr(method.rule.options, "label", "").format(**values) if numbers else ""))
        parts += [] if method.has_constant_gamma else [f"schedule {values['schedule']}"]
        parts += ["printed cap"] if values.get("cap", "released") != "released" else []
    if method.is_pipeline:
        parts.append(values["execution"] + (", trained heads" if method.heads is not None else ""))
    parts += [f"{method.num_beams} beams"] if method.num_beams > 1 else []
    return " / ".join(parts)


def key_of(experiment: Experiment) -> tuple[str, ...]:
    """Return the parts of an experiment that decide exactness. Experiments with equal keys share a verdict.

    Models, sizes and numbers (gamma, lenience) are left out: they move speeds and distances, not whether a path is exact. What
    weights are rounded to is not, since other code reads them.
    """
    method, values = experiment.method, experiment.method.values
    plugged = () if method.drafter is None else (method.drafter.kind, values.get("encoder", "own"))
    rule = () if method.rule is None else (method.rule.name, values.get("cap", "released"))
    execution = (values["execution"],) if method.is_pipeline else ()
    beams = ("beams",) if method.num_beams > 1 else ()
    models = [experiment.target, *([] if method.drafter is None or method.drafter.model is None else [method.drafter.model])]
    rounded = sorted({model.rounding for model in models if model.rounding is not None})
    return (method.name, *plugged, *rule, *execution, *beams, *rounded, "greedy" if experiment.sampling.greedy else "sampled")


@dataclass(frozen=True)
class Verdict:
    """``kind`` is the worst subject's, ``evidence`` its summary, ``name`` its own; ``subjects`` are all that were looked at."""

    kind: str
    name: str
    evidence: str
    is_red: bool
    subjects: tuple[str, ...]

    @property
    def shown(self) -> str:
        return f"audited as {self.name}: {self.evidence}" if self.kind in LOSSY else self.evidence


def is_red(row: Row) -> bool:
    """Say whether a subject is not what it is declared to be: an exact one that is not, or one that could not be audited."""
    return row["verdict"] not in GREEN or (row["declared"] == "exact" and row["verdict"] in LOSSY)


def audit_folder(records: Path) -> Path:
    """Return the folder of the audits that count for these records: the one beside them, else the repository's own."""
    beside = records.resolve().parent / FOLDER.name
    return beside if any(beside.glob("*.json")) else FOLDER


def verdict_of(experiment: Experiment, folder: Path) -> Verdict | None:
    """Return what the audits stored in ``folder`` found of the experiment's method; None where none looked at it."""
    key = list(key_of(experiment))
    rows = [row for row in _rows(folder, experiment.target.name) if row["key"] == key]
    if not rows:
        return None
    worst = max(rows, key=_badness)
    return Verdict(worst["verdict"], worst["name"], summary_of(worst), is_red(worst), tuple(row["name"] for row in rows))


def summary_of(row: Row) -> str:
    """Return a subject's evidence in a few words."""
    if row.get("error"):
        return str(row["error"])
    replayed = row.get("replayed", {})
    faults = f"replay: {', '.join(replayed['what'])}; " if replayed.get("faults") else ""
    return faults + _summary(row) + (f", replayed up to {replayed['longest']} tokens" if replayed.get("decisions") else "")


def _summary(row: Row) -> str:
    if "tv" in row:
        return f"total variation {_interval(row['tv'])}, {_interval(row['nats'])} nats a token"
    if "prompts" in row:
        margin = "" if row["largest_margin"] is None else f", largest margin {row['largest_margin']:.1e}"
        return f"{row['prompts']} prompts, {row['tokens']} tokens, {row['near_ties']} near-ties, {row['bugs']} bugs{margin}"
    if "tests_made" in row:
        return f"{row['tests_made']} tests of plain sampling: {row['alarms']} alarms, {row['below_0.05']} p below 0.05"
    tests = [test for test in row["tests"].values() if test.get("samples")]
    law = max(row["largest_deviation"].values(), default=None)
    smallest, coarsest = min(test["p"] for test in tests), max(test["tv_at_power_0.9"] for test in tests)
    parts = [f"failed: {', '.join(row['failed'])}"] if row["failed"] else []
    parts += [] if law is None else [f"law within {law:.1e}"]
    found = f"finds tv {coarsest:.2f}" if coarsest < 1 else "the coarsest finds nothing"
    return "; ".join([*parts, f"{len(tests)} tests of samples, smallest p {smallest:.2g}, {found}"])


def _interval(estimate: Mapping[str, Any]) -> str:
    spread = "" if estimate["low"] is None else f" [{estimate['low']:.3f}, {estimate['high']:.3f}]"
    return f"{estimate['value']:.3f}{spread}"


def _badness(row: Row) -> tuple[bool, int]:
    order = ("identical", "same distribution", "near-tie", "no difference found", "lossy")
    return is_red(row), order.index(row["verdict"]) if row["verdict"] in order else len(order)


def _rows(folder: Path, target: str) -> list[Row]:
    """Subjects of the zoo's audit, the repository's own where the folder has none, and of audits of this very target."""
    found: list[Row] = []
    paths = sorted(folder.glob("*.json"))
    if paths and ZOO not in [path.stem for path in paths]:
        paths += FOLDER.glob(f"{ZOO}.json")
    for path in paths:
        stored = _load(path, path.stat().st_mtime_ns)
        found += [row for row in stored if path.stem == ZOO or (row["target"] == target and path.stem != "zoo-test")]
    return found


@lru_cache(maxsize=16)
def _load(path: Path, changed: int) -> tuple[Row, ...]:
    try:
        return tuple(json.loads(path.read_text(encoding="utf8"))["subjects"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"audit {path}: cannot be read ({error}); delete it and run `foretoken audit` again") from error
