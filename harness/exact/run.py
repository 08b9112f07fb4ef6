"""Runs an audit: several parts at once, each finding kept as soon as it is made, so that a killed audit goes on.

A part needs one target and one way to sample: its subjects one after another, or the controls. Parts write separate files.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from harness.core import jobs, plugins, products
from harness.core.checkout import ROOT, hash_code
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec
from harness.core.files import LineFile, checksum_of, readable, whole_lines
from harness.core.jobs import Job
from harness.core.records import Record
from harness.exact import checks
from harness.exact.checks import Finding, Findings
from harness.exact.controls import CONTROLS, run_control
from harness.exact.ground import ModelGround, prompts_of
from harness.exact.subjects import PLAIN, Sizes, Subject
from harness.measures.verdicts import shown_sampling
from harness.run.build import build_method, specs_of
from harness.run.decode import must_equal
from harness.run.divergence import classify
from harness.run.runner import Runner, ensure_models, pin
from kernels.verify import fused
from methods.errors import InputError, WorkerError
from methods.speculative.decode import DraftAndVerify

AUDITED = ("methods", "kernels", "harness/models", "harness/run", "harness/exact", "harness/core/jobs.py")
CONTROL_PART = "controls"
DRAWN_COST = 4.0


def hash_audited_code() -> str:
    """Hash what decides a verdict, sources and which loops of them run: findings made with others are not reused."""
    return hash_code(AUDITED, f"{products.choice()} {fused.decided_by()}", ROOT)


def models_of(subjects: Iterable[Subject]) -> dict[str, str]:
    """Return the short name of every model, and the revision that the name means today."""
    named = {spec for subject in subjects for spec in specs_of(pin(subject.experiment))}
    return {spec.short: spec.revision or "unknown" for spec in sorted(named, key=lambda spec: spec.name)}


def audit(
    subjects: Sequence[Subject],
    sizes: Sizes,
    folder: Path,
    quiet: bool = False,
    workers: int | None = None,
    *,
    controls_on: Sequence[Subject] | None = None,
) -> tuple[Findings, Findings]:
    """Return findings by subject and by control; records and findings are kept in ``folder``.

    ``controls_on``: the subjects whose first pair the controls run on (None: these ones; of no subject: without controls).
    ``workers`` is the number of processes (None: one per core; 0: this one). A sum over tokens may round differently with the
    number of threads that a process has; verdicts do not depend on them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    controls = control_part(subjects if controls_on is None else controls_on)
    ensure_models([*(subject.experiment for subject in subjects), *([] if controls is None else [controls.drafted])])
    parts, files = [*split(subjects), *([] if controls is None else [controls])], tuple(plugins.files())
    work = {part.name: partial(work_on, part, sizes, folder, files, quiet) for part in parts}
    jobs.run(
        {part.name: Job(f"audit {part.name}", frozenset(), estimate_cost(part, sizes), work[part.name]) for part in parts},
        workers,
    )
    known = {part.name: read_findings(folder / part.file) for part in parts}
    found = {name: finding for part in parts if part.subjects for name, finding in known[part.name].items()}
    return {subject.name: found[subject.name] for subject in subjects}, known.get(CONTROL_PART, {})


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Subjects that share a ground: a plain arm that decodes one row at a time.

    The controls are a part without subjects. They need the ground of the same target where it ``drawn``s tokens, and the model
    that drafts for it.
    """

    name: str
    ground: Experiment
    subjects: tuple[Subject, ...] = ()
    drawn: Experiment | None = None
    draft: DrafterSpec | None = None

    @property
    def drafted(self) -> Experiment:
        """The ground with the models of the controls: the target and the one that drafts for it."""
        return self.ground.replace(method=MethodSpec.of("speculative", drafter=self.draft))

    @property
    def file(self) -> str:
        return f"findings-{re.sub('[^a-z0-9.]+', '-', self.name.lower())}.jsonl"


def split(subjects: Sequence[Subject]) -> Iterator[_Part]:
    """Yield a part for each ground, of one pair or of pairs that share their plain arms: no two write the same records."""
    by_ground: dict[Experiment, list[Subject]] = {}
    for subject in subjects:
        by_ground.setdefault(_ground_of(subject.plain), []).append(subject)
    for ground, members in by_ground.items():
        pairs = ", ".join(dict.fromkeys(subject.pair for subject in members))
        yield _Part(name=f"{pairs}, {shown_sampling(ground.sampling)}", subjects=tuple(members), ground=ground)


def control_part(subjects: Sequence[Subject]) -> _Part | None:
    """Return the part of the controls, on the first pair; None if that pair lacks anything that controls need.

    They show what the checks can see, and so have sessions of their own, without graphs.
    """
    first = [subject for subject in subjects if subject.pair == subjects[0].pair]
    greedy, drawn = ([one.plain for one in first if one.plain.sampling.greedy is wanted] for wanted in (True, False))
    drafters = [one.method.drafter for one in first if one.method.drafter is not None]
    models = [drafter for drafter in drafters if drafter.is_model]
    if not (greedy and drawn and models):
        return None
    ground, law = (_ground_of(plain[0]).replace(graphs=False) for plain in (greedy, drawn))
    return _Part(name=CONTROL_PART, ground=ground, drawn=law, draft=models[0])


def _ground_of(plain: Experiment) -> Experiment:
    """Leave out the batch size and the plain arm's search: prompts and laws do not depend on them."""
    return plain.replace(method=PLAIN, batch_size=1)


