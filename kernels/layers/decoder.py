"""Decoder layers in one compiled call a pass: norms, positions, attention on the text and on a source, feed-forward.

A pass over few rows spends most of its time on calls of small operations, and torch's attention takes half again as long for
six queries as for one. The loop makes them all, between products that read a weight once (``kernels.products.few_rows``).
A row's result does not depend on how many rows it is computed with, nor on the number of threads, to the bit.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels import native
from kernels.products.few_rows import FUNCTIONS, ProductArguments, product_arguments
from kernels.products.narrow import Narrow

SOURCE = Path(__file__).with_name("decoder.cpp")
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 2, "relu": 3}
Weight = tuple[Tensor, Tensor | None, Narrow | None]  # [d_in, d_out], a bias [d_out], and what is read in place of the weight


@dataclass(frozen=True)
class NormWeights:
    """A norm of rows: by mean and deviation where it has a shift, else by the root mean square."""

    gain: Float[Tensor, "D"]
    shift: Float[Tensor, "D"] | None
    epsilon: float


@dataclass(frozen=True)
class DecoderLayer:
    """One layer's weights as ``rows @ weight + bias``, queries' heads first, a gate before what it multiplies.

    ``norms`` are those of attention, of attention to the source where there is one, and of feed-forward; ``source`` are the
    weights of the source's queries and of what its attention gives; ``scale`` multiplies the text's and the source's queries.
    """

    norms: tuple[NormWeights, ...]
    qkv: Weight
    out: Weight
    source: tuple[Weight, Weight] | None
    up: Weight
    down: Weight
    scale: float


@dataclass(frozen=True)
class DecoderShape:
    """What all layers share.

    ``norms_behind``: norms stand behind the sum, not before attention and feed-forward. ``biases`` are added to the text's
    scores by distance, -distances + 1..0; distances beyond have the first one.
    """

    heads: int
    key_heads: int
    head_size: int
    activation: str
    gated: bool = False
    norms_behind: bool = False
    biases: Float[Tensor, "H distances"] | None = None


class _Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_double))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("attention_norm", "source_norm", "feed_norm")),
        *((name, ProductArguments) for name in ("qkv", "out", "query", "source_out", "up", "down")),
        ("scale", ctypes.c_double),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("width", "heads", "key_heads", "head_size", "activation")),
        *((name, ctypes.c_long) for name in ("gated", "norms_behind", "attends_to_source", "distances")),
        ("biases", ctypes.c_void_p),
    )


class _Memory(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_long) for name in ("layer_stride", "row_stride", "head_stride", "place_stride", "places")),
        ("mask", ctypes.c_void_p),
        ("mask_stride", ctypes.c_long),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("batch", "num_new", "position")),
        ("starts", ctypes.c_void_p),
        ("text", _Memory),
        ("source", _Memory),
        *((name, ctypes.c_void_p) for name in ("new_keys", "new_values", "rotary", "hidden")),
    )


class DecoderLayers:
    """Layers of one model whose weights are in fp32 or fp64 on a CPU, with contiguous rows."""

    def __init__(self, library: ctypes.CDLL, layers: Sequence[DecoderLayer], shape: DecoderShape) -> None:
        self._described, self._dtype = (layers, shape), layers[0].qkv[0].dtype
        self._run = getattr(library, FUNCTIONS[self._dtype].replace("multiply", "run"))
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p)
        self._run.restype = None
        self._point()

    def _point(self) -> None:
        """Write down where everything lies."""
        layers, shape = self._described
        self._tensors: list[Tensor] = []
        self._layers = (_Layer * len(layers))(*(self._layer(layer) for layer in layers))
        biases = shape.biases
        self._shape = _Shape(
            layers[0].qkv[0].shape[0], shape.heads, shape.key_heads, shape.head_size, ACTIVATIONS[shape.activation],
            shape.gated, shape.norms_behind, layers[0].source is not None,
            0 if biases is None else biases.shape[1], self._address(biases),
        )  # fmt: skip
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.to(self._dtype).contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()

    def _layer(self, layer: DecoderLayer) -> _Layer:
        attention, *source, feed = (_Norm(self._address(n.gain), self._address(n.shift), n.epsilon) for n in layer.norms)
        weights = (layer.qkv, layer.out, *(layer.source or (None, None)), layer.up, layer.down)
        products = []
        for weight in weights:
            arguments, tensors = (ProductArguments(), ()) if weight is None else product_arguments(*weight)
            products.append(arguments)
            self._tensors += tensors
        return _Layer(attention, *(source or [_Norm()]), feed, *products, layer.scale)

    def __call__(
        self,
        hidden: Float[Tensor, "B n D"],
        first: int,
        last: int,
        text: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
        starts: int | Int[Tensor, "B n"],
        source: tuple[Sequence[tuple[Tensor, Tensor]], Tensor | None] = ((), None),
        rotary: Float[Tensor, "P 2 1 head_size"] | None = None,
    ) -> Float[Tensor, "B n D"]:
        """Run layers first..last-1 on ``n`` new tokens of every row, whose keys and values they store.

        ``text`` are the layers' keys, values and slots as ``methods.models.base.Frame`` describes them, ``source`` the layers'
        keys and values [B, H, S, head_size] and a mask [#B, 1, 1, S] that is added. Layers lie at equal distances in memory,
        numbers of a head side by side. ``starts`` is the position of the first new token in every row, or the positions of all.
        """
        if [tensor.data_ptr() for tensor in self._tensors] != self._addresses:
            self._point()  # a model that is handed to another process moves to shared memory
        batch, num_new, _ = hidden.shape
        (keys, values, slots), (sources, mask) = text, source
        memory = self._memory((keys[0], values[0]), keys[1] if last - first > 1 else None)
        other = self._memory(sources[0], sources[1][0] if last - first > 1 else None) if sources else _Memory()
        if mask is not None:
            mask = mask.contiguous()
            other.mask, other.mask_stride = mask.data_ptr(), mask.shape[-1] if mask.shape[0] > 1 else 0
        out = hidden.clone(memory_format=torch.contiguous_format)
        new = slots[0].data_ptr()
        position, positions_at = (starts, None) if isinstance(starts, int) else (0, starts.data_ptr())
        arguments = _Pass(
            batch, num_new, position, positions_at, memory, other,
            new, new + memory.values - memory.keys, None if rotary is None else rotary.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        layers_at = ctypes.addressof(self._layers) + first * ctypes.sizeof(_Layer)
        self._run(ctypes.addressof(self._shape), layers_at, last - first, ctypes.addressof(arguments))
        return out

    def _memory(self, pair: tuple[Tensor, Tensor], next_keys: Tensor | None) -> _Memory:
        keys, values = pair
        at = keys.data_ptr()
        between = 0 if next_keys is None else (next_keys.data_ptr() - at) // self._dtype.itemsize
        row_stride, head_stride, place_stride, _ = keys.stride()
        return _Memory(at, values.data_ptr(), between, row_stride, head_stride, place_stride, keys.shape[2], None, 0)


def compiled_layers(layers: Sequence[DecoderLayer], shape: DecoderShape) -> DecoderLayers | None:
    """Return layers as one call, or None where it cannot be had: no compiler, another dtype or device, another activation."""
    weights = [weight for layer in layers for weight, *_ in (layer.qkv, layer.out, *(layer.source or ()), layer.up, layer.down)]
    dtype = weights[0].dtype
    fits = shape.activation in ACTIVATIONS and dtype in FUNCTIONS
    fits = fits and all(one.device.type == "cpu" and one.dtype == dtype and one.stride(1) == 1 for one in weights)
    library = native.library(SOURCE) if fits else None
    return None if library is None else DecoderLayers(library, layers, shape)
