"""Rank each emitted token among the logits of intermediate layers: where an early prediction would have been right.

PPD (Section 4.3) counts a match where the token that the last layer chose is among the k likeliest of an early layer. Its rank
says so for every k at once, and one forward pass over the finished text yields it for every layer, head and position.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.errors import InputError
from methods.ppd.heads import EarlyHead
from methods.types import Inputs, Session

CHUNK = 64  # positions whose logits are held at once


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
    session: Session, fed: Int[Tensor, "1 n"], emitted: Int[Tensor, "m"], layers: Sequence[int], heads: Sequence[EarlyHead]
) -> Int[Tensor, "heads layers m"]:
    """Run the layers piece by piece, as far as the deepest early one, and rank the emitted token at each."""
    found, done, count = {}, 0, len(emitted)
    hidden = session.embed(fed[:, :count])
    for layer in sorted(set(layers)):
        hidden = session.run_layers(hidden, done, layer)
        done = layer
        found[layer] = torch.stack([rank_of(session.head(hidden, head.weight(layer))[0], emitted) for head in heads])
    return torch.stack([found[layer] for layer in layers], 1)


def rank_of(logits: Float[Tensor, "n V"], tokens: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Count the tokens that are likelier than the given one; of equals, those with a lower id are."""
    own = logits.gather(1, tokens.unsqueeze(1))
    before = torch.arange(logits.shape[1], device=logits.device) < tokens.unsqueeze(1)
    return ((logits > own) | ((logits == own) & before)).sum(1)
