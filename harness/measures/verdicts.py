"""The verdict of an experiment's method from the stored audits, which a table shows beside a speed-up or which bars it.

A verdict belongs to what ran: what is plugged together, the family of the model, device and dtype (``key_of``), not to sizes.
Of several subjects with one key (models, batches, samplings) the worst counts. What no subject had is not audited: ``place_of``
says where. ``label_of`` is what tables and audits call a method.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.core.experiment import Experiment, MethodSpec
from harness.core.files import readable
from harness.core.text import interval_text
from harness.zoo.recipes import recipe_for, scale_of
from kernels.inputs import SamplingSpec

FOLDER = Path(__file__).resolve().parents[2] / "results" / "audit"  # the repository's own
ZOO = "zoo-toy"  # the audit that every table reads; one of a user's own models counts for these models
GREEN = ("identical", "near-tie", "same distribution", "lossy", "no difference found")
LOSSY = ("lossy", "no difference found")
NOT_KEPT = ("bug", "biased")  # verdicts of a method that breaks its guarantee
NOT_TESTED = "not tested"  # a verdict: nothing that sees the law could have found one that is MUST_FIND off; it is not red
MUST_FIND = 0.2  # total variation
ENOUGH_DECISIONS = 11  # of a replay: a law MUST_FIND off draws another token that often, and so many miss it with 0.8**11 < 0.1
BLIND = ("ranks ", "numbers ")  # tests of eighths and quarters of the law, within which they do not see what is moved
SAME_STACK = {"bart": "marian"}  # families that one stack runs (methods.models.bart)
EXACT_KERNELS = ("baseline", "exact", "fused")  # of kernels.verify.registry, said again: to import that takes torch
AUDIT = "audit"  # in a row: the name of the document that it is from
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


def place_of(experiment: Experiment) -> str:
    """Return where a method ran: the family of a model of the zoo or another model's name, the kind of device, the dtype,
    whether shapes were fixed, and transformers' attention where one was chosen.

    The device decides the backend of kernels: Triton on CUDA, on a CPU the compiled loop or PyTorch, which are both audited.
    """
    target, (device, *_) = experiment.target, experiment.device.split(":")
    family = target.name
    if target.zoo_name is not None:
        recipe = recipe_for(target.zoo_name, scale_of(experiment.profile), experiment.source)
        family = SAME_STACK.get(recipe.family, recipe.family)
    more = [*(["graphs"] if experiment.graphs else []), *([experiment.attention] if experiment.attention else [])]
    return ", ".join([f"{family} on {device} / {experiment.dtype}", *more])


def key_of(experiment: Experiment) -> tuple[str, ...]:
    """Return the parts of an experiment that decide exactness. Experiments with equal keys share a verdict.

    Sizes and numbers (gamma, lenience) are left out: they move speeds and distances, not whether a path is exact. What weights
    are rounded to is not, since other code reads them. At temperature 0 the exact kernels' rules are speculative sampling.
    """
    method, values = experiment.method, experiment.method.values
    plugged = () if method.drafter is None else (method.drafter.kind, values.get("encoder", "own"))
    is_kernel = method.rule is not None and method.rule.name in EXACT_KERNELS and experiment.sampling.greedy
    name = "speculative-sampling" if is_kernel else method.rule.name if method.rule is not None else ""
    rule = () if method.rule is None else (name, values.get("cap", "released"))
    execution = (values["execution"],) if method.is_pipeline else ()
    beams = ("beams",) if method.num_beams > 1 else ()
    models = [experiment.target, *([] if method.drafter is None else method.drafter.models)]
    rounded = sorted({model.rounding for model in models if model.rounding is not None})
    drawn = "greedy" if experiment.sampling.greedy else "sampled"
    return (method.name, *plugged, *rule, *execution, *beams, *rounded, drawn, place_of(experiment))


@dataclass(frozen=True)
class Verdict:
    """``kind`` is the worst subject's, ``evidence`` its summary, ``name`` its own; ``subjects`` are all that were looked at.

    ``audits`` names the documents that these are from.
    """

    kind: str
    name: str
    evidence: str
    is_red: bool
    subjects: tuple[str, ...]
    audits: tuple[str, ...]

    @property
    def bars_speed(self) -> bool:
        return self.is_red or self.kind == NOT_TESTED

    @property
    def shown(self) -> str:
        return f"audited as {self.name}: {self.evidence}" if self.kind in LOSSY else self.evidence


def is_red(row: Row) -> bool:
    """Say whether a subject is not what it is declared to be: an exact one that is not, or one that could not be audited.

    What was not tested is not red: nothing was found, and nothing could have been.
    """
    return row["verdict"] not in (*GREEN, NOT_TESTED) or (row["declared"] == "exact" and row["verdict"] in LOSSY)


def as_earned(row: Row) -> Row:
    """Return a subject with the verdict that its evidence earns: "same distribution" by what sees the law, else "not tested".

    The law is seen by tests of contexts, by the rule's law integrated and by the replay of draws. Of plain sampling's subjects
    the document holds the tests of one series of several, so that their verdict stands as it was recorded.
    """
    is_recorded = row["verdict"] == "same distribution" and "tests_made" in row
    if row["verdict"] not in ("same distribution", NOT_TESTED) or "tests" not in row or is_recorded:
        return row
    return {**row, "verdict": "same distribution" if sees_law(row) else NOT_TESTED}


def sees_law(row: Row) -> bool:
    """Say whether anything that was done could have found a law that is MUST_FIND off, wherever its mass was moved."""
    replayed = row.get("replayed", {}).get("decisions", 0) >= ENOUGH_DECISIONS
    return bool(row.get("largest_deviation")) or replayed or any(not name.startswith(BLIND) for name in strong_tests(row))


def audit_folder(records: Path) -> Path:
    """Return the folder of the audits that count for these records: the one beside them, else the repository's own."""
    beside = records.resolve().parent / FOLDER.name
    return beside if any(beside.glob("*.json")) else FOLDER


