"""Part 3: how long the kernels take on the device, ours and transformers' function, captured in CUDA graphs and launched.

Beside each time stand the bytes that the call moves, their share of the measured bandwidth of a copy (above 1 where the
device's cache holds the rows), and how much it launches.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.gpu.place import Item, Measured, Place
from harness.measures.statistics import median
from harness.run.instruments import num_waits
from harness.run.kernels import (
    BASELINE,
    TRANSFORMERS,
    Setting,
    calls_for,
    launched,
    make_rounds,
    time_on_device,
)
from kernels.verify.registry import KERNELS
from kernels.verify.sizes import bytes_moved
from kernels.verify.traffic import bandwidth, empty_launch_s

DTYPE = "float16"
ACCEPTANCE = 0.8
WAYS = {
    "captured": (True, False),
    "captured, cache flushed": (True, True),
    "launched": (False, False),
    "launched, cache flushed": (False, True),
}
WAITS = "launched: it waits for the host"


def items(place: Place) -> Sequence[Item]:
    return [
        Item(name=setting.as_text(), seconds=15, measure=partial(time_kernels, place, setting))
        for setting in settings_of(place)
    ]


def settings_of(place: Place) -> list[Setting]:
    acceptance = None if place.scale == "smallest" else ACCEPTANCE  # logits of a given overlap take a while to find
    return [
        Setting(batch=batch, gamma=gamma, vocab_size=size, acceptance=acceptance, top_k=top_k, dtype=DTYPE, device=place.device)
        for batch, gamma, size, top_k in place.sizes.shapes
    ]


def time_kernels(place: Place, setting: Setting) -> Measured:
    """Time every kernel in every way, all kernels of a way in turns; medians over rounds and repeats."""
    names = [name for name in (TRANSFORMERS, *KERNELS) if name != TRANSFORMERS or setting.batch == 1]
    if setting.top_k is not None:
        names = [name for name in names if not name.startswith("sigmoid")]
    rounds, speed = make_rounds(setting), bandwidth(place.device, place.sizes.copy_bytes)
    calls, empty_s, rows = calls_for(names, rounds), empty_launch_s(place.device), list[dict[str, Any]]()
    with torch.inference_mode():
        launches = {name: launched(calls[name], place.device) for name in names}
        counts = {name: None if found is None else len(found) for name, found in launches.items()}
        waits = {name: num_waits(partial(calls[name], 0), place.device) for name in names}
        for way, (captured, flushed) in WAYS.items():
            seconds = time_on_device(
                [calls[name] for name in names], len(rounds.targets), place.sizes.repeats, place.device,
                captured=captured, flushed=flushed, per_run=place.sizes.calls_per_graph,
            )  # fmt: skip
            base = float(np.median(seconds[names.index(BASELINE)]))
            rows += [
                {
                    "way": WAITS if captured and waits[name] else way,
                    **_row(name, own, base, setting, speed),
                    "launches": counts[name],
                    "waits": waits[name],
                }
                for name, own in zip(names, seconds, strict=True)
            ]
    facts = {"copy, GB/s": speed / 1e9, "empty launch, us": empty_s * 1e6}
    facts |= {f"fused: {name}, us": own * 1e6 for name, own in launches.get("fused") or ()}
    return {"facts": facts, "rows": rows, "notes": _notes(place)}


def _row(name: str, seconds: np.ndarray, base: float, setting: Setting, speed: float) -> dict[str, Any]:
    typical = median(seconds.ravel(), "s")
    moved = bytes_moved(name, setting.batch, setting.gamma, setting.vocab_size, setting.dtype, setting.top_k is not None)
    return {
        "kernel": name,
        "us": typical.value * 1e6,
        "low": None if typical.low is None else typical.low * 1e6,
        "high": None if typical.high is None else typical.high * 1e6,
        "of baseline": typical.value / base,
        "MB": moved / 1e6,
        "of copy bandwidth": moved / typical.value / speed,
    }


def _notes(place: Place) -> list[str]:
    if not place.is_rehearsal:
        return []
    return ["rehearsed on the CPU: kernels by their CPU paths, plain calls in place of CUDA graphs, which cannot be rehearsed"]
