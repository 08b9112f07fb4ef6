"""Describe where numbers are made: versions, processor, device, commit. Every record carries the hash of such a description."""

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from harness.core import products
from harness.core.checkout import commit
from kernels.verify import fused
from methods.cores import num_cores

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
