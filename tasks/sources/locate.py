"""Find the files of a dataset under a path, in any accepted layout, and give their content a fingerprint."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import file_digest, sha256
from os.path import expanduser, isfile  # unlike Path's: an unknown user's ~ stays, and a name that no file can have is no file
from pathlib import Path

from tasks.base import DataError, Dataset, Row
from tasks.sources.files import ROW_FORMATS, is_saved_to_disk, rows_of, saved_splits
from tasks.sources.hub import commit_of
from tasks.sources.source import OWN, PARTED, WHOLE, Source

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


def locate(dataset: Dataset, source: Source) -> Files:
    """Find the files of both splits; DataError names what was looked for, and where."""
    path, split = Path(expanduser(source.place)), source.split
    if path.is_file():
        if path.suffix not in formats(dataset):
            raise DataError(
                f"data '{source.place}': cannot read a '{path.suffix}' file for {dataset.name}; expected {accepted(dataset)}"
            )
        found = Files(() if path.stem in dataset.test_stems else ((0, path),), ((0, path),))
    elif path.is_dir():
        folder = next((path / name for name in dataset.folders if (path / name).is_dir()), path)
        named = "" if split in (WHOLE, PARTED) else split
        found = _saved(dataset, folder, named) if is_saved_to_disk(folder) else _in_folder(dataset, folder, named)
    else:
        raise DataError(f"data '{source.place}': no such file or folder; expected 'toy', 'hub', or {accepted(dataset)}")
    if split == WHOLE:
        return _undivided(found, source.place)
    if split not in ("", "test", PARTED) and path.is_file():
        raise DataError(f"split '{split}': {source.place} is one file; expected whole or test")
    return found


@dataclass(frozen=True)
class Contents:
    """The sha256 of every file of rows that is trained on, and of every one that is tested.

    ``undivided``: both are the same files, whose rows are parted by a hash.
    """

    train: frozenset[str]
    test: frozenset[str]
    undivided: bool


def contents(dataset: Dataset, source: Source) -> Contents | None:
    """Read the files of a source, whatever they are called and wherever they lie; None where it has none on this machine."""
    if source.place in OWN or source.repository is not None:
        return None
    found = locate(dataset, source)
    train, test = (
        frozenset(_sha256(file) for _, path in ranked for file in _row_files(path)) for ranked in (found.train, found.test)
    )
    return Contents(train, test, found.pooled)


def _row_files(path: Path) -> list[Path]:
    """Return a file, or the files of rows in a folder of ``save_to_disk``, whose others may be alike in any data set."""
    return sorted(path.rglob("*.arrow")) if path.is_dir() else [path]


def is_undivided(dataset: Dataset, source: Source) -> bool:
    """Say whether data have no training rows of their own: one file, or a folder with one set of rows."""
    found = locate(dataset, source)
    return found.pooled or not found.train


def _undivided(found: Files, place: str) -> Files:
    if found.train and not found.pooled:
        raise DataError(f"split 'whole': {place} has training rows of its own; leave it out, or name the split to test")
    return Files((), found.test)


def _pair(dataset: Dataset, folder: Path, train: list[tuple[int, Path]], test: list[tuple[int, Path]]) -> Files:
    if not train and not test:
        raise DataError(f"data '{folder}': nothing for {dataset.name} here; expected {accepted(dataset)}")
    return Files(tuple(train or test), tuple(test or train))


def _of_split(folder: Path, split: str, train: list[tuple[int, Path]], test: list[tuple[int, Path]]) -> Files:
    """Pair the files of a split that was named with those that are left to be trained on."""
    if not test:
        raise DataError(f"split '{split}': {folder} has no such rows; expected the name of one of its splits, without ending")
    tested = {path for _, path in test}
    return Files(tuple((rank, path) for rank, path in train if path not in tested), tuple(test))


def _saved(dataset: Dataset, folder: Path, split: str) -> Files:
    splits = {path.name: path for path in saved_splits(folder)}
    alone = folder.name in splits and splits[folder.name] == folder
    train = [(0, splits["train"])] if "train" in splits and not alone else []
    if split and not (alone and split == "test"):
        return _of_split(folder, split, train, [(0, splits[split])] if split in splits and not alone else [])
    if alone:
        return Files(((0, folder),), ((0, folder),))
    return _pair(dataset, folder, train, [(0, splits[name]) for name in dataset.test_stems if name in splits][:1])


def _in_folder(dataset: Dataset, folder: Path, split: str) -> Files:
    stems = (split,) if split else dataset.test_stems
    tested = next((found for stem in stems if (found := _matches(dataset, folder, stem))), [])
    train = dict[Path, int]()
    for rank, stem in enumerate(dataset.train_stems):
        for path in _matches(dataset, folder, stem):
            train.setdefault(path, rank)
    ranked = [(rank, path) for path, rank in train.items()]
    test = [(0, path) for path in tested]
    return _of_split(folder, split, ranked, test) if split else _pair(dataset, folder, ranked, test)


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


def _named(dataset: Dataset, paths: list[Path], source: Source) -> list[Path]:
    """Return the existing files that rows of these files name."""
    if not dataset.paths:
        return []
    located = ((path, *found) for path in dict.fromkeys(paths) for found in rows_of(path))
    rows = (beside(path, source.row(row, where, dataset), dataset.paths) for path, where, row in located)
    named = dict.fromkeys(Path(row[name]) for row in rows for name in dataset.paths if isinstance(row.get(name), str))
    return [path for path in named if isfile(path)]


def _digest_of_file(path: Path) -> str:
    return f"{path.name}:{path.stat().st_size}:{_sha256(path)}"


def _sha256(path: Path) -> str:
    found = path.stat()
    return _content_hash(path.absolute(), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1024)
def _content_hash(path: Path, size: int, mtime_ns: int) -> str:
    """Hash the whole file. Size and time of change are arguments so that a changed file is read again."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def fingerprint(dataset: Dataset, source: str) -> str:
    """Hash the data (16 hex digits): the generator's version, the commit, or names, order and content of the files.

    Of what is read in another way than usual (``Source.options``), that too.
    """
    chosen = Source.of(source).check(dataset)
    if source == "toy":
        what = f"toy {TOY_VERSION}"
    elif source == "hub":
        what = repr(dataset.hub)
    elif chosen.repository is not None and not chosen.is_local():
        what = f"{chosen.repository.partition('@')[0]} {commit_of(chosen.repository)}"
    else:
        what = _digest(dataset, chosen)
    told = f"\n{chosen.options}" if chosen.options else ""
    return sha256(f"{dataset.name}\n{what}{told}".encode()).hexdigest()[:16]


def _digest(dataset: Dataset, source: Source) -> str:
    if source.repository is not None:
        ranks, paths = "", [Path(source.repository)]
    else:
        files = locate(dataset, source)
        paths = [path for _, path in (*files.train, *files.test)]
        paths += _named(dataset, paths, source)
        ranks = " ".join(str(rank) for rank, _ in files.train)
    inside = [sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path] for path in paths]
    return "\n".join((ranks, *(_digest_of_file(path) for group in inside for path in group)))
