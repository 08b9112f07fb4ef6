"""Products of rows and weights: the compiled loop against fp64, the same bits for any number of rows, the chooser."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import native
from kernels.inputs import ROUNDINGS, InputError
from kernels.products.matrix import (
    ANY_ROWS,
    COMPILED,
    ROWS,
    SHAPES,
    SOURCE,
    TORCH,
    Choice,
    choose,
    compiled_product,
    measured_times,
    meeting_time,
)
from kernels.products.narrow import narrow, rounded

needs_compiler = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")
SIZES = [depth * width for depth, width in SHAPES]
ERROR = {torch.float32: 1e-5, torch.float64: 1e-13}  # of a sum, relative to the sum of its terms' magnitudes


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, None), (torch.float64, None), (torch.float32, "bf16"), (torch.float32, "int8")]
)
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (3, 5), (33, 17), (65, 384), (577, 2049), (70, 9001)])
def test_every_row_is_the_product_whatever_the_number_of_rows(
    depth: int, width: int, dtype: torch.dtype, rounding: str | None, threads: int, few_threads
) -> None:
    few_threads(threads)
    generator = torch.Generator().manual_seed(depth)
    weight = torch.randn(depth, width + 3, dtype=dtype, generator=generator)[:, 2 : width + 2]  # rows apart, not aligned
    stored = None if rounding is None else narrow(weight, rounding)
    truth_weight = weight.double() if rounding is None else rounded(weight, rounding).double()
    bias = torch.randn(width, dtype=dtype, generator=generator)
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 17, 57, 75):
        rows = torch.randn(count, depth + 2, dtype=dtype, generator=generator)[:, :depth]
        onto = torch.randn(count, width, dtype=dtype, generator=generator)
        for product, own_bias in ((compiled_product(weight, None, stored), 0), (compiled_product(weight, bias, stored), bias)):
            for start in (None, onto):
                found = product(rows, start)
                added = own_bias if start is None else own_bias + start
                truth = rows.double() @ truth_weight + added
                limit = ERROR[dtype] * (rows.double().abs() @ truth_weight.abs() + 1)
                assert ((found - truth).abs() <= limit).all()
                alone = [product(rows[row : row + 1], None if start is None else start[row : row + 1]) for row in range(count)]
                assert torch.equal(found, torch.cat(alone))


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "depth", "count"), [(torch.float32, 1024, 700), (torch.float64, 512, 1100)])
def test_rows_that_lie_a_page_apart_are_multiplied_as_others(
    dtype: torch.dtype, depth: int, count: int, threads: int, few_threads
) -> None:
    """With AVX-512 they are copied some at a time: here in blocks of which the last is not whole."""
    few_threads(threads)
    generator = torch.Generator().manual_seed(depth)
    weight, bias = (torch.randn(*shape, 40, dtype=dtype, generator=generator) for shape in ((depth,), ()))
    rows, onto = (torch.randn(count, size, dtype=dtype, generator=generator) for size in (depth, 40))
    product = compiled_product(weight, bias)
    found = product(rows, onto)
    truth = rows.double() @ weight.double() + bias + onto
    assert ((found - truth).abs() <= ERROR[dtype] * (rows.double().abs() @ weight.double().abs() + 1)).all()
    alone = torch.cat([product(some, its) for some, its in zip(rows.split(7), onto.split(7), strict=True)])
    assert torch.equal(found, alone)


@pytest.fixture
def few_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_compiler
def test_numbers_in_bfloat16_are_multiplied_as_the_same_numbers_in_fp32() -> None:
    weight = torch.randn(100, 77, generator=torch.Generator().manual_seed(1))
    rows = torch.randn(5, 100, generator=torch.Generator().manual_seed(2))
    wide = compiled_product(rounded(weight, "bf16"), None)(rows, None)
    assert torch.equal(compiled_product(weight, None, narrow(weight, "bf16"))(rows, None), wide)


@needs_compiler
def test_many_rows_leave_no_memory_behind() -> None:
    """A thread keeps small buffers for its next call, and of int8 the second half of a product is one."""
    code = """
