"""Which rows of a user's data a run tests, and what it says about them.

Data without training rows of their own, as one file, are tested whole, unless a model of the run learns from them: then the
part is tested that training leaves out (``tasks.sources.read``). Rows of it that a model learned from all the same, from
another file, are left out one by one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os.path import expanduser
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import POCKET, ZOO, Experiment, ModelSpec
from harness.models.pocket import TRAINED
from harness.run.build import specs_of
from harness.run.prompts import examples_of
from harness.zoo.cache import DONE
from tasks import get_task
from tasks.base import Dataset, Example, Task
from tasks.sources.locate import Contents, contents, is_undivided
from tasks.sources.read import read_examples
from tasks.sources.rows import Rows, row_hash
from tasks.sources.source import HUB, PARTED, WHOLE, Source
from tasks.text import MAX_PROMPT_WORDS, is_cut

UNKNOWN = "unknown"
MOST_SKIPPED = 1000  # rows that are left out by their ids, which stand in every experiment
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

    Rows of the split that a model learned from, known again one by one, are left out.

    Raises:
        UsageError: a model learned, or would learn, from rows that the split tests, and they cannot be left out.
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
        _refuse_shared(model, source)
        _refuse_copied(model, source, dataset)
    undivided = is_undivided(dataset, replace(source, split=""))
    every = replace(source, skip=())
    whole = replace(every, split=WHOLE) if undivided and source.split in ("", "test", PARTED, WHOLE) else every
    learner = next((one.name for one in models if _has_learned(one, source, dataset) or _learned_rows(one, whole, task)), None)
    asked = source.split
    if undivided and not asked and learner is None:
        source = replace(source, split=WHOLE)
    elif undivided and asked in ("", "test"):
        is_whole = dataset.splits_one_file or not any(_reads_part(one, whole, task) for one in models)
        source = replace(source, split="" if is_whole else PARTED)
    if learner is not None and (asked == "train" or (undivided and asked not in ("", "test", PARTED))):
        raise UsageError(
            f"split {source.split!r}: {learner} learns from rows of {source.place} that it tests; choose --split test, which "
            "has none of them"
        )
    return _without_learned(models, source, task).text


def _has_learned(model: ModelSpec, source: Source, dataset: Dataset) -> bool:
    """Say whether a model learns from these data, or did from files with their content."""
    return _learns_from(model, source.place) or _copied(model, source, dataset)


def _learns_from(model: ModelSpec, place: str) -> bool:
    """Say whether a model is trained here on these data, or was on data of this place by what its recipe.json says."""
    return _is_trained_here(model) or _unpinned(place) in _learned_places(model)


def _is_trained_here(model: ModelSpec) -> bool:
    """Say whether a model is trained on the training rows of whatever data a run has."""
    return model.zoo_name is not None or (model.base.startswith(POCKET) and model.base.removeprefix(POCKET) in TRAINED)


def _reads_part(model: ModelSpec, whole: Source, task: str) -> bool:
    """Say whether a draft learns from the training part of a task's rows, also of a set that others test as a whole."""
    recipe = TRAINED.get(model.base.removeprefix(POCKET)) if model.base.startswith(POCKET) else None
    return task in recipe.tasks if recipe is not None else bool(_learned_rows(model, whole, task))


def _refuse_shared(model: ModelSpec, source: Source) -> None:
    for learned in _learned_places(model):
        if _lies_within(learned, source.place) or _lies_within(source.place, learned):
            raise UsageError(
                f"data {source.place}: {model.name} learned from {learned}, where the same rows may lie; give --data "
                f"{learned}, of which the part is tested that it left out"
            )


def _refuse_copied(model: ModelSpec, source: Source, dataset: Dataset) -> None:
    """Refuse copies of files that a model learned from, but of a whole set of which training left a part out."""
    if _copied(model, source, dataset) and not _leaves_out_a_part(model, source, dataset):
        raise UsageError(
            f"data {source.place}: {model.name} learned from a file with the same content, whatever it was called; test other "
            "rows, or the data as a whole that it learned from, of which a part was left out"
        )


def _copied(model: ModelSpec, source: Source, dataset: Dataset) -> bool:
    """Say whether files that are tested are, byte for byte, such as a model learned from."""
    learned = _learned(model)
    found = contents(dataset, _as_tested(source)) if learned else None  # which reads them whole
    return found is not None and any(found.test & one.train for one in learned)


def _leaves_out_a_part(model: ModelSpec, source: Source, dataset: Dataset) -> bool:
    """Say whether the data, or copies of all of them, are one set that a hash parts into trained and tested rows."""
    found = contents(dataset, _as_tested(source))
    assert found is not None
    shared = [learned for learned in _learned(model) if found.test & learned.train]
    return found.undivided and all(learned.undivided and learned.train == found.train for learned in shared)


def _without_learned(models: Sequence[ModelSpec], source: Source, task: str) -> Source:
    """Leave out the rows that a model learned from, in whatever file, order or format they stand now.

    Raises:
        UsageError: no row is left, or they are too many to be named.
    """
    learned = {example.id: model.name for model in models for example in _learned_rows(model, source, task)}
    if not learned:
        return source
    tested = sum(1 for _ in read_examples(get_task(task), source.text, "test", None, 0))
    if len(learned) >= tested or len(learned) > MOST_SKIPPED:
        first, name = next(iter(learned.items()))
        why = "none is left" if len(learned) >= tested else f"at most {MOST_SKIPPED} can be left out"
        raise UsageError(
            f"data {source.place}: {name} learned from {len(learned)} of the {tested} rows that are tested, the first with id "
            f"{first!r}; {why}, test other rows"
        )
    return replace(source, skip=(*source.skip, *learned))


