"""What is decided at the borders: bounds by which things are judged, and cases on both sides of some of them.

Bounds are answers of their own: one that is a thousand times looser moves nothing that is far from it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from harness.core.experiment import DrafterSpec, MethodSpec
from harness.core.records import Record
from harness.core.settings import Settings
from harness.exact import checks, fit, ground, law, run_verdict
from harness.exact.captured import greedy, sampled
from harness.exact.captured import verdict as captured_verdict
from harness.exact.subjects import Sizes
from harness.measures import of_run, pairing, statistics, verdicts
from harness.measures.statistics import Estimate
from harness.measures.verdicts import key_of, verdict_of
from harness.models.fit import Models
from harness.papers import get_table
from harness.papers.leviathan import speed
from harness.papers.specdec.quality import GRID, best_of_grid
from harness.report import grid, relation
from harness.report.known.rules import SAMPLINGS
from harness.report.known.values import hashed, numbers_in
from harness.report.pinned import drafted_by, plain_decoding
from harness.run.build import build_method
from harness.run.prompts import examples_of
from harness.run.record import on_processor
from harness.run.replay import decisions, reading
from harness.tables.base import Cell
from harness.tables.engine import Known
from harness.tables.evidence import Evidence
from harness.tables.finding import Compared, beside_papers, finding
from kernels.inputs import SamplingSpec
from methods.sampling import Sampling, Uniforms
from methods.specdec.drafter import DrafterAlone
from methods.types import Inputs, Stop
from tasks import get_task
from tasks.base import Example
from tasks.sources.rows import row_hash

BOUNDS: dict[Any, tuple[str, ...]] = {
    checks: ("LAW_ROUNDING", "NOMINAL", "TRANSFORMERS_SHARE"),
    fit: ("FALSE_ALARM", "POWER", "Z_POWER", "MIN_SAMPLES", "MAX_CELLS", "CELLS", "SIDE"),
    ground: ("MAX_TESTS", "NUM_POSITIONS", "LONG", "LONG_ROWS", "HALF_ROWS"),
    law: ("LAW_BOUND",),
    run_verdict: ("EXAMPLES", "WINDOWS", "KEPT", "MAX_RECORDS"),
    greedy: ("MUST_FIND_SHARE",),
    sampled: ("ALL", "MOSTLY", "ENOUGH"),
    captured_verdict: ("FALSE_ALARM",),
    reading: ("NEAR_TIE_FLOAT32", "COOL", "NUCLEUS", "WITHIN"),
    decisions: ("STATED", "WRITTEN"),
    pairing: ("MAX_DRIFT", "MAX_SPREAD", "LEAST_ON_PROCESSOR", "MOST_UNRESOLVED", "JUDGED"),
    statistics: ("RESAMPLES", "FEW_RESAMPLES", "CONFIDENCE", "DESCRIPTIVE", "ENOUGH", "LEAST_MEASURED"),
    verdicts: ("MUST_FIND", "ENOUGH_DECISIONS"),
    of_run: ("MUCH_REPETITION",),
    speed: ("MAX_UNEXPLAINED",),
    relation: ("NEAR",),
}
COUNTS, LAWS = ((12, 30, 18), (50, 50, 0)), ((0.2, 0.5, 0.3), (0.6, 0.3, 0.1))
AUDITS = ("identical", "same distribution", "near-tie", "no difference found", "lossy", "not tested", "bug", "failed")


def _bounds() -> dict[str, float]:
    return {
        f"{module.__name__.rpartition('.')[2]}: {name}": float(vars(module)[name])
        for module, names in BOUNDS.items()
        for name in names
    }


def _tested() -> dict[str, str]:
    """Return what a test of counts could find, and how far a lossy rule's law is from the target's."""
    tested = fit.goodness_of_fit(COUNTS, LAWS)
    plain = plain_decoding(0, 1, 1, "text", "llama-target", 1.0)
    models, sizes = Models(plain.device, plain.dtype), Sizes(prompts=1, new_tokens=8, samples=40, prefixes=1)
    spec = MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), rule="lenience", lenience=0.3, gamma=3)
    own: Any = build_method(spec, models.get(plain.target), models)
    distance = checks.check_lossy_law(own, ground.ModelGround(plain, sizes, models)).evidence
    return {
        "what counts of three tokens could tell": ", ".join(f"{value:.6g}" for value in vars(tested).values()),
        "a lenient law's distance": ", ".join(f"{distance[name]['value']:.5f}" for name in ("tv", "nats")),
    }


def _shown() -> dict[str, str]:
    """Return intervals by their numbers of examples, what they decide, and which temperatures are greedy."""
    own = {n: Estimate(0.5, 0.4, 0.6, n) for n in (29, 30, 99, 100)}
    found = {f"an interval of {n}": f"{one.shown.as_text('.2f')} {one.is_approximate}" for n, one in own.items()}
    found |= {f"a share of {n}": str(replace(one, exact=True).is_approximate) for n, one in own.items()}
    few = statistics.bounded(Estimate(1.0, 1.0, 1.0, 12), 1.0, 12)
    found["a share of all tokens of twelve, as shown"] = few.shown.as_text(".4f")
    apart = statistics.independent_students(statistics.Student(0.2, 2), statistics.Student(0.3, 8))
    found["a difference of three replicas and nine"] = "-" if apart is None else f"{apart.half:.6f} {apart.freedom}"
    speeds = Cell("", "speed", None, 1.21, 1.1, 1.32, 100, "x", "measured")
    for freedom in (30.9, 2.9):  # of two, a chance of 1.5 %, where ten comparisons ask for 0.5 %
        ten = [replace(speeds, row=f"CNNDM / {row} / 0", freedom=freedom) for row in range(10)]
        found[f"ten speeds of {freedom:g} degrees of freedom"] = finding(get_table(8), ten)
    asked = ((0.0, None), (0.01, None), (1.0, 1.0), (1.0, 0.9))
    drawn = [SamplingSpec(temperature=temperature, top_p=top_p) for temperature, top_p in asked]
    return found | {"how tokens are drawn": str([(one.greedy, one.filters) for one in drawn])}


def _audited() -> dict[str, str]:
    """Return what several verdicts on one method come to, and whether it may have a speed."""
    plain, found = plain_decoding(0, 1, 1, "text", "llama-target"), {}
    experiment = plain.replace(method=MethodSpec.of("speculative", drafter=drafted_by("llama-draft")))
    with TemporaryDirectory() as folder:
        for first in AUDITS:
            told = []
            for second in AUDITS:
                rows = [_row(kind, experiment.target.name, key_of(experiment)) for kind in (first, second)]
                (Path(folder) / "own.json").write_text(json.dumps({"subjects": rows}), encoding="utf8")
                one = verdict_of(experiment, Path(folder))
                told.append("-" if one is None else f"{one.kind} {one.is_red} {one.bars_speed}")
            found[f"{first} and another verdict"] = hashed(told)
    return found


def _row(kind: str, target: str, key: tuple[str, ...]) -> dict[str, Any]:
    declared = "lossy" if kind in verdicts.LOSSY else "exact"
    evidence: dict[str, Any] = {"prompts": 3, "tokens": 30, "near_ties": int(kind == "near-tie"), "bugs": int(kind == "bug")}
    evidence |= {"largest_margin": 1e-5, "tv": {"value": 0.1, "low": 0.0, "high": 0.2}, "nats": None, "error": "none left"}
    if kind in ("same distribution", "not tested"):
        evidence |= {"tests": {}, "largest_deviation": {"bonus": 1e-9} if kind == "same distribution" else {}, "failed": []}
    return {"name": kind, "target": target, "key": list(key), "verdict": kind, "declared": declared, **evidence}


def _divided() -> dict[str, str]:
    """Return which examples a replica has, and which rows are one."""
    plain = plain_decoding(0, 1, 3, "text", "llama-target")
    found = {
        f"examples of replica {replica}": ", ".join(
            one.id for one in examples_of(plain.replace(source_fingerprint="known", replicas=3, replica=replica))
        )
        for replica in range(3)
    }
    task, example = get_task("text"), examples_of(plain.replace(source_fingerprint="known"))[0]
    change: dict[str, Callable[[str], str]] = {
        "as it is": str,
        "of capitals": str.upper,
        "of more words": lambda text: f"{text} x",
    }
    for name, changed in change.items():
        inputs = {key: changed(value) for key, value in example.inputs.items()}
        found[f"a row {name}"] = row_hash(task, replace(example, inputs=inputs)).hex()
    return found


def _watched() -> dict[str, str]:
    """Return shares of a processor, and which arms drift."""
    arm: Any = SimpleNamespace(experiment=plain_decoding(0, 1, 1, "text", "llama-target"))
    shares = [on_processor(arm, *seconds) for seconds in ((0.65, 1.0), (1.02, 1.0), (0.5, 0.0))]
    found = {"a thread's share of its time": str(shares)}
    for many in (6, 8):
        for runs in (1, 2):
            records = [_slower(number, many, f"run {number * runs // many}") for number in range(many)]
            refused = pairing.incomparable(records, records)
            found[f"{many} examples of {runs} processes that slow down"] = (
                "compared" if refused is None else hashed(refused.why)
            )
    return found


def _compared() -> dict[str, str]:
    """Return how numbers stand to printed ones, and how they are counted."""
    cells = [
        Cell("a", "near", 0.5, 0.51, 0.46, 0.55, 100, status="measured", printed="0.50", place="one"),
        Cell("a", "wide", 0.5, 0.51, 0.40, 0.62, 100, status="measured", printed="0.50", place="two"),
        Cell("a", "above", 0.5, 0.6, 0.55, 0.65, 100, "ms", "measured", printed="0.50", place="three"),
        Cell("a", "below", 0.5, 0.4, 0.35, 0.45, 100, status="measured", printed="0.50", place="four"),
        Cell("a", "of few", 0.5, 0.5, None, None, 29, status="measured", printed="0.50", place="five"),
        Cell("a", "of few, then many", 0.5, 0.5, 0.48, 0.52, 100, status="measured", printed="0.50", place="five"),
        Cell("a", "in parts", 0.5, 0.5, 0.48, 0.52, 100, status="measured", printed="0.50", place="six", parts_differ=True),
        Cell("a", "again", 0.5, 0.6, 0.55, 0.65, 100, status="measured", printed="0.50", place="one"),
        Cell("a", "set", 0.5, 0.5, status="set", printed="0.50", place="seven"),
        Cell("a", "not run", 0.5, printed="0.50", place="eight"),
        Cell("a", "not printed", None, 0.5, 0.48, 0.52, 100, status="measured"),
        Cell("a", "lost", "not recovered", 0.5, 0.48, 0.52, 100, status="measured"),
    ]
    found = relation.judge(cells, Settings())
    told = {f"a number beside a printed one, {one.cell.column}": f"{one.relation} {one.reason}" for one in found}
    return told | {"numbers beside printed ones": str(sorted(relation.tally(found).items()))}


def _gridded() -> dict[str, str]:
    """Return the lines of a grid: theory where Eq. 1 holds alone, and no speed where times are refused."""
    plain = plain_decoding(0, 1, 1, "text", "llama-target", 1.0)
    one = Estimate(0.6, 0.5, 0.7, 40)
    metrics = {name: replace(one, value=number / 8) for number, name in enumerate(grid.FROM_METRICS, 1)}
    costs = {name: replace(one, value=number / 9) for number, name in enumerate(grid.HEADS, 1)}
    points = []
    for number, rule in enumerate(("speculative-sampling", "lenience", "fused")):
        experiment = plain.replace(method=MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), rule=rule, gamma=3))
        told = metrics | {"memory_access_factor_eq1": one} | ({"alpha_overlap_lenient": one} if rule == "lenience" else {})
        points.append(grid.Point(experiment, told, costs, "the arm drifted" if number == 2 else None, "identical"))
    lines = grid.csv_text(points).splitlines()
    task, translates = get_task("multi30k-en-de"), plain.replace(task="multi30k-en-de")
    reference = Example("", {}, ("two old dogs ran quickly home .",))
    said = {  # of the first no four words in a row are right: BLEU is not smoothed
        GRID[4]: "two old dogs walked quickly home .",
        GRID[7]: "two old dogs ran where it was cold and wet with us",
        GRID[9]: "dogs",
    }
    known = Known({}, Evidence(records_of=lambda experiment: []))
    for setting, text in said.items():
        score: dict[str, Any] = dict(task.statistics(reference, text))
        known[str(setting)] = translates, [Record(signature="known", example="0", repeat=0, status="ok", statistics=score)]
    return {f"line {number} of a grid": hashed(line.rpartition(",")[0]) for number, line in enumerate(lines)} | {
        "best of a grid by BLEU, where another is by sacreBLEU": str(best_of_grid(known)),
    }


def _said() -> dict[str, str]:
    """Return which remainders of a speed are refused, and what is said of signs beside the paper's."""
    found = {}
    for rest in (0.2, 0.4, -0.2, -0.4):
        one = Estimate(rest, rest - 0.1, rest + 0.1, 40)
        why = speed.unexplained({"residual_unexplained": one, "predicted_costs": Estimate(1.0, 0.9, 1.1, 40)})
        found[f"{rest:+} of a speed unexplained"] = "shown" if why is None else numbers_in(why.why)
    signs = {
        "one of two": ((1, 1, "a"), (1, -1, "b"), (1, 1, "c"), (-1, 1, "c")),
        "all of two": ((1, 1, "a"), (-1, -1, "b"), (1, 0, "")),
        "none": ((1, -1, "a"), (1, 0, "")),
        "no printed one": ((1, 0, ""),),
    }
    for name, those in signs.items():
        decided = [Compared(sign, 0.01, papers, place) for sign, papers, place in those]
        found[f"signs beside the paper's, {name}"] = str(beside_papers(decided, 5, "pairs"))
    return found


