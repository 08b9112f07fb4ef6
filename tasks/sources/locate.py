"""Finds the files of a dataset under a path, in any of the layouts that are accepted."""

from dataclasses import dataclass
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path

from tasks.errors import DataError
from tasks.sources.dataset import Dataset
from tasks.sources.files import ROW_FORMATS, is_saved_to_disk, saved_splits


@dataclass(frozen=True)
class Files:
    """``train`` and ``test`` pair each file with its rank (lower ranks are used up first). Pooled: one set, split by a hash."""

    train: tuple[tuple[int, Path], ...]
    test: tuple[tuple[int, Path], ...]

    @property
    def pooled(self) -> bool:
        return self.train == self.test


def formats(dataset: Dataset) -> tuple[str, ...]:
    return (*ROW_FORMATS, *[".txt"] * dataset.reads_text_files, *[".json"] * dataset.reads_json_arrays)


def accepted(dataset: Dataset) -> str:
    endings = "|".join(ending[1:] for ending in formats(dataset))
    names = " or ".join(f"{stem}.({endings})" for stem in (*dataset.test_stems[:2], *dataset.train_stems[:1]))
    where = f"{dataset.folders[0]}/" if dataset.folders else ""
    return f"a folder with {where}{names}, a save_to_disk folder, or one file ({endings})"


def locate(dataset: Dataset, source: str) -> Files:
    """Raises DataError that names what was looked for, and where."""
    path = Path(expanduser(source))
    if path.is_file():
        if path.suffix not in formats(dataset):
            raise DataError(
                f"data '{source}': cannot read a '{path.suffix}' file for {dataset.name}; expected {accepted(dataset)}"
            )
        return Files(((0, path),), ((0, path),))
    if not path.is_dir():
        raise DataError(f"data '{source}': no such file or folder; expected 'toy', 'hub', or {accepted(dataset)}")
    folder = next((path / name for name in dataset.folders if (path / name).is_dir()), path)
    return _saved(dataset, folder) if is_saved_to_disk(folder) else _in_folder(dataset, folder)


def _pair(dataset: Dataset, folder: Path, train: list[tuple[int, Path]], test: list[tuple[int, Path]]) -> Files:
    if not train and not test:
        raise DataError(f"data '{folder}': nothing for {dataset.name} here; expected {accepted(dataset)}")
    return Files(tuple(train or test), tuple(test or train))


def _saved(dataset: Dataset, folder: Path) -> Files:
    splits = {path.name: path for path in saved_splits(folder)}
    if folder.name in splits and splits[folder.name] == folder:
        return Files(((0, folder),), ((0, folder),))
    test = [(0, splits[name]) for name in dataset.test_stems if name in splits][:1]
    return _pair(dataset, folder, [(0, splits["train"])] if "train" in splits else [], test)


def _in_folder(dataset: Dataset, folder: Path) -> Files:
    test = next((found for stem in dataset.test_stems if (found := _matches(dataset, folder, stem))), [])
    train = dict[Path, int]()
    for rank, stem in enumerate(dataset.train_stems):
        for path in _matches(dataset, folder, stem):
            train.setdefault(path, rank)
    return _pair(dataset, folder, [(rank, path) for path, rank in train.items()], [(0, path) for path in test])


def _matches(dataset: Dataset, folder: Path, stem: str) -> list[Path]:
    """``stem.jsonl``, or the shards ``stem-00000-of-00009.parquet`` here or in the folder of a configuration."""
    configurations = [] if dataset.hub is None else [Path(dataset.hub.test).parent]
    for ending in formats(dataset):
        names = (f"{stem}{ending}", f"{stem}-*{ending}", *(f"{one}/{stem}-*{ending}" for one in configurations))
        for pattern in names:
            if found := sorted(path for path in folder.glob(pattern) if path.is_file()):
                return found
    return []
