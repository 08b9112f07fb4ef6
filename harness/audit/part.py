"""The part of an audit that needs one target and one way to sample: its subjects one after another, or the controls.

Parts write no file of one another's, so that several processes can work on them at once. Each finding is kept as soon as it
is made.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from harness import plugins
from harness.audit import greedy, lossy, sampling
from harness.audit.controls import CONTROLS, run_control
from harness.audit.ground import Ground
from harness.audit.subjects import PLAIN, Sizes, Subject
from harness.build import build_method, build_rule
from harness.decode import must_equal
from harness.experiment import DrafterSpec, Experiment, MethodSpec
from harness.runner import Runner, pin
from methods.errors import InputError, WorkerError

LOSSY_KEPT, LOSSY_WINDOWS = 48, 2
Finding = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What controls are run on: a pair, greedy and drawn, and the model that drafts for it."""

    plain: Experiment
    drawn: Experiment
    draft: DrafterSpec


@dataclass(frozen=True, kw_only=True)
class Part:
    """``ground``: the plain arm, alone, that all of them stand on. The controls have a ``stage`` and no subjects."""

    name: str
    subjects: tuple[Subject, ...] = ()
    ground: Experiment | None = None
    stage: Stage | None = None

    @property
    def is_greedy(self) -> bool:
        return self.ground is not None and self.ground.sampling.greedy

    @property
    def file(self) -> str:
        return f"findings-{re.sub('[^a-z0-9.]+', '-', self.name.lower())}.jsonl"


class Findings:
    """What was found so far, a line each, flushed as it is found; a torn last line is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf8") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        if text != "".join(line + "\n" for line in lines):
            path.write_text("".join(line + "\n" for line in lines), encoding="utf8")
        self.known: dict[str, Finding] = dict(json.loads(line) for line in lines)

    def once(self, name: str, find: Callable[[], Finding]) -> Finding:
        """What failed, a machine without memory left maybe, is tried again."""
        if self.known.get(name, {"verdict": "failed"}).get("verdict") == "failed":
            self.known[name] = find()
            with self.path.open("a", encoding="utf8") as file:
                file.write(json.dumps([name, self.known[name]], ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return self.known[name]


def work_on(part: Part, sizes: Sizes, folder: Path, plugin_files: tuple[str, ...], quiet: bool, line: int) -> None:
    """Find what is not in the part's file yet; its progress is shown in a ``line`` of the screen."""
    plugins.load(plugin_files)
    findings, auditor = Findings(folder / part.file), Auditor(part, sizes, folder)
    todo: Mapping[str, Callable[[], Finding]] = dict(auditor.controls() if part.stage else auditor.subjects())
    bar = tqdm(total=len(todo), unit="", position=line, disable=quiet, dynamic_ncols=True)
    with bar:
        for name, find in todo.items():
            bar.set_description(name)
            findings.once(name, find)
            bar.update()
        bar.set_description(part.name)


class Auditor:
    """Of one part: its models are loaded once, its grounds made once."""

    def __init__(self, part: Part, sizes: Sizes, folder: Path) -> None:
        self.part, self.sizes, self.runner = part, sizes, Runner(folder, quiet=True)

    def subjects(self) -> Iterator[tuple[str, Callable[[], Finding]]]:
        if self.part.ground is not None:
            ground = Ground(pin(self.part.ground), self.sizes, self.runner)
            for subject in self.part.subjects:
                yield subject.name, partial(self._audited, subject, ground)

    def controls(self) -> Iterator[tuple[str, Callable[[], Finding]]]:
        stage = self.part.stage
        if stage is not None:
            plain, drawn = (Ground(pin(one), self.sizes, self.runner) for one in (stage.plain, stage.drawn))
            spec = pin(stage.plain.replace(method=MethodSpec(name="speculative", drafter=stage.draft))).method.drafter
            assert spec is not None
            for name, control in CONTROLS.items():
                yield name, partial(run_control, control, plain, drawn, spec)

    def _audited(self, subject: Subject, ground: Ground) -> Finding:
        """What goes wrong while a subject is audited is its finding; the others go on."""
        experiment = pin(subject.experiment)
        try:
            method = build_method(experiment.method, ground.target, ground.models)
            declared = "lossy" if method.guarantee == "lossy" else "exact"
            itself = subject.method == subject.plain.method and experiment.sampling.greedy  # in a batch, beside one row
            equal = itself or must_equal(pin(subject.plain), experiment, method)
            if equal:
                declared = "exact"  # beams, which are lossy beside greedy decoding, beside beams
            return {"declared": declared, **self._checked(subject, experiment, ground, declared, equal)}
        except (InputError, WorkerError, RuntimeError) as error:
            return {"declared": "unknown", "verdict": "failed", "error": f"{type(error).__name__}: {error}"}

    def _checked(self, subject: Subject, experiment: Experiment, ground: Ground, declared: str, equal: bool) -> Finding:
        if subject.method == PLAIN and not experiment.sampling.greedy:
            return sampling.false_alarms(ground)
        if equal:
            greedy.run_group(self._group(subject), self.runner)
            return greedy.equality(subject, self.runner)
        if declared == "exact":
            return sampling.exact(experiment, ground)
        if experiment.sampling.greedy:
            greedy.run_group(self._group(subject), self.runner)
            return lossy.of_outputs(experiment, self.runner.records(experiment), ground.prompts, ground.models)
        assert experiment.method.drafter is not None
        windows = ground.windows(experiment.method.drafter, LOSSY_WINDOWS, LOSSY_KEPT)
        method = build_method(experiment.method, ground.target, ground.models)
        fits = sampling.fits_at(ground.samples(method), ground)
        rule = build_rule(experiment.method)
        tests = {place: sampling.shown(fit) for place, fit in fits.items()}
        return {**lossy.of_law(rule, windows, experiment.sampling), "tests": tests}

    def _group(self, subject: Subject) -> list[Subject]:
        """Those that are recorded with it: the same plain arm, and compared by their outputs."""
        return [other for other in self.part.subjects if other.plain == subject.plain and _by_output(other)]


def _by_output(subject: Subject) -> bool:
    return subject.plain.sampling.greedy or subject.method.name == "ppd"
