"""Describe where numbers are made: versions, processor, device, commit. Every record carries the hash of such a description."""

import hashlib
import json
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from harness.core import products
from kernels.verify import fused
from methods.cores import num_cores

ROOT = Path(__file__).resolve().parents[2]  # of the checkout
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "sacrebleu", "rouge-score", "numpy")


@lru_cache(maxsize=4)
def describe(device: str = "cpu") -> dict[str, str | int]:
    """Return a flat description; a value that cannot be known is the string "unknown"."""
    facts: dict[str, str | int] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "products of few rows": str(products.choice()),
        "fused rule": fused.decided_by(),
        "commit": commit(),
        **{name: _version(name) for name in PACKAGES},
    }
    if device.startswith("cuda") and torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda or "unknown"}
    return facts


def fingerprint(facts: dict[str, str | int]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def commit(root: Path = ROOT) -> str:
    """Return the checkout's commit, with "+changes" where product files differ from it; "unknown" outside a checkout."""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    dirty = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "harness", "methods", "kernels", "tasks")
    return f"{head}+changes" if dirty else head


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
