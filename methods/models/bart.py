"""BART and Marian: post-norm, positions added to the embedding (learned from row 2 on, or sinusoidal)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from methods.models.base import Frame, activation, attend, lookup
from methods.models.encoder_decoder import EncoderDecoderStack
from methods.models.weights import fuse


class BartStack(EncoderDecoderStack):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config, decoder = model.config, model.model.decoder
        self.num_layers, self.num_heads = config.decoder_layers, config.decoder_attention_heads
        self.num_kv_heads, self.head_dim = self.num_heads, config.d_model // self.num_heads
        self.position_limit = self.source_limit = config.max_position_embeddings
        self.act = activation(model, config.activation_function)
        self.embedding = decoder.embed_tokens.weight.detach()
        scaled = decoder if hasattr(decoder, "embed_scale") else decoder.embed_tokens
        self.embed_scale = float(scaled.embed_scale)
        self.position_table = decoder.embed_positions.weight.detach()[getattr(decoder.embed_positions, "offset", 0) :]
        first_norm = getattr(decoder, "layernorm_embedding", None)
        self.embedding_norm = None if first_norm is None else _norm(first_norm)
        self.layers = [_layer(layer) for layer in decoder.layers]
        self._fuse_cross([(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj) for layer in decoder.layers])
        self.logits_bias = model.final_logits_bias.detach()

    def embed(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        hidden = F.embedding(tokens, self.embedding) * self.embed_scale + lookup(self.position_table, frame)
        return hidden if self.embedding_norm is None else torch.layer_norm(hidden, *self.embedding_norm)

    def run(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        mask, causal = self.mask(frame)
        heads, head_dim, act, store, cross_mask = self.num_heads, self.head_dim, self.act, frame.store, frame.cross_mask
        layer_norm, addmm = torch.layer_norm, torch.addmm
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * heads)
        for layer, keys, values, slot, cross in zip(
            self.layers[first:last], frame.keys, frame.values, frame.slots, frame.cross[first:last], strict=True
        ):
            (qkv, qkv_bias, out, out_bias, norm1, query, query_bias, cross_out, cross_out_bias, norm2) = layer[:10]
            up, up_bias, down, down_bias, norm3 = layer[10:]
            y = addmm(qkv_bias, x, qkv).view(batch, num_new, 3 * heads, head_dim)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            a = attend(own, keys, values, mask, causal)
            x = layer_norm(addmm(out_bias, a, out).add_(x), *norm1)
            y = addmm(query_bias, x, query).view(batch, num_new, heads, head_dim)
            x = layer_norm(addmm(cross_out_bias, attend(y, *cross, cross_mask), cross_out).add_(x), *norm2)
            x = layer_norm(addmm(down_bias, act(addmm(up_bias, x, up)), down).add_(x), *norm3)
        return x.view(batch, num_new, width)

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "D V"] | None = None) -> Float[Tensor, "B n V"]:
        batch, num_new, width = hidden.shape
        weight = self.head_weight if weight is None else weight
        return torch.addmm(self.logits_bias, hidden.reshape(-1, width), weight).view(batch, num_new, -1)


def _norm(norm: Any) -> tuple:
    return norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps


def _layer(layer: Any) -> tuple:
    own, other = layer.self_attn, layer.encoder_attn
    return (
        *fuse((own.q_proj, own.k_proj, own.v_proj)),
        *fuse((own.out_proj,)),
        _norm(layer.self_attn_layer_norm),
        *fuse((other.q_proj,)),
        *fuse((other.out_proj,)),
        _norm(layer.encoder_attn_layer_norm),
        *fuse((layer.fc1,)),
        *fuse((layer.fc2,)),
        _norm(layer.final_layer_norm),
    )