def estimate_cost(part: _Part, sizes: Sizes) -> float:
    """Return a part's time, in greedy subjects."""
    if not part.subjects:
        return DRAWN_COST * len(CONTROLS)
    if part.ground.sampling.greedy:
        return float(len(part.subjects))
    return sum(DRAWN_COST * (sizes.false_alarms if one.method == PLAIN else 1) for one in part.subjects)


def read_findings(path: Path) -> Findings:
    """Read the findings that were kept; a torn last line is left out. UsageError for one that changed since."""
    found: Findings = {}
    with readable(f"findings {path}", "remove it, and they are found again"):
        for name, finding, checksum in map(json.loads, whole_lines(path) if path.exists() else ()):
            if checksum != checksum_of([name, finding]):
                raise ValueError(f"the checksum of {name!r} differs")
            found[name] = finding
    return found


def finding_line(name: str, finding: dict[str, Any]) -> bytes:
    """Return a line of the file that ``read_findings`` reads."""
    return (json.dumps([name, finding, checksum_of([name, finding])], ensure_ascii=False) + "\n").encode()


def work_on(part: _Part, sizes: Sizes, folder: Path, plugin_files: tuple[str, ...], quiet: bool, line: int) -> None:
    """Find what is not in the part's file yet; the progress bar stands in a ``line`` of the screen.

    A finding that failed, maybe because no memory was left, is tried again.
    """
    plugins.load(plugin_files)
    runner, known = Runner(folder, quiet=True, replay="all"), read_findings(folder / part.file)
    todo = dict(_control_jobs(part, sizes, runner) if part.drawn else _subject_jobs(part, sizes, runner))
    with (
        LineFile(folder / part.file) as file,
        tqdm(total=len(todo), unit="", position=line, disable=quiet, dynamic_ncols=True) as bar,
    ):
        for name, find in todo.items():
            bar.set_description(name)
            if known.get(name, {"verdict": "failed"}).get("verdict") == "failed":
                finding = find()
                file.write(finding_line(name, finding))
            bar.update()
        bar.set_description(part.name)


def _control_jobs(part: _Part, sizes: Sizes, runner: Runner) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    assert part.drawn is not None
    greedy, drawn = (ModelGround(plain, sizes, runner.models(plain)) for plain in map(pin, (part.ground, part.drawn)))
    draft = pin(part.drafted).method.drafter
    assert draft is not None
    device, limit = drawn.target.session().device, drawn.target.stack.position_limit
    for name, control in CONTROLS.items():
        if control.can_strike(device, limit):
            yield name, partial(run_control, control, greedy, drawn, draft)


