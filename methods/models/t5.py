"""T5, version 1.0 (relu, tied and scaled head) and 1.1 / Flan (gated, unscaled)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import DecoderEnds, DecoderLayer, DecoderShape, NormWeights
from kernels.products.matrix import TORCH, Choice
from methods.errors import InputError
from methods.models.base import EncoderDecoderStack, Frame, Norm, activation, attend, rms_norm
from methods.models.weights import Product, fuse

FP16_MARGIN = 1000.0  # transformers keeps fp16 states of an encoder this far from the largest number


class T5Stack(EncoderDecoderStack):
    can_be_static = True

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        config, decoder, encoder = model.config, model.decoder, model.encoder
        self.num_layers, self.num_heads = config.num_decoder_layers, config.num_heads
        self.num_kv_heads, self.head_dim = config.num_heads, config.d_kv
        self.position_limit = None
        self.act, self.gated = activation(model, config.dense_act_fn), config.is_gated_act
        self.embedding = decoder.embed_tokens.weight.detach()
        self.layers = [_layer(block, self.gated, choice) for block in decoder.block]
        self.encoder_embedding = encoder.embed_tokens.weight.detach()
        self.encoder_layers = [_encoder_layer(block, self.gated, choice) for block in encoder.block]
        self.encoder_norm = rms_norm(encoder.final_layer_norm.weight, encoder.final_layer_norm.variance_epsilon)
        scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        final = NormWeights(decoder.final_layer_norm.weight.detach(), None, decoder.final_layer_norm.variance_epsilon)
        self.norm = rms_norm(final.gain, final.epsilon, scale)
        self._fuse_cross([(block.layer[1].EncDecAttention.k, block.layer[1].EncDecAttention.v) for block in decoder.block])
        self.max_distance = config.relative_attention_max_distance
        if self.max_distance <= config.relative_attention_num_buckets // 2:
            raise InputError(
                f"relative_attention_max_distance {self.max_distance} of model type {config.model_type!r}: expected more than "
                f"half of relative_attention_num_buckets ({config.relative_attention_num_buckets}); correct its config.json"
            )
        bias = self._bias_table(decoder.block[0].layer[0].SelfAttention, 0)
        self.bias_table = torch.cat((bias, torch.full_like(bias[:1], float("-inf"))))
        self.encoder_bias_table = self._bias_table(encoder.block[0].layer[0].SelfAttention, self.max_distance)
        self._describe(decoder.block, replace(final, gain=final.gain * scale))
        self._describe_encoder(encoder.block)

    def _describe(self, blocks: Iterable[Any], norm: NormWeights) -> None:
        layers, heads = [], self.num_heads
        for block, (_, qkv, out, _, query, cross_out, _, up, down) in zip(blocks, self.layers, strict=True):
            parts = (part.layer_norm for part in block.layer)
            norms = tuple(NormWeights(part.weight.detach(), None, part.variance_epsilon) for part in parts)
            source = query.parts, cross_out.parts
            layers.append(DecoderLayer(norms, qkv.parts, out.parts, source, up.parts, down.parts, 1.0))
        biases, activation = self.bias_table[:-1].t(), self.model.config.dense_act_fn
        shape = DecoderShape(heads, heads, self.head_dim, activation, gated=self.gated, biases=biases)
        self.describe(layers, shape, DecoderEnds(self.embedding, norm))

    def _describe_encoder(self, blocks: Iterable[Any]) -> None:
        layers = []
        for block, (_, qkv, out, _, up, down) in zip(blocks, self.encoder_layers, strict=True):
            parts = (part.layer_norm for part in block.layer)
            norms = tuple(NormWeights(part.weight.detach(), None, part.variance_epsilon) for part in parts)
            layers.append(DecoderLayer(norms, qkv.parts, out.parts, None, up.parts, down.parts, 1.0))
        heads, biases, activation = self.num_heads, self.encoder_bias_table.t(), self.model.config.dense_act_fn
        shape = DecoderShape(heads, heads, self.head_dim, activation, self.gated, biases=biases, ahead=self.max_distance)
        self.describe_encoder(layers, shape)

    @torch.no_grad()
    def _bias_table(self, attention: Any, last: int) -> Float[Tensor, "distances H"]:
        """The bias by key position minus query position, -max_distance..last."""
        offsets = torch.arange(-self.max_distance, last + 1, device=self.device)
        num_buckets = attention.relative_attention_num_buckets
        buckets = attention._relative_position_bucket(offsets, last > 0, num_buckets, self.max_distance)
        return attention.relative_attention_bias.weight[buckets]

    def bias(self, frame: Frame) -> Float[Tensor, "_ H n end"]:
        """The bias by distance, minus infinity for the future. Distances past max_distance share a bucket: a clamp finds it."""
        keys = torch.arange(frame.end, device=self.device)
        queries = frame.positions() if frame.start is None else keys[None, frame.start :]
        offsets = (keys - queries.unsqueeze(-1)).clamp_(-self.max_distance, 1).add_(self.max_distance)
        return F.embedding(offsets, self.bias_table).permute(0, 3, 1, 2).contiguous()

    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        return F.embedding(tokens, self.embedding)

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        bias, cross_mask = self.bias(frame), frame.cross_mask
        heads, head_dim, store = self.num_heads, self.head_dim, frame.store
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * heads)
        for layer, keys, values, slot, cross in zip(
            self.layers[first:last], *frame.views, frame.slots, frame.cross[first:last], strict=True
        ):
            norm1, qkv, out, norm2, cross_query, cross_out, norm3, up, down = layer
            y = qkv(norm1(x)).view(batch, num_new, 3 * heads, head_dim)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            x = _add(x, attend(own, keys, values, bias, False, 1.0), out)
            query = cross_query(norm2(x)).view(batch, num_new, heads, head_dim)
            x = _add(x, attend(query, *cross, cross_mask, False, 1.0), cross_out)
            x = _add(x, self._activated(up(norm3(x))), down)
        return x.view(batch, num_new, width)

    def _activated(self, y: Float[Tensor, "N d_out"]) -> Float[Tensor, "N d_feed"]:
        if not self.gated:
            return self.act(y)
        gate, y = y.chunk(2, -1)
        return self.act(gate).mul_(y)

    def encode(self, tokens: Int[Tensor, "B S"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        return self.encoder_norm(self.run_encoder(F.embedding(tokens, self.encoder_embedding), mask))

    def run_encoder_by_torch(self, hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        batch, length, width = hidden.shape
        places = torch.arange(length, device=self.device)
        offsets = (places - places.unsqueeze(1)).clamp_(-self.max_distance, self.max_distance).add_(self.max_distance)
        bias = F.embedding(offsets, self.encoder_bias_table).permute(2, 0, 1).unsqueeze(0).contiguous()
        if mask is not None:
            bias = bias.masked_fill(mask[:, None, None] == 0, float("-inf"))
        x, heads = hidden.view(batch * length, width), self.num_heads
        for norm1, qkv, out, norm2, up, down in self.encoder_layers:
            y = qkv(norm1(x)).view(batch, length, 3 * heads, self.head_dim)
            query, keys, values = y.split_with_sizes((heads, heads, heads), 2)
            x = _finite(_add(x, attend(query, keys.transpose(1, 2), values.transpose(1, 2), bias, False, 1.0), out))
            x = _finite(_add(x, self._activated(up(norm2(x))), down))
        return x.view(batch, length, width)


def _add(hidden: Float[Tensor, "N D"], y: Float[Tensor, "N d_in"], product: Product) -> Float[Tensor, "N D"]:
    """hidden + y weight. transformers keeps the last feed-forward weight of an fp16 T5 in fp32, and the sum with it."""
    dtype = product.weight.dtype
    if hidden.dtype == y.dtype == dtype:
        return product(y, hidden)
    return hidden + product(y.to(dtype))


def _finite(hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Keep fp16 states from the largest number, as transformers does."""
    if hidden.dtype != torch.float16:
        return hidden
    most = torch.finfo(hidden.dtype).max - FP16_MARGIN
    return torch.where(hidden.isfinite().all(), hidden, hidden.clamp(-most, most))  # on the device: nobody waits for the answer


def _layer(block: Any, gated: bool, choice: Choice) -> tuple:
    own, cross, feed_forward = block.layer
    other = cross.EncDecAttention
    query, cross_out = fuse((other.q,), choice), fuse((other.o,), choice)
    return *_attention(own, choice), _norm(cross), query, cross_out, *_feed_forward(feed_forward, gated, choice)


def _encoder_layer(block: Any, gated: bool, choice: Choice) -> tuple:
    own, feed_forward = block.layer
    return *_attention(own, choice), *_feed_forward(feed_forward, gated, choice)


def _norm(part: Any) -> Norm:
    return rms_norm(part.layer_norm.weight, part.layer_norm.variance_epsilon)


def _attention(part: Any, choice: Choice) -> tuple[Norm, Product, Product]:
    own = part.SelfAttention
    return _norm(part), fuse((own.q, own.k, own.v), choice), fuse((own.o,), choice)


def _feed_forward(part: Any, gated: bool, choice: Choice) -> tuple[Norm, Product, Product]:
    dense = part.DenseReluDense
    ups = (dense.wi_0, dense.wi_1) if gated else (dense.wi,)
    return _norm(part), fuse(ups, choice), fuse((dense.wo,), choice)
