"""Decoder layers of Llama's kind in one compiled call a pass: norms, rotary positions, attention, gated feed-forward.

A pass over few rows spends a fifth of its time on calls of small operations, and torch's attention takes half again as long
for six queries as for one. The loop makes them all, between products that read a weight once (``kernels.products.few_rows``).
A row's result does not depend on how many rows it is computed with, nor on the number of threads, to the bit.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import native
from kernels.products.few_rows import FUNCTIONS, ProductArguments, product_arguments

SOURCE = Path(__file__).with_name("gated.cpp")
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1}


@dataclass(frozen=True)
class GatedLayer:
    """One layer's weights as ``rows @ weight + bias``; norms are gains, already times the square root of the width."""

    attention_norm: Float[Tensor, "D"]
    qkv: tuple[Float[Tensor, "D QKV"], Float[Tensor, "QKV"] | None]
    out: tuple[Float[Tensor, "Q D"], Float[Tensor, "D"] | None]
    feed_norm: Float[Tensor, "D"]
    gate_up: tuple[Float[Tensor, "D F2"], Float[Tensor, "F2"] | None]
    down: tuple[Float[Tensor, "F D"], Float[Tensor, "D"] | None]


@dataclass(frozen=True)
class GatedShape:
    """What all layers share; ``floor`` is the square root of the width times the norms' epsilon."""

    heads: int
    key_heads: int
    head_size: int
    activation: str
    floor: float


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("feed_norm", ctypes.c_void_p),
        ("qkv", ProductArguments),
        ("out", ProductArguments),
        ("gate_up", ProductArguments),
        ("down", ProductArguments),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("width", "heads", "key_heads", "head_size", "activation")),
        ("floor", ctypes.c_double),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_long)
            for name in ("batch", "num_new", "visible", "position", "layer_stride", "row_stride", "place_stride")
        ),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "new_keys", "new_values", "rotary", "hidden")),
    )


RunLayers = Callable[
    [Float[Tensor, "B n D"], int, int, Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Tensor, int],
    Float[Tensor, "B n D"],
]


def compiled_layers(layers: Sequence[GatedLayer], shape: GatedShape) -> RunLayers | None:
    """Return ``run(hidden, first, last, keys, values, slots, rotary, position)``, or None where it cannot be had.

    It runs layers first..last-1 as ``methods.models.base.Frame`` describes keys, values and slots, whose layers lie at equal
    distances in memory; every row has its first new token at ``position``. ``rotary`` is contiguous, [P, 2, 1, head_size].
    Weights are in fp32 or fp64 on a CPU, with contiguous rows.
    """
    tensors = [tensor for layer in layers for tensor in (layer.qkv[0], layer.out[0], layer.gate_up[0], layer.down[0])]
    first_weight = tensors[0]
    dtype = first_weight.dtype
    fits = all(
        weight.device.type == "cpu" and weight.dtype == dtype and dtype in FUNCTIONS and weight.stride(1) == 1
        for weight in tensors
    )
    library = native.library(SOURCE) if fits and shape.activation in ACTIVATIONS and shape.head_size % 2 == 0 else None
    if library is None:
        return None
    run_all = getattr(library, FUNCTIONS[dtype].replace("multiply", "run"))
    run_all.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p)
    run_all.restype = None
    kept: list[object] = []  # what the addresses point to

    def product(weight: Tensor, bias: Tensor | None) -> ProductArguments:
        arguments, own = product_arguments(weight, bias)
        kept.append(own)
        return arguments

    def gain(norm: Tensor) -> int:
        kept.append(norm := norm.to(dtype).contiguous())
        return norm.data_ptr()

    array = (_Layer * len(layers))(
        *(
            _Layer(
                gain(layer.attention_norm),
                gain(layer.feed_norm),
                *(product(*weight) for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)),
            )
            for layer in layers
        )
    )
    width, activation = first_weight.shape[0], ACTIVATIONS[shape.activation]
    shared = _Shape(width, shape.heads, shape.key_heads, shape.head_size, activation, shape.floor)
    kept += [array, shared]
    shape_at, layers_at, layer_bytes, item = (
        ctypes.addressof(shared),
        ctypes.addressof(array),
        ctypes.sizeof(_Layer),
        dtype.itemsize,
    )

    def run(
        hidden: Float[Tensor, "B n D"],
        first: int,
        last: int,
        keys: Sequence[Float[Tensor, "B K S head_size"]],
        values: Sequence[Float[Tensor, "B K S head_size"]],
        slots: Sequence[Float[Tensor, "B n K2 head_size"]],
        rotary: Float[Tensor, "P 2 1 head_size"],
        position: int,
        kept: Sequence[object] = kept,
    ) -> Float[Tensor, "B n D"]:
        batch, num_new, _ = hidden.shape
        one, new = keys[0], slots[0].data_ptr()
        at = one.data_ptr()
        out = hidden.clone(memory_format=torch.contiguous_format)
        between = (keys[1].data_ptr() - at) // item if last - first > 1 else 0
        row_stride, head_stride, place_stride, _ = one.stride()
        values_at = values[0].data_ptr()
        arguments = _Pass(
            batch, num_new, one.shape[2], position, between, row_stride, place_stride,
            at, values_at, new, new + (values_at - at), rotary.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        assert head_stride == shared.head_size
        run_all(shape_at, layers_at + first * layer_bytes, last - first, ctypes.addressof(arguments))
        return out

    return run