def _learned_rows(model: ModelSpec, source: Source, task: str) -> list[Example]:
    """Return the tested rows that a folder's recipe.json says its model learned from."""
    if (rows := _rows(model)) is None:
        return []
    return _among(rows, get_task(task), read_examples(get_task(task), source.text, "test", None, 0))


def _among(rows: Rows, task: Task, examples: Iterable[Example]) -> list[Example]:
    return [example for example in examples if row_hash(task, example) in rows.hashes]


def _as_tested(source: Source) -> Source:
    """Return the source whose files are tested: one set of rows is the same files, however it is divided."""
    return replace(source, split="") if source.split in ("test", PARTED, WHOLE) else source


def _learned_places(model: ModelSpec) -> list[str]:
    """Return the places of the data that a folder's recipe.json says it learned from."""
    facts = _facts(model)
    told = [part.get("source") for part in (facts, facts.get("material")) if isinstance(part, dict)]
    return [_unpinned(Source.of(one).place) for one in told if isinstance(one, str)]


def _learned(model: ModelSpec) -> list[Contents]:
    """Return the files that a folder's recipe.json says it learned from; recipes of before they were noted say only where."""
    told = _facts(model).get("learned")
    sets = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    return [
        Contents(frozenset(map(str, one["files"])), frozenset(), one.get("undivided") is True)
        for one in sets
        if isinstance(one.get("files"), list)
    ]


def _rows(model: ModelSpec) -> Rows | None:
    """Return the rows that a folder's recipe.json says it learned from; recipes of before they were noted have none."""
    return Rows.from_dict(_facts(model).get("rows"))


def _facts(model: ModelSpec) -> dict[str, Any]:
    """Return what a folder's recipe.json says; nothing of one of another program, or damaged, which loading the model says."""
    if model.base.startswith((ZOO, POCKET)):
        return {}
    try:
        facts = json.loads((Path(expanduser(model.base)) / DONE).read_text(encoding="utf8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


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
    told += [*_parted(experiment, source), *left_out_line(experiment.source)]
    if num_found < experiment.limit:
        undivided = source.repository is None and is_undivided(get_task(experiment.task).dataset, source)
        told.append(
            f"{num_found} of {experiment.limit} examples: {source.place} has no more to test"
            + (f". {HELD_OUT}" if undivided and source.split in ("", PARTED) else "")
        )
    return told


def left_out_line(source: str) -> list[str]:
    """Return as one line to print how many rows are left out, and why; none where all are tested."""
    found = Source.of(source)
    rows = "1 row" if len(found.skip) == 1 else f"{len(found.skip)} rows"
    told = f"note: {rows} of {found.place} left out of the test, the first with id {found.skip[0]!r}" if found.skip else ""
    return [f"{told}: a model of the run learned from what they ask"] if told else []


def _parted(experiment: Experiment, source: Source) -> list[str]:
    """Say where a part is tested because a model learned from rows of the rest."""
    if not source.is_local() or source.repository is not None or source.split not in ("", PARTED):
        return []
    if not is_undivided(get_task(experiment.task).dataset, source):
        return []
    whole = replace(source, split=WHOLE)
    found = {model.name: len(_learned_rows(model, whole, experiment.task)) for model in specs_of(experiment)}
    return [
        f"note: {name} learned from {count} of the rows of {source.place}; the part is tested that training leaves out"
        for name, count in found.items()
        if count
    ]


def learned_rows(experiment: Experiment, models: Iterable[ModelSpec]) -> dict[str, dict[str, Any]]:
    """Say of each model from how many of a pinned experiment's rows it learned: "rows" of "tested", and why that is not known.

    By name and revision, since two revisions of a model are two. Nothing of generated rows, nor of models that are trained
    here: what is tested is left out of their training.
    """
    if experiment.source == "toy":
        return {}
    task, examples = get_task(experiment.task), examples_of(experiment)
    told: dict[str, dict[str, Any]] = {}
    for model in models:
        if not _is_trained_here(model):
            key = model.name if model.revision is None else f"{model.name}@{model.revision}"
            told[key] = {"name": model.name, "revision": model.revision, **_learned_of(model, task, examples)}
    return told


def _learned_of(model: ModelSpec, task: Task, examples: Sequence[Example]) -> dict[str, Any]:
    rows = _rows(model)
    if rows is None:
        why = "its recipe.json notes no rows" if _facts(model) else "it says nothing of its training"
        return {"rows": UNKNOWN, "tested": len(examples), "why": why}
    partly = None if rows.is_whole else f"at least: only {len(rows.hashes)} of the rows that it learned from are noted"
    return {"rows": len(_among(rows, task, examples)), "tested": len(examples), "why": partly}


def learned_lines(learned: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return ``learned_rows`` as one line to print; none where there is nothing to say. Only shared names have a revision."""
    times = Counter(one["name"] for one in learned.values())
    parts = [
        f"{one['name'] if times[one['name']] == 1 else key} {one['rows']}"
        + ("" if one["rows"] == UNKNOWN else f" of {one['tested']}")
        + (f" ({one['why']})" if one["why"] else "")
        for key, one in learned.items()
    ]
    return [f"learned from tested rows: {', '.join(parts)}"] if parts else []
