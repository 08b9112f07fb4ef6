"""What a run says about exactness: its method's guarantee held against the plain arm of the same run.

Greedy: what the runner found when it recorded (harness.divergence): "identical", "near-tie" or "bug".
Sampling: the rule's output law on this run's own target and draft distributions is integrated over its uniforms; of a method
that has no rule the outputs themselves are tested (harness.audit.fit_of_run).
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from harness.audit.fit_of_run import fit_of
from harness.audit.laws import LAW_BOUND, windows_of
from harness.build import Models, build_drafter, build_method, build_rule
from harness.decode import must_equal, outputs_of
from harness.experiment import Comparison, Experiment
from harness.models import LoadedModel
from harness.prompts import Prompt, make_prompt
from harness.records import Record
from harness.runner import Runner
from methods.exactness import largest_deviation
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from tasks import get_task

EXAMPLES, DRAFTS, WINDOWS, KEPT = 2, 2, 2, 24


def audit(comparison: Comparison, records: list[list[Record]], runner: Runner) -> dict:
    """Verdict ("identical", "near-tie", "bug", "same distribution", "biased", "lossy", "baseline"), summary and evidence."""
    if len(comparison.arms) == 1:
        return _finding("baseline", "plain decoding is what others are compared with")
    return runner.with_models(comparison.arms[-1], partial(_audited, comparison, records))


def _audited(comparison: Comparison, records: list[list[Record]], models: Models) -> dict:
    baseline, experiment = comparison.arms[0], comparison.arms[-1]
    method = build_method(experiment.method, models.get(experiment.target), models)
    if must_equal(baseline, experiment, method):
        return _identity(records[-1])
    if method.guarantee == "lossy":
        plain = {record.key: record.tokens for record in records[0]}
        same = sum(record.tokens is not None and plain.get(record.key) == record.tokens for record in records[-1])
        return _finding("lossy", f"by its definition; {same} of {len(records[-1])} outputs equal plain decoding's")
    if not isinstance(method, DraftAndVerify):
        target = models.get(experiment.target)
        return fit_of(experiment, records[-1], target, lambda record: _prompt(experiment, record, target))
    return _sampled(experiment, records[-1], models)


def _finding(verdict: str, summary: str, **evidence: object) -> dict:
    return {"verdict": verdict, "summary": summary, **evidence}


def _identity(method: list[Record]) -> dict:
    """From what the runner found when it recorded: see harness.divergence."""
    good = [record for record in method if record.status == "ok"]
    parted = [record for record in good if record.divergence is not None]
    bugs = sum(record.divergence.kind == "bug" for record in parted if record.divergence)
    verdict = "bug" if bugs else "near-tie" if parted else "identical" if good else "unknown"
    tokens = sum(len(record.tokens or ()) for record in good)
    summary = (
        f"{len(good) - len(parted)} of {len(good)} outputs ({tokens} tokens) equal the baseline's, "
        f"{len(parted) - bugs} part at a near-tie, {bugs} at a bug"
    )
    evidence = [asdict(r.divergence) | {"example": r.example, "repeat": r.repeat} for r in parted if r.divergence]
    return _finding(verdict, summary, compared=len(good), divergences=evidence)


def _sampled(experiment: Experiment, records: list[Record], models: Models) -> dict:
    """Tier (a) on real distributions: those of the run's own models along its own outputs, cut to their likeliest tokens."""
    chosen = [record for record in records if record.status == "ok" and len(record.tokens or ()) > DRAFTS][:EXAMPLES]
    found = [deviation for record in chosen for deviation in _deviations(experiment, record, models)]
    if not found:
        return _finding("unknown", "no output is long enough to check the rule's law on")
    worst = max(found)
    verdict = "same distribution" if worst <= LAW_BOUND else "biased"
    summary = (
        f"integrated over its uniforms, the rule's law is within {worst:.1e} of the target's (limit {LAW_BOUND:g}) "
        f"on {len(found)} windows of {DRAFTS} drafts and a bonus from this run"
    )
    return _finding(verdict, summary, windows=len(found), largest_deviation=worst)


def _deviations(experiment: Experiment, record: Record, models: Models) -> Iterator[float]:
    """The largest deviation of the emitted law in a few windows of one output."""
    target = models.get(experiment.target)
    assert experiment.method.drafter is not None
    drafter = build_drafter(experiment.method.drafter, target, models)
    rule, sampling = build_rule(experiment.method), experiment.sampling
    prompt = _prompt(experiment, record, target)
    tokens = outputs_of(experiment, prompt, record.tokens or [], target)[0]
    for window in windows_of(target.session(), drafter, prompt.windows()[0], tokens, sampling, DRAFTS, WINDOWS, KEPT):
        yield largest_deviation(rule, window.target_logits, window.draft_logits, sampling, Sampling(temperature=1.0))


def _prompt(experiment: Experiment, record: Record, target: LoadedModel) -> Prompt:
    task = get_task(experiment.task)
    examples = task.examples(experiment.source, "test", experiment.limit, experiment.seed)
    return make_prompt(task, next(example for example in examples if example.id == record.example), experiment, target)
