"""Heads that read the next token from the hidden state after an intermediate layer, and how often they are right.

"N" in the paper (PPD Sections 3 and 4.3) is the model's own final norm and output projection; "Y" is an output projection
trained for the layer, behind the same frozen norm (whose gain it could absorb anyway).

The paper counts a match where the token that the last layer chose is among the k likeliest of an early layer. Its rank says so
for every k at once, and one forward pass over the finished text yields it for every layer, head and position.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from methods.errors import InputError
from methods.models.base import Stack
from methods.models.checkpoint import refuse_not_finite, refuse_whole_numbers, refuse_wiped_out
from methods.options import EARLY_HEADS as FILE
from methods.types import Inputs, Session

NAME = re.compile(r"layer\.[1-9][0-9]*")  # of a trained head's weights
TRIED = 8  # positions that heads are tried with when they are loaded
CHUNK = 64  # positions whose logits are held at once


class OwnHead:
    """The model's own final norm and output projection at every layer ("N", the paper's letter)."""

    name = "N"

    def weight(self, layer: int) -> None:
        """The projection behind the final norm for hidden states after ``layer`` layers; None is the model's own."""
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


EarlyHead = OwnHead | TrainedHeads


def save_heads(weights: Mapping[int, Float[Tensor, "V D"]], folder: Path) -> None:
    save_file({f"layer.{layer}": weight.detach().contiguous() for layer, weight in sorted(weights.items())}, folder / FILE)


def load_heads(folder: Path, stack: Stack) -> TrainedHeads:
    """Load heads; InputError where the folder holds none, those of another model or such as overflow."""
    path = folder / FILE
    try:
        tensors = load_file(path)
        refuse_whole_numbers(tensors)
        refuse_wiped_out(tensors)
    except (OSError, SafetensorError, InputError) as error:
        raise InputError(f"trained heads {path}: cannot be read ({error}); expected what `foretoken heads` wrote") from error
    if odd := next((name for name in tensors if not NAME.fullmatch(name)), None):
        raise InputError(f"trained heads {path}: tensor {odd!r}; expected tensors named layer.N")
    heads = TrainedHeads({int(name.removeprefix("layer.")): weight for name, weight in tensors.items()}, stack)
    try:
        refuse_not_finite({f"layer.{layer}": weight for layer, weight in heads.weights.items()})
    except InputError as error:
        raise InputError(f"trained heads {path}: in the model's own type, {error}; train heads for this model") from error
    hidden = torch.randn(1, TRIED, stack.head_weight.shape[0], generator=torch.Generator().manual_seed(0))
    for layer, weight in heads.weights.items():
        if not bool((stack.head(hidden.to(stack.device, stack.dtype), weight) < float("inf")).all()):  # -inf: never emitted
            raise InputError(
                f"trained heads {path}: layer.{layer}: its logits hold NaN or infinity; train heads for this model"
            )
    return heads


@torch.inference_mode()
def early_ranks(
    session: Session, inputs: Inputs, output: Sequence[int], layers: Sequence[int], heads: Sequence[EarlyHead]
) -> Int[Tensor, "heads layers T"]:
    """Rank every token of one row's output (0: the likeliest) in the logits of each head at each early layer.

    A token matches for k candidates where its rank is below k. Equal logits rank by token id, the lowest first.

    Raises:
        InputError: more than one row, or a layer that is not inside the model.
    """
    if inputs.batch != 1:
        raise InputError(f"inputs: {inputs.batch} rows; expected one, since outputs differ in length")
    check_layers(layers, session.num_layers)
    text = torch.tensor([[*session.prefill(inputs), *output]], device=session.device)
    chunks = [
        _ranks_of(session, text[:, start : start + CHUNK], text[0, start + 1 : start + CHUNK + 1], layers, heads)
        for start in range(0, len(output), CHUNK)
    ]
    none = torch.empty(len(heads), len(layers), 0, dtype=torch.long, device=session.device)
    return torch.cat([none, *chunks], -1)


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raise InputError for a layer that is not inside the model."""
    if wrong := [layer for layer in layers if not 1 <= layer < num_layers]:
        raise InputError(f"early layer {wrong[0]}: the model has {num_layers} layers; expected 1 to {num_layers - 1}")


def _ranks_of(
    session: Session, fed: Int[Tensor, "1 n"], emitted: Int[Tensor, " m"], layers: Sequence[int], heads: Sequence[EarlyHead]
) -> Int[Tensor, "heads layers m"]:
    """Run the layers piece by piece, as far as the deepest early one, and rank the emitted token at each."""
    found, done, count = {}, 0, len(emitted)
    hidden = session.embed(fed[:, :count])
    for layer in sorted(set(layers)):
        hidden = session.run_layers(hidden, done, layer)
        done = layer
        found[layer] = torch.stack([rank_of(session.head(hidden, head.weight(layer))[0], emitted) for head in heads])
    return torch.stack([found[layer] for layer in layers], 1)


def rank_of(logits: Float[Tensor, "n V"], tokens: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Count the tokens that are likelier than the given one; of equals, those with a lower id are."""
    own = logits.gather(1, tokens.unsqueeze(1))
    before = torch.arange(logits.shape[1], device=logits.device) < tokens.unsqueeze(1)
    return ((logits > own) | ((logits == own) & before)).sum(1)
