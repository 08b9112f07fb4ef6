"""Who makes the products of rows and weights on this machine: measured once, kept in the cache, and told in every environment.

FORETOKEN_PRODUCTS fixes it by name: ``torch``, or ``compiled`` for every weight. The choice does not change what a model says
but for rounding; a record's environment names it, so that records made with another one are not taken for the same.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from harness.core.errors import UsageError
from harness.core.files import made, parsed, plain, readable, regular, replace_file, short_hash, written
from kernels import native
from kernels.native import cache_folder
from kernels.products.matrix import ANY_ROWS, COMPILED, SOURCE, TORCH, Choice, choose, measured_times

VARIABLE = "FORETOKEN_PRODUCTS"
LARGEST = 2**40  # numbers in a weight; none is larger
NAMES = ("measured", "torch", "compiled")


def choice() -> Choice:
    """Return what the environment variable says, or what was measured on this machine, in a moment or long ago.

    Raises:
        UsageError: another name than those of ``NAMES``; a choice in the cache that cannot be read.
    """
    name = os.environ.get(VARIABLE) or "measured"
    if name not in NAMES:
        raise UsageError(f"{VARIABLE} {name!r}: expected one of {', '.join(NAMES)}")
    if name == "torch" or native.library(SOURCE) is None:
        if name == "compiled":
            raise UsageError(f"{VARIABLE} 'compiled': nothing could be compiled here; install a C++ compiler, or use torch")
        return TORCH
    return COMPILED if name == "compiled" else _measured(cache_folder())


@lru_cache(maxsize=4)
def _measured(folder: Path) -> Choice:
    """Return the choice kept in the cache; measure it first where there is none for this library and torch."""
    library = native.library(SOURCE)
    assert library is not None
    identity = short_hash(f"{library._name} {torch.__version__}")
    path = folder / f"products-{identity}.json"
    try:
        if not path.exists():
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():
                    times = measured_times()
                    assert times is not None
                    replace_file(path, written(choose(times)))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; free some space, or set {VARIABLE} to torch") from error
    with readable(str(path), "delete it, and the choice is measured anew"):
        regular(path)
        return _checked(parsed(path.read_bytes()))


def _checked(values: Any) -> Choice:
    """Return the choice that JSON holds; ValueError for one that no measuring gives."""
    found = made(Choice, values)
    is_measured = found.rounding is None and 0 <= found.least_size <= LARGEST and 0 <= found.most_rows <= ANY_ROWS
    if not is_measured or plain(found) != values:  # of fields that it lacks a choice has others
        raise ValueError(f"{values}: no choice that is measured")
    return found