def verdict_of(experiment: Experiment, folder: Path) -> Verdict | None:
    """Return what the audits stored in ``folder`` found of the experiment's method; None where none looked at it."""
    key = list(key_of(experiment))
    rows = [row for row in _rows(folder) if row["key"] == key]
    return _worst(rows) if rows else None


def _worst(rows: Sequence[Row]) -> Verdict:
    worst = max(rows, key=_badness)
    subjects, audits = (tuple(row[part] for row in rows) for part in ("name", AUDIT))
    return Verdict(worst["verdict"], worst["name"], summary_of(worst), is_red(worst), subjects, tuple(dict.fromkeys(audits)))


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
        failed = f"; failed: {', '.join(row['failed'])}" if row.get("failed") else ""
        return f"{row['tests_made']} tests of plain sampling: {row['alarms']} alarms, {row['below_0.05']} p below 0.05{failed}"
    tests, weak = tests_of(row)
    blind = ", none of which sees what is moved within an eighth of the law" if tests and not sees_law(row) else ""
    law = max(row["largest_deviation"].values(), default=None)
    parts = [f"failed: {', '.join(row['failed'])}"] if row["failed"] else []
    parts += [] if law is None else [f"law within {law:.1e}"]
    if tests:
        smallest, coarsest = min(test["p"] for test in tests), max(test["tv_at_power_0.9"] for test in tests)
        parts.append(f"each test of samples finds tv {coarsest:.2f}, smallest p {smallest:.2g}")
    places = [f"{len(tests)} of {len(tests) + weak} places tested{blind}"] if row.get("tests") else []
    return "; ".join([*places, *parts])


def is_mostly_untested(row: Row) -> bool:
    """Say whether a subject is called exact by tests of fewer than half of its places, and nothing of it was replayed."""
    tests, weak = tests_of(row)
    tested_alone = "tests_made" not in row and not row.get("replayed", {}).get("decisions")
    return row["verdict"] == "same distribution" and tested_alone and len(tests) < weak


def tests_of(row: Row) -> tuple[list[Mapping[str, Any]], int]:
    """Return a subject's tests that find a total variation of MUST_FIND, and how many places have none that does."""
    strong = list(strong_tests(row).values())
    return strong, len(row.get("tests", {})) - len(strong)


def strong_tests(row: Row) -> dict[str, Mapping[str, Any]]:
    """Return the tests that find a total variation of MUST_FIND, of those kinds of change that they see."""
    tests = row.get("tests", {}).items()
    return {name: test for name, test in tests if test.get("samples") and test["tv_at_power_0.9"] <= MUST_FIND}


def _interval(estimate: Mapping[str, Any]) -> str:
    return f"{estimate['value']:.3f}{interval_text(estimate['low'], estimate['high'], '.3f')}"


def _badness(row: Row) -> tuple[bool, int]:
    order = ("identical", "same distribution", "near-tie", "no difference found", "lossy")
    return is_red(row), order.index(row["verdict"]) if row["verdict"] in order else len(order)


def _rows(folder: Path) -> list[Row]:
    """Subjects of all audits but the tests', the repository's own of the zoo where the folder has none."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.stem != "zoo-test"]
    if paths and ZOO not in [path.stem for path in paths]:
        paths += FOLDER.glob(f"{ZOO}.json")
    return [row for path in paths for row in _load(path, path.stat().st_mtime_ns)]


@lru_cache(maxsize=16)
def _load(path: Path, changed: int) -> tuple[Row, ...]:
    with readable(f"audit {path}", "delete it and run `foretoken audit` again"):
        subjects = json.loads(path.read_text(encoding="utf8"))["subjects"]
        rows = tuple({**as_earned(row), AUDIT: path.stem} for row in subjects)
        if nameless := [row for row in rows if not (row["key"] and _worst([row]).name)]:
            raise ValueError(f"{nameless[0]['verdict']!r} of nothing")
        if odd := next(
            (row for row in rows if row["verdict"] == "identical" and (row.get("bugs") or row.get("near_ties"))), None
        ):
            raise ValueError(f"{odd['name']}: identical, with {odd['bugs']} bugs and {odd['near_ties']} near-ties")
        return rows
