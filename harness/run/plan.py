"""Runs what is missing of a plan, and notes what tables and figures need beside the records (harness.core.notes)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harness.core.errors import Unavailable
from harness.core.experiment import Comparison, Experiment
from harness.core.notes import Notes
from harness.measures.pairing import succeeded
from harness.run import comet
from harness.run.comparison import examples_of
from harness.run.facts import note_facts
from harness.run.runner import Runner, ensure_models, pin
from tasks.base import DataError


def pin_arms(comparison: Comparison) -> Comparison:
    return Comparison(tuple(pin(arm) for arm in comparison.arms))


def run_plan(plan: Sequence[Comparison], runner: Runner, scores: Sequence[str] = ()) -> None:
    """Run every comparison that is not complete, then let models score outputs (``scores``: "comet").

    A complete comparison costs a look at its records. A model or data set that cannot be had from the Hub stops its own
    comparison only, and the reason is noted.
    """
    notes, missing = Notes(runner.folder), []
    for comparison in plan:
        with _reason_noted(notes, comparison):
            pinned = pin_arms(comparison)
            for arm, known in zip(comparison.arms, pinned.arms, strict=True):
                notes.note_pin(arm, known)
            if runner.is_complete(pinned):
                first = pinned.arms[0]
                note_facts(notes, pinned, [] if notes.text_file(first).exists() else examples_of(first))
                _score(notes, pinned, runner, scores)
            else:
                missing.append((comparison, pinned))
    if missing:
        ensure_models(arm for _, pinned in missing for arm in pinned.arms)
    for number, (comparison, pinned) in enumerate(missing, start=1):
        first = pinned.arms[0]
        with _reason_noted(notes, comparison):
            runner.run(pinned, f"[{number}/{len(missing)}] {first.task} t={first.sampling.temperature:g}")
            _score(notes, pinned, runner, scores)


@contextmanager
def _reason_noted(notes: Notes, comparison: Comparison) -> Iterator[None]:
    """Note why a comparison cannot be run, and go on with the next one."""
    try:
        yield
    except Unavailable as error:
        notes.note_unavailable(comparison.arms, str(error))
    except DataError as error:
        if comparison.arms[0].source != "hub":
            raise
        notes.note_unavailable(comparison.arms, str(error))


def _score(notes: Notes, pinned: Comparison, runner: Runner, scores: Sequence[str]) -> None:
    """Score outputs by the models that are installed."""
    for arm in pinned.arms if "comet" in scores and comet.is_installed() else ():
        _score_by_comet(notes, arm, runner)


def _score_by_comet(notes: Notes, arm: Experiment, runner: Runner) -> None:
    """Score the outputs of an experiment's first repeat by COMET, unless these very outputs are scored."""
    outputs = {record.example: record.text or "" for record in succeeded(runner.records(arm)) if record.repeat == 0}
    if set(notes.scores(arm, "comet").get("scores", ())) == set(outputs):
        return
    examples = [example for example in examples_of(arm) if example.id in outputs]
    scores = comet.comet_scores(
        tuple(one.inputs["source"] for one in examples),
        tuple(outputs[one.id] for one in examples),
        tuple(one.references[0] for one in examples),
    )
    found: Mapping[str, Any] = (
        {"scores": {one.id: score for one, score in zip(examples, scores, strict=True)}}
        if isinstance(scores, list)
        else {"failed": scores.why}
    )
    notes.note_scores(arm, "comet", {"model": comet.CHECKPOINT, **found})
