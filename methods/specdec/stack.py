"""A block drafter's input and its lean forward pass over the weights of its network (Xia et al. 3.1).

The decoder sees k [MASK] tokens and the text so far (the start token and what was emitted), without a causal mask, and attends
to the source. With p emitted tokens the MASKs stand at positions p + 1 to p + k, and the one at position i predicts token i.
Columns are laid out block first: attention knows order by positions only, and so the block is columns 0..k-1 of every row,
whatever the lengths of their texts.

The decoder keeps no keys or values of the text: every position looks at the block, so a new block changes them all. What is
saved: cross-attention keys and values are computed once a source, and by torch's operations the last layer runs for the
block's positions only. One row's pass is compiled calls where the stack has them (``kernels.layers``).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.layers.decoder import Cached
from kernels.products.matrix import TORCH, Choice
from methods.models.bart import BartStack
from methods.models.base import Cross, SourceStates, attend

MODEL_TYPES = ("marian", "bart")  # of transformers, that a drafter can be built as
# Of compiled calls: nine columns take two thirds of torch's time, 24 as long, since a weight is read once a group of rows.
MOST_COLUMNS = 24


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


class BlockStack(BartStack):
    """Holds references to a network's weights; like any stack it re-lays them in place and keeps nothing about a generation."""

    def __init__(self, network: Any, choice: Choice = TORCH) -> None:
        super().__init__(network, choice)
        self.block_size, self.mask_token_id = network.block_size, network.mask_token_id
        self.vocab_size = self.input_vocab_size = network.vocab_size
        self.head_weight = self.head_weight[:, :-1]  # without [MASK]
        self.project = self.project.columns(0, -1)
        assert self._described is not None
        layers, shape, ends = self._described
        self.describe(layers, replace(shape, sees_all=True), ends)
        last, width = self.layers[-1][0], self.head_weight.shape[0]
        self._last_queries, self._last_keys = last.columns(0, width), last.columns(width, 3 * width)

    def compiled_logits(self, text: Int[Tensor, "1 P"], source: SourceStates) -> Float[Tensor, "1 k V"] | None:
        """Compute the logits of the block behind one row's text by compiled calls; None where so many columns have none."""
        block_size, behind = self.block_size, text.shape[1]
        compiled = self._compiled_for(1, block_size + behind)
        if compiled is None or block_size + behind > MOST_COLUMNS:
            return None
        tokens = torch.cat((torch.full((1, block_size), self.mask_token_id), text), 1)
        positions = torch.cat((torch.arange(behind, behind + block_size), torch.arange(behind))).unsqueeze(0)
        room = torch.empty(self.num_layers, 1, tokens.shape[1], 2 * self.num_heads, self.head_dim, dtype=self.dtype)
        hidden = compiled.embed(tokens, positions)
        hidden = compiled.run(hidden, 0, self.num_layers, Cached(room, room, source.states, source.mask), 0)
        return compiled.head(hidden[:, :block_size])

    def block_logits(
        self,
        tokens: Int[Tensor, "B S"],
        positions: Float[Tensor, "#B S D"],
        mask: Float[Tensor, "B 1 1 S"] | None,
        cross: tuple[Cross, ...],
        cross_mask: Tensor | None,
    ) -> Float[Tensor, "B k V"]:
        """Compute the block's logits: columns as in ``BlockInputs``, with their positions' embeddings and an additive mask.

        ``cross`` are the keys and values [B, heads, T, head_dim] of every layer.
        """
        batch, columns = tokens.shape
        hidden = F.embedding(tokens, self.embedding) * self.embed_scale + positions
        if self.embedding_norm is not None:
            hidden = torch.layer_norm(hidden, *self.embedding_norm)
        x = hidden.reshape(batch * columns, -1)
        for layer, pair in zip(self.layers[:-1], cross, strict=False):
            x = self._layer(layer, x, x, batch, mask, pair, cross_mask)
        block = x.view(batch, columns, -1)[:, : self.block_size].reshape(batch * self.block_size, -1)
        block = self._layer(self.layers[-1], block, x, batch, mask, cross[-1], cross_mask)
        return self.head(block.view(batch, self.block_size, -1))

    def _layer(
        self,
        layer: tuple,
        x: Float[Tensor, "rows D"],
        context: Float[Tensor, "columns D"],
        batch: int,
        mask: Tensor | None,
        cross: Cross,
        cross_mask: Tensor | None,
    ) -> Float[Tensor, "rows D"]:
        """Run one layer on the rows ``x``, which look at ``context``: themselves, or a superset of them."""
        qkv, out, norm1, query, cross_out, norm2, up, down, norm3 = layer
        heads, head_dim, layer_norm = self.num_heads, self.head_dim, torch.layer_norm
        if x is context:
            y = qkv(x).view(batch, -1, 3 * heads, head_dim)
            own, keys, values = y.split_with_sizes((heads, heads, heads), 2)
        else:
            own = self._last_queries(x).view(batch, -1, heads, head_dim)
            y = self._last_keys(context).view(batch, -1, 2 * heads, head_dim)
            keys, values = y.split_with_sizes((heads, heads), 2)
        a = attend(own, keys.transpose(1, 2), values.transpose(1, 2), mask)
        x = layer_norm(out(a, x), *norm1)
        y = query(x).view(batch, -1, heads, head_dim)
        x = layer_norm(cross_out(attend(y, *cross, cross_mask), x), *norm2)
        return layer_norm(down(self.act(up(x)), x), *norm3)
