"""Runs an audit: what is missing, subject by subject, each finding kept as soon as it is made."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from harness.audit import greedy, lossy, sampling
from harness.audit.controls import CONTROLS, Control, run_control
from harness.audit.ground import Ground
from harness.audit.subjects import PLAIN, Sizes, Subject
from harness.build import build_method, build_rule, specs_of
from harness.decode import must_equal
from harness.experiment import DrafterSpec, Experiment, MethodSpec
from harness.runner import Runner, ensure_models, pin
from methods.errors import InputError, WorkerError

LOSSY_KEPT, LOSSY_WINDOWS = 48, 2
ROOT = Path(__file__).resolve().parents[2]
AUDITED = ("methods", "kernels", "harness/audit", *(f"harness/{name}.py" for name in ("assisted", "decode", "build", "models")))
Finding = dict[str, Any]


def audited_code() -> str:
    """A hash of the sources that decide a verdict: findings made with others are not reused."""
    digest = hashlib.sha256()
    for part in AUDITED:
        place = ROOT / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def models_of(subjects: Iterable[Subject]) -> dict[str, str]:
    """Every model by its short name, and what the name means today."""
    named = {spec for subject in subjects for spec in specs_of(pin(subject.experiment))}
    return {Path(spec.name).name: spec.revision or "unknown" for spec in sorted(named, key=lambda spec: spec.name)}


class Findings:
    """What was found so far, a line each, flushed as it is found; a torn last line is left out."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "findings.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        text = self.path.read_text(encoding="utf8") if self.path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        if text != "".join(line + "\n" for line in lines):
            self.path.write_text("".join(line + "\n" for line in lines), encoding="utf8")
        self.known: dict[str, Finding] = dict(json.loads(line) for line in lines)

    def once(self, name: str, find: Callable[[], Finding]) -> Finding:
        if name not in self.known:
            self.known[name] = find()
            with self.path.open("a", encoding="utf8") as file:
                file.write(json.dumps([name, self.known[name]], ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return self.known[name]


class Audit:
    """The subjects of one audit and the controls, on one folder of records and findings."""

    def __init__(self, subjects: Sequence[Subject], sizes: Sizes, folder: Path, quiet: bool = False) -> None:
        self.subjects, self.sizes, self.quiet = subjects, sizes, quiet
        ensure_models(subject.experiment for subject in subjects)
        self.runner, self.findings = Runner(folder, quiet=True), Findings(folder)
        self._grounds: dict[Experiment, Ground] = {}

    def run(self) -> tuple[dict[str, Finding], dict[str, Finding]]:
        """Findings by subject and by control."""
        stage = self._stage()
        controls = CONTROLS if stage is not None else {}
        bar = tqdm(total=len(self.subjects) + len(controls), unit="subject", disable=self.quiet, dynamic_ncols=True)
        with bar:
            found = {}
            for subject in self.subjects:
                bar.set_description(subject.name)
                found[subject.name] = self.findings.once(subject.name, partial(self._audited, subject))
                bar.update()
            caught = {}
            for name, control in controls.items():
                bar.set_description(f"control: {name}")
                assert stage is not None
                caught[name] = self.findings.once(f"control: {name}", partial(self._controlled, control, *stage))
                bar.update()
        return found, caught

    def _audited(self, subject: Subject) -> Finding:
        """What goes wrong while a subject is audited is its finding; the others go on."""
        experiment = pin(subject.experiment)
        ground = self._ground(pin(subject.plain))
        try:
            method = build_method(experiment.method, ground.target, ground.models)
            declared = "lossy" if method.guarantee == "lossy" else "exact"
            equal = must_equal(pin(subject.plain), experiment, method)
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
        return [other for other in self.subjects if other.plain == subject.plain and self._by_output(other)]

    def _by_output(self, subject: Subject) -> bool:
        return subject.plain.sampling.greedy or subject.method.name == "ppd"

    def _ground(self, plain: Experiment) -> Ground:
        """Alone: prompts and laws do not depend on the batch or on what a plain arm searches with."""
        key = plain.replace(method=PLAIN, batch_size=1)
        if key not in self._grounds:
            self._grounds[key] = Ground(key, self.sizes, self.runner)
        return self._grounds[key]

    def _stage(self) -> tuple[Experiment, Experiment, DrafterSpec] | None:
        """What controls are run on: the first pair, greedy or not, and drawn, and the model that drafts for it; None where a
        choice of subjects has no such pair."""
        first = self.subjects[0]
        drawn = [one.plain for one in self.subjects if one.pair == first.pair and not one.plain.sampling.greedy]
        drafters = [one.method.drafter for one in self.subjects if one.pair == first.pair and one.method.drafter is not None]
        models = [drafter for drafter in drafters if drafter.kind == "model"]
        return (first.plain, drawn[0], models[0]) if drawn and models else None

    def _controlled(self, control: Control, plain: Experiment, drawn: Experiment, draft: DrafterSpec) -> Finding:
        spec = pin(plain.replace(method=MethodSpec(name="speculative", drafter=draft))).method.drafter
        assert spec is not None
        return run_control(control, self._ground(pin(plain)), self._ground(pin(drawn)), spec)
