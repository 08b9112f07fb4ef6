"""The files of models that are on this machine: where a name leads, what they hash to, and how many weights they hold."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path

from safetensors import SafetensorError, safe_open

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.zoo.cache import is_complete, model_folder, unreadable
from harness.zoo.recipes import ZOO
from methods.options import BLOCKWISE_HEADS, EARLY_HEADS, NGRAM_TABLE


def local_folder(name: str) -> Path | None:
    """The folder that a name means, or None for a Hub id. UsageError for a path that is no model's folder."""
    path = Path(expanduser(name))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"model folder {path}: it has no config.json; expected a folder written by save_pretrained")
        return path
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"model {name!r}: no such folder; expected a folder with config.json, a Hub id, or zoo:NAME")
    return None


def ngram_file(name: str) -> Path | None:
    """The file of counted n-grams that a local name means: a .safetensors file, or a folder's. None for other names."""
    path = Path(expanduser(name))
    if path.is_file():
        return path if path.suffix == ".safetensors" else None
    return path / NGRAM_TABLE if (path / NGRAM_TABLE).is_file() else None


def heads_file(name: str) -> Path | None:
    """The file of trained heads, early or blockwise, in a local folder; None for other names."""
    files = (Path(expanduser(name)) / file for file in (EARLY_HEADS, BLOCKWISE_HEADS))
    return next((file for file in files if file.is_file()), None)


def zoo_model_folder(spec: ModelSpec) -> Path:
    """Return the folder of a pinned zoo model in the cache; UsageError if it is not there."""
    name = spec.name.removeprefix(ZOO)
    if spec.revision is None:
        raise UsageError(f"model {spec.name}: its revision is not known; expected a model that pin_model has completed")
    folder = model_folder(name, spec.revision)
    if not is_complete(folder):
        raise UsageError(f"model {spec.name}: {folder} does not exist; train it with `foretoken zoo {name}`")
    return folder


def model_path(spec: ModelSpec) -> str:
    """The argument of from_pretrained: a folder or a Hub id. Of counted n-grams: their file, or their folder of the zoo."""
    if spec.name.startswith(ZOO):
        return str(zoo_model_folder(spec))
    if (file := ngram_file(spec.name)) is not None:
        return str(file)
    folder = local_folder(spec.name)
    return spec.name if folder is None else str(folder)


def folder_hash(folder: Path) -> str:
    """sha256 (16 digits) over the names, sizes and contents of a folder's files; hidden files and folders are left out."""
    return files_hash(sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")))


def files_hash(files: Sequence[Path]) -> str:
    """sha256 (16 digits) over the names, sizes and contents of files."""
    stats = [path.stat() for path in files]
    return _hash_files(tuple(zip(files, (s.st_size for s in stats), (s.st_mtime_ns for s in stats), strict=True)))


@lru_cache(maxsize=64)
def _hash_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for path, size, _ in files:
        with path.open("rb") as file:
            whole.update(f"{path.name} {size} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def num_weights(folder: Path) -> int | None:
    """Count the weights in a folder's safetensors files by their headers; None where there are no such files."""
    return sum(_num_weights(path) for path in sorted(folder.glob("*.safetensors"))) or None


def _num_weights(path: Path) -> int:
    try:
        with safe_open(path, "pt") as file:
            return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from error
