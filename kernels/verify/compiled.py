"""Compiles the Triton kernels for a GPU that need not be there, and reads off registers, shared memory and spills.

Triton brings ptxas, so neither CUDA nor a driver is needed. A launch also specialises arguments that are 1 or divisible by 16;
what is compiled here does not, so registers of a launch may differ. ``python -m kernels.verify.compiled`` prints the table.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from kernels.inputs import InputError
from kernels.verify import filter_gpu, fused_gpu, tiles_gpu
from kernels.verify.reference import BELOW_ONE
from kernels.verify.sizes import FUSED_ROW_TILES, FUSED_TILES

CAPABILITIES = (80, 90, 100)
PATTERNS = {
    "registers": r"Used (\d+) registers",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
}


@dataclass(frozen=True)
class _Variant:
    """One kernel as it is launched: types of its arguments, compile-time values, warps of a program."""

    name: str
    kernel: Any
    signature: dict[str, Any]
    constants: dict[str, Any]
    num_warps: int


@dataclass(frozen=True)
class Resources:
    """What ptxas says of one variant: per thread registers, per program bytes of shared memory, per thread bytes spilled."""

    variant: str
    capability: int
    registers: int
    shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int

    def as_text(self) -> str:
        spills = f"{self.spill_store_bytes} + {self.spill_load_bytes} bytes spilled"
        used = f"{self.registers:4d} registers {self.shared_bytes:6d} bytes shared"
        return f"sm_{self.capability} {self.variant:42s} {used}  {spills}"


def variants() -> Iterator[_Variant]:
    """Every dtype, filters or none, a draft's logits, its log-sum-exp or a point mass; fewer than 32 drafts."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield from _fused(dtype, filtered=False, given="logits", rows_padded=8)
    yield from _fused("bf16", filtered=True, given="log-sum-exp", rows_padded=8)
    yield from _fused("fp32", filtered=True, given="logits", rows_padded=32)
    yield from _fused("fp32", filtered=False, given="point mass", rows_padded=8)
    for dtype, mode in (("fp32", 0), ("fp32", 1), ("fp16", 1), ("fp16", 2), ("bf16", 2)):
        yield _tiled(dtype, mode)
    for dtype in ("fp32", "bf16", "fp16"):
        yield from _filter(dtype)


def _fused(dtype: str, *, filtered: bool, given: str, rows_padded: int) -> Iterator[_Variant]:
    model = (f"*{dtype}", *(("*fp32", "*i32") if filtered else (f"*{dtype}", f"*{dtype}")), "i64", "i64", "fp32", "i32")
    arguments = ("*i64", "*i64", "*fp64", "*fp32")
    partials, decisions = ("*fp32", "*fp32"), ("*i64", "*fp32", "*fp32")
    flags: dict[str, Any] = {"target_filtered": filtered, "draft_filtered": filtered}
    point_mass = given == "point mass"
    more: dict[str, Any] = {"ragged": filtered, "point_mass": point_mass, "tile_size": FUSED_TILES[-1]}
    label = f"{dtype}{' filtered' if filtered else ''} {given} n<{rows_padded}"
    sizes = ("vocab_size", "num_draft", "num_rows", "num_row_tiles", "num_tiles")
    named = {"target": model, "draft": model, "partials": partials}
    for size, warps in FUSED_ROW_TILES.items():
        summed, some = {**flags, "tile_size": size}, ("vocab_size", "num_rows", "num_tiles")
        yield _variant(f"row_sums of {size} {label}", fused_gpu.row_sums, named, some, summed, warps)
    sums = {"stats": "*fp32", "target_sums": "*fp32", "residual_sums": "*fp32"}
    named = {"target": model, "draft": model, "given": arguments}
    decide = {**named, "partials": partials, "decisions": decisions, **sums}
    constants = {**flags, **more, "sum_given": given == "log-sum-exp", "rows_padded": rows_padded, "row_tiles_padded": 64}
    yield _variant(f"decide {label}", fused_gpu.decide, decide, sizes, constants, fused_gpu.NUM_WARPS)
    drawn = {**named, "num_accepted": "*i64", **sums, "next_token": "*i64"}
    constants = {**flags, **more, "below_one": BELOW_ONE, "tiles_padded": 64}
    yield _variant(f"draw {label}", fused_gpu.draw, drawn, (*sizes[:2], sizes[4]), constants, fused_gpu.NUM_WARPS)