import torch
from kernels.products.matrix import compiled_product
from kernels.products.narrow import narrow
def held():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) / 1024
weight = torch.randn(64, 50_000)
product = compiled_product(weight, None, narrow(weight, "int8"))
product(torch.randn(1, 64), None)
before = held()
product(torch.randn(700, 64), None)
print(held() - before < 70)  # MiB; the outputs, which are freed, had 133
"""
    if not Path("/proc/self/status").is_file():
        pytest.skip("this system does not tell a process's memory")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_is_rounded_is_near_and_stays(rounding: str) -> None:
    """To the nearest of 255 steps of a channel's largest number, or of bfloat16's eight bits; once rounded, forever."""
    weight = torch.randn(300, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 40)
    weight[:, 0], weight[:, 1], weight[5:, 2] = 0, 1e-44, 0  # nothing; less than any normal number; one step
    found = rounded(weight, rounding)
    largest = weight.abs().amax(0).double()
    limit = largest / 127 * (1 + 2**-15) / 2 + 2**-127 if rounding == "int8" else weight.abs().double() * 2**-8 + 1e-44
    assert ((found.double() - weight.double()).abs() <= limit).all()
    assert torch.equal(rounded(found, rounding), found)
    stored = narrow(found, rounding)
    assert torch.equal(stored.widened(), found)
    scales = 1.0 if stored.scales is None else stored.scales.double()
    assert torch.equal(stored.numbers.double() * scales, found.double()), "fp32 holds every number exactly"


@needs_compiler
def test_rows_apart_and_across_are_taken_as_they_are() -> None:
    weight = torch.randn(6, 4, dtype=torch.float64)
    rows = torch.randn(6, 3, dtype=torch.float64).t()
    onto = torch.randn(4, 3, dtype=torch.float64).t()
    torch.testing.assert_close(compiled_product(weight, None)(rows, onto), rows @ weight + onto)


@needs_compiler
@pytest.mark.parametrize("rows", [torch.randn(3, 6), torch.randn(3, 5, dtype=torch.float64)], ids=["dtype", "width"])
def test_other_rows_than_the_weights_are_refused(rows: torch.Tensor) -> None:
    """The loop would read what lies behind them."""
    with pytest.raises(InputError, match=r"expected torch\.float64 and 6 numbers a row"):
        compiled_product(torch.randn(6, 4, dtype=torch.float64), None)(rows, None)


@needs_compiler
@pytest.mark.parametrize("bias", [torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.bfloat16)])
def test_another_bias_than_the_weights_is_refused(bias: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"bias torch\.\w+ \[\d\]: expected torch\.float32 \[4\], as the weight"):
        compiled_product(torch.randn(6, 4), bias)
    with pytest.raises(InputError, match=r"onto torch\.\w+ .*: expected torch\.float32 \[1, 4\], as the product has"):
        compiled_product(torch.randn(6, 4), None)(torch.randn(1, 6), bias[None])


@needs_compiler
def test_a_product_takes_as_many_threads_as_torch() -> None:
    """In a thread of Python's, too, for which OpenMP itself would take all cores."""
    code = """
import os, threading, torch
from kernels.products.matrix import compiled_product
torch.set_num_threads(1)
product = compiled_product(torch.randn(1024, 1024), None)
rows, counts = torch.randn(2, 1024), []
def work():
    before = len(os.listdir("/proc/self/task"))
    product(rows, None)
    counts.append(len(os.listdir("/proc/self/task")) - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(counts)
"""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("this system does not list a process's threads")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[0]\n"


@needs_compiler
def test_a_narrow_copy_of_an_fp64_weight_is_refused() -> None:
    weight = torch.randn(64, 64)
    with pytest.raises(InputError, match=r"weight torch\.float64 with a narrow copy: expected torch\.float32"):
        compiled_product(weight.double(), None, narrow(weight, "int8"))


