"""Find the files of a dataset under a path, in any accepted layout, and give their content a fingerprint."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import file_digest, sha256
from os.path import expanduser, isfile  # unlike Path's: an unknown user's ~ stays, and a name that no file can have is no file
from pathlib import Path

from tasks.base import DataError, Dataset, Row
from tasks.sources.files import ROW_FORMATS, is_saved_to_disk, rows_of, saved_splits

TOY_VERSION = "1"  # raise it when any generated row of tasks/world changes: caches are keyed with it


@dataclass(frozen=True)
class Files:
    """Files with their ranks; lower ranks are used up first. ``pooled``: both splits come from one set, parted by a hash."""

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
    """Find the files of both splits; DataError names what was looked for, and where."""
    path = Path(expanduser(source))
    if path.is_file():
        if path.suffix not in formats(dataset):
            raise DataError(
                f"data '{source}': cannot read a '{path.suffix}' file for {dataset.name}; expected {accepted(dataset)}"
            )
        return Files(() if path.stem in dataset.test_stems else ((0, path),), ((0, path),))
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
    """Find ``stem.jsonl``, or the shards ``stem-00000-of-00009.parquet`` here or in the folder of a configuration."""
    configurations = [] if dataset.hub is None else [Path(dataset.hub.test).parent]
    for ending in formats(dataset):
        names = (f"{stem}{ending}", f"{stem}-*{ending}", *(f"{one}/{stem}-*{ending}" for one in configurations))
        for pattern in names:
            if found := sorted(path for path in folder.glob(pattern) if path.is_file()):
                return found
    return []


def beside(path: Path, row: Row, names: tuple[str, ...]) -> Row:
    """Return the row with its paths resolved from the folder of the file that it stands in."""
    return {**row, **{name: str(path.parent / row[name]) for name in names if isinstance(row.get(name), str) and row[name]}}


def _named(dataset: Dataset, paths: list[Path]) -> list[Path]:
    """Return the existing files that rows of these files name."""
    if not dataset.paths:
        return []
    rows = (beside(path, row, dataset.paths) for path in dict.fromkeys(paths) for _, row in rows_of(path))
    named = dict.fromkeys(Path(row[name]) for row in rows for name in dataset.paths if isinstance(row.get(name), str))
    return [path for path in named if isfile(path)]


def _digest_of_file(path: Path) -> str:
    stat = path.stat()
    return f"{path.name}:{stat.st_size}:{_content_hash(path.absolute(), stat.st_size, stat.st_mtime_ns)}"


@lru_cache(maxsize=1024)
def _content_hash(path: Path, size: int, mtime_ns: int) -> str:
    """Hash the whole file. Size and time of change are arguments so that a changed file is read again."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def fingerprint(dataset: Dataset, source: str) -> str:
    """Hash the data (16 hex digits): the generator's version, the pinned commit, or names, order and content of the files."""
    if source == "toy":
        what = f"toy {TOY_VERSION}"
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
