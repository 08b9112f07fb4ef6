"""Which rows of a user's data a run tests, and what it says about them.

Data without training rows of their own, as one file, are tested whole, unless a model of the run learns from them: then the
part is tested that training leaves out (``tasks.sources.read``).
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from os.path import expanduser
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.experiment import POCKET, ZOO, Experiment, ModelSpec
from harness.models.pocket import DRAFTS
from harness.run.prompts import examples_of
from harness.zoo.cache import DONE
from tasks import get_task
from tasks.sources.locate import is_undivided
from tasks.sources.source import HUB, WHOLE, Source
from tasks.text import MAX_PROMPT_WORDS, is_cut

CUT = (
    f"of a text the first third is the prompt, at most {MAX_PROMPT_WORDS} words, and the rest the reference; "
    "--field prompt=text takes it whole"
)

HELD_OUT = (
    "This is the part that training leaves out, 15 % chosen by a hash, of task text rows from 20 words on; --split whole tests "
    "all where no model of the run learns from the rest"
)


def evaluated_source(text: str, task: str, models: Sequence[ModelSpec]) -> str:
    """Return the source with the split that a run of these models tests; ``text`` has the one that was asked for.

    Raises:
        UsageError: a model learned, or would learn, from rows that the split tests.
        DataError: data that cannot be used.
    """
    source, dataset = Source.of(text), get_task(task).dataset
    source.check(dataset)
    if source.repository is not None:
        if source.split == "train" and (learner := next((one.name for one in models if _learns_from(one, source.place)), None)):
            raise UsageError(
                f"split 'train': {learner} learns from rows of {source.place} that it tests; choose the name of another split"
            )
        return text
    if not source.is_local():
        return text
    for model in models:
        for learned in _learned_places(model):
            if _lies_within(learned, source.place) or _lies_within(source.place, learned):
                raise UsageError(
                    f"data {source.place}: {model.name} learned from {learned}, where the same rows may lie; give --data "
                    f"{learned}, of which the part is tested that it left out"
                )
    undivided = is_undivided(dataset, replace(source, split=""))
    learner = next((model.name for model in models if _learns_from(model, source.place)), None)
    if undivided and source.split == "test":
        source = replace(source, split="")
    elif undivided and not source.split and learner is None:
        source = replace(source, split=WHOLE)
    if learner is not None and (source.split == "train" or (undivided and source.split)):
        raise UsageError(
            f"split {source.split!r}: {learner} learns from rows of {source.place} that it tests; choose --split test, which "
            "has none of them"
        )
    return source.text


def _learns_from(model: ModelSpec, place: str) -> bool:
    """Say whether a model is trained here on these data, or was by what its recipe.json says."""
    if model.base.startswith(ZOO):
        return True
    if model.base.startswith(POCKET):
        return model.base.removeprefix(POCKET) in DRAFTS
    return _unpinned(place) in _learned_places(model)


def _learned_places(model: ModelSpec) -> list[str]:
    """Return the places of the data that a folder's recipe.json says it learned from."""
    if model.base.startswith((ZOO, POCKET)):
        return []
    path = Path(expanduser(model.base)) / DONE
    try:
        facts = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError):  # of another program, or damaged, which loading the model says
        return []
    parts = [facts, facts.get("material")] if isinstance(facts, dict) else []
    told = [part.get("source") for part in parts if isinstance(part, dict)]
    return [_unpinned(Source.of(one).place) for one in told if isinstance(one, str)]


def _lies_within(inner: str, outer: str) -> bool:
    return Path(outer) in Path(inner).parents


def _unpinned(place: str) -> str:
    """A place whatever its commit: rows of a data set stay in its splits."""
    return place.partition("@")[0] if place.startswith(HUB) else place


def notes(experiment: Experiment, num_found: int) -> list[str]:
    """Say what became of a user's rows: texts that were cut, and fewer than were asked for."""
    source = Source.of(experiment.source)
    if source.place in ("toy", "hub"):
        return []
    told = [f"note: {CUT}"] if experiment.task == "text" and any(map(is_cut, examples_of(experiment))) else []
    if num_found < experiment.limit:
        undivided = source.repository is None and is_undivided(get_task(experiment.task).dataset, source)
        told.append(
            f"{num_found} of {experiment.limit} examples: {source.place} has no more to test"
            + (f". {HELD_OUT}" if undivided and not source.split else "")
        )
    return told