def _subject_jobs(part: _Part, sizes: Sizes, runner: Runner) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    plain = pin(part.ground)
    ground = ModelGround(plain, sizes, runner.models(plain))
    for subject in part.subjects:
        yield subject.name, partial(_audit_subject, subject, ground, runner, part.subjects)


def _audit_subject(subject: Subject, ground: ModelGround, runner: Runner, others: Sequence[Subject]) -> dict[str, Any]:
    """Check a subject. An error is its finding; the audit of the other subjects goes on."""
    experiment = pin(subject.experiment)
    try:
        method = build_method(experiment.method, ground.target, ground.built)
        is_plain_batch = subject.method == subject.plain.method and experiment.sampling.greedy
        must_be_equal = is_plain_batch or must_equal(pin(subject.plain), experiment, method)
        # Beam search is lossy beside greedy decoding, but exact beside beam search.
        exact = must_be_equal or method.guarantee != "lossy"
        declared = {"declared": "exact" if exact else "lossy"}
        if subject.method == PLAIN and not experiment.sampling.greedy:
            found = checks.check_false_alarms(ground)
            return declared | checks.with_replay(found, checks.check_replay(method, ground)).as_dict()
        if exact and not must_be_equal:
            found = checks.check_exact(method, ground, drafts=experiment.method.drafter is not None)
            return declared | checks.with_replay(found, checks.check_replay(method, ground)).as_dict()
        if not exact and not experiment.sampling.greedy:
            assert isinstance(method, DraftAndVerify)
            return declared | checks.check_lossy_law(method, ground).as_dict()
        _record(subject, runner, others)
        if exact:
            found = check_recorded_identity(subject, runner)
            return declared | checks.with_replay(found, checks.check_replay(method, ground)).as_dict()
        records = runner.records(experiment)
        return declared | checks.check_lossy_outputs(experiment, records, ground.prompts, ground.models).as_dict()
    except (InputError, WorkerError, RuntimeError) as error:
        return {"declared": "unknown", "verdict": "failed", "error": f"{type(error).__name__}: {error}"}


def _record(subject: Subject, runner: Runner, others: Sequence[Subject]) -> None:
    """Record all subjects that share this plain arm and are compared by outputs, as one comparison; records are reused."""
    compared_by_output = [one for one in others if one.plain.sampling.greedy or one.method.is_pipeline]
    plain = pin(subject.plain)
    arms = dict.fromkeys(pin(one.experiment) for one in compared_by_output if one.plain == subject.plain)
    runner.run(Comparison((plain, *(arm for arm in arms if arm != plain))), subject.pair)


def check_recorded_identity(subject: Subject, runner: Runner) -> Finding:
    """Check recorded outputs against the plain arm's. A plain arm in a batch must equal itself, row by row."""
    experiment = pin(subject.experiment)
    if subject.method == subject.plain.method:
        return checks.check_identity(list(compare_with_single_rows(experiment, runner)))
    return checks.check_identity(runner.records(experiment))


def compare_with_single_rows(experiment: Experiment, runner: Runner) -> Iterator[Record]:
    """Yield a plain arm's records in batches, each with where it parts from what its row gives alone, run now if it was not."""
    alone = pin(experiment.replace(batch_size=1))
    runner.run(Comparison((alone,)))
    expected = {record.key: record.tokens for record in runner.records(alone)}
    models = runner.models(experiment)
    prompts = prompts_of(experiment, models.get(experiment.target))
    for record in runner.records(experiment):
        right, made, divergence = expected.get(record.key), record.tokens, None
        if made is not None and right is not None and made != right:
            divergence = classify((alone, experiment), (right, made), prompts[record.example], record.repeat, models)
        yield replace(record, divergence=divergence)