@needs_compiler
def test_a_weight_that_moved_is_followed() -> None:
    """torch moves tensors to shared memory where another process gets them."""
    weight, bias, rows = torch.randn(8, 8), torch.randn(8), torch.randn(2, 8)
    product = compiled_product(weight, bias)
    weight.share_memory_().mul_(2)
    bias.share_memory_().mul_(2)
    torch.testing.assert_close(product(rows, None), rows @ weight + bias)


@needs_compiler
def test_a_weight_changed_in_place_is_the_products_weight() -> None:
    weight, rows = torch.randn(8, 8), torch.randn(2, 8)
    product = compiled_product(weight, None)
    weight.mul_(2)
    torch.testing.assert_close(product(rows, None), rows @ weight)


@needs_compiler
def test_nan_and_infinity_come_through() -> None:
    weight = torch.ones(40, 40)
    rows = torch.zeros(2, 40)
    rows[0, 3], rows[1, 5] = float("nan"), float("inf")
    found = compiled_product(weight, None)(rows, None)
    assert found[0].isnan().all()
    assert (found[1] == float("inf")).all()


@pytest.mark.parametrize("weight", [torch.ones(4, 4, dtype=torch.float16), torch.ones(4, 4).t()[:, ::2], torch.ones(6, 4).t()])
def test_other_weights_are_left_to_torch(weight: torch.Tensor) -> None:
    assert compiled_product(weight, None) is None


def times(loop: dict[int, float], rows: dict[int, float] | None = None) -> dict[tuple[int, int], tuple[float, float]]:
    """A table of times: torch takes 1, the loop what is given for a size, or for the largest size and a number of rows."""
    table = {(size, count): (1.0, loop.get(size, 0.5)) for size in SIZES for count in ROWS}
    return table | {(SIZES[-1], count): (1.0, took) for count, took in (rows or {}).items()}


def test_the_chooser_takes_what_the_times_say() -> None:
    assert choose(times({})) == Choice(SIZES[0], ANY_ROWS)
    assert choose(times({SIZES[0]: 1.2, SIZES[1]: 1.01})) == Choice(SIZES[2], ANY_ROWS)
    assert choose(times({SIZES[3]: 1.2})) == Choice(SIZES[4], ANY_ROWS), "a smaller weight that seems to gain is not trusted"
    assert choose(times({SIZES[-1]: 1.2})) == TORCH
    assert choose(times({}, {16: 1.1})) == Choice(SIZES[0], 8), "what more rows gain is not looked at"
    assert choose(times({}, {256: 1.1})) == Choice(SIZES[0], 64)
    assert choose(times({}, {1: 1.1})) == Choice(SIZES[0], ANY_ROWS), "one row may take longer where the round takes less"


def test_a_choice_takes_large_weights_only() -> None:
    assert Choice(16, 4).takes(torch.empty(4, 4))
    assert not Choice(17, 4).takes(torch.empty(4, 4))
    assert not TORCH.takes(torch.empty(1000, 1000))
    assert COMPILED.takes(torch.empty(1, 1))


@needs_compiler
def test_times_are_measured_for_every_size_and_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.products.matrix.ROUNDS", 1)
    monkeypatch.setattr("kernels.products.matrix.MOST_COPIES", 1)
    found = measured_times()
    assert set(found) == {(size, count) for size in SIZES for count in ROWS}
    assert all(min(pair) > 0 for pair in found.values())


@needs_compiler
def test_threads_take_some_time_to_meet_and_one_meets_nobody(monkeypatch: pytest.MonkeyPatch, few_threads) -> None:
    """A word goes from core to core in 10 ns at least; what else runs may hold one of them for milliseconds.

    A library that was compiled without OpenMP, which has one thread, does not know OpenMP's functions.
    """
    few_threads(2)
    found = meeting_time()
    assert (found is not None) == hasattr(native.library(SOURCE), "omp_get_max_threads")
    assert found is None or 1e-8 < found < 1
    few_threads(1)
    assert meeting_time() is None
    few_threads(2)
    monkeypatch.setattr(native, "library", lambda source: None)
    assert meeting_time() is None
