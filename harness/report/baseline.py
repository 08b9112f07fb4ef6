"""A baseline of somebody's own pair: one file in their repository that later runs are held against, example by example.

It names the arms that were run (task, data, models, method, seeds, limits), what the data and every model hashed to, the
machine, and each example's numbers, as the project's own baselines do (``harness.report.regress``). The same examples are
run anew (``harness.report.holding``). Times are not held: they differ from machine to machine by more than what is to be found.
"""

import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core import environment
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, Experiment, ModelSpec
from harness.core.files import checksum_of, made, parsed, readable, replace_file
from harness.measures.statistics import DESCRIPTIVE
from harness.measures.verdicts import NOT_KEPT
from harness.models.files import ngram_file
from harness.report.regress import Move, measure_pair, moved_metrics
from harness.run.decode import num_threads
from harness.run.prompts import examples_of
from harness.run.runner import Runner, pin
from tasks.sources.source import HUB, Source

VERSION = 1
FALSE_ALARM = 1e-3  # of a run: the chance that rounding alone turns it red
FACTS = (
    "processor",
    "torch",
    "transformers",
    "products of few rows",
    "gpu",
)  # of the environment, those that rounding hangs on
HERE = "./"  # begins the path of a model or data file, relative to the baseline's folder
OUTPUT, FAILED = "output", "failed_frac"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The pinned arms, the machine, and what was measured: "verdict", pooled "metrics" and each of its "examples".

    ``reasons`` say when and why it was written anew.
    """

    comparison: Comparison
    machine: dict[str, str | int]
    measured: dict[str, Any]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _File:
    """The JSON of a baseline, without its checksum."""

    version: int
    arms: list[dict[str, Any]]
    machine: dict[str, str | int]
    measured: dict[str, Any]
    reasons: list[str]


def measured_now(pinned: Comparison, quiet: bool = False) -> Baseline:
    """Run a comparison from nothing, so that no record of older code is taken for today's."""
    with TemporaryDirectory() as folder:
        measured = measure_pair(Runner(Path(folder), quiet=quiet), pinned, "baseline")
    return Baseline(comparison=pinned, machine=machine_of(pinned.arms[-1]), measured=measured)


def machine_of(experiment: Experiment) -> dict[str, str | int]:
    """Return what decides how a run of this experiment rounds."""
    facts = environment.describe(experiment.device)
    known = {name: facts[name] for name in FACTS if name in facts}
    return {"system": platform.machine(), "threads": num_threads(experiment), **known}


def write(path: Path, comparison: Comparison, quiet: bool = False) -> Baseline:
    """Run a comparison and write its first baseline.

    Raises:
        UsageError: the file is there; too few examples; one that fails, or outputs that are not what they must be.
    """
    if path.exists():
        raise UsageError(f"baseline {path}: it is there already; rewrite it with --update REASON, or name another file")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"baseline {path}: no such folder; make it first")
    return _written(path, measured_now(_checked(path, comparison), quiet))


def update(path: Path, reason: str, quiet: bool = False) -> tuple[Baseline, list[Move]]:
    """Run a baseline's arms anew, on whatever weights and data are there, and write what they give, with the reason.

    Returns:
        The new baseline, and what moved.
    """
    old = read(path)
    new = measured_now(_checked(path, old.comparison), quiet)
    changes = moved_metrics("", old.measured, new.measured)
    return _written(path, replace(new, reasons=(*old.reasons, f"{date.today().isoformat()}: {reason}"))), changes


def _checked(path: Path, comparison: Comparison) -> Comparison:
    """Return the pinned comparison of what a baseline holds: generations, without times or probes. Refuse too few examples."""
    pinned = pin_all(Comparison(tuple(arm.replace(probes=(), comparison="") for arm in comparison.arms)))
    if (n := len(examples_of(pinned.arms[0]))) < DESCRIPTIVE:
        raise UsageError(
            f"baseline {path}: {n} examples; expected at least {DESCRIPTIVE}, since tests of fewer find little at "
            f"{FALSE_ALARM:g} false alarms a run; raise --limit, or add data"
        )
    return pinned


def pin_all(comparison: Comparison) -> Comparison:
    """Fill in what the names of all arms mean today."""
    return Comparison(tuple(map(pin, comparison.arms)))


def _written(path: Path, new: Baseline) -> Baseline:
    examples = new.measured["examples"]
    if failed := [name for name, one in examples.items() if one[FAILED] > 0]:
        why = examples[failed[0]][OUTPUT]
        raise UsageError(f"baseline {path}: not written: {len(failed)} of {len(examples)} examples failed; the first: {why}")
    if (verdict := new.measured["verdict"]) in NOT_KEPT:
        raise UsageError(f"baseline {path}: not written: the audit of this run says {verdict!r}; `foretoken audit` says more")
    folder = path.resolve().parent
    arms = [json.loads(_with_names(arm, lambda name: relative_name(name, folder)).to_json()) for arm in new.comparison.arms]
    values = {
        "version": VERSION,
        "arms": arms,
        "machine": new.machine,
        "measured": new.measured,
        "reasons": list(new.reasons),
    }
    values["checksum"] = _checksum(values)
    replace_file(path, json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return new


def read(path: Path) -> Baseline:
    """Read a baseline; its models and data lie where they did, relative to the file.

    Raises:
        UsageError: it is not there, is none, or was edited after it was written.
    """
    with readable(f"baseline {path}", "expected what `foretoken regress --baseline FILE --write ...` writes"):
        values = dict(parsed(path.read_bytes()))
        checksum = values.pop("checksum", None)
        if checksum is None or values.get("version") != VERSION:
            raise ValueError(f"no checksum and version {VERSION}: no baseline of this version")
        if checksum != _checksum(values):
            raise UsageError(
                f"baseline {path}: refused: edited after it was written (its checksum is another's); take it back from version "
                "control, or write a new one"
            )
        found = made(_File, values)
        folder = path.resolve().parent
        arms = [_with_names(Experiment.from_dict(arm), lambda name: _absolute(name, folder)) for arm in found.arms]
        return Baseline(
            comparison=Comparison(tuple(arms)),
            machine=found.machine,
            measured=found.measured,
            reasons=tuple(found.reasons),
        )


def _checksum(values: dict[str, Any]) -> str:
    return checksum_of(json.loads(json.dumps(values, sort_keys=True)))


def _with_names(experiment: Experiment, change: Callable[[str], str]) -> Experiment:
    """Return the same with other names of its models and its data; what stands before a name, for rounding, stays."""

    def model(spec: ModelSpec) -> ModelSpec:
        return replace(spec, name=spec.name.removesuffix(spec.base) + change(spec.base))

    source = Source.of(experiment.source)
    folder = source.repository
    place = change(source.place) if folder is None else HUB + change(folder)
    return experiment.with_models(model).replace(source=replace(source, place=place).text)


def relative_name(name: str, folder: Path) -> str:
    """Return a local path as it is from a folder; names of the Hub and the zoo as they are."""
    is_local = Path(name).is_absolute() or ngram_file(name) is not None
    return HERE + Path(os.path.relpath(Path(name).resolve(), folder)).as_posix() if is_local else name


def _absolute(name: str, folder: Path) -> str:
    return str((folder / name).resolve()) if name.startswith(HERE) else name
