"""Heads that read the next token from the hidden state after an intermediate layer (PPD Sections 3 and 4.3).

"N" in the paper is the model's own final norm and output projection; "Y" is an output projection trained for the layer, behind
the same frozen norm (whose gain it could absorb anyway).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from methods.errors import InputError
from methods.models.base import Stack
from methods.options import EARLY_HEADS as FILE


@runtime_checkable
class EarlyHead(Protocol):
    """``name`` is the paper's letter."""

    name: str

    def weight(self, layer: int) -> Float[Tensor, "D V"] | None:
        """Return the projection behind the final norm for hidden states after ``layer`` layers; None: the model's own."""


class OwnHead:
    """The model's own final norm and output projection at every layer ("N")."""

    name = "N"

    def weight(self, layer: int) -> None:
        return None


class TrainedHeads:
    """One projection a layer, trained with all else frozen ("Y"), in the model's dtype and on its device."""

    name = "Y"

    def __init__(self, weights: Mapping[int, Float[Tensor, "V D"]], stack: Stack) -> None:
        """``weights`` are stored as an output layer's are; they become [D, V] views as the stack's own head is.

        Raises:
            InputError: a weight does not have the model's vocabulary and width, or its layer is not one of the model's.
        """
        width, vocab_size = stack.head_weight.shape
        self.weights: dict[int, Float[Tensor, "D V"]] = {}
        for layer, weight in sorted(weights.items()):
            if tuple(weight.shape) != (vocab_size, width) or not 1 <= layer < stack.num_layers:
                raise InputError(
                    f"trained head of layer {layer} with shape {list(weight.shape)}: expected [{vocab_size}, {width}] and a "
                    f"layer from 1 to {stack.num_layers - 1}; train heads for this model"
                )
            self.weights[layer] = weight.to(stack.device, stack.dtype).t().contiguous()

    def weight(self, layer: int) -> Float[Tensor, "D V"]:
        if layer not in self.weights:
            known = ", ".join(map(str, self.weights))
            raise InputError(f"trained heads: none for layer {layer}; expected one of {known}, or train it")
        return self.weights[layer]


def save_heads(weights: Mapping[int, Float[Tensor, "V D"]], folder: Path) -> None:
    save_file({f"layer.{layer}": weight.detach().contiguous() for layer, weight in sorted(weights.items())}, folder / FILE)


def load_heads(folder: Path, stack: Stack) -> TrainedHeads:
    """Load heads; InputError where the folder holds none or those of another model."""
    path = folder / FILE
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"trained heads {path}: cannot be read ({error}); expected what `foretoken heads` wrote") from error
    try:
        weights = {int(name.removeprefix("layer.")): weight for name, weight in tensors.items()}
    except ValueError as error:
        raise InputError(f"trained heads {path}: {error}; expected tensors named layer.N") from error
    return TrainedHeads(weights, stack)
