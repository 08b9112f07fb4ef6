"""Part 1: what the device is, which versions there are, and how fast it moves bytes."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from harness.core.checkout import commit
from harness.gpu.place import Item, Measured, Place
from kernels.verify.traffic import bandwidth, empty_launch_s

PACKAGES = ("torch", "triton", "transformers", "numpy", "msgspec", "jaxtyping", "flashinfer-python", "vllm")
SCORES = ("datasets", "evaluate", "rouge-score", "jiwer", "soundfile", "sacrebleu")  # of tasks: parts 1 to 4 need none
QUERY = ("nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader")
MEBIBYTE = 2**20


def items(place: Place) -> Sequence[Item]:
    return [
        Item(name="versions", seconds=5, measure=partial(describe, place)),
        Item(name="memory", seconds=5, measure=partial(measure_memory, place)),
    ]


def describe(place: Place) -> Measured:
    """Versions of packages and of the driver, and what the device says of itself; None where something is not there."""
    facts = {
        "device": place.name,
        "processor": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in (*PACKAGES, *SCORES)},
        "commit": commit(),
        "code": place.code,
    }
    return {"facts": facts | driver_facts() | device_facts(place.device)}


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def driver_facts() -> dict[str, str | None]:
    """What the driver's own program says; None without it."""
    names = ("driver", "clock of multiprocessors now", "clock of memory now", "power limit")
    if shutil.which(QUERY[0]) is None:
        return dict.fromkeys(names)
    done = subprocess.run(QUERY, capture_output=True, text=True, check=False, timeout=30)
    return (
        dict(zip(names, [one.strip() for one in done.stdout.splitlines()[0].split(",")], strict=False)) if done.stdout else {}
    )


def device_facts(device: str) -> dict[str, str | int | None]:
    """What CUDA says of the device; in a rehearsal the processor's threads stand for it."""
    if not device.startswith("cuda"):
        return {"threads": torch.get_num_threads(), "cuda": None}
    found = torch.cuda.get_device_properties(device)
    free, whole = torch.cuda.mem_get_info(device)
    return {
        "cuda": torch.version.cuda,
        "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "L2 cache, MiB": found.L2_cache_size // MEBIBYTE,
        "memory, MiB": whole // MEBIBYTE,
        "free memory, MiB": free // MEBIBYTE,
    }


def measure_memory(place: Place) -> Measured:
    """The bandwidth of a copy, bytes read and written, and the time of an operation on one number."""
    copied = bandwidth(place.device, place.sizes.copy_bytes)
    return {"facts": {"copy, GB/s": copied / 1e9, "empty launch, us": empty_launch_s(place.device) * 1e6}}
