"""Examples of a dataset from any source, split and sampled the same way everywhere."""

import heapq
import itertools
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b, file_digest, sha256
from os.path import isfile  # unlike Path's it answers for names that no file can have
from pathlib import Path

from tasks.base import Example, Split
from tasks.errors import DataError
from tasks.sources.dataset import Dataset, Row
from tasks.sources.files import rows_of
from tasks.sources.hub import hub_rows
from tasks.sources.locate import Files, locate
from tasks.world import GENERATOR_VERSION

TEST_PERCENT = 15


def read_examples(dataset: Dataset, source: str, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
    """``limit`` examples drawn by ``seed``, or all in file order; a larger limit continues a smaller one.

    Toy rows are endless without a limit. Where a source has one file only, a hash of ``dataset.group`` sends
    ``TEST_PERCENT`` of it to the test split (at least one group).
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}: expected at least 1; leave it out to take every example")
    if split not in ("train", "test"):
        raise DataError(f"split '{split}': expected 'train' or 'test'")
    if source == "toy":
        numbers = itertools.count() if limit is None else range(limit)
        rows = ((f"toy:{index}", dataset.toy_row(seed, split, index)) for index in numbers)
        return (example for where, row in rows if (example := dataset.example(row, where, where)) is not None)
    if source == "hub":
        if dataset.hub is None:
            raise DataError(f"data 'hub': {dataset.name} is not on the Hub as Parquet files; give --data a folder or 'toy'")
        located = hub_rows(dataset.hub, split, None if limit is None else seed)
        numbered = ((f"{split}-{number}", *row) for number, row in enumerate(located))
        examples = (dataset.example(row, where, row_id) for row_id, where, row in numbered)
        return itertools.islice((example for example in examples if example and _usable(dataset, split, example)), limit)
    return _from_files(dataset, source, split, limit, seed)


def _usable(dataset: Dataset, split: Split, example: Example) -> bool:
    return split == "train" or dataset.testable(example)


def _from_files(dataset: Dataset, source: str, split: Split, limit: int | None, seed: int) -> Iterator[Example]:
    files = locate(dataset, source)
    pooled = files.pooled and dataset.splits_one_file
    if files.pooled and not pooled and split == "train":
        files = Files((), files.test)
    chosen = _split_by_hash(dataset, files, split) if pooled else _split_by_file(dataset, files, split)
    if limit is None:
        picked: Iterator[Example] = (example for _, example in chosen)
    else:
        picked = (item[2] for item in heapq.nsmallest(limit, _ordered(chosen, seed), key=lambda item: item[:2]))
    first = next(picked, None)
    if first is None:
        names = ", ".join(sorted({str(path) for _, path in (*files.train, *files.test)}))
        raise DataError(
            f"data '{source}': no row for the {split} split of {dataset.name} in {names}; give more rows or both splits"
        )
    return itertools.chain((first,), picked)


def _ordered(chosen: Iterator[tuple[int, Example]], seed: int) -> Iterator[tuple[int, bytes, Example]]:
    for number, (rank, example) in enumerate(chosen):
        yield rank, blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), example


def _examples(dataset: Dataset, ranked: tuple[tuple[int, Path], ...]) -> Iterator[tuple[int, Example]]:
    for rank, path in ranked:
        for number, (where, row) in enumerate(rows_of(path)):
            row = _beside(path, row, dataset.paths) if dataset.paths else row
            example = dataset.example(row, where, f"{path.stem if path.is_file() else path.name}-{number}")
            if example is not None:
                yield rank, example


def _beside(path: Path, row: Row, names: tuple[str, ...]) -> Row:
    """A row whose paths begin at the folder of the file that it stands in."""
    return {**row, **{name: str(path.parent / row[name]) for name in names if isinstance(row.get(name), str) and row[name]}}


def _content(example: Example) -> bytes:
    return blake2b("\x1f".join(example.inputs.values()).encode(), digest_size=16).digest()


def _split_by_file(dataset: Dataset, files: Files, split: Split) -> Iterator[tuple[int, Example]]:
    """Train rows that also stand in the test file are left out."""
    held_out = {_content(example) for _, example in _examples(dataset, files.test)} if split == "train" else set()
    for rank, example in _examples(dataset, files.train if split == "train" else files.test):
        if _usable(dataset, split, example) and _content(example) not in held_out:
            yield rank, example


def _percent(group: str) -> float:
    return int.from_bytes(sha256(group.encode()).digest()[:8]) / 2**64 * 100


def _split_by_hash(dataset: Dataset, files: Files, split: Split) -> Iterator[tuple[int, Example]]:
    """A row is held out with its group and, whatever its group, if its content stands in the test split."""
    testable = (item for _, item in _examples(dataset, files.test) if dataset.testable(item))
    lowest = min((_percent(dataset.group(item)) for item in testable), default=0.0)
    boundary, held_out = max(float(TEST_PERCENT), lowest), set[bytes]()
    if split == "train":
        test = (item for _, item in _examples(dataset, files.test) if _percent(dataset.group(item)) <= boundary)
        held_out = {_content(example) for example in test}
    for rank, example in _examples(dataset, files.train):
        in_test = _percent(dataset.group(example)) <= boundary
        if in_test == (split == "test") and _usable(dataset, split, example) and _content(example) not in held_out:
            yield rank, example


def _named(dataset: Dataset, paths: list[Path]) -> list[Path]:
    """The files that rows of these files name, as far as they are there."""
    if not dataset.paths:
        return []
    rows = (_beside(path, row, dataset.paths) for path in dict.fromkeys(paths) for _, row in rows_of(path))
    named = dict.fromkeys(Path(row[name]) for row in rows for name in dataset.paths if isinstance(row.get(name), str))
    return [path for path in named if isfile(path)]


def _digest_of_file(path: Path) -> str:
    stat = path.stat()
    return f"{path.name}:{stat.st_size}:{_content_hash(path.absolute(), stat.st_size, stat.st_mtime_ns)}"


@lru_cache(maxsize=1024)
def _content_hash(path: Path, size: int, mtime_ns: int) -> str:
    """Of the whole file; size and time of change are there so that a file is read again once it has changed."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def fingerprint_of(dataset: Dataset, source: str) -> str:
    """16 hex digits that change with the data: generator version, pinned commit, or names, order and content of the files."""
    if source == "toy":
        what = f"toy {GENERATOR_VERSION}"
    elif source == "hub":
        what = repr(dataset.hub)
    else:
        files = locate(dataset, source)
        paths = [path for _, path in (*files.train, *files.test)]
        paths += _named(dataset, paths)
        inside = [sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path] for path in paths]
        ranks = " ".join(str(rank) for rank, _ in files.train)
        what = "\n".join((ranks, *(_digest_of_file(path) for group in inside for path in group)))
    return sha256(f"{dataset.name}\n{what}".encode()).hexdigest()[:16]
