"""T5, version 1.0 (relu, tied and scaled head) and 1.1 / Flan (gated, unscaled): the decoder; transformers encodes."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import DecoderLayer, DecoderShape, NormWeights
from kernels.products.few_rows import TORCH, Choice
from methods.models.base import EncoderDecoderStack, Frame, activation, attend, rms_norm
from methods.models.weights import Product, fuse


class T5Stack(EncoderDecoderStack):
    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        config, decoder = model.config, model.decoder
        self.num_layers, self.num_heads = config.num_decoder_layers, config.num_heads
        self.num_kv_heads, self.head_dim = config.num_heads, config.d_kv
        self.position_limit = None
        self.act, self.gated = activation(model, config.dense_act_fn), config.is_gated_act
        self.embedding = decoder.embed_tokens.weight.detach()
        self.layers = [_layer(block, self.gated, choice) for block in decoder.block]
        scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        self.norm = rms_norm(decoder.final_layer_norm.weight, decoder.final_layer_norm.variance_epsilon, scale)
        self._fuse_cross([(block.layer[1].EncDecAttention.k, block.layer[1].EncDecAttention.v) for block in decoder.block])
        self.max_distance = config.relative_attention_max_distance
        self.bias_table = self._bias_table(decoder.block[0].layer[0].SelfAttention)
        self._compile(decoder.block)

    def _compile(self, blocks: Iterable[Any]) -> None:
        layers, heads = [], self.num_heads
        for block, (_, qkv, out, _, query, cross_out, _, up, down) in zip(blocks, self.layers, strict=True):
            parts = (part.layer_norm for part in block.layer)
            norms = tuple(NormWeights(norm.weight.detach(), None, norm.variance_epsilon) for norm in parts)
            source = query.parts, cross_out.parts
            layers.append(DecoderLayer(norms, qkv.parts, out.parts, source, up.parts, down.parts, 1.0))
        biases, activation = self.bias_table[:-1].t(), self.model.config.dense_act_fn
        self.compile(layers, DecoderShape(heads, heads, self.head_dim, activation, gated=self.gated, biases=biases))

    @torch.no_grad()
    def _bias_table(self, attention: Any) -> Float[Tensor, "distances H"]:
        """The bias by key position minus query position, -max_distance..0, and minus infinity for +1 (the future)."""
        offsets = torch.arange(-self.max_distance, 1, device=self.device)
        buckets = attention._relative_position_bucket(
            offsets, False, attention.relative_attention_num_buckets, self.max_distance
        )
        bias = attention.relative_attention_bias.weight[buckets]
        return torch.cat((bias, torch.full_like(bias[:1], float("-inf"))))

    def bias(self, frame: Frame) -> Float[Tensor, "_ H n end"]:
        """Relative position bias and causal mask in one: distances past max_distance share a bucket, so a clamp finds it."""
        keys = torch.arange(frame.end, device=self.device)
        queries = frame.positions() if frame.start is None else keys[None, frame.start :]
        offsets = (keys - queries.unsqueeze(-1)).clamp_(-self.max_distance, 1).add_(self.max_distance)
        return F.embedding(offsets, self.bias_table).permute(0, 3, 1, 2).contiguous()

    def embed(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        return F.embedding(tokens, self.embedding)

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        bias, cross_mask = self.bias(frame), frame.cross_mask
        heads, head_dim, act, store, gated = self.num_heads, self.head_dim, self.act, frame.store, self.gated
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * heads)
        for layer, keys, values, slot, cross in zip(
            self.layers[first:last], frame.keys, frame.values, frame.slots, frame.cross[first:last], strict=True
        ):
            norm1, qkv, out, norm2, cross_query, cross_out, norm3, up, down = layer
            y = qkv(norm1(x)).view(batch, num_new, 3 * heads, head_dim)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            x = _add(x, attend(own, keys, values, bias, False, 1.0), out)
            query = cross_query(norm2(x)).view(batch, num_new, heads, head_dim)
            x = _add(x, attend(query, *cross, cross_mask, False, 1.0), cross_out)
            y = up(norm3(x))
            if gated:
                gate, y = y.chunk(2, -1)
                y = act(gate).mul_(y)
            else:
                y = act(y)
            x = _add(x, y, down)
        return x.view(batch, num_new, width)

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "D V"] | None = None) -> Float[Tensor, "B n V"]:
        batch, num_new, width = hidden.shape
        project = self.project if weight is None else Product(weight)
        return project(self.norm(hidden.reshape(-1, width))).view(batch, num_new, -1)


def _add(hidden: Float[Tensor, "N D"], y: Float[Tensor, "N d_in"], product: Product) -> Float[Tensor, "N D"]:
    """hidden + y weight. transformers keeps the last feed-forward weight of an fp16 T5 in fp32, and the sum with it."""
    dtype = product.weight.dtype
    if hidden.dtype == y.dtype == dtype:
        return product(y, hidden)
    return hidden + product(y.to(dtype))


def _layer(block: Any, gated: bool, choice: Choice) -> tuple:
    own, cross, feed_forward = block.layer
    attention, other, dense = own.SelfAttention, cross.EncDecAttention, feed_forward.DenseReluDense
    norm1, norm2, norm3 = (rms_norm(part.layer_norm.weight, part.layer_norm.variance_epsilon) for part in block.layer)
    own_linears = ((attention.q, attention.k, attention.v), (attention.o,), (other.q,), (other.o,))
    qkv, out, query, cross_out = (fuse(linears, choice) for linears in own_linears)
    up, down = (fuse(linears, choice) for linears in ((dense.wi_0, dense.wi_1) if gated else (dense.wi,), (dense.wo,)))
    return norm1, qkv, out, norm2, query, cross_out, norm3, up, down
