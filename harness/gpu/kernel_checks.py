"""Part 2: do the kernels decide on the device as the reference does on the host?

Random rounds of every dtype, at small vocabularies and at real ones, which have many tiles, with filters and without, and many
rows at once. Then properties that need no reference (``properties``). In a rehearsal Triton's interpreter decides.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from harness.gpu import properties
from harness.gpu.place import Item, Measured, Place
from kernels.verify.check import DTYPES, FILTERED_EVERY, Case, Report, case_at, check_together, patched_once, random_cases
from kernels.verify.interface import Backend
from kernels.verify.reference import Sampling
from kernels.verify.registry import EXACT, KERNELS

SETTINGS = {
    "no filter": Sampling(temperature=1.0),
    "top-k 50": Sampling(temperature=0.7, top_k=50),
    "top-p 0.9": Sampling(temperature=0.1, top_p=0.9),  # where a nucleus is wide, all rows are inside the bound
    "top-k 50, top-p 0.9": Sampling(temperature=1.3, top_k=50, top_p=0.9),
}
DRAFTS = 2
MANY_DRAFTS = 5
SEED = 0


def items(place: Place) -> Sequence[Item]:
    wide = [
        Item(name=f"V {size}, {dtype}", seconds=15, measure=partial(check_wide, place, size, dtype))
        for size in place.sizes.vocabularies
        for dtype in place.sizes.dtypes
    ]
    return [
        *(
            Item(name=f"random rounds, {dtype}", seconds=25, measure=partial(check_random, place, dtype))
            for dtype in place.sizes.dtypes
        ),
        Item(name="properties", seconds=10, measure=partial(check_properties, place)),
        *wide,
        *(
            Item(name=f"many rows, {dtype}", seconds=10, measure=partial(check_many, place, dtype))
            for dtype in place.sizes.dtypes
        ),
    ]


def check_random(place: Place, dtype: str) -> Measured:
    """Random rounds, the rows of ``make verify-kernels``."""
    cases = random_cases(place.sizes.random_rows, DTYPES[dtype], SEED, FILTERED_EVERY)
    return _measured(_check(place, tuple(KERNELS), cases, dtype))


def check_wide(place: Place, vocab_size: int, dtype: str) -> Measured:
    """A few rows at one vocabulary with each kind of filter; the sigmoids, which are no distributions, without any."""
    rows = []
    for name, sampling in SETTINGS.items():
        kernels = EXACT if sampling.filters else tuple(KERNELS)
        cases = _cases(place.sizes.rows_each, vocab_size, DRAFTS, dtype, sampling)
        rows += [{"filter": name, **_row(report)} for report in _check(place, kernels, cases, dtype)]
    return {"rows": rows, "passed": all(row["verdict"] == "green" for row in rows)}


def check_many(place: Place, dtype: str) -> Measured:
    """One batch of many rows."""
    cases = _cases(place.sizes.many_rows, 1000, MANY_DRAFTS, dtype, SETTINGS["no filter"], place.sizes.many_rows)
    return _measured(_check(place, tuple(KERNELS), cases, dtype))


def check_properties(place: Place) -> Measured:
    rows = []
    with interpreted(place):
        for kernel in EXACT:
            for dtype in place.sizes.dtypes:
                found = properties.check_all(kernel, DTYPES[dtype], place.device, backend_of(place, kernel))
                rows += [{"kernel": kernel, "dtype": dtype, "property": name, "holds": holds} for name, holds in found.items()]
        top_p = properties.check_thresholds(place.device, place.sizes.vocabularies[0])
    rows.append({"kernel": "filters", "dtype": "float32", "property": "peaked rows cut as a sort cuts", "holds": top_p})
    return {"rows": rows, "passed": all(row["holds"] for row in rows)}


@contextmanager
def interpreted(place: Place) -> Iterator[None]:
    """Triton's interpreter, quickened, in a rehearsal; numpy, which it computes with, warns where a device would not."""
    with warnings.catch_warnings(), patched_once() if place.is_rehearsal else nullcontext():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def backend_of(place: Place, kernel: str) -> Backend | None:
    """Triton in a rehearsal too, by its interpreter; the baseline is PyTorch's operations on any device."""
    return "triton" if place.is_rehearsal and kernel != "baseline" else None


def _cases(num_rows: int, vocab_size: int, num_draft: int, dtype: str, sampling: Sampling, batch: int = 4) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(SEED)
    for begin in range(0, num_rows, batch):
        yield case_at(generator, DTYPES[dtype], min(batch, num_rows - begin), vocab_size, num_draft, sampling)


def _check(place: Place, kernels: Sequence[str], cases: Iterator[Case], dtype: str) -> list[Report]:
    backend: Backend | None = "triton" if place.is_rehearsal else None
    with interpreted(place):
        return check_together(kernels, cases, DTYPES[dtype], backend, place.device)


def _measured(reports: Sequence[Report]) -> Measured:
    return {"rows": [_row(report) for report in reports], "passed": all(report.passed for report in reports)}


def _row(report: Report) -> dict[str, object]:
    return {
        "kernel": report.kernel,
        "verdict": "green" if report.passed else "RED",
        "rows": report.num_rows,
        "inside the bound": report.num_inside,
        "wrong": report.num_wrong,
    }
