"""GPT-2: pre-norm, learned positions, plain feed-forward."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import DecoderEnds, DecoderLayer, DecoderShape, NormWeights
from kernels.products.matrix import TORCH, Choice
from methods.models.base import Frame, Stack, activation, attend, layer_norm, lookup
from methods.models.weights import Product, norm_of


class Gpt2Stack(Stack):
    can_be_static = True

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        config, body = model.config, model.transformer
        self.num_layers, self.num_heads = config.num_hidden_layers, config.num_attention_heads
        self.num_kv_heads, self.head_dim = self.num_heads, config.hidden_size // self.num_heads
        self.position_limit = config.max_position_embeddings
        self.act = activation(model, config.activation_function)
        self.embedding, self.position_table = body.wte.weight.detach(), body.wpe.weight.detach()
        self.layers = [_layer(layer, choice) for layer in body.h]
        layers = [
            DecoderLayer(
                (NormWeights(*norm1[1:]), NormWeights(*norm2[1:])), qkv.parts, out.parts, None, up.parts, down.parts,
                scale,
            )
            for norm1, qkv, out, norm2, up, down, scale in self.layers
        ]  # fmt: skip
        shape = DecoderShape(self.num_heads, self.num_heads, self.head_dim, config.activation_function)
        norm = norm_of(body.ln_f)
        self.describe(layers, shape, DecoderEnds(self.embedding, NormWeights(*norm[1:]), positions=self.position_table))
        self.norm = layer_norm(norm)

    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        return F.embedding(tokens, self.embedding) + lookup(self.position_table, frame)

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        mask, causal = self.mask(frame)
        heads, act, store, slots = self.num_heads, self.act, frame.store, frame.slots
        shape = (batch, num_new, 3 * heads, self.head_dim)
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * heads)
        for layer, keys, values, slot in zip(self.layers[first:last], *frame.views, slots, strict=True):
            norm1, qkv, out, norm2, up, down, scale = layer
            y = qkv(torch.layer_norm(x, *norm1)).view(shape)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            if frame.caches_only and slot is slots[-1]:
                break
            x = out(attend(own, keys, values, mask, causal, scale), x)
            x = down(act(up(torch.layer_norm(x, *norm2))), x)
        return x.view(batch, num_new, width)


def _layer(layer: Any, choice: Choice) -> tuple:
    """Conv1D already stores its weight as [in, out], queries, keys and values side by side."""
    attention, mlp = layer.attn, layer.mlp
    products = (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)
    qkv, out, up, down = (Product(module.weight.detach(), module.bias.detach(), choice) for module in products)
    return norm_of(layer.ln_1), qkv, out, norm_of(layer.ln_2), up, down, attention.scaling