def _slower(number: int, many: int, run: str) -> Record:
    seconds = 1.0 + number / many * 2
    common: dict[str, Any] = {"signature": "plain", "repeat": 0, "status": "ok", "num_rows": 1, "run": run}
    return Record(example=f"e{number}", tokens=[1, 2], text="a", stop_reason="length", wall_s=seconds, **common)


def _alone() -> dict[str, float | str]:
    """Return how long a text of a drafter alone is where its positions end, and what it draws."""
    spec = MethodSpec.of("drafter-alone", drafter=DrafterSpec(kind="block", model=drafted_by("specdec-drafter").model))
    plain = plain_decoding(0, 1, 1, "wmt-en-de", "specdec-verifier")
    models = Models(plain.device, plain.dtype)
    target = models.get(plain.target)
    method: Any = build_method(spec, target, models)
    assert isinstance(method, DrafterAlone)
    sampling, stop = Sampling.of(plain.sampling), Stop(max_new_tokens=10_000)
    (made,) = method.generate(target.session(), Inputs(((5, 6, 7, 2),)), sampling, Uniforms([1], 64), stop)
    names = ("tokens of a drafter alone, to its last position", "rounds of a drafter alone")
    found: dict[str, float | str] = dict(zip(names, (float(len(made.tokens)), float(len(made.steps))), strict=True))
    for label, own in SAMPLINGS.items():
        drawn = method.generate(target.session(), Inputs(((5, 6, 7, 2),)), own, Uniforms([1], 40), Stop(max_new_tokens=40))
        found[f"drafts of a drafter alone, {label}"] = hashed(drawn[0].tokens)
    return found


GROUPS = (_bounds, _tested, _shown, _audited, _divided, _watched, _compared, _gridded, _said, _alone)
