"""Subjects whose outputs must be the plain arm's token for token: recorded by the runner, classified where they part."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.audit.subjects import Subject
from harness.divergence import classify
from harness.experiment import Comparison, Experiment
from harness.prompts import make_prompt
from harness.records import Divergence, Record
from harness.runner import Runner, pin
from tasks import get_task

SHOWN = 3  # divergences in the report; all are counted


def run_group(subjects: Sequence[Subject], runner: Runner) -> None:
    """Subjects that share a plain arm, as one comparison; what is recorded already is not run again."""
    plain = pin(subjects[0].plain)
    arms = dict.fromkeys(pin(subject.experiment) for subject in subjects)
    runner.run(Comparison((plain, *(arm for arm in arms if arm != plain))), subjects[0].pair)


def equality(subject: Subject, runner: Runner) -> dict[str, Any]:
    """Verdict and evidence of a subject that ``run_group`` has run. A plain arm in a batch must equal itself, row by row."""
    experiment = pin(subject.experiment)
    if subject.method == subject.plain.method:
        return of_records(*_beside_alone(experiment, runner))
    records = runner.records(experiment)
    return of_records(records, {record.key: record.divergence for record in records})


def of_records(records: Sequence[Record], parted: Mapping[tuple[str, int], Divergence | None]) -> dict[str, Any]:
    """ "identical", "near-tie" (all divergences are), "bug" (one is not) or "failed" (an example was)."""
    good = [record for record in records if record.status == "ok"]
    found = [(record, divergence) for record in good if (divergence := parted.get(record.key)) is not None]
    bugs = sum(divergence.kind == "bug" for _, divergence in found)
    broken = next((record.error for record in records if record.status != "ok"), None)
    margins = [divergence.margin for _, divergence in found if divergence.margin is not None]
    found.sort(key=lambda pair: pair[1].kind)  # bugs are shown first
    return {
        "verdict": "failed" if broken or not good else "bug" if bugs else "near-tie" if found else "identical",
        "prompts": len(records),
        "tokens": sum(len(record.tokens or ()) for record in good),
        "near_ties": len(found) - bugs,
        "bugs": bugs,
        "largest_margin": max(margins, default=None),
        "divergences": [{"example": record.example, **asdict(divergence)} for record, divergence in found[:SHOWN]],
        "error": broken,
    }


def _beside_alone(experiment: Experiment, runner: Runner) -> tuple[list[Record], dict[tuple[str, int], Divergence | None]]:
    alone = pin(experiment.replace(batch_size=1))
    runner.run(Comparison((alone,)))
    by_key = {record.key: record.tokens for record in runner.records(alone)}
    records, models = runner.records(experiment), runner.models(experiment)
    task, target = get_task(experiment.task), models.get(experiment.target)
    examples = {one.id: one for one in task.examples(experiment.source, "test", experiment.limit, experiment.seed)}
    parted: dict[tuple[str, int], Divergence | None] = {}
    for record in records:
        tokens, expected = record.tokens, by_key.get(record.key)
        if tokens is not None and expected is not None and tokens != expected:
            prompt = make_prompt(task, examples[record.example], experiment, target)
            parted[record.key] = classify((alone, experiment), (expected, tokens), prompt, record.repeat, models)
    return records, parted
