"""The compiled loop for products of rows with a weight: it reads a weight once, whatever the number of rows; and where it wins.

torch's matrix product takes as long for one row as memory does, but two to four times as long for six; for the rows of a prompt
it takes twice as long on processors whose widest vectors its library leaves alone. The loop works on the weight as it lies,
so there is no second copy; or on a narrow one (``kernels.products.narrow``), of which it reads fewer bytes. A row's result does
not depend on how many rows it is computed with, to the bit. For small weights torch's shorter call wins, and its blocking may
for many rows: a choice, made by measurement, says who makes which.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import native
from kernels.inputs import InputError, Rounding
from kernels.products.narrow import Narrow

SOURCE = Path(__file__).with_name("matrix.cpp")
FUNCTIONS = {torch.float32: "multiply_float32", torch.float64: "multiply_float64"}
STORAGES = {torch.bfloat16: 1, torch.int8: 2}  # of numbers that are narrower than what they are multiplied by
SHAPES = ((64, 64), (64, 192), (128, 384), (192, 768), (384, 1024), (512, 2048), (1024, 4096))  # in and out, by their product
ROWS = (1, 2, 4, 6, 8, 16, 32, 64, 256)
ANY_ROWS = 1 << 30
MOST_VERIFIED = 8  # rows of a usual round: by their times a weight's size is judged
MODEL_SIZE, MOST_COPIES = 1 << 24, 60  # numbers of a model whose weights take turns, and how many it has: as in decoding
ROUNDS = 5
MEETINGS, MEETING_ROUNDS = 200, 5  # how often threads meet in a round, and how many rounds their time is the median of
Multiply = Callable[[Float[Tensor, "N d_in"], Float[Tensor, "N d_out"] | None], Float[Tensor, "N d_out"]]
Times = Mapping[tuple[int, int], tuple[float, float]]  # (numbers in the weight, rows) -> seconds of torch and of the loop


class ProductArguments(ctypes.Structure):
    """``Product`` of matrix.h: a weight, its bias and its scales; the stride and both sizes count numbers."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "scales")),
        *((name, ctypes.c_long) for name in ("stride", "depth", "width", "storage")),
    )


def product_arguments(
    weight: Float[Tensor, "d_in d_out"], bias: Float[Tensor, " d_out"] | None, narrow: Narrow | None = None
) -> tuple[ProductArguments, tuple[Tensor, ...]]:
    """Return the addresses of a weight with contiguous rows, of its bias and scales, and the tensors that they point to.

    Where the weight is stored narrow too, that is what is read. torch moves a model's tensors where it hands them to another
    process: whoever keeps addresses looks whether they still hold.

    Raises:
        InputError: a narrow copy of a weight that is not fp32, or a bias of another dtype or length: the loop would read on.
    """
    if bias is not None and (bias.dtype != weight.dtype or bias.shape != weight.shape[1:]):
        raise InputError(f"bias {bias.dtype} {list(bias.shape)}: expected {weight.dtype} [{weight.shape[1]}], as the weight")
    if narrow is not None and weight.dtype != torch.float32:
        raise InputError(f"weight {weight.dtype} with a narrow copy: expected torch.float32, since copies are of fp32 numbers")
    bias = None if bias is None else bias.contiguous()
    numbers, scales = (weight, None) if narrow is None else (narrow.numbers, narrow.scales)
    bias_at, scales_at = (None if one is None else one.data_ptr() for one in (bias, scales))
    arguments = ProductArguments(
        numbers.data_ptr(), bias_at, scales_at, numbers.stride(0), *numbers.shape, STORAGES.get(numbers.dtype, 0)
    )
    return arguments, tuple(tensor for tensor in (numbers, bias, scales) if tensor is not None)


def compiled_product(
    weight: Float[Tensor, "d_in d_out"], bias: Float[Tensor, " d_out"] | None, narrow: Narrow | None = None
) -> Multiply | None:
    """Return ``product(rows, onto) = rows weight + bias (+ onto)`` as a compiled loop; None where it cannot be had.

    It takes fp32 or fp64 on a CPU, a weight whose rows are contiguous, and rows and ``onto`` of the weight's dtype. It reads
    ``narrow``, the same weight in fp32 in fewer bytes, where that is given.
    """
    fits = weight.device.type == "cpu" and weight.dtype in FUNCTIONS and weight.stride(1) == 1
    library = native.library(SOURCE) if fits else None
    if library is None:
        return None
    multiply = getattr(library, FUNCTIONS[weight.dtype])
    multiply.argtypes = (*(ctypes.c_void_p,) * 2, ctypes.c_long, *(ctypes.c_void_p,) * 2, ctypes.c_int)
    multiply.restype = None
    product, tensors = product_arguments(weight, bias, narrow)
    empty, (depth, width), dtype, place = torch.empty, weight.shape, weight.dtype, weight.data_ptr()

    def multiply_rows(rows: Float[Tensor, "N d_in"], onto: Float[Tensor, "N d_out"] | None) -> Float[Tensor, "N d_out"]:
        nonlocal product, tensors, place
        if weight.data_ptr() != place:
            (product, tensors), place = product_arguments(weight, bias, narrow), weight.data_ptr()
        if rows.dtype is not dtype or rows.shape[1] != depth:
            raise InputError(
                f"rows {rows.dtype} {list(rows.shape)}: expected {dtype} and {depth} numbers a row, as the weight has"
            )
        rows = rows if rows.is_contiguous() else rows.contiguous()
        count = rows.shape[0]
        if onto is not None and (onto.dtype is not dtype or onto.shape != (count, width)):
            raise InputError(f"onto {onto.dtype} {list(onto.shape)}: expected {dtype} {[count, width]}, as the product has")
        onto = onto if onto is None or onto.is_contiguous() else onto.contiguous()
        out = empty((count, width), dtype=dtype)
        onto_at = None if onto is None else onto.data_ptr()
        multiply(ctypes.addressof(product), rows.data_ptr(), count, onto_at, out.data_ptr(), torch.get_num_threads())
        return out

    return multiply_rows


