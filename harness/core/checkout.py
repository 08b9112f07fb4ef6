"""The checkout that this code is: its folder, and its commit. Imports nothing heavy."""

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHANGED = "+changes"  # behind the commit of a checkout whose product files differ from it


def commit(root: Path = ROOT) -> str:
    """Return the checkout's commit, with "+changes" where product files differ from it; "unknown" outside a checkout."""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    dirty = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "harness", "methods", "kernels", "tasks")
    return f"{head}{CHANGED}" if dirty else head


def hash_code(places: Iterable[str], more: str = "", root: Path = ROOT) -> str:
    """Hash the sources (Python and C++) in folders and files of the checkout, and whatever else decides what they do."""
    digest = hashlib.sha256(more.encode())
    for part in places:
        place = root / part
        for path in sorted(place.rglob("*.*")) if place.is_dir() else [place]:
            if path.suffix in (".py", ".cpp", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def is_clean(commit: str) -> bool:
    """Say whether what was made at this commit can be made again from it."""
    return commit != "unknown" and not commit.endswith(CHANGED)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