def _tiled(dtype: str, mode: int) -> _Variant:
    named: dict[str, Any] = {
        "target": f"*{dtype}",
        "draft": f"*{dtype}",
        "ratio": "*fp32",
        "residual": "*fp32",
        "sums": "*fp32",
    }
    strides = ("target_entry_stride", "target_row_stride", "draft_entry_stride", "draft_row_stride")
    sizes = (*strides, "num_draft", "vocab_size", "num_tiles")
    scales = {"alpha": "fp32", "beta": "fp32"}
    constants = {"mode": mode, "tile_size": tiles_gpu.TILE}
    name = f"{('exact', 'sigmoid', 'sigmoid-released')[mode]} {dtype}"
    return _variant(name, tiles_gpu.tile_kernel, named, sizes, constants, tiles_gpu.NUM_WARPS, scales)


def _filter(dtype: str) -> Iterator[_Variant]:
    """A digit's counts in tiles of 2,048 and 16,384, and thresholds without top-p and with it, of short rows and long ones."""
    model = (f"*{dtype}", "*fp32", "*i32", "i64", "i64", "fp32", "i32", "i32", "fp32")
    named: dict[str, Any] = {"target": model, "draft": model, "counts": "*i32"}
    sizes, numbers = ("vocab_size", "num_tiles"), getattr(tl, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype])
    digits = filter_gpu.DIGITS[numbers]
    common = {"numbers": numbers, "digits": digits, "tiles_padded": filter_gpu.MOST_TILES}
    for vocab_size, digit in product((32_000, 151_936), (0, digits - 1)):
        tile_size, warps = filter_gpu.count_tile_for(vocab_size)
        constants = {**common, "digit": digit, "tile_size": tile_size}
        name = f"count_digits {digit} of {tile_size} {dtype}"
        yield _variant(name, filter_gpu.count_digits, named, sizes, constants, warps)
    for by_mass, resident in ((False, False), (True, False), (True, True)):
        constants = {**common, "by_count": True, "by_mass": by_mass, "resident": resident, "tile_size": filter_gpu.NUCLEUS_TILE}
        name = f"find_thresholds {dtype}{' top-p' if by_mass else ''}{' resident' if resident else ''}"
        yield _variant(name, filter_gpu.find_thresholds, named, sizes, constants, filter_gpu.FIND_WARPS[by_mass])


def _variant(
    name: str,
    kernel: Any,
    named: dict[str, Any],
    sizes: tuple[str, ...],
    constants: dict[str, Any],
    num_warps: int,
    scales: dict[str, str] | None = None,
) -> _Variant:
    """The signature in the order of the kernel's own arguments; what is left out or unknown is an error."""
    types = {**named, **dict.fromkeys(sizes, "i32"), **(scales or {}), **dict.fromkeys(constants, "constexpr")}
    if set(types) != set(kernel.arg_names):
        raise InputError(f"variant {name!r}: arguments {sorted(set(types) ^ set(kernel.arg_names))} do not match the kernel's")
    return _Variant(name, kernel, {argument: types[argument] for argument in kernel.arg_names}, constants, num_warps)


def resources(variant: _Variant, capability: int) -> Resources:
    """Compiles one variant and asks ptxas.

    Raises:
        InputError: this process runs Triton's interpreter, which compiles nothing.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET=1: kernels are interpreted and not compiled; unset it")
    source = ASTSource(fn=variant.kernel, signature=variant.signature, constexprs=variant.constants)
    options = {"num_warps": variant.num_warps, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(compiled.asm["ptx"], encoding="utf8")
        architecture = f"sm_{capability}{'a' if capability >= 90 else ''}"
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture}", str(path), "-o", str(path) + ".cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    numbers = {name: int(re.findall(pattern, said)[0]) for name, pattern in PATTERNS.items()}
    return Resources(variant.name, capability, shared_bytes=compiled.metadata.shared, **numbers)


def main() -> int:
    """Prints every variant on every capability; exit status 1 where one spills."""
    rows = [resources(variant, capability) for variant in variants() for capability in CAPABILITIES]
    for row in rows:
        print(row.as_text())
    return int(any(row.spill_store_bytes or row.spill_load_bytes for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
