"""Builds what is missing from the cache, several models at once in processes of their own."""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers.utils import logging

from harness.errors import UsageError
from harness.zoo.cache import DONE, is_complete, make, model_folder, unreadable
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
    teachers_of,
)
from harness.zoo.recipes import CODE_VERSION, Scale, data_of, digest, recipe_for
from harness.zoo.whisper_recipes import SpeechCorpus, WhisperRecipe
from methods.errors import InputError
from methods.speculative.ngram import NGramTable
from tasks.errors import DataError

TABLE = "ngram.safetensors"
EXPECTED = (UsageError, DataError, InputError)  # errors whose message is meant for the user as it is
Job = Callable[[int], None]


def ensure(names: Sequence[str], scale: Scale, source: str, seed: int = 0, workers: int | None = None) -> dict[str, Path]:
    """Folders of these zoo models, trained now if the cache lacks them.

    Args:
        names: keys of ``RECIPES[scale]``.
        source: where the training data comes from, as in tasks.
        workers: processes (None: one per core; 0: this one). The weights do not depend on it.

    Raises:
        UsageError: for an unknown name, a cache that cannot be written, or a training process that died.
        DataError: for data that cannot be used.
    """
    recipes = {name: recipe_for(name, scale, seed) for name in names}
    with quiet():
        for wave in waves(list(recipes.values()), source):
            run([(one.name, partial(_make, one, source)) for one in wave], workers)
    return {name: folder_of(recipe, source) for name, recipe in recipes.items()}


def waves(wanted: Sequence[Description], source: str) -> list[list[Description]]:
    """What is missing, dependencies first: nothing needs a member of its own wave. The longest of a wave begins first."""
    found: dict[Path, tuple[int, Description]] = {}

    def level(description: Description) -> int:
        folder = folder_of(description, source)
        if folder in found:
            return found[folder][0]
        if is_complete(folder):
            return 0
        depth = 1 + max(map(level, dependencies(description)), default=0)
        if isinstance(description, DrafterRecipe):
            depth = max(depth, level(description.verifier))  # both train at once; the drafter's report may train its verifier
        found[folder] = (depth, description)
        return found[folder][0]

    for description in wanted:
        level(description)
    last = max((depth for depth, _ in found.values()), default=0)
    ordered = [[one for depth, one in found.values() if depth == number] for number in range(1, last + 1)]
    return [sorted(wave, key=lambda one: 0.0 if isinstance(one, Corpus) else -one.cost) for wave in ordered]


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


def run(jobs: Sequence[tuple[str, Job]], workers: int | None = None) -> None:
    """Do all jobs. One that fails raises here, with its own message, and stops the others."""
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers == 0:
        for _, job in jobs:
            job(0)
    elif jobs:
        _run_in_processes(jobs, min(workers, len(jobs)))


def _run_in_processes(jobs: Sequence[tuple[str, Job]], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    lock = context.RLock()
    tqdm.set_lock(lock)
    with ProcessPoolExecutor(workers, context, _start_worker, (lock,)) as pool:
        futures = {pool.submit(job, index): name for index, (name, job) in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                _raise_failure(futures[future], future.exception())
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _raise_failure(name: str, error: BaseException | None) -> None:
    if isinstance(error, EXPECTED):
        raise error
    if isinstance(error, BrokenProcessPool):
        raise UsageError(
            f"zoo {name}: its process was killed (out of memory?); run the command again, it resumes from the last checkpoint"
        ) from error
    if error is not None:
        raise RuntimeError(f"zoo {name}: {type(error).__name__}: {error}") from error


def _start_worker(lock: object) -> None:
    """One thread a process; and no process outlives the one that started it."""
    torch.set_num_threads(1)
    tqdm.set_lock(lock)
    logging.disable_progress_bar()
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


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
    from harness.zoo.drafting import NextBlock, accepted_by_verifier, start_from
    from harness.zoo.pairs import train_pair

    def report(network: Any, rows: Encoded) -> dict[str, Any]:
        _make(recipe.verifier, source, position)
        return accepted_by_verifier(recipe, folder_of(recipe.verifier, source), network, rows)

    prepare = None if recipe.initial is None else partial(start_from, folder_of(recipe.initial, source))
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
    (folder / DONE).write_text(json.dumps(facts, indent=1), encoding="utf8")


def _vocab_size(path: Path) -> int:
    """Of a corpus, as its recipe.json states it."""
    try:
        return int(json.loads(path.read_text(encoding="utf8"))["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(path, error) from error
