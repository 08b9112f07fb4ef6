"""Compile a C++ source once a machine, with the compiler that is at hand, and load it. Without a compiler there is no library.

A library lies in the cache under the hash of its sources, the flags, the compiler and the processor, beside the SHA-256 of its
name and bytes: one that does not match (torn, damaged, another's) is compiled again. Where torch was imported before it shares
torch's threads.
"""

import ctypes
import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

ALWAYS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-trapping-math", "-fno-math-errno")
# Tried in this order: not every compiler has OpenMP, knows its own processor, or can be told a width of vectors.
NATIVE, THREADS, VECTORS = "-march=native", "-fopenmp", "-fopenmp-simd"
FLAGS = ((NATIVE, "-mprefer-vector-width=512", THREADS), (NATIVE, THREADS), (NATIVE, VECTORS), (NATIVE,), ())
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_S = 300.0
INTERRUPTED = ("Killed", "signal terminated program", "No space left")  # of what the compiler started, as it says
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def cache_folder() -> Path:
    """$FORETOKEN_CACHE, or ~/.cache/foretoken: what this machine made and can make again. Looked up at every call."""
    return Path(os.path.expanduser(os.environ.get("FORETOKEN_CACHE") or "~/.cache/foretoken"))


@lru_cache(maxsize=8)
def library(source: Path) -> ctypes.CDLL | None:
    """Return the compiled source, or None where FORETOKEN_NATIVE is 0 or nothing could be compiled, which is said on stderr."""
    if os.environ.get("FORETOKEN_NATIVE") == "0":
        return None
    compiler = _compiler()
    if compiler is None:
        _note(source, f"no C++ compiler found ($CXX, {', '.join(COMPILERS)})")
        return None
    code = b"\0".join(path.read_bytes() for path in sources(source))
    name = _digest(code, repr((source.stem, ALWAYS, FLAGS, _identity(compiler), _processor())).encode())[:16]
    path = cache_folder() / f"native-{source.stem}-{name}.so"
    try:
        if not _is_whole(path):  # looked at before anything is written: the cache may be one that this user only reads
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                if not _is_whole(path):
                    _compile(compiler, source, path)
        return ctypes.CDLL(str(path.resolve()))  # a name without a folder would be looked for among the system's libraries
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        told = [line for line in lines if "error" in line.lower()] or lines  # before it stands what includes what
        _note(source, told[0] if told else type(error).__name__)
        return None


def sources(source: Path) -> list[Path]:
    """Return a source and the headers of this project that it includes, one after another."""
    found = [source.resolve()]
    for path in found:  # grows on the way
        named = INCLUDE.findall(path.read_text(encoding="utf8"))
        found += [header for name in named if (header := (path.parent / name).resolve()) not in found]
    return found


def _note(source: Path, reason: str) -> None:
    print(f"foretoken: note: {source.name} is not compiled, torch's operations stand in: {reason}", file=sys.stderr)


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), *COMPILERS)
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _compile(compiler: str, source: Path, path: Path) -> None:
    """Write the library, then its checksum, each as a whole; raises CalledProcessError with what the compiler said last.

    A compiler that was killed, or had no room, says nothing of its flags: what weaker ones make would be kept for ever.
    """
    partial = path.with_suffix(".partial")
    for flags in FLAGS:
        command = [compiler, *ALWAYS, *flags, str(source), "-o", str(partial)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode == 0 or done.returncode < 0 or any(sign in done.stderr for sign in INTERRUPTED):
            break
    done.check_returncode()
    if THREADS not in flags:
        slow = "is compiled without OpenMP, so that its passes take one thread"
        print(f"foretoken: note: {source.name} {slow}; install it (libomp) and delete {path}", file=sys.stderr)
    checksum = _digest(path.name.encode(), partial.read_bytes())
    partial.replace(path)
    partial.write_text(checksum, encoding="ascii")
    partial.replace(path.with_suffix(".sha256"))


def _is_whole(path: Path) -> bool:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no regular file", str(path))
    try:
        return _digest(path.name.encode(), path.read_bytes()) == path.with_suffix(".sha256").read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _identity(compiler: str) -> tuple[str, int, int]:
    """Where a compiler lies, its size and when it was written: to ask it for its version takes longer."""
    status = os.stat(compiler)
    return os.path.realpath(compiler), status.st_size, status.st_mtime_ns


def _processor() -> str:
    """What the processor can do, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
