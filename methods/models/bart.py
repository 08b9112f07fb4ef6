"""BART and Marian: post-norm, positions added to the embedding (learned from row 2 on, or sinusoidal)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import DecoderEnds, NormWeights
from kernels.products.matrix import TORCH, Choice
from methods.models.base import (
    EncoderDecoderStack,
    Frame,
    activation,
    attend,
    decoder_layer,
    described,
    described_encoder,
    encoder_layer,
    lookup,
)
from methods.models.weights import Product, norm_of


class BartStack(EncoderDecoderStack):
    can_be_static = True

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        config, encoder, decoder = model.config, model.model.encoder, model.model.decoder
        self.num_layers, self.num_heads = config.decoder_layers, config.decoder_attention_heads
        self.num_kv_heads, self.head_dim = self.num_heads, config.d_model // self.num_heads
        self.position_limit = self.source_limit = config.max_position_embeddings
        self.act = activation(model, config.activation_function)
        self.embedding, self.embed_scale, self.position_table, self.embedding_norm = _embedding(decoder)
        self.encoder_embedding = _embedding(encoder)
        self.layers = [decoder_layer(layer, choice) for layer in decoder.layers]
        self.encoder_layers = [encoder_layer(layer, choice) for layer in encoder.layers]
        self.encoder_heads = config.encoder_attention_heads
        self.project = Product(self.head_weight, model.final_logits_bias.detach().view(-1), choice)
        first_norm = None if self.embedding_norm is None else NormWeights(*self.embedding_norm[1:])
        ends = DecoderEnds(self.embedding, None, self.embed_scale, self.position_table, first_norm)
        self.describe(*described(self, config.activation_function, norms_behind=True), ends)
        self.describe_encoder(*described_encoder(self, config.activation_function, norms_behind=True))
        self._fuse_cross([(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj) for layer in decoder.layers])

    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        hidden = F.embedding(tokens, self.embedding) * self.embed_scale + lookup(self.position_table, frame)
        return hidden if self.embedding_norm is None else torch.layer_norm(hidden, *self.embedding_norm)

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        mask, causal = self.mask(frame)
        heads, head_dim, act, store, cross_mask = self.num_heads, self.head_dim, self.act, frame.store, frame.cross_mask
        layer_norm = torch.layer_norm
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * heads)
        for layer, keys, values, slot, cross in zip(
            self.layers[first:last], *frame.views, frame.slots, frame.cross[first:last], strict=True
        ):
            qkv, out, norm1, query, cross_out, norm2, up, down, norm3 = layer
            y = qkv(x).view(batch, num_new, 3 * heads, head_dim)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            x = layer_norm(out(attend(own, keys, values, mask, causal), x), *norm1)
            y = query(x).view(batch, num_new, heads, head_dim)
            x = layer_norm(cross_out(attend(y, *cross, cross_mask), x), *norm2)
            x = layer_norm(down(act(up(x)), x), *norm3)
        return x.view(batch, num_new, width)

    def encode(self, tokens: Int[Tensor, "B S"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        embedding, scale, positions, first_norm = self.encoder_embedding
        hidden = F.embedding(tokens, embedding) * scale + positions[: tokens.shape[1]]
        return self.run_encoder(hidden if first_norm is None else torch.layer_norm(hidden, *first_norm), mask)

    def run_encoder_by_torch(self, hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        batch, length, width = hidden.shape
        x, heads, act, allowed = hidden.view(batch * length, width), self.encoder_heads, self.act, None
        if mask is not None:
            allowed = mask.bool()[:, None, None]
        for qkv, out, norm1, up, down, norm2 in self.encoder_layers:
            y = qkv(x).view(batch, length, 3 * heads, -1)
            query, keys, values = y.split_with_sizes((heads, heads, heads), 2)
            a = attend(query, keys.transpose(1, 2), values.transpose(1, 2), allowed)
            x = torch.layer_norm(out(a, x), *norm1)
            x = torch.layer_norm(down(act(up(x)), x), *norm2)
        return x.view(batch, length, -1)


def _embedding(coder: Any) -> tuple[Tensor, float, Tensor, tuple | None]:
    """Return an encoder's or decoder's token embeddings with their scale, its positions, and BART's norm behind them."""
    scaled = coder if hasattr(coder, "embed_scale") else coder.embed_tokens
    positions = coder.embed_positions.weight.detach()[getattr(coder.embed_positions, "offset", 0) :]
    first_norm = getattr(coder, "layernorm_embedding", None)
    norm = None if first_norm is None else norm_of(first_norm)
    return coder.embed_tokens.weight.detach(), float(scaled.embed_scale), positions, norm
