"""Builds what is missing from the cache, several models at once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from harness.jobs import Job, run
from harness.zoo.cache import DONE, is_complete, make, model_folder, replace_file, unreadable
from harness.zoo.corpus import Encoded, build_corpus, read_corpus
from harness.zoo.descriptions import (
    BlockwiseRecipe,
    Corpus,
    Description,
    Distilled,
    DrafterRecipe,
    HeadRecipe,
    PairRecipe,
    Recipe,
    SharedEncoderRecipe,
    teachers_of,
)
from harness.zoo.recipes import CODE_VERSION, Scale, data_of, digest, recipe_for
from harness.zoo.whisper_recipes import SpeechCorpus, WhisperRecipe
from methods.speculative.ngram import NGramTable

TABLE = "ngram.safetensors"


def ensure(names: Sequence[str], scale: Scale, source: str, seed: int = 0, workers: int | None = None) -> dict[str, Path]:
    """Folders of these zoo models, trained now if the cache lacks them.

    Args:
        names: keys of ``recipes_of(scale, source)``.
        source: where the training data comes from, as in tasks.
        workers: processes (None: one per core; 0: this one). The weights do not depend on it.

    Raises:
        UsageError: for an unknown name, a cache that cannot be written, or a training process that died.
        DataError: for data that cannot be used.
    """
    recipes = {name: recipe_for(name, scale, source, seed) for name in names}
    missing = missing_of(list(recipes.values()), source)
    with quiet():
        run({folder: job_of(one, source, missing) for folder, one in missing.items()}, workers)
    return {name: folder_of(recipe, source) for name, recipe in recipes.items()}


def missing_of(wanted: Sequence[Description], source: str) -> dict[Path, Description]:
    """What is not in the cache of these and of all that they need, each behind what it needs."""
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
    """What builds it, once those of ``missing`` that it needs are there."""
    needed = {folder_of(one, source) for one in _begins_after(description)} & missing.keys()
    cost = 0.0 if isinstance(description, Corpus) else description.cost
    return Job(f"zoo {description.name}", frozenset(needed), cost, partial(_make, description, source))


def _begins_after(description: Description) -> tuple[Description, ...]:
    """What it needs; a drafter and its verifier train at once, but the drafter's report may train the verifier."""
    own = dependencies(description)
    return (*own, *dependencies(description.verifier)) if isinstance(description, DrafterRecipe) else own


def dependencies(description: Description) -> tuple[Description, ...]:
    """What must be complete before this can be made."""
    if isinstance(description, Distilled):
        return (description.teacher.corpus, *teachers_of(description))
    if isinstance(description, Corpus):
        return ()
    begun = description.initial if isinstance(description, DrafterRecipe) else None
    frozen = description.verifier if isinstance(description, BlockwiseRecipe) else None
    return (description.corpus, *(one for one in (description.teacher, begun, frozen) if one is not None))


def folder_of(description: Description, source: str) -> Path:
    name = f"corpus-{description.name}" if isinstance(description, Corpus) else description.name
    return model_folder(name, digest(description, source))


class quiet:
    """transformers' own progress bars off, and back as they were."""

    def __enter__(self) -> None:
        self.was_on = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        if self.was_on:
            logging.enable_progress_bar()


def _make(description: Description, source: str, position: int) -> None:
    make(folder_of(description, source), lambda folder: _fill(description, source, folder, position))


def _fill(description: Description, source: str, folder: Path, position: int) -> None:
    """Build one description in a folder of its own; what it depends on is complete."""
    from harness.zoo.blockwise import make_blockwise
    from harness.zoo.distil import build_distilled
    from harness.zoo.head_files import make_heads
    from harness.zoo.pairs import train_pair
    from harness.zoo.train import train
    from harness.zoo.whisper_corpus import build_speech
    from harness.zoo.whisper_training import train_whisper

    def of(needed: Description) -> Path:
        return folder_of(needed, source)

    if isinstance(description, Distilled):
        base, teachers = of(description.teacher.corpus), [of(teacher) for teacher in teachers_of(description)]
        build_distilled(description, base, teachers, folder, source, position=position)
    elif isinstance(description, SpeechCorpus):
        build_speech(description, data_of(description, source), folder, position=position)
    elif isinstance(description, Corpus):
        build_corpus(description, source, folder)
    elif isinstance(description, HeadRecipe):
        make_heads(description, of(description.corpus), of(description.teacher), folder, source, position)
    elif isinstance(description, BlockwiseRecipe):
        make_blockwise(description, of(description.corpus), of(description.verifier), folder, source, position)
    elif isinstance(description, DrafterRecipe):
        _train_drafter(description, of(description.corpus), folder, source, position)
    elif isinstance(description, WhisperRecipe):
        trained_on = data_of(description.corpus, source)
        teacher_folder = None if description.teacher is None else of(description.teacher)
        train_whisper(description, of(description.corpus), folder, trained_on, teacher_folder, position=position)
    elif isinstance(description, PairRecipe):
        train_pair(description, of(description.corpus), folder, source, position=position)
    elif description.family == "ngram":
        count_table(description, of(description.corpus), folder, source)
    else:
        teacher_folder = None if description.teacher is None else of(description.teacher)
        train(description, of(description.corpus), folder, source, teacher_folder, position=position)


def _train_drafter(recipe: DrafterRecipe, corpus_folder: Path, folder: Path, source: str, position: int) -> None:
    """Training needs no verifier, the report does: both train at once, and the report waits (or trains it itself)."""
    from harness.zoo.against_verifier import accepted_by_verifier, read_verifier
    from harness.zoo.drafting import NextBlock, count_accepted, start_from
    from harness.zoo.pairs import train_pair

    def report(network: Any, rows: Encoded) -> dict[str, Any]:
        _make(recipe.verifier, source, position)
        verifier = read_verifier(recipe, folder_of(recipe.verifier, source))
        return accepted_by_verifier(recipe, verifier, rows, partial(count_accepted, network))

    prepare = None
    if recipe.initial is not None:
        shares = isinstance(recipe, SharedEncoderRecipe)
        prepare = partial(start_from, folder_of(recipe.initial, source), keep_encoder=shares)
    train_pair(recipe, corpus_folder, folder, source, partial(NextBlock, recipe), prepare, report, position=position)


def count_table(recipe: Recipe, corpus_folder: Path, folder: Path, source: str) -> None:
    """Count the targets of one part. T5's decoder begins with token 0: a context, but never an output."""
    rows = read_corpus(corpus_folder)
    part = [part.task for part in recipe.corpus.parts].index(recipe.table_task or "")
    start = [0] if recipe.corpus.is_encoder_decoder else []
    texts = [start + rows.row(i)[1].tolist() for i in torch.nonzero(rows.part == part).flatten().tolist()]
    table = NGramTable.count(texts, _vocab_size(corpus_folder / DONE))
    if start:
        unigram = table.unigram_counts.clone()
        unigram[start] = 0
        table = replace(table, unigram_counts=unigram)
    table.save(folder / TABLE)
    facts = {"recipe": asdict(recipe), "source": source, "code": CODE_VERSION, "num_tokens": sum(map(len, texts))}
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())


def _vocab_size(path: Path) -> int:
    """Of a corpus, as its recipe.json states it."""
    try:
        return int(json.loads(path.read_text(encoding="utf8"))["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(path, error) from error