@dataclass(frozen=True)
class Choice:
    """Products of at most ``most_rows`` rows with a weight of at least ``least_size`` numbers are made by the compiled loop.

    ``rounding`` is that of a model's weights: the loop then reads them in so few bytes.
    """

    least_size: int = 0
    most_rows: int = 0
    rounding: Rounding | None = None

    def takes(self, weight: Tensor) -> bool:
        return self.most_rows > 0 and weight.numel() >= self.least_size

    def __str__(self) -> str:
        if not self.most_rows:
            return "torch"
        read = "" if self.rounding is None else f", read as {self.rounding}"
        rows = "any number of" if self.most_rows == ANY_ROWS else f"up to {self.most_rows}"
        return f"compiled for {rows} rows of weights from {self.least_size} numbers on{read}"


TORCH = Choice()
COMPILED = Choice(most_rows=ANY_ROWS)


def choose(times: Times) -> Choice:
    """Choose from times, seconds of torch and of the loop: the loop where it takes less over the rows of usual rounds.

    ``least_size`` is the smallest weight from which on this holds for all larger ones, ``most_rows`` the number of rows up to
    which it holds for the largest weight: any number where it holds for all that were timed.
    """
    sizes = sorted({size for size, _ in times})
    least_size = None
    for size in reversed(sizes):
        usual = [pair for (own, rows), pair in times.items() if own == size and rows <= MOST_VERIFIED]
        if sum(ours / torchs for torchs, ours in usual) > len(usual):
            break
        least_size = size
    if least_size is None:
        return TORCH
    most_rows = 0
    for rows in sorted(rows for size, rows in times if size == sizes[-1]):
        torchs, ours = times[sizes[-1], rows]
        if rows > MOST_VERIFIED and ours > torchs:
            return Choice(least_size, most_rows)
        most_rows = rows
    return Choice(least_size, ANY_ROWS)


@torch.inference_mode()
def measured_times() -> Times | None:
    """Time torch and the loop in turns, in fp32, on one thread: what other work does to several would decide otherwise.

    None where nothing could be compiled. Takes a few seconds.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _times()
    finally:
        torch.set_num_threads(before)


def _times() -> Times | None:
    times: dict[tuple[int, int], tuple[float, float]] = {}
    generator = torch.Generator().manual_seed(0)
    for depth, width in SHAPES:
        copies = min(MOST_COPIES, MODEL_SIZE // (depth * width))
        weights = [torch.randn(depth, width, generator=generator) for _ in range(copies)]
        products = [product for weight in weights if (product := compiled_product(weight, None)) is not None]
        if not products:
            return None
        for count in ROWS:
            rows = torch.randn(count, depth, generator=generator)
            torchs, ours = [], []
            for _ in range(ROUNDS):
                start = perf_counter()
                for weight in weights:
                    torch.mm(rows, weight)
                middle = perf_counter()
                for product in products:
                    product(rows, None)
                torchs.append((middle - start) / copies)
                ours.append((perf_counter() - middle) / copies)
            times[depth * width, count] = median(torchs), median(ours)
    return times


def meeting_time() -> float | None:
    """Measure the seconds that torch's threads take to meet, which a pass lets them do some ten times a layer.

    A matter of the machine, not of its load alone: cores that share a cache meet several times as fast as cores that do not,
    and a virtual machine may be moved from the ones to the others at any moment. None on one thread, or where nothing could be
    compiled with threads.
    """
    threads = torch.get_num_threads()
    library = native.library(SOURCE)
    if threads == 1 or library is None:
        return None
    library.meeting.argtypes, library.meeting.restype = (ctypes.c_long, ctypes.c_int), ctypes.c_double
    return median(library.meeting(MEETINGS, threads) for _ in range(MEETING_ROUNDS)) or None
