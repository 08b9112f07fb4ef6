"""The cache of trained models, outside the repository: one complete folder per hash, or none."""

import errno
import json
import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from harness.core.errors import UsageError
from harness.core.files import digest_of, replace_file
from kernels.native import cache_folder

DONE = "recipe.json"
FACTS: dict[str, type] = {  # of what recipe.json says, what is read here
    **dict.fromkeys(("num_parameters", "num_rows", "vocab_size", "num_texts"), int),
    **dict.fromkeys(("recipe", "base", "material"), dict),
    "evaluations": list,
    "weights": str,
}
NAMED = {int: "a whole number >= 0", dict: "an object", list: "a list", str: "text"}
SEAL = ".checksums.json"  # hidden: it is no part of what a folder's files hash to
FULL_OR_FORBIDDEN = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EFBIG,
}


def model_folder(name: str, digest: str) -> Path:
    return cache_folder() / f"{name}-{digest}"


def is_complete(folder: Path) -> bool:
    """UsageError for a cache that may not be looked into."""
    try:
        return stat.S_ISREG((folder / DONE).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise UsageError(
            f"cache folder {folder}: cannot be read ({error.strerror}); make it readable or set FORETOKEN_CACHE to another one"
        ) from error


def make(folder: Path, build: Callable[[Path], object]) -> None:
    """Have ``build`` fill a folder beside ``folder``, then rename it. One process at a time; another one waits and reuses.

    The partial folder of a killed process is handed to ``build`` again, which may resume from it, unless it was sealed: of one
    that was not, nothing tells whether its files are as they were written.
    """
    partial = folder.with_name(folder.name + ".partial")
    with explained(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(folder.name + ".lock")):
            if is_complete(folder):
                return
            partial.mkdir(exist_ok=True)
            if not (partial / SEAL).exists():
                (partial / DONE).unlink(missing_ok=True)
                build(partial)
                seal(partial)
            verify(partial)
            if folder.is_dir() and not folder.is_symlink():  # it has no recipe.json, so it is not whole
                shutil.rmtree(folder)
            else:
                folder.unlink(missing_ok=True)
            partial.rename(folder)


def seal(folder: Path) -> None:
    """Write down the sha256 of every file of a whole folder."""
    digests = {name: digest_of(folder / name) for name in _files_of(folder)}
    replace_file(folder / SEAL, json.dumps(digests, indent=1))


def verify(folder: Path) -> None:
    """UsageError unless the files of a sealed folder are those that were sealed. Each is read once, and again if it changes.

    Every whole folder of the cache was sealed. A user's own never is.
    """
    path = folder / SEAL
    try:
        if not os.path.lexists(path):
            if not _is_of_cache(folder):
                return
            raise ValueError(f"it has no {SEAL}, so whether its files are as they were written cannot be checked")
        digest_of(path)
        sealed = json.loads(path.read_text(encoding="utf8"))
        if not isinstance(sealed, dict):
            raise ValueError(f"{SEAL} holds no table of checksums")
        if changed := [name for name, digest in sealed.items() if digest_of(folder / name) != digest]:
            raise ValueError(f"{changed[0]} is not as it was written: its checksum differs")
        if surplus := [name for name in _files_of(folder) if name not in sealed]:
            raise ValueError(f"{surplus[0]} was not written there: it has no checksum")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise unreadable(folder, error) from error


def _is_of_cache(folder: Path) -> bool:
    """Whether it is a whole folder of the cache by its place and name, as ``model_folder`` gives them."""
    return re.fullmatch(r".+-[0-9a-f]{16}", folder.name) is not None and folder.parent.resolve() == cache_folder().resolve()


def _files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which ends with the process however it ends. Prints a line to stderr when it must wait."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process that holds {path}", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn failures to write into one line that names the folder and the remedy. Other errors pass."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in FULL_OR_FORBIDDEN:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        where = getattr(error, "filename", None) or "there"
        raise UsageError(
            f"cache folder {folder}: cannot write {where} ({reason}); free some space, remove what is in its place, or set "
            "FORETOKEN_CACHE to another folder"
        ) from error


def unreadable(path: Path, error: Exception) -> UsageError:
    """The error of a file of the cache, or of a whole folder, with the first sentence of the reason."""
    folder = path if path.is_dir() else path.parent
    reason = re.split(r"\n|\. ", str(error))[0] or type(error).__name__
    return UsageError(f"{path}: cannot be read ({reason}); delete {folder} and run the command again to rebuild it")


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the recipe.json of a complete folder; UsageError where it holds no facts, or a file is not as it was written."""
    verify(folder)
    path = folder / DONE
    try:
        facts = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not isinstance(facts, dict):
        raise unreadable(path, ValueError("expected an object"))
    for name, kind in FACTS.items():
        value: Any = facts.get(name, kind())
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise unreadable(path, ValueError(f"{name} {value!r}: expected {NAMED[kind]}"))
    return facts


@contextmanager
def quiet() -> Iterator[None]:
    """Turn progress bars and warnings of loading off, and back to what they were: what matters is checked and said by us."""
    from transformers.utils import logging  # here: it takes a second, which commands that only name models are spared

    was_on, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if was_on:
            logging.enable_progress_bar()
