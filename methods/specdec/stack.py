"""A block drafter's forward pass over the weights of its network, lean as ``methods.models.bart`` is for the verifier.

Its decoder keeps no keys or values of the text: every position looks at the block, so a new block changes them all. What is
saved: cross-attention keys and values are computed once a source, and the last layer runs for the block's positions only.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from methods.models.bart import BartStack
from methods.models.base import Cross, attend


class BlockStack(BartStack):
    """Holds references to a network's weights; like any stack it re-lays them in place and keeps nothing about a generation."""

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.block_size, self.mask_token_id = network.block_size, network.mask_token_id
        self.vocab_size = self.input_vocab_size = network.vocab_size
        self.head_weight, self.logits_bias = self.head_weight[:, :-1], self.logits_bias[..., :-1]

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
        (qkv, qkv_bias, out, out_bias, norm1, query, query_bias, cross_out, cross_out_bias, norm2) = layer[:10]
        up, up_bias, down, down_bias, norm3 = layer[10:]
        heads, head_dim, width = self.num_heads, self.head_dim, x.shape[1]
        layer_norm, addmm = torch.layer_norm, torch.addmm
        if x is context:
            y = addmm(qkv_bias, x, qkv).view(batch, -1, 3 * heads, head_dim)
            own, keys, values = y.split_with_sizes((heads, heads, heads), 2)
        else:
            own = addmm(qkv_bias[:width], x, qkv[:, :width]).view(batch, -1, heads, head_dim)
            y = addmm(qkv_bias[width:], context, qkv[:, width:]).view(batch, -1, 2 * heads, head_dim)
            keys, values = y.split_with_sizes((heads, heads), 2)
        a = attend(own, keys.transpose(1, 2), values.transpose(1, 2), mask)
        x = layer_norm(addmm(out_bias, a, out).add_(x), *norm1)
        y = addmm(query_bias, x, query).view(batch, -1, heads, head_dim)
        x = layer_norm(addmm(cross_out_bias, attend(y, *cross, cross_mask), cross_out).add_(x), *norm2)
        return layer_norm(addmm(down_bias, self.act(addmm(up_bias, x, up)), down).add_(x), *norm3)
