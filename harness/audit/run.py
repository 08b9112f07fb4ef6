"""Runs an audit: what is missing, part by part, several parts at once."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from harness import jobs, plugins
from harness.audit.controls import CONTROLS
from harness.audit.part import Finding, Findings, Part, Stage, work_on
from harness.audit.subjects import PLAIN, Sizes, Subject, shown_sampling
from harness.build import specs_of
from harness.experiment import Experiment
from harness.jobs import Job
from harness.runner import ensure_models, pin

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("assisted", "build", "decode", "divergence", "jobs", "models", "prompts", "recording")
AUDITED = ("methods", "kernels", "harness/audit", *(f"harness/{name}.py" for name in DECIDING))
CONTROL_PART = "controls"
DRAWN_COST = 4.0


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


def audit(
    subjects: Sequence[Subject], sizes: Sizes, folder: Path, quiet: bool = False, workers: int | None = None
) -> tuple[dict[str, Finding], dict[str, Finding]]:
    """Findings by subject and by control, from one folder of records and findings.

    ``workers``: processes (None: one per core; 0: this one). A sum over tokens may round differently with the threads that a
    process has; verdicts do not depend on them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ensure_models(subject.experiment for subject in subjects)
    parts, files = list(parts_of(subjects)), tuple(plugins.files())
    work = {part.name: partial(work_on, part, sizes, folder, files, quiet) for part in parts}
    jobs.run(
        {part.name: Job(f"audit {part.name}", frozenset(), cost_of(part, sizes), work[part.name]) for part in parts}, workers
    )
    known = {part.name: Findings(folder / part.file).known for part in parts}
    found = {name: finding for part in parts if part.stage is None for name, finding in known[part.name].items()}
    return {subject.name: found[subject.name] for subject in subjects}, known.get(CONTROL_PART, {})


def parts_of(subjects: Sequence[Subject]) -> Iterator[Part]:
    """A part for each ground, of one pair or of pairs that share their plain arms: no two write the same records."""
    by_ground: dict[Experiment, list[Subject]] = {}
    for subject in subjects:
        by_ground.setdefault(ground_of(subject.plain), []).append(subject)
    for ground, members in by_ground.items():
        pairs = ", ".join(dict.fromkeys(subject.pair for subject in members))
        yield Part(name=f"{pairs}, {shown_sampling(ground.sampling)}", subjects=tuple(members), ground=ground)
    if (stage := stage_of(subjects)) is not None:
        yield Part(name=CONTROL_PART, stage=stage)


def ground_of(plain: Experiment) -> Experiment:
    """Prompts and laws do not depend on the batch or on what a plain arm searches with."""
    return plain.replace(method=PLAIN, batch_size=1)


def stage_of(subjects: Sequence[Subject]) -> Stage | None:
    """The first pair's; None where a choice of subjects has no pair with all that controls need."""
    first = [subject for subject in subjects if subject.pair == subjects[0].pair]
    greedy, drawn = ([one.plain for one in first if one.plain.sampling.greedy is wanted] for wanted in (True, False))
    drafters = [one.method.drafter for one in first if one.method.drafter is not None]
    models = [drafter for drafter in drafters if drafter.kind == "model"]
    if not (greedy and drawn and models):
        return None
    return Stage(plain=ground_of(greedy[0]), drawn=ground_of(drawn[0]), draft=models[0])


def cost_of(part: Part, sizes: Sizes) -> float:
    """Its time beside that of a greedy subject."""
    if part.stage is not None:
        return DRAWN_COST * len(CONTROLS)
    costs = (DRAWN_COST * (sizes.false_alarms if one.method == PLAIN else 1) for one in part.subjects)
    return float(len(part.subjects)) if part.is_greedy else sum(costs)
