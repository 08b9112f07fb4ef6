"""The shared parts of all decoder stacks: the frame of one forward pass, attention, norms, activations, encoders.

A stack holds references to a transformers model's weights and runs them itself: transformers' own decoder spends most of
a small forward pass in Python and in small operations. A stack keeps nothing about a generation; sessions share it.
transformers does not type its modules' attributes, so models and their parts are ``Any`` here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from kernels.layers.decoder import (
    Cached,
    Decoder,
    DecoderEnds,
    DecoderLayer,
    DecoderLayers,
    DecoderShape,
    NormWeights,
    compiled_decoder,
    compiled_layers,
)
from kernels.products.matrix import TORCH, Choice
from methods.errors import InputError
from methods.models.weights import Product, fuse, norm_of, relayout

Activation = Callable[[Tensor], Tensor]
Norm = Callable[[Tensor], Tensor]
Cross = tuple[Tensor, Tensor]


def _gelu_tanh(hidden: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return F.gelu(hidden, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}


@dataclass
class SourceStates:
    """What rows read of an encoder-decoder's source: keys and values of all layers, keys' heads first.

    ``mask`` is added to scores, None where no source has padding; ``cross`` is a key and a value [B, H, T, head_dim] a layer.
    """

    states: Float[Tensor, "L B H2 T head_dim"]
    mask: Float[Tensor, "#B 1 1 T"] | None = None

    def __post_init__(self) -> None:
        self.cross: tuple[Cross, ...] = tuple(zip(*halves(self.states), strict=True))


@dataclass(slots=True)
class Frame:
    """The cache entries of one forward pass: n new ones behind the cached ones of B rows, in the layers that run.

    ``start`` is the common number of cached entries, or None where rows differ; ``positions`` [B, n] are built only when
    asked for. ``text`` is what the layers that run see, keys' heads first, the new entries among it; ``new`` is where these are
    stored, or where they are ``scattered`` all of the cache, in which positions are places. ``allowed`` is an additive mask
    in place of the causal one, of rows of one new token, where order in the cache is not order in the text. ``history`` is what
    is cached in the text's order, without what is new, where ``text`` has another order (PPD's candidates). Where nobody
    reads what the last layer gives, it may end with its keys and values: ``caches_only``.
    """

    batch: int
    num_new: int
    start: int | None
    end: int
    positions: Callable[[], Tensor]
    text: Float[Tensor, "L B S H2 head_dim"]
    new: Float[Tensor, "L B _ H2 head_dim"]
    source: SourceStates | None = None
    scattered: bool = False
    allowed: Float[Tensor, "B S"] | None = None
    history: Float[Tensor, "L B _ H2 head_dim"] | None = None
    caches_only: bool = False

    @property
    def views(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """A key and a value [B, kv_heads, S, head_dim] a layer."""
        return halves(self.text.transpose(2, 3))

    @property
    def slots(self) -> tuple[Tensor, ...]:
        """A layer's place for what is new, as ``store`` takes it."""
        return self.new.unbind(0)

    @property
    def store(self) -> Callable[[Tensor, Tensor], object]:
        """A function of a slot and [B, n, 2 kv_heads, head_dim] that stores these in it."""
        return scatter(self.positions()) if self.scattered else Tensor.copy_

    @property
    def cross(self) -> tuple[Cross, ...]:
        """What all layers read of the source."""
        return () if self.source is None else self.source.cross

    @property
    def cross_mask(self) -> Float[Tensor, "#B 1 1 T"] | None:
        """What is added to the scores of the source."""
        return None if self.source is None else self.source.mask


