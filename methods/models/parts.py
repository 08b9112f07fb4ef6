"""What the names of a layer's parts say: how our compiled loop would compute it.

Most families of today write a layer with the same parts: attention by four matrices or two, to a source too in a decoder that
has one, a feed-forward behind it or beside it, with a gate or without, norms before or behind both, norms of queries and keys.
That a layer computes nothing else is for a trial to see (``methods.models.layers``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernels.layers.decoder import DecoderLayer, DecoderShape, NormWeights
from kernels.products.matrix import TORCH, Choice
from methods.models.base import ACTIVATIONS
from methods.models.twin import norm_weights
from methods.models.weights import fuse

# The names that transformers' families give to a layer's parts. Without a module for feed-forward its matrices are the
# layer's own.
ATTENTION, FEED = ("self_attn", "attention", "attn"), "mlp"
QKV = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",), ("c_attn",))
INTERLEAVED = (("query_key_value",),)  # a head's query, key and value side by side
OUT = (("o_proj",), ("out_proj",), ("dense",), ("c_proj",))
SOURCE, SOURCE_NORM = "encoder_attn", "encoder_attn_layer_norm"  # attention to what an encoder read, and what stands before it
UP = (("gate_proj", "up_proj"), ("gate_up_proj",), ("c_fc",), ("fc1",), ("dense_h_to_4h",))
DOWN = (("down_proj",), ("c_proj",), ("fc2",), ("dense_4h_to_h",))
HEAD_NORMS = (("q_norm", "k_norm"),)
# Before and behind attention, before and behind feed-forward. "post_attention" is before feed-forward in most families, and
# behind attention in those that have norms there.
NORMS = (
    ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ("input_layernorm", None, "post_attention_layernorm", None),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ("self_attn_layer_norm", None, "final_layer_norm", None),
    ("ln_1", None, "ln_2", None),
    ("input_layernorm", None, "input_layernorm", None),
)
ACTIVATION = ("act_fn", "activation_fn", "act")
# Settings of what a trial may not see, since it only shows in large numbers or far into a text.
UNSEEN = ("attn_logit_softcapping", "clip_qkv", "swiglu_limit", "llama_4_scaling_beta")
ACTIVATION_ROUNDING = 2e-6


@dataclass(frozen=True)
class _Parts:
    """A layer's modules. Of its four norms, before and behind attention, before and behind feed-forward, some are None.

    ``source`` are the matrices of the source's queries and of what attention to it gives, and ``source_norm`` is before it.
    """

    qkv: tuple[nn.Linear, ...]
    out: tuple[nn.Linear, ...]
    up: tuple[nn.Linear, ...]
    down: tuple[nn.Linear, ...]
    interleaved: bool
    norms: tuple[nn.Module | None, ...]
    head_norms: tuple[nn.Module, ...]
    source: tuple[nn.Linear, ...]
    source_norm: nn.Module | None
    activation: str


def parts_of(layer: nn.Module) -> _Parts | None:
    """Return a layer's parts: all of its weights, fp32 on a CPU, without hooks; None where it has others, or lacks some."""
    attention, feed = _attention(layer), layer._modules.get(FEED)
    if attention is None:
        return None
    feed = layer if feed is None else feed
    named = (attention, QKV), (attention, OUT), (feed, UP), (feed, DOWN)
    qkv, out, up, down = (_linears(parent, names) for parent, names in named)
    interleaved = not qkv
    if interleaved:
        qkv = _linears(attention, INTERLEAVED)
    arrangement = next((one for one in NORMS if all(layer._modules.get(name) is not None for name in one if name)), None)
    if arrangement is None or not all((qkv, out, up, down)):
        return None
    norms = tuple(None if name is None else layer._modules[name] for name in arrangement)
    head_norms = next((pair for names in HEAD_NORMS if (pair := _modules(attention, names))), ())
    source_norm, reads = layer._modules.get(SOURCE_NORM), layer._modules.get(SOURCE)
    source = () if reads is None else (*_linears(reads, (("q_proj",),)), *_linears(reads, OUT))
    modules = (*qkv, *out, *up, *down, *norms, *head_norms, reads, source_norm)
    used = {id(one) for part in modules if part is not None for one in part.parameters()}
    own = list(layer.parameters())
    plain = all(one.dtype == torch.float32 and one.device.type == "cpu" for one in own)
    hooked = any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules())
    width = out[0].out_features
    fits = down[0].out_features == width and all(one.in_features == width for one in (*qkv, *up))
    if reads is not None:  # its keys and values are made elsewhere, by whatever weights it has for them
        fits = fits and source_norm is not None and len(source) == 2
    if not plain or hooked or not fits or {id(one) for one in own} != used:
        return None
    activation = _activation(feed)
    if activation is None:
        return None
    return _Parts(qkv, out, up, down, interleaved, norms, head_norms, source, source_norm, activation)


