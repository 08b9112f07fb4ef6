"""Triton's interpreter, which runs the kernels on a CPU: for correctness only, thousands of times slower than a device.

``TRITON_INTERPRET=1`` has to be in the environment before triton is imported, so it takes a process of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernels.inputs import InputError


def require() -> None:
    """InputError unless this process interprets."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError("backend 'triton' without CUDA: set TRITON_INTERPRET=1 in the environment, or use backend 'torch'")


def refuse() -> None:
    """InputError where this process interprets: nothing would be compiled."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET=1: kernels are interpreted and not compiled; unset it")


@contextmanager
def patched_once() -> Iterator[None]:
    """The interpreter replaces triton.language's functions anew at every call of every helper, half of its time; here once."""
    from triton.runtime import interpreter

    original, seen, done = interpreter._patch_lang, set[frozenset[int]](), set[int]()

    class Kept:
        """Stands for what a second patch would have had to undo."""

        def restore(self) -> None:
            pass

    def patch(function: Any) -> Any:
        if id(function) in done:
            return Kept()
        done.add(id(function))
        modules = (interpreter.tl, interpreter.tl.core)
        used = frozenset(id(value) for value in function.__globals__.values() if any(value is module for module in modules))
        if used in seen:
            return Kept()
        seen.add(used)
        original(function)
        return Kept()

    interpreter._patch_lang = patch
    try:
        yield
    finally:
        interpreter._patch_lang = original
