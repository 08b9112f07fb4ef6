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

import torch
from tqdm import tqdm
from transformers.utils import logging

from harness.errors import UsageError
from harness.zoo.cache import DONE, is_complete, make, model_folder, unreadable
from harness.zoo.corpus import build_corpus, read_corpus
from harness.zoo.descriptions import Corpus, HeadRecipe, Recipe
from harness.zoo.recipes import CODE_VERSION, Scale, digest, recipe_for
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
    folders = {name: folder_of(recipe, source) for name, recipe in recipes.items()}
    missing = [recipe for name, recipe in recipes.items() if not is_complete(folders[name])]
    teachers = {folder_of(recipe.teacher, source): recipe.teacher for recipe in missing if recipe.teacher is not None}
    first = [teacher for folder, teacher in teachers.items() if not is_complete(folder)]
    corpora = {digest(recipe.corpus, source): recipe.corpus for recipe in missing}
    if missing:
        with quiet():
            run([(c.name, partial(_make_corpus, c, source)) for c in corpora.values() if not _is_built(c, source)], workers)
            taught = [recipe for recipe in missing if recipe.teacher is not None]
            others = {folder_of(recipe, source): recipe for recipe in (*first, *missing) if recipe.teacher is None}
            for wave in (list(others.values()), taught):
                wave.sort(key=lambda recipe: -recipe.cost)
                run([(recipe.name, partial(_make_model, recipe, source)) for recipe in wave], workers)
    return folders


def folder_of(description: Recipe | HeadRecipe | Corpus, source: str) -> Path:
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


def _is_built(corpus: Corpus, source: str) -> bool:
    return is_complete(folder_of(corpus, source))


def _make_corpus(corpus: Corpus, source: str, position: int) -> None:
    make(folder_of(corpus, source), lambda folder: build_corpus(corpus, source, folder))


def _make_model(recipe: Recipe | HeadRecipe, source: str, position: int) -> None:
    from harness.zoo.head_files import make_heads
    from harness.zoo.train import train

    corpus_folder = folder_of(recipe.corpus, source)
    if isinstance(recipe, HeadRecipe):
        base_folder = folder_of(recipe.teacher, source)
        make(folder_of(recipe, source), lambda folder: make_heads(recipe, corpus_folder, base_folder, folder, source, position))
    elif recipe.family == "ngram":
        make(folder_of(recipe, source), lambda folder: count_table(recipe, corpus_folder, folder, source))
    else:
        teacher = None if recipe.teacher is None else folder_of(recipe.teacher, source)
        make(folder_of(recipe, source), lambda folder: train(recipe, corpus_folder, folder, source, teacher, position=position))


def count_table(recipe: Recipe, corpus_folder: Path, folder: Path, source: str) -> None:
    """Count the targets of one part. T5's decoder begins with token 0: a context, but never an output."""
    rows = read_corpus(corpus_folder)
    part = [part.task for part in recipe.corpus.parts].index(recipe.table_task or "")
    start = [0] if recipe.corpus.family == "t5" else []
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
