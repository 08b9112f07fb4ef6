"""Regression of metrics: run a small pinned set (``pinned``) and compare it, example by example, with committed values.

The metrics are acceptance, match counts, quality, rounds, the tokens themselves and exactness verdicts, never wall-clock.
Weights are committed and decode in fp64, so that every processor and number of threads gives the same values: a number moved
if any example's differs by more than rounding, a verdict or a hash (of weights, of an output) if it differs at all. Where no
example's moved, what all examples together give must be the same too, with its interval: how they are added up is held as
well. Texts of known scores are scored too, and known answers given (``known``), for what toy models never say or meet.
Committed tables are made anew of their evidence (``rendered``), for what tables refuse and conclude. A change that draws other
random numbers moves numbers too, and its author says so (``--update``).
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Comparison
from harness.core.files import checksum_of, parsed, readable, replace_file, short_hash
from harness.core.records import Record
from harness.exact.run_verdict import judge_run
from harness.measures import pipelines
from harness.measures.of_run import measure_run, of_task
from harness.measures.statistics import Estimate
from harness.models.files import files_hash
from harness.report.known import answers
from harness.report.rendered import committed_tables, rendered_tables
from harness.report.scored import TEXTS, scored
from harness.run.build import specs_of
from harness.run.runner import Runner, pin

SCORED, KNOWN, COMMANDS = "scored-texts", "known-answers", "known-commands"  # stand beside the pinned comparisons
RENDERED = "committed-tables"  # whose baseline are they themselves
MOST_UNEXPLAINED = 2.0  # times its rounds and prompt: a drafted arm's quickest example takes no longer, whatever else runs
TOLERANCE = 1e-5  # of a value of order 1, relative to a larger one: recordings are heard in fp32
TIMED = frozenset(pipelines.UNITS) - frozenset(pipelines.UNTIMED)
WHOLE = ("verdict", "weights")  # what a comparison has besides its examples and what they give together
POOLED = {"metrics": "pooled", "intervals": "interval"}  # how a move of them is called
REPLAYED = "decisions_replayed"  # of each arm's output: a replay that looks at less finds less
Measured = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Move:
    """One number, hash or verdict that differs from the baseline; ``count`` says in how many examples."""

    comparison: str
    metric: str
    baseline: str
    now: str
    count: str = ""

    @property
    def where(self) -> str:
        return f" ({self.count})" if self.count else ""


def measure(runner: Runner, comparisons: Mapping[str, Comparison]) -> Measured:
    """Run what is missing: comparison -> its "verdict", "weights", pooled "metrics" with their "intervals", and "examples"."""
    measured = {}
    for name, comparison in comparisons.items():
        pinned = Comparison(tuple(pin(arm) for arm in comparison.arms))
        measured[name] = {"weights": weights_hash(pinned), **measure_pair(runner, pinned, name)}
        for record in (one for arm in pinned.arms for one in runner.records(arm)):
            values = measured[name]["examples"][record.example]
            values[REPLAYED] = f"{values.get(REPLAYED, '')} {record.replayed or 'nothing'}".lstrip()
    return measured


def measure_texts() -> dict[str, Any]:
    """Score the texts of known scores, in the shape of a comparison: what a metric's own settings give, without a model."""
    pooled, examples = dict[str, Estimate](), dict[str, dict[str, float]]()
    for name, (task, records) in scored().items():
        pooled |= {f"{metric} of {name}": one for metric, one in of_task(task, records).items()}
        examples |= {record.example: _values(of_task(task, [record])) for record in records}
    return {"verdict": "scored", "weights": checksum_of(TEXTS), **_pooled(pooled), "examples": examples}


def measure_known() -> dict[str, Any]:
    """Give the known answers, in the shape of a comparison, each an example of its own."""
    return each_apart({name: one if isinstance(one, str) else round(one, 9) for name, one in answers().items()}, "known")


def committed_pages(results: Path) -> dict[str, Any]:
    """Give what the committed tables under ``results`` show, in the shape of a comparison, each part an example of its own."""
    return each_apart(committed_tables(results), "rendered")


def measure_tables(results: Path) -> dict[str, Any]:
    """Give what these tables show now, made anew of the committed evidence."""
    return each_apart(rendered_tables(results), "rendered")


def each_apart(found: Mapping[str, float | str | list[float]], verdict: str) -> dict[str, Any]:
    """Give answers in the shape of a comparison, each an example of its own."""
    return {
        "verdict": verdict,
        "weights": "",
        "metrics": found,
        "intervals": {},
        "examples": {name: {name: one} for name, one in found.items()},
    }


def measure_pair(runner: Runner, pinned: Comparison, name: str) -> dict[str, Any]:
    """Run what is missing of one comparison: its "verdict", pooled "metrics" with their "intervals" (low, high and n), and the
    metrics of each of its "examples"."""
    runner.run(pinned, name)
    records = [runner.records(arm) for arm in pinned.arms]
    pooled = _estimates(pinned, records)
    verdict = judge_run(pinned, records, runner.with_models)["verdict"]
    return {
        "verdict": verdict if all(map(has_explained_times, records)) else f"{verdict}, times unexplained",
        **_pooled(pooled),
        "examples": {
            example: _values(_estimates(pinned, [[one for one in arm if one.example == example] for arm in records]))
            | {"output": "; ".join(_output(one) for arm in records for one in arm if one.example == example)}
            for example in dict.fromkeys(one.example for one in records[0])
        },
    }


