"""Builds the models that the cache lacks, several at once, each when what it needs is there."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.core.files import replace_file
from harness.core.jobs import Job, run
from harness.zoo.cache import DONE, explained, is_complete, make, quiet, read_facts, unreadable
from harness.zoo.corpus import build_corpus, read_corpus
from harness.zoo.descriptions import (
    BlockwiseRecipe,
    Corpus,
    Description,
    Distilled,
    DrafterRecipe,
    EnsembleDistilled,
    HeadRecipe,
    PairRecipe,
    Recipe,
    SharedEncoderRecipe,
    SpeechCorpus,
    WhisperRecipe,
    teachers_of,
)
from harness.zoo.distil import build_distilled
from harness.zoo.drafters import train_blockwise, train_drafter
from harness.zoo.early_heads import train_zoo_heads
from harness.zoo.recipes import CODE_VERSION, Scale, folder_of, recipe_for
from harness.zoo.speech import build_speech
from harness.zoo.text import train_next_token
from harness.zoo.whisper import train_whisper
from kernels.native import cache_folder
from methods.options import NGRAM_TABLE
from methods.speculative.ngram import NGramTable

# (description, folder to fill, source of data, line of the screen for progress); its dependencies are complete.
Maker = Callable[[Any, Path, str, int], None]


def ensure(names: Sequence[str], scale: Scale, source: str, workers: int | None = None) -> dict[str, Path]:
    """Return the folders of these zoo models, trained now if the cache lacks them.

    Args:
        names: keys of ``recipes_of(scale, source)``.
        source: where the training data comes from, as in tasks.
        workers: processes (None: one per core; 0: this one). The weights do not depend on it.

    Raises:
        UsageError: for an unknown name, a cache that cannot be written, or a training process that died.
        DataError: for data that cannot be used.
    """
    recipes = {name: recipe_for(name, scale, source) for name in names}
    missing = missing_of(list(recipes.values()), source)
    if missing:
        with explained(cache_folder()):  # before processes are started for it
            cache_folder().mkdir(parents=True, exist_ok=True)
    with quiet():
        run({folder: job_of(one, source, missing) for folder, one in missing.items()}, workers)
    folders = {name: folder_of(recipe, source) for name, recipe in recipes.items()}
    with explained(cache_folder()):
        for name, folder in folders.items():
            _check_made_for(recipes[name], folder)
    return folders


def _check_made_for(recipe: Description, folder: Path) -> None:
    """UsageError for a folder whose files changed, or that another recipe made and that stands under this one's name."""
    made = read_facts(folder).get("recipe")
    wanted = {"name": recipe.name, "seed": recipe.seed}
    if not isinstance(made, dict) or {key: made.get(key) for key in wanted} != wanted:
        found = f"of {made.get('name')!r}, seed {made.get('seed')}" if isinstance(made, dict) else "that names no recipe"
        raise unreadable(folder / DONE, ValueError(f"it is {found}; expected {recipe.name!r}, seed {recipe.seed}"))


def missing_of(wanted: Sequence[Description], source: str) -> dict[Path, Description]:
    """The descriptions that the cache lacks, of these and of all that they need, each behind those that it needs."""
    found: dict[Path, Description] = {}

    def visit(description: Description) -> None:
        folder = folder_of(description, source)
        if folder in found or is_complete(folder):
            return
        for needed in dependencies(description):
            visit(needed)
        found[folder] = description
        if isinstance(description, DrafterRecipe):
            visit(description.verifier)

    for description in wanted:
        visit(description)
    return found


def job_of(description: Description, source: str, missing: Mapping[Path, Description]) -> Job:
    """The job that builds it, once those of ``missing`` that it needs are there.

    A drafter and its verifier train at once, but the drafter's report may train the verifier.
    """
    before = dependencies(description)
    if isinstance(description, DrafterRecipe):
        before = (*before, *dependencies(description.verifier))
    needed = {folder_of(one, source) for one in before} & missing.keys()
    cost = 0.0 if isinstance(description, Corpus) else description.cost
    return Job(f"zoo {description.name}", frozenset(needed), cost, partial(_make, description, source))


def dependencies(description: Description) -> tuple[Description, ...]:
    """The descriptions that must be complete before this one can be made."""
    if isinstance(description, Distilled):
        return (description.teacher.corpus, *teachers_of(description))
    if isinstance(description, Corpus):
        return ()
    initial = description.initial if isinstance(description, DrafterRecipe) else None
    frozen = description.verifier if isinstance(description, BlockwiseRecipe) else None
    return (description.corpus, *(one for one in (description.teacher, initial, frozen) if one is not None))


def _make(description: Description, source: str, position: int) -> None:
    make(folder_of(description, source), lambda folder: _fill(description, source, folder, position))


def _fill(description: Description, source: str, folder: Path, position: int) -> None:
    """Build one description in a folder of its own; its dependencies are complete."""
    maker: Maker = count_table if description.family == "ngram" else MAKERS[type(description)]
    maker(description, folder, source, position)


def _train_drafter(recipe: DrafterRecipe, folder: Path, source: str, position: int) -> None:
    train_drafter(recipe, folder, source, position, partial(_make, recipe.verifier, source, position))


def count_table(recipe: Recipe, folder: Path, source: str, position: int) -> None:
    """Count the targets of one part. T5's decoder begins with token 0: a context, but never an output."""
    corpus_folder = folder_of(recipe.corpus, source)
    rows = read_corpus(corpus_folder)
    part = [part.task for part in recipe.corpus.parts].index(recipe.table_task or "")
    start = [0] if recipe.corpus.is_encoder_decoder else []
    texts = [start + rows.row(i)[1].tolist() for i in torch.nonzero(rows.part == part).flatten().tolist()]
    table = NGramTable.count(texts, _vocab_size(corpus_folder))
    if start:
        unigram = table.unigram_counts.clone()
        unigram[start] = 0
        table = replace(table, unigram_counts=unigram)
    table.save(folder / NGRAM_TABLE)
    facts = {"recipe": asdict(recipe), "source": source, "code": CODE_VERSION, "num_tokens": sum(map(len, texts))}
    replace_file(folder / DONE, json.dumps(facts, indent=1))


def _vocab_size(folder: Path) -> int:
    """The size of a corpus's vocabulary, as its recipe.json states it."""
    try:
        return int(read_facts(folder)["vocab_size"])
    except (KeyError, TypeError) as error:
        raise unreadable(folder / DONE, error) from error


MAKERS: dict[type, Maker] = {
    Corpus: build_corpus,
    SpeechCorpus: build_speech,
    Distilled: build_distilled,
    EnsembleDistilled: build_distilled,
    Recipe: train_next_token,
    PairRecipe: train_next_token,
    DrafterRecipe: _train_drafter,
    SharedEncoderRecipe: _train_drafter,
    BlockwiseRecipe: train_blockwise,
    WhisperRecipe: train_whisper,
    HeadRecipe: train_zoo_heads,
}
