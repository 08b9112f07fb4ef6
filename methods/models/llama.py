"""Llama, Mistral, Qwen2 and Gemma (first version): pre-norm, rotary positions, gated feed-forward, grouped key heads."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import DecoderEnds, DecoderLayer, DecoderShape, NormWeights
from kernels.products.matrix import TORCH, Choice
from methods.errors import InputError
from methods.models.base import Frame, Norm, Stack, activation, attend, lookup, rms_norm
from methods.models.weights import fuse

SLIDING = ("mistral", "qwen2")  # families whose attention heeds sliding_window
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class LlamaStack(Stack):
    can_exit_early = True
    can_be_static = True

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        config, body = model.config, model.model
        self._refuse_unsupported()
        self.num_layers, self.num_heads = config.num_hidden_layers, config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = body.layers[0].self_attn.head_dim
        self.position_limit, self.window = _limits(config)
        self.act = activation(model, config.hidden_act)
        self.embedding = body.embed_tokens.weight.detach()
        scale = getattr(body.embed_tokens, "embed_scale", None)
        self.embed_scale = None if scale is None else scale.to(self.dtype)
        self.layers = [self._layer(layer) for layer in body.layers[: self.num_layers]]
        self._describe(body.layers[: self.num_layers], body.norm)
        self.norm = self._norm(body.norm)
        self._rotary: Float[Tensor, "P 2 1 head_dim"] = torch.empty(0, 2, 1, self.head_dim)
        identity = torch.stack((torch.ones(self.head_dim), torch.zeros(self.head_dim))).unsqueeze(1)
        self._identity = identity.to(self.device, self.dtype)

    def _refuse_unsupported(self) -> None:
        config = self.model.config
        rope = (config.rope_parameters or {}).get("rope_type", "default")
        if rope in LENGTH_DEPENDENT_ROPE:
            raise InputError(
                f"rope_type {rope!r} of model type {config.model_type!r}: its angles change with the length, so a cache of "
                "keys would be wrong; set config.rope_parameters to a type that does not (default, linear, yarn, llama3)"
            )

    def _norm(self, module: Any) -> Norm:
        return rms_norm(*self._gain(module))

    def _gain(self, module: Any) -> tuple[Float[Tensor, "D"], float]:
        """Return a norm's gain and its epsilon."""
        weight = module.weight.detach()
        if self.model.config.model_type == "gemma":
            return 1.0 + weight, module.eps
        return weight, module.variance_epsilon

    def _layer(self, layer: Any) -> tuple:
        attention, mlp = layer.self_attn, layer.mlp
        return (
            self._norm(layer.input_layernorm),
            fuse((attention.q_proj, attention.k_proj, attention.v_proj), self.choice),
            fuse((attention.o_proj,), self.choice),
            self._norm(layer.post_attention_layernorm),
            fuse((mlp.gate_proj, mlp.up_proj), self.choice),
            fuse((mlp.down_proj,), self.choice),
        )

    def _describe(self, modules: Iterable[Any], norm: Any) -> None:
        layers, scale = [], self.head_dim**-0.5
        for module, (_, qkv, out, _, gate_up, down) in zip(modules, self.layers, strict=True):
            gains = [self._gain(norm) for norm in (module.input_layernorm, module.post_attention_layernorm)]
            layers.append(
                DecoderLayer(
                    tuple(NormWeights(gain, None, epsilon) for gain, epsilon in gains),
                    qkv.parts,
                    out.parts,
                    None,
                    gate_up.parts,
                    down.parts,
                    scale,
                )
            )
        shape = DecoderShape(self.num_heads, self.num_kv_heads, self.head_dim, self.model.config.hidden_act, gated=True)
        gain, epsilon = self._gain(norm)
        embed_scale = 1.0 if self.embed_scale is None else float(self.embed_scale)
        self.describe(layers, shape, DecoderEnds(self.embedding, NormWeights(gain, None, epsilon), embed_scale))

    def part(self, first: int, last: int, device: torch.device) -> "LlamaStack":
        part = super().part(first, last, device)
        assert isinstance(part, LlamaStack)
        part._rotary, part._identity = self._rotary.to(device), self._identity.to(device)
        return part

    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        hidden = torch.nn.functional.embedding(tokens, self.embedding)
        return hidden if self.embed_scale is None else hidden * self.embed_scale

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        cos, sin = self._rotations(frame)
        mask, causal = self.mask(frame)
        heads, head_dim, act, store, slots = self.num_heads, self.head_dim, self.act, frame.store, frame.slots
        shape, half = (batch, num_new, heads + 2 * self.num_kv_heads, head_dim), head_dim // 2
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * self.num_kv_heads)
        for layer, keys, values, slot in zip(self.layers[first:last], *frame.views, slots, strict=True):
            norm1, qkv, out, norm2, gate_up, down = layer
            y = qkv(norm1(x)).view(shape)
            y = torch.addcmul(y * cos, y.roll(half, -1), sin)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            if frame.caches_only and slot is slots[-1]:
                break
            x = out(attend(own, keys, values, mask, causal), x)
            gate, up = gate_up(norm2(x)).chunk(2, -1)
            x = down(act(gate).mul_(up), x)
        return x.view(batch, num_new, width)

    def _rotations(self, frame: Frame) -> tuple[Float[Tensor, "*rows heads head_dim"], Float[Tensor, "*rows heads head_dim"]]:
        """Cosines and sines of queries, keys and values alike: values turn by the angle zero, so one product does all."""
        rotary = lookup(self.rotary(frame.end), frame)
        turned, kept = self.num_heads + self.num_kv_heads, self.num_kv_heads
        lead = (-1,) * (rotary.dim() - 2)
        identity = self._identity.expand(*rotary.shape[:-2], kept, -1)
        cos, sin = torch.cat((rotary.expand(*lead, turned, -1), identity), -2).unbind(-3)
        return cos, sin

    def rotary(self, end: int) -> Float[Tensor, "P 2 1 head_dim"]:
        """Return the model's own cosines and sines; rotate_half's minus sign is in the sine."""
        if end > self._rotary.shape[0]:
            positions = torch.arange(max(2 * end, 256), device=self.embedding.device)
            cos, sin = self.model.model.rotary_emb(self.embedding[:1], positions[None])
            sin = sin[0].clone()
            sin[:, : self.head_dim // 2] *= -1
            self._rotary = torch.stack((cos[0], sin), 1).unsqueeze(2).to(self.device)
        return self._rotary


def _limits(config: Any) -> tuple[int, int | None]:
    """Return the position limit, and the window of all layers. Where only some slide, it ends with their window: up to there
    they attend as the others do. What a configuration says of one counts in the families of which transformers heeds it."""
    window = getattr(config, "sliding_window", None) if config.model_type in SLIDING else None
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if window is None or "sliding_attention" not in kinds:
        return config.max_position_embeddings, None
    if len(kinds) > 1:
        return min(config.max_position_embeddings, window), None
    return config.max_position_embeddings, window
