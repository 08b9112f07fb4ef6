"""``foretoken gpu``: everything that a GPU can tell, part by part within some minutes, or a rehearsal of it without one.

Status 1 where something failed or is red. Runs from a checkout that is not installed (``python3 -m harness gpu``), and needs
no package that what it measures does not.
"""

import argparse
import os
import re
import sys
from importlib.metadata import distributions
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.checkout import hash_code
from harness.core.errors import UsageError
from harness.core.settings import RESULTS
from harness.tables.files import write_whole

if TYPE_CHECKING:
    from harness.gpu.place import Scale

GPU = RESULTS / "gpu"
ROOMS = ("core", "zoo", "models", "measures", "run", "tables", "exact", "papers")
MEASURING = ("kernels", "methods", "tasks", *(f"harness/{room}" for room in ROOMS))
DECIDING = ("torch", "triton", "transformers")  # packages whose version decides what is measured
PARTS = (
    "environment", "kernel_checks", "properties", "kernel_times", "shapes", "times", "loops", "tables", "pipeline", "audit",
)  # fmt: skip
CODE = (*MEASURING, *(f"harness/gpu/{name}.py" for name in PARTS))
ANSWER_S = 120  # which a driver may take to begin
INTERPRET = "TRITON_INTERPRET"  # Triton reads it when it is imported


def execute(args: argparse.Namespace) -> int:
    """Measure, write the page, and say what it says."""
    scale: Scale = args.rehearse or "device"
    if scale != "device":
        os.environ[INTERPRET] = "1"
    elif os.environ.pop(INTERPRET, None) is not None:
        print(f"foretoken: note: {INTERPRET} is unset, or a device would not be used", file=sys.stderr)
    from harness.gpu import documents, page, session  # behind the environment: they import Triton
    from harness.gpu.place import Place

    device = "cpu" if scale != "device" else "cuda"
    name = f"rehearsal-{scale}" if scale != "device" else _device_name()
    kept = GPU / re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    folder = args.out or kept
    documents.refuse_strangers(folder)
    place = Place(
        device=device,
        name=name,
        scale=scale,
        code=hash_code(CODE, " ".join(_versions())),
        folder=folder,
        records=RESULTS / "runs" / f"gpu-{kept.name}",
    )
    if folder != kept:
        _take_over(kept, place.folder)
    try:
        session.run(place, args.only or (), args.minutes)
    finally:
        results = page.write_page(folder)
    if folder != kept:
        _take_over(folder, kept, replace=True)
    for row in results["goals"]:
        print(f"{row['verdict']:12s} {row['goal']}: {page.shown(row['found'])} (wanted: {row['wanted']})")
    for title in ("failed", "not reached"):
        for row in results[title]:
            print(f"{title:12s} {row['part']}, {row['item']}: {row['why']}")
    print(page.summary(results))
    print(f"written: {folder / documents.PAGE}")
    return 0 if page.is_right(results) else 1


def _versions() -> list[str]:
    return sorted({f"{one.name} {one.version}" for one in distributions() if one.name in DECIDING})


def _device_name() -> str:
    """Ask for the device's name in a process of its own: parts are forked, and the first one must not have touched CUDA.

    Raises:
        UsageError: no device is visible.
    """
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_name, args=(theirs,))
    process.start()
    theirs.close()
    if not ours.poll(ANSWER_S):
        process.kill()
        raise UsageError(f"gpu: CUDA gave no answer in {ANSWER_S} s; see that nvidia-smi answers, and call again")
    try:
        name = ours.recv()
    except EOFError:
        name = None
    process.join()
    if name is None:
        raise UsageError("gpu: no CUDA device is visible; go to a machine with one, or rehearse with --rehearse")
    return str(name)


def _name(pipe: Connection) -> None:
    import torch

    pipe.send(torch.cuda.get_device_name(0) if torch.cuda.is_available() else None)


def _take_over(source: Path, target: Path, replace: bool = False) -> None:
    """Copy the parts' files from one folder to another, where they are not there yet or are to be replaced."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*")) if source.is_dir() else []:
        if path.is_file() and (replace or not (target / path.name).exists()):
            write_whole(target / path.name, path.read_bytes())
