"""Rows of data sets of the Hub: those of the tasks, at their pinned commits, and any other by its name."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tasks.base import DataError, HubFiles, Split
from tasks.sources.files import DAMAGED, Located, undecoded
from tasks.sources.source import WHOLE, Source

SHUFFLE_BUFFER = 10_000  # rows of the Hub that are shuffled together
TIMEOUT_S = 10.0
COMMIT = re.compile("[0-9a-f]{40}")


def hub_rows(files: HubFiles, split: Split, shuffle_seed: int | None) -> Iterator[Located]:
    """Yield rows in file order, or with a seed shuffled through a buffer, so that a small limit downloads little.

    DataError, in one line: the dataset is gone, gated, renamed, or out of reach.
    """
    pattern = files.train if split == "train" else files.test
    options = {"data_files": {split: pattern}, "split": split, "revision": files.revision}
    return _streamed(files.repository, f"{files.repository}@{files.revision[:12]}/{pattern}", options, shuffle_seed)


def named_rows(source: Source, split: Split, shuffle_seed: int | None) -> Iterator[Located]:
    """Yield rows of a data set by name, ``OWNER/NAME`` or ``OWNER/NAME@COMMIT``, or of a folder that ``datasets`` can load.

    The split "train" is trained on; ``source.split``, by default "test", is tested. Shuffled as in ``hub_rows``.

    Raises:
        DataError: in one line, it is gone, gated or out of reach, has no such split or configuration, or is tested on "train".
    """
    assert source.repository is not None
    tested = source.split or "test"
    if tested == WHOLE:
        raise DataError(f"split 'whole': {source.place} has splits of its own; give the name of the one to test")
    if split == "train" and tested == "train":
        raise DataError(f"split 'train': it is tested, so nothing of {source.place} is left to train on; test another one")
    chosen = "train" if split == "train" else tested
    name, _, revision = source.repository.partition("@") if not source.is_local() else (source.repository, "", "")
    options = {"name": source.config or None, "split": chosen, "revision": revision or None}
    return _streamed(name, f"{source.repository}/{chosen}", options, shuffle_seed)


@lru_cache
def commit_of(repository: str) -> str:
    """Return the commit that ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` means, asked for once a process.

    DataError if the Hub does not say.
    """
    name, _, revision = repository.partition("@")
    if COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(name, revision=revision or None, timeout=TIMEOUT_S).sha
    except _failures() as error:
        raise _unreadable(repository, error) from error
    if commit is None:
        raise DataError(f"hub {repository}: it names no commit; give one, hub:{name}@COMMIT")
    return commit


def _streamed(name: str, where: str, options: dict[str, Any], shuffle_seed: int | None) -> Iterator[Located]:
    import datasets

    number = 0
    try:
        rows = undecoded(datasets.load_dataset(name, streaming=True, **options))
        for row in rows if shuffle_seed is None else rows.shuffle(seed=shuffle_seed, buffer_size=SHUFFLE_BUFFER):
            number += 1
            yield f"{where}:row {number}", row
    except _failures() as error:
        raise _unreadable(where, error) from error


def _failures() -> tuple[type[Exception], ...]:
    """Return what the Hub's libraries raise about data sets that cannot be had, or are damaged."""
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HTTPError

    return (*DAMAGED, DatasetsError, HTTPError, RuntimeError)


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"hub {where}: {_reason(error)}; give --data a folder or 'toy' instead")


def _reason(error: Exception) -> str:
    first_line = " ".join((str(error).strip().splitlines() or [""])[0].split())
    if "gated dataset" in str(error) or type(error).__name__ == "GatedRepoError":
        return f"gated: accept its terms on the Hub and set HF_TOKEN ({first_line[:160]})"
    return f"{type(error).__name__}: {first_line[:200]}"
