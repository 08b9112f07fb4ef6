"""A call: part after part within its minutes, each in a process of its own, each item kept as soon as it is measured."""

import gc
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
import transformers.generation.utils  # noqa: F401 - parts are forked, and most of them need it

from harness.gpu import documents
from harness.gpu.apart import run_apart
from harness.gpu.documents import Document
from harness.gpu.parts import PARTS, Part
from harness.gpu.place import Item, Place

NO_TIME = "no time was left"
RETURN_S = 5.0  # kept for writing the page


class _BrokenDevice(Exception):
    """The device's context is lost: what this process does next would fail, too."""


def run(place: Place, only: Sequence[str], minutes: float) -> None:
    """Measure what is not there yet of all parts (or of ``only``), as far as the minutes reach.

    A part leaves to each one behind it the seconds without which that is not begun. What had no time then has what is left at
    the end.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes - RETURN_S
    chosen = [part for part in PARTS if not only or part.name in only]
    todo = [part for part in chosen if not documents.is_complete(documents.read(place, part.name))]
    for part in chosen:
        behind = sum(other.seconds for other in todo if PARTS.index(other) > PARTS.index(part) and other.can_run)
        left = deadline - time.monotonic()
        if part not in todo:
            _say(f"{part.name}: there already")
        elif left < part.seconds:
            _say(f"{part.name}: not begun, {max(0.0, left):.0f} s are left and it needs {part.seconds:.0f}")
        else:
            _say(f"{part.name}: {part.title} ({left:.0f} s left)")
            _forget_failures(place, part)
            _run_part(place, part, max(time.monotonic() + part.seconds, deadline - behind))
    for part in todo:
        left = deadline - time.monotonic()
        if left > part.seconds and NO_TIME in documents.read(place, part.name)["why"].values():
            _say(f"{part.name}: going on with what had no time ({left:.0f} s left)")
            _run_part(place, part, deadline)


def _forget_failures(place: Place, part: Part) -> None:
    """Let what failed in an earlier call be tried again."""
    document = documents.read(place, part.name)
    document["items"] = {name: item for name, item in document["items"].items() if "failed" not in item}
    documents.write(place, document)


def _run_part(place: Place, part: Part, deadline: float) -> None:
    """Measure a part; where an item broke the device, go on behind it in a new process.

    An item in which the process died, or which was at work at the deadline, is the last one of every later call.
    """
    while True:
        before = set(documents.read(place, part.name)["items"])
        ended = run_apart(partial(measure_part, place, part, deadline), deadline - time.monotonic())
        document = documents.read(place, part.name)
        lost = next((name for name in document["planned"] if name not in {**document["items"], **document["why"]}), None)
        if ended is None or "deadline" in ended or (lost is None and set(document["items"]) == before):
            break
        if lost is not None and set(document["items"]) == before:  # the process died in it, twice where it was not the first
            document["items"][lost] = {"seconds": 0.0, "failed": ended, "where": "its process"}
            document["last"] = [*document["last"], lost]
            documents.write(place, document)
        _say(f"{part.name}: {ended}; going on in a new process")
    if ended is not None:
        _say(f"{part.name}: {ended}")
        left = [name for name in document["planned"] if name not in {**document["items"], **document["why"]}] or [part.name]
        document["why"] |= {name: NO_TIME for name in left} | {left[0]: ended}
        document["last"] = [*document["last"], left[0]]
        documents.write(place, document)


def measure_part(place: Place, part: Part, deadline: float) -> None:
    """Measure the items of a part that are not in its file yet."""
    document = documents.read(place, part.name)
    try:
        found: Sequence[Item] = import_module(f"harness.gpu.{part.module}").items(place)
    except ModuleNotFoundError as error:
        document |= {"planned": document["planned"] or [part.name], "why": {part.name: _lacking(error)}}
        documents.write(place, document)
        return
    items = sorted(found, key=lambda item: item.name in document["last"])
    document |= {"planned": [item.name for item in items], "why": {}}
    documents.write(place, document)
    for number, item in enumerate(items, start=1):
        if item.name in document["items"]:
            continue
        if not place.is_rehearsal and deadline - time.monotonic() < item.seconds:
            document["why"][item.name] = NO_TIME
        else:
            _say(f"  [{number}/{len(items)}] {item.name}")
            _measure(item, document)
            _say(f"  [{number}/{len(items)}] {_shown(item.name, document)}")
        documents.write(place, document)
        if document["items"].get(item.name, {}).get("broke_device"):
            raise _BrokenDevice(item.name)


def _measure(item: Item, document: Document) -> None:
    """Measure one item and add it. An error is its result: it is shown, and the next call tries again."""
    start = time.monotonic()
    try:
        values: Mapping[str, Any] = item.measure()
    except ModuleNotFoundError as error:
        document["why"][item.name] = _lacking(error)
        return
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        values = {
            "failed": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}",
            "where": f"{where.filename.rpartition('/')[2]}:{where.lineno}",
            "broke_device": "CUDA error" in str(error) or type(error).__name__ == "AcceleratorError",
        }
    document["items"][item.name] = {"seconds": round(time.monotonic() - start, 2), **values}
    gc.collect()
    if torch.cuda.is_available() and not values.get("broke_device"):
        torch.cuda.empty_cache()


def _lacking(error: ModuleNotFoundError) -> str:
    return f"package {error.name} is not installed here"


def _shown(name: str, document: Document) -> str:
    item = document["items"].get(name)
    if item is None:
        return f"{name}: not measured, {document['why'][name]}"
    if "failed" in item:
        return f"{name}: FAILED, {item['failed']}"
    return f"{name}: {item['seconds']:.1f} s" + ("" if item.get("passed", True) else ", RED")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