def _attention(layer: nn.Module) -> nn.Module | None:
    return next((found for name in ATTENTION if (found := layer._modules.get(name)) is not None), None)


def _modules(parent: nn.Module, names: Sequence[str]) -> tuple[nn.Module, ...]:
    """The modules of these names, none where one is missing."""
    found = [parent._modules.get(name) for name in names]
    return () if None in found else tuple(one for one in found if one is not None)


def _linears(parent: nn.Module, choices: Sequence[Sequence[str]]) -> tuple[nn.Linear, ...]:
    found = next((modules for names in choices if (modules := _modules(parent, names))), ())
    linears = tuple(one for one in found if type(one) is nn.Linear)
    return linears if len(linears) == len(found) else ()


@torch.no_grad()
def _activation(feed: nn.Module) -> str | None:
    """Tell a feed-forward's activation by what it gives for small numbers and for large ones, which some families clip."""
    act = next((found for name in ACTIVATION if callable(found := getattr(feed, name, None))), None)
    if act is None:
        return None
    large = torch.logspace(1, 4, 64, dtype=torch.float32)
    numbers = torch.cat((torch.linspace(-8, 8, 4097, dtype=torch.float32), large, -large))
    try:
        given = act(numbers)
    except (RuntimeError, TypeError, ValueError):  # one that takes something else
        return None
    for name, ours in ACTIVATIONS.items():
        if given.dtype == numbers.dtype and torch.allclose(ours(numbers), given, ACTIVATION_ROUNDING, ACTIVATION_ROUNDING):
            return name
    return None


def takes_layers(model: Any, choice: Choice) -> bool:
    """Tell if compiled calls may stand in for layers of a model. Those of rounded weights would read a copy of their own."""
    config = model.config.get_text_config()
    settings = {**config.to_dict(), **(getattr(config, "rope_parameters", None) or {})}
    return choice.most_rows > 0 and choice.rounding is None and all(settings.get(name) is None for name in UNSEEN)


def join_weights(model: nn.Module) -> None:
    """Lay weights of layers side by side where one product makes what they make; they stay what they are."""
    for layer in model.modules():
        if (parts := parts_of(layer)) is not None:
            for linears in (parts.qkv, parts.up):
                fuse(linears, TORCH)


def describe(layer: nn.Module, kv_heads: int, head_dim: int, choice: Choice) -> tuple[DecoderLayer, DecoderShape] | None:
    """Describe a layer by its parts; None where they do not fit together, so that a compiled call would read on."""
    parts = parts_of(layer)
    if parts is None:
        return None
    own, width, feed = parts.out[0].in_features, parts.out[0].out_features, parts.down[0].in_features
    heads, queries, keys = own // head_dim, own, kv_heads * head_dim
    gated = sum(one.out_features for one in parts.up) == 2 * feed
    ups = [feed, feed] if len(parts.up) == 2 else [2 * feed if gated else feed]
    outs = [queries, keys, keys] if len(parts.qkv) == 3 else [queries + 2 * keys]
    modules = [one for one in (*parts.norms, parts.source_norm, *parts.head_norms) if one is not None]
    told = {id(one): weights for one in modules if (weights := norm_weights(one)) is not None}
    norms = [None if one is None else told.get(id(one)) for one in (*parts.norms, parts.source_norm)]
    before_attention, behind_attention, before_feed, behind_feed, source_norm = norms
    head_norms = [told[id(one)] for one in parts.head_norms if id(one) in told]
    if (
        own != heads * head_dim
        or heads % kv_heads
        or len(told) != len({id(one) for one in modules})
        or any(one is not None and one.gain.numel() != width for one in norms)
        or [one.gain.numel() for one in head_norms] not in ([], [head_dim, head_dim], [queries, keys])
        or [one.out_features for one in (*parts.qkv, *parts.up)] != [*outs, *ups]
        or (parts.source and [one.weight.shape for one in parts.source] != [(own, width), (width, own)])
    ):
        return None
    qkv, out, up, down = (fuse(linears, choice).parts for linears in (parts.qkv, parts.out, parts.up, parts.down))
    scale = getattr(_attention(layer), "scaling", head_dim**-0.5)
    share = getattr(layer, "residual_multiplier", 1.0)
    source = None
    before: tuple[NormWeights | None, ...] = before_attention, before_feed
    if parts.source:
        query, source_out = (fuse((one,), choice).parts for one in parts.source)
        source, before = (query, source_out), (before_attention, source_norm, before_feed)
    behind = _pair((behind_attention, behind_feed))
    described = DecoderLayer(before, qkv, out, source, up, down, scale, _pair(head_norms), behind, share)
    shape = DecoderShape(heads, kv_heads, head_dim, parts.activation, gated=gated, interleaved=parts.interleaved)
    return described, shape


def _pair(norms: Sequence[NormWeights | None]) -> tuple[NormWeights, NormWeights] | None:
    found = tuple(one for one in norms if one is not None)
    return (found[0], found[1]) if len(found) == 2 else None
