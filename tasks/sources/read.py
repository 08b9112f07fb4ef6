"""Read the examples of a task from any source, split and sampled the same way everywhere.

Tasks are defined without this module, so that naming one does not import the generated world.
"""

import heapq
import itertools
from collections.abc import Iterator
from hashlib import blake2b, sha256
from pathlib import Path

from tasks.base import DataError, Dataset, Example, Split, Task
from tasks.sources.files import Located, rows_of
from tasks.sources.hub import hub_rows, named_rows
from tasks.sources.locate import Files, beside, locate
from tasks.sources.rows import plain_words
from tasks.sources.source import PARTED, WHOLE, Source
from tasks.world import TOY_ROWS

TEST_PERCENT = 15


def read_examples(task: Task, source: str, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
    """Yield ``limit`` examples drawn by ``seed``, or all in file order; a larger limit continues a smaller one.

    ``source`` is "toy" (endless without a limit), "hub", or the text of any ``Source``. Test and train share no row: where a
    source has one file only, a hash of ``dataset.group`` sends ``TEST_PERCENT`` of it to the test split (at least one group),
    unless its split is WHOLE, which leaves nothing to train on.
    Raises DataError.
    """
    dataset = task.dataset
    chosen = Source.of(source).check(dataset)
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}: expected at least 1; leave it out to take every example")
    if split not in ("train", "test"):
        raise DataError(f"split '{split}': expected 'train' or 'test'")
    if source == "toy":
        return _generated(dataset, split, limit, seed)
    if source == "hub":
        if dataset.hub is None:
            raise DataError(f"data 'hub': {dataset.name} is not on the Hub as Parquet files; give --data a folder or 'toy'")
        return _in_turn(dataset, chosen, split, limit, hub_rows(dataset.hub, split, None if limit is None else seed))
    if chosen.repository is not None:
        return _in_turn(dataset, chosen, split, limit, named_rows(chosen, split, None if limit is None else seed))
    return _from_files(dataset, chosen, split, limit, seed)


def training_pairs(task: Task, source: str, limit: int | None, seed: int) -> Iterator[tuple[str, str]]:
    """Yield (prompt, what follows it) of the training split, as ``task.training_pair`` gives them."""
    return map(task.training_pair, read_examples(task, source, "train", limit, seed))


def _in_turn(
    dataset: Dataset, source: Source, split: Split, limit: int | None, located: Iterator[Located]
) -> Iterator[Example]:
    """Yield the examples of rows that come one by one."""
    numbered = ((f"{split}-{number}", where, source.row(row, where, dataset)) for number, (where, row) in enumerate(located))
    examples = (dataset.example(row, where, row_id) for row_id, where, row in numbered)
    return itertools.islice((example for example in examples if example and _usable(dataset, split, example)), limit)


def _generated(dataset: Dataset, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
    toy_row = TOY_ROWS[dataset.toy_row] if isinstance(dataset.toy_row, str) else dataset.toy_row
    numbers = itertools.count() if limit is None else range(limit)
    rows = ((f"toy:{index}", toy_row(seed, split, index)) for index in numbers)
    return (example for where, row in rows if (example := dataset.example(row, where, where)) is not None)


def _usable(dataset: Dataset, split: Split, example: Example) -> bool:
    return split == "train" or dataset.testable(example)


def _from_files(dataset: Dataset, source: Source, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
    if source.split == WHOLE and split == "train":
        raise DataError(f"split 'whole': every row of {source.place} is tested, so none is left to train on; leave it out")
    files = locate(dataset, source)
    pooled = files.pooled and (dataset.splits_one_file or source.split == PARTED)
    if files.pooled and not pooled and split == "train":
        files = Files((), files.test)
    chosen = _split_by_hash(dataset, files, source, split) if pooled else _split_by_file(dataset, files, source, split)
    if split == "test" and source.skip:
        skipped = frozenset(source.skip)
        chosen = ((rank, example) for rank, example in chosen if example.id not in skipped)
    if limit is None:
        picked: Iterator[Example] = (example for _, example in chosen)
    else:
        picked = (item[2] for item in heapq.nsmallest(limit, _ordered(chosen, seed), key=lambda item: item[:2]))
    first = next(picked, None)
    if first is None:
        names = ", ".join(sorted({str(path) for _, path in (*files.train, *files.test)}))
        more = "more rows (one file is divided into both splits)" if pooled else f"rows of the {split} split"
        if split == "test" and not all(dataset.testable(example) for _, example in _examples(dataset, files.test, source)):
            more = "longer rows (short ones are trained on, not tested on)"
        raise DataError(f"data '{source.place}': no row for the {split} split of {dataset.name} in {names}; give {more}")
    return itertools.chain((first,), picked)


def _ordered(chosen: Iterator[tuple[int, Example]], seed: int) -> Iterator[tuple[int, bytes, Example]]:
    for number, (rank, example) in enumerate(chosen):
        yield rank, blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), example


def _examples(dataset: Dataset, ranked: tuple[tuple[int, Path], ...], source: Source) -> Iterator[tuple[int, Example]]:
    for rank, path in ranked:
        for number, (where, found) in enumerate(rows_of(path)):
            row = source.row(found, where, dataset)
            row = beside(path, row, dataset.paths) if dataset.paths else row
            example = dataset.example(row, where, f"{path.stem if path.is_file() else path.name}-{number}")
            if example is not None:
                yield rank, example


def _content(example: Example) -> bytes:
    """Hash what a row asks, as rows are known again that a model learned from."""
    return blake2b("\x1f".join(map(plain_words, example.inputs.values())).encode(), digest_size=16).digest()


def _split_by_file(dataset: Dataset, files: Files, source: Source, split: Split) -> Iterator[tuple[int, Example]]:
    """Yield the examples of a split; a training row that also stands in the test file is left out."""
    held_out = {_content(example) for _, example in _examples(dataset, files.test, source)} if split == "train" else set()
    for rank, example in _examples(dataset, files.train if split == "train" else files.test, source):
        if (source.split == WHOLE or _usable(dataset, split, example)) and _content(example) not in held_out:
            yield rank, example


def _percent(group: str) -> float:
    return int.from_bytes(sha256(group.encode()).digest()[:8]) / 2**64 * 100


def _split_by_hash(dataset: Dataset, files: Files, source: Source, split: Split) -> Iterator[tuple[int, Example]]:
    """Part one set by a hash of the group. A row whose content stands in the test split is held out whatever its group."""
    testable = (item for _, item in _examples(dataset, files.test, source) if dataset.testable(item))
    lowest = min((_percent(dataset.group(item)) for item in testable), default=0.0)
    boundary, held_out = max(float(TEST_PERCENT), lowest), set[bytes]()
    if split == "train":
        test = (item for _, item in _examples(dataset, files.test, source) if _percent(dataset.group(item)) <= boundary)
        held_out = {_content(example) for example in test}
    for rank, example in _examples(dataset, files.train, source):
        in_test = _percent(dataset.group(example)) <= boundary
        if in_test == (split == "test") and _usable(dataset, split, example) and _content(example) not in held_out:
            yield rank, example
