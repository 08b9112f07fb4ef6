"""The input of SpecDec's drafter (Xia et al. 3.1): a block of k [MASK] tokens beside the text so far.

The decoder sees ``[MASK] * k`` and the text so far (the start token and what was emitted), without a causal mask, and attends
to the source. With p emitted tokens the MASKs stand at positions p + 1 to p + k, and the one at position i predicts token i.
Columns are laid out block first: attention knows order by positions only, and so the block is columns 0..k-1 of every row,
whatever the lengths of their texts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

MODEL_TYPES = ("marian", "bart")  # of transformers, that a drafter can be built as


@dataclass(frozen=True)
class BlockInputs:
    """The decoder's input: S = k + the longest text, block first. ``allowed`` marks the columns that a row may look at."""

    tokens: Int[Tensor, "B S"]
    positions: Int[Tensor, "B S"]
    allowed: Bool[Tensor, "B S"]


def block_inputs(
    prefix: Int[Tensor, "B P"], lengths: Int[Tensor, "B"], block: Int[Tensor, "B k"], position_limit: int
) -> BlockInputs:
    """Make the decoder's columns for texts of ``lengths`` tokens (start token included; what lies behind is padding).

    ``block`` holds [MASK], or tokens that glancing reveals. MASKs past the position limit are not looked at.
    """
    ahead = torch.arange(block.shape[1], device=prefix.device)
    behind = torch.arange(prefix.shape[1], device=prefix.device)
    starts = lengths.unsqueeze(1)
    positions = torch.cat((starts + ahead, behind.expand(len(prefix), -1)), 1)
    allowed = torch.cat((starts + ahead < position_limit, behind < starts), 1)
    return BlockInputs(torch.cat((block, prefix), 1), positions.clamp(max=position_limit - 1), allowed)