def has_explained_times(records: Sequence[Record]) -> bool:
    """Say whether a drafted arm's times are those of its rounds and prompts, in the example in which they are so most."""
    found = []
    for record in records:
        rows, steps = record.num_rows or 1, record.steps
        if steps is not None and steps.round_s and record.encode_s is not None and record.wall_s is not None:
            parts_s = sum(steps.round_s) + rows * (record.encode_s + (record.draft_encode_s or 0.0))
            found.append(rows * record.wall_s / parts_s)
    return min(found, default=1.0) <= MOST_UNEXPLAINED


def _estimates(comparison: Comparison, records: Sequence[list[Record]]) -> dict[str, Estimate]:
    """Return what is measured without a clock."""
    return {name: one for name, one in measure_run(comparison, records).items() if name not in TIMED}


def _pooled(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    values = _values(estimates)
    intervals = {name: [_rounded(one.low), _rounded(one.high), one.n] for name, one in estimates.items() if name in values}
    return {"metrics": values, "intervals": intervals}


def _values(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the numbers but those that a single example does not have: the error rate of a reference without words."""
    return {name: round(one.value, 9) for name, one in estimates.items() if math.isfinite(one.value)}


def _rounded(end: float | None) -> float | None:
    return None if end is None else round(end, 9)


def _output(record: Record) -> str:
    """Return a hash of what an arm emitted (8 digits), why it stopped, or how it failed."""
    if record.status == "failed":
        return str(record.error)
    return f"{short_hash(repr((record.tokens, record.text)), 8)} {record.stop_reason}"


def weights_hash(comparison: Comparison) -> str:
    """sha256 (16 digits) over all files of the models in a comparison."""
    folders = {Path(spec.base) for arm in comparison.arms for spec in specs_of(arm)}
    return files_hash(sorted(file for folder in folders for file in folder.iterdir()))


def moves(baselines: Measured, measured: Measured) -> list[Move]:
    """List what is new, gone or moved."""
    found = []
    for name in sorted(baselines.keys() | measured.keys()):
        old, new = baselines.get(name), measured.get(name)
        if old is None or new is None:
            found.append(Move(name, "all", "absent" if old is None else "present", "absent" if new is None else "present"))
        else:
            found += [Move(name, key, old[key], new[key]) for key in WHOLE if old[key] != new[key]]
            apart = moved_metrics(name, old, new)
            found += apart + _moved_pooled(name, old, new, {move.metric for move in apart})
    return found


def _moved_pooled(name: str, old: dict[str, Any], new: dict[str, Any], apart: Collection[str]) -> list[Move]:
    """List what all examples together give otherwise than before, and intervals, of metrics that moved in none of them."""
    found = []
    for key in POOLED if old["examples"].keys() == new["examples"].keys() else ():
        for metric in sorted((old[key].keys() | new[key].keys()) - set(apart)):
            was, now = old[key].get(metric), new[key].get(metric)
            if not same(was, now):
                found.append(Move(name, f"{metric}, {POOLED[key]}", _text(was), _text(now)))
    return found


def moved_metrics(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[Move]:
    """List the metrics that differ in any example, with how many, and what they are over all."""
    found, before, after = [], old["examples"], new["examples"]
    examples = list(dict.fromkeys([*before, *after]))
    nothing: dict[str, Any] = {}
    for metric in sorted({metric for one in (*before.values(), *after.values()) for metric in one}):
        pairs = [(before.get(one, nothing).get(metric), after.get(one, nothing).get(metric)) for one in examples]
        differing = sum(not same(*pair) for pair in pairs)
        if differing:
            was, now = (_text(one["metrics"].get(metric)) for one in (old, new))
            found.append(Move(name, metric, was, now, f"{differing} of {len(examples)} examples"))
    return found


def same(before: Any, after: Any) -> bool:
    """Say whether two values, or lists of them, are one, but for rounding in their last digits."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, float | int) and isinstance(after, float | int):
        return abs(after - before) <= TOLERANCE * max(1.0, abs(before))
    return before == after


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return "-" if value is None else f"{value:.5g}"


def read_baseline(folder: Path) -> Measured:
    """Read every comparison's committed values."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UsageError(f"baselines {folder}: none there; expected *.json as `foretoken regress --update REASON` writes")
    return {file.stem: _baseline(file) for file in files}


def _baseline(file: Path) -> dict[str, Any]:
    with readable(f"baseline {file}", "expected JSON, as --update writes it"):
        found = dict(parsed(file.read_text(encoding="utf8")))
        if not {*WHOLE, *POOLED, "examples"} <= found.keys():
            raise ValueError("no verdict, weights, metrics, intervals and examples")
        tables = [found["examples"], *(found[key] for key in POOLED), *found["examples"].values()]
        if not all(isinstance(one, dict) for one in tables):
            raise ValueError("metrics, intervals and examples are not tables")
        return found


def update_baseline(folder: Path, measured: Measured, changed: list[Move], reason: str, changelog: Path) -> None:
    """Rewrite the baselines, and note the moved numbers and the reason in the changelog."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in measured.items():
        replace_file(folder / f"{name}.json", json.dumps(values, indent=1, sort_keys=True) + "\n")
    for file in folder.glob("*.json"):
        if file.stem not in measured:
            file.unlink()
    lines = "".join(
        f"  - {move.comparison}, {move.metric}: {move.baseline} became {move.now}{move.where}\n" for move in changed
    )
    entry = f"- {date.today().isoformat()} regression baselines: {reason}\n{lines}"
    text = changelog.read_text(encoding="utf8") if changelog.exists() else "# Changelog\n"
    marker = "## Numbers that moved\n"
    if marker not in text:
        text = text.rstrip("\n") + f"\n\n{marker}\n"
    replace_file(changelog, text.replace(marker + "\n", f"{marker}\n{entry}", 1))