def halves(states: Float[Tensor, "L B H2 S head_dim"]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the keys and the values, one [B, H2 / 2, S, head_dim] a layer each."""
    heads = states.shape[2] // 2
    return states[:, :, :heads].unbind(0), states[:, :, heads:].unbind(0)


def scatter(positions: Int[Tensor, "B n"]) -> Callable[[Tensor, Tensor], object]:
    """Append to rows of different lengths, by row and position."""
    rows = torch.arange(positions.shape[0], device=positions.device).unsqueeze(1)

    def store(slot: Tensor, new: Tensor) -> None:
        slot[rows, positions] = new

    return store


class Stack(ABC):
    """The decoder of one transformers model: embedding, layers and head over its own weights.

    ``position_limit`` bounds the tokens of a row (None: unbounded), ``source_limit`` those of an encoder's input; a token looks
    at itself and those before it, ``window`` in all (None: all). Where the
    encoder hears, ``feature_shape`` is (mels, frames) of its input, ``source_length`` the places of every source, and
    ``begin_suppressed`` never begin an output. ``parts`` are first layer, last + 1 and stack of each device where layers lie on
    several (methods.spread).
    """

    is_encoder_decoder = False
    can_exit_early = False  # the transformers class heeds num_hidden_layers while it runs
    can_be_static = False  # a pass by positions alone: it waits for nothing and chooses nothing by what tensors hold
    feature_shape: tuple[int, int] | None = None
    source_length: int | None = None
    begin_suppressed: tuple[int, ...] = ()
    start_token: int | None = None
    source_limit: int | None = None
    window: int | None = None
    runs_layers_alone = True
    has_all_tokens = True  # the head's columns are those of the embedding's tokens, in their order
    parts: tuple[tuple[int, int, "Stack"], ...] = ()

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        relayout(model)
        self.model, self.choice = model, choice
        head = model.get_output_embeddings().weight
        if head.is_cuda:
            # It makes a plan for every new length of a cache, in tenths of a second each.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.head_weight: Float[Tensor, "D V"] = head.detach().t()
        self.project = Product(self.head_weight, None, choice)
        self.device, self.dtype = head.device, head.dtype
        self.vocab_size: int = head.shape[0]
        self.width: int = head.shape[1]  # of hidden states
        self.input_vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self.num_layers: int
        self.layers: list[tuple]
        self.norm: Norm | None = None  # before the head
        self._described: tuple[Sequence[DecoderLayer], DecoderShape, DecoderEnds] | None = None
        self.compiled: Decoder | None = None
        self.num_heads: int
        self.num_kv_heads: int
        self.head_dim: int
        self.position_limit: int | None

    @property
    def computed_by(self) -> str:
        """Say what computes passes."""
        return str(self.choice)

    @property
    def encodes_prompts(self) -> bool:
        """Whether a prompt is an encoder's source. A Whisper's encoder hears, and its decoder begins with the prompt."""
        return self.is_encoder_decoder and self.feature_shape is None

    @property
    def prompt_limit(self) -> int | None:
        """How many tokens a prompt may have."""
        return self.source_limit if self.encodes_prompts else self.position_limit

    def pending(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Return the token that every row's first pass reads: its prompt's last one, or the decoder's start."""
        if self.encodes_prompts:
            assert self.start_token is not None
            return [self.start_token] * len(prompts)
        return [prompt[-1] for prompt in prompts]

    def __reduce__(self) -> tuple:
        """Pickle a stack as its model, so that another process makes its own over the same weights."""
        return type(self), (self.model, self.choice)

    def check_layers_alone(self) -> None:
        """InputError for a model whose layers only run together; others read match rates and heads, and exit early."""
        if not self.runs_layers_alone:
            raise InputError(
                f"model type {self.model.config.model_type!r}: its layers run together; this method runs some of them alone: "
                "choose another"
            )

    def part(self, first: int, last: int, device: torch.device) -> "Stack":
        """Return a stack of layers first..last-1, which lie on one device; it embeds nothing and has no head."""
        part = copy(self)
        part.layers, part.num_layers, part.device = self.layers[first:last], last - first, device
        part._described = part.compiled = None
        return part

    def over(self, tokens: Int[Tensor, "K"]) -> "Stack":
        """Return this stack with a head over some tokens alone, whose logits stand in their order. It still embeds all.

        Raises:
            InputError: a model whose head is transformers' own.
        """
        part, own = copy(self), self.project.bias
        part.head_weight = self.head_weight[:, tokens].contiguous()
        part.project = Product(part.head_weight, None if own is None else own[tokens], self.choice)
        part.vocab_size, part.has_all_tokens = len(tokens), False
        part.compile()
        return part

    def describe(self, layers: Sequence[DecoderLayer], shape: DecoderShape, ends: DecoderEnds) -> None:
        """Say what compiled calls run, and make them. The head is what ``project`` has."""
        self._described = layers, shape, ends
        self.compile()

    def compile(self) -> None:
        """Make passes compiled calls, where they can be had and the choice has the loop for any weight.

        The choice is made by products called one by one; in one call with others small ones cost less, so their size does not
        matter here.
        """
        if self._described is not None and self.choice.most_rows > 0:
            self.compiled = compiled_decoder(*self._described, self.project.parts)

    def _compiled_for(self, batch: int, num_new: int) -> Decoder | None:
        """Return the compiled calls where so many rows have any."""
        return self.compiled if batch * num_new <= self.choice.most_rows else None

    def embed(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        """Embed tokens, with their positions where the family adds them."""
        compiled = self._compiled_for(*tokens.shape)
        if compiled is None:
            return self.embed_by_torch(tokens, frame)
        return compiled.embed(tokens, frame.positions() if frame.start is None else frame.start)

    @abstractmethod
    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        """Do the same by torch's operations."""

    def run(self, hidden: Float[Tensor, "B n _"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        """Run layers first..last-1, which store their keys and values in the frame."""
        compiled = self._compiled_for(frame.batch, frame.num_new)
        if compiled is None or first == last:
            return self.run_by_torch(hidden, first, last, frame)
        starts = frame.positions() if frame.start is None else frame.start
        return compiled.run(hidden, first, last, self.cached(frame), starts)

    def whole(
        self, tokens: Int[Tensor, "B n"], num_layers: int, frame: Frame
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n V"]]:
        """Embed tokens and run as many first layers: what these give, and its logits."""
        compiled = self._compiled_for(frame.batch, frame.num_new)
        if compiled is None:
            hidden = self.run(self.embed(tokens, frame), 0, num_layers, frame)
            return hidden, self.head(hidden)
        starts = frame.positions() if frame.start is None else frame.start
        return compiled.whole(tokens, num_layers, self.cached(frame), starts)

    def cached(self, frame: Frame) -> Cached:
        """Return what compiled calls look at."""
        states, mask = (None, None) if frame.source is None else (frame.source.states, frame.source.mask)
        window = self.window if self._slides(frame) else None
        return Cached(frame.text, frame.new, states, mask, self.rotary(frame.end), frame.allowed, window, frame.caches_only)

    @abstractmethod
    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        """Do the same by torch's operations."""

    def rotary(self, end: int) -> Float[Tensor, "P 2 1 head_dim"] | None:
        """Return the cosines and sines of at least ``end`` positions, where the family turns queries and keys."""
        return None

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "_ V"] | None = None) -> Float[Tensor, "B n V"]:
        """Apply the final norm and the output projection (``weight`` in place of the model's own)."""
        batch, num_new, width = hidden.shape
        compiled = self._compiled_for(batch, num_new)
        if compiled is not None and weight is None:
            return compiled.head(hidden)
        rows = hidden.reshape(-1, width)
        project = self.project if weight is None else Product(weight, self.project.bias)
        return project(rows if self.norm is None else self.norm(rows)).view(batch, num_new, -1)

    def encode(self, tokens: Int[Tensor, "B S"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        """Run the encoder: its last hidden states. ``mask`` is 0 in the padding."""
        raise InputError(f"model type {self.model.config.model_type!r}: it has no encoder; give its prompts to the decoder")

    def hear(self, features: Float[Tensor, "B mels frames"]) -> Float[Tensor, "B S D"]:
        """Run an encoder of sound: its last hidden states."""
        raise InputError(f"model type {self.model.config.model_type!r}: it does not hear; give it tokens, or choose a Whisper")

    def cross(self, states: Float[Tensor, "B S D"]) -> Float[Tensor, "L B H2 S head_dim"]:
        """The cross-attention keys and values of every decoder layer, keys' heads first."""
        raise InputError(f"model type {self.model.config.model_type!r}: its decoder attends to no source")

    def _slides(self, frame: Frame) -> bool:
        """Tell if the window ends within what is cached. Raises InputError where the order in the cache is not the text's."""
        if self.window is None or frame.end <= self.window:
            return False
        if frame.allowed is not None:
            raise InputError(
                f"sliding_window {self.window} of model type {self.model.config.model_type!r}: this method reads "
                f"{frame.end} tokens at once in an order of its own; expected at most the window: shorten prompts and outputs"
            )
        return True

    def mask(self, frame: Frame) -> tuple[Float[Tensor, "#B 1 rows end"] | None, bool]:
        """The additive causal mask, queries packed as ``attend`` packs them, and whether plain causal order says it all."""
        start, num_new, groups = frame.start, frame.num_new, self.num_heads // self.num_kv_heads
        slides = self._slides(frame)
        if frame.allowed is not None:
            return frame.allowed[:, None, None], False
        if start is not None and (num_new == 1 or start == 0) and not slides:
            return None, num_new > 1
        if start is not None and not slides:
            blocked = torch.full((num_new, frame.end), float("-inf"), dtype=self.dtype, device=self.device).triu_(start + 1)
            mask = blocked[None, None]
        else:
            ahead = torch.arange(frame.end, device=self.device) - frame.positions().unsqueeze(-1)
            blocked = (ahead > 0) | (ahead <= -self.window) if slides and self.window else ahead > 0
            mask = torch.zeros(blocked.shape, dtype=self.dtype, device=self.device).masked_fill_(blocked, float("-inf"))
            mask = mask.unsqueeze(1)
        return (mask.repeat_interleave(groups, -2) if groups > 1 and num_new > 1 else mask), False


def attend(
    query: Float[Tensor, "B n H head_dim"],
    keys: Float[Tensor, "B K S head_dim"],
    values: Float[Tensor, "B K S head_dim"],
    mask: Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "B*n H*head_dim"]:
    """Attention of H query heads on K key heads; query heads that share a key head are packed as more queries of it."""
    batch, num_new, heads, head_dim = query.shape
    num_keys = keys.shape[1]
    if heads == num_keys or causal:
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, mask, is_causal=causal, scale=scale, enable_gqa=heads != num_keys
        )
        return out.transpose(1, 2).reshape(batch * num_new, heads * head_dim)
    groups = heads // num_keys
    packed = query.view(batch, num_new, num_keys, groups, head_dim).transpose(1, 2)
    out = F.scaled_dot_product_attention(packed.reshape(batch, num_keys, -1, head_dim), keys, values, mask, scale=scale)
    out = out.reshape(batch, num_keys, num_new, groups, head_dim).transpose(1, 2)
    return out.reshape(batch * num_new, heads * head_dim)


def rms_norm(weight: Float[Tensor, "D"], eps: float, scale: float = 1.0) -> Norm:
    """Root mean square norm (times ``scale``) as a function of the hidden states.

    In fp32 and fp64 on a CPU it is ``x / hypot(|x|, sqrt(D eps)) * (sqrt(D) weight)``: four small operations, which take
    a third of the time of torch's own. Elsewhere torch's fused one, which computes half precision in fp32.
    """
    size, dtype = weight.shape[0], weight.dtype
    weight = weight.detach()
    if weight.device.type == "cpu" and dtype in (torch.float32, torch.float64):
        gain, floor = weight * (scale * size**0.5), torch.tensor((eps * size) ** 0.5, dtype=dtype)
        vector_norm = torch.linalg.vector_norm

        def norm(hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
            length = vector_norm(hidden, dim=-1, keepdim=True).hypot_(floor)
            return hidden.div(length).mul_(gain)

        return norm
    scaled = weight * scale

    def fused(hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        if hidden.dtype != dtype:
            return torch.rms_norm(hidden, (size,), None, eps).to(dtype) * scaled
        return torch.rms_norm(hidden, (size,), scaled, eps)

    return fused


def layer_norm(weights: tuple) -> Norm:
    """Return the norm by mean and deviation, whose arguments ``norm_of`` gives, as a function of the hidden states."""
    return lambda hidden: torch.layer_norm(hidden, *weights)


def activation(model: Any, name: str) -> Activation:
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise InputError(f"activation {name!r} of model type {model.config.model_type!r}: expected one of {known}")
    return ACTIVATIONS[name]


def lookup(table: Float[Tensor, " P *rest"], frame: Frame) -> Float[Tensor, "*positions"]:
    """A table's rows at the frame's positions, [n, ...] or [B, n, ...]; padding past the table's end reads its last row."""
    if frame.start is not None and frame.end <= table.shape[0]:
        return table[frame.start : frame.end]
    return table[frame.positions().clamp(max=table.shape[0] - 1)]


class EncoderDecoderStack(Stack):
    is_encoder_decoder = True

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        settings = (model.generation_config, model.config)
        starts = [getattr(one, "decoder_start_token_id", None) for one in settings]
        self.start_token = next((start for start in starts if start is not None), None)
        if self.start_token is None:
            raise InputError(
                f"decoder_start_token_id of model type {model.config.model_type!r}: expected a token id, found none; "
                "set it in the checkpoint's generation_config.json"
            )
        if type(self.start_token) is not int or not 0 <= self.start_token < self.vocab_size:
            raise InputError(
                f"decoder_start_token_id {self.start_token!r}: expected a token id from 0 to {self.vocab_size - 1}; correct it "
                "in the checkpoint's generation_config.json or config.json"
            )
        self.input_vocab_size = model.get_encoder().get_input_embeddings().weight.shape[0]
        self._encoder: DecoderLayers | None = None

    def describe_encoder(self, layers: Sequence[DecoderLayer], shape: DecoderShape) -> None:
        """Make the encoder's layers a compiled call, where it can be had."""
        self._encoder_cache = len(layers), shape.heads, shape.head_size
        if layers and self.choice.most_rows > 0:
            self._encoder = compiled_layers(layers, replace(shape, sees_all=True))

    def run_encoder(self, hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"] | None = None) -> Float[Tensor, "B S D"]:
        """Run the encoder's layers. ``mask`` is 0 in the padding; a row of padding alone may become NaN."""
        batch, length, _ = hidden.shape
        if self._encoder is None or batch * length > self.choice.most_rows:
            return self.run_encoder_by_torch(hidden, mask)
        num_layers, heads, size = self._encoder_cache
        states = hidden.new_empty(1, batch, length, 2 * heads, size).expand(num_layers, -1, -1, -1, -1)  # a layer's at a time
        allowed = None if mask is None else torch.zeros_like(mask, dtype=self.dtype).masked_fill_(mask == 0, float("-inf"))
        return self._encoder.run(hidden, 0, num_layers, Cached(states, states, allowed=allowed), 0)

    def run_encoder_by_torch(self, hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        """Do the same by torch's operations."""
        raise InputError(f"model type {self.model.config.model_type!r}: its encoder is transformers' own, and runs whole")

    def _fuse_cross(self, pairs: Sequence[tuple[nn.Linear, nn.Linear]]) -> None:
        self._cross = fuse([projection for pair in pairs for projection in pair], self.choice)

    def encode(self, tokens: Int[Tensor, "B S"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        return self.model.get_encoder()(input_ids=tokens, attention_mask=mask).last_hidden_state.to(self.dtype)

    def cross(self, states: Float[Tensor, "B S D"]) -> Float[Tensor, "L B H2 S head_dim"]:
        batch, length, width = states.shape
        shape = (batch, length, self.num_layers, 2 * self.num_heads, self.head_dim)
        return self._cross(states.reshape(batch * length, width)).view(shape).permute(2, 0, 3, 1, 4).contiguous()


def described(stack: Stack, activation_name: str, norms_behind: bool) -> tuple[list[DecoderLayer], DecoderShape]:
    """Describe the layers of a stack, as ``decoder_layer`` returns them, for ``Stack.describe``."""
    heads, size = stack.num_heads, stack.head_dim
    layers = []
    for qkv, out, norm1, query, cross_out, norm2, up, down, norm3 in stack.layers:
        norms = tuple(NormWeights(*norm[1:]) for norm in (norm1, norm2, norm3))
        source = query.parts, cross_out.parts
        layers.append(DecoderLayer(norms, qkv.parts, out.parts, source, up.parts, down.parts, size**-0.5))
    return layers, DecoderShape(heads, heads, size, activation_name, norms_behind=norms_behind)


def described_encoder(stack: Any, activation_name: str, norms_behind: bool) -> tuple[list[DecoderLayer], DecoderShape]:
    """Describe an encoder's layers, as ``encoder_layer`` returns them, for ``describe_encoder``."""
    heads, layers = stack.encoder_heads, []
    size = stack.model.config.d_model // heads
    for qkv, out, norm1, up, down, norm2 in stack.encoder_layers:
        norms = tuple(NormWeights(*norm[1:]) for norm in (norm1, norm2))
        layers.append(DecoderLayer(norms, qkv.parts, out.parts, None, up.parts, down.parts, size**-0.5))
    return layers, DecoderShape(heads, heads, size, activation_name, norms_behind=norms_behind)


def decoder_layer(layer: Any, choice: Choice) -> tuple:
    """Return the products of a layer of BART's or Whisper's decoder: attention, cross-attention, feed-forward; and norms."""
    other = layer.encoder_attn
    attention, feed_forward = _halves(layer, choice)
    query, out = fuse((other.q_proj,), choice), fuse((other.out_proj,), choice)
    return *attention, query, out, norm_of(layer.encoder_attn_layer_norm), *feed_forward


def encoder_layer(layer: Any, choice: Choice) -> tuple:
    """Return the same of an encoder layer, which has no cross-attention."""
    attention, feed_forward = _halves(layer, choice)
    return (*attention, *feed_forward)


def _halves(layer: Any, choice: Choice) -> tuple[tuple, tuple]:
    own = layer.self_attn
    qkv, out, up, down = (
        fuse(linears, choice) for linears in ((own.q_proj, own.k_proj, own.v_proj), (own.out_proj,), (layer.fc1,), (layer.fc2,))
    )
    return (qkv, out, norm_of(layer.self_attn_layer_norm)), (up, down, norm_of(layer.final_layer_norm))
