"""Whisper and Distil-Whisper (Radford et al. 2022, Gandhi et al. 2023): pre-norm, an encoder of log-Mel features.

The decoder is begun by the forced tokens of the checkpoint's generation settings: start, English and transcription where it is
multilingual, and no timestamps. What these settings suppress is never emitted: the rule is part of the model's distribution, so
that every method and both models of a pair agree on it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.layers.decoder import DecoderEnds, NormWeights
from kernels.products.matrix import TORCH, Choice
from methods.errors import InputError
from methods.models.base import (
    EncoderDecoderStack,
    Frame,
    Stack,
    activation,
    attend,
    decoder_layer,
    described,
    described_encoder,
    encoder_layer,
    layer_norm,
    lookup,
)
from methods.models.weights import Product, norm_of

LANGUAGE, TASK = "<|en|>", "transcribe"
REMEDY = "take generation_config.json from the checkpoint that it was made from"
ENCODER_SETTINGS = ("encoder_attention_heads", "activation_function")  # that no weight's shape tells
FP16_MARGIN = 1000.0  # transformers keeps an fp16 encoder this far from the largest number


class WhisperStack(EncoderDecoderStack):
    """``opening`` are the forced tokens that every prompt of this model begins with."""

    can_be_static = True

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        super().__init__(model, choice)
        config, encoder, decoder = model.config, model.model.encoder, model.model.decoder
        self.input_vocab_size = self.vocab_size
        self.num_layers, self.num_heads = config.decoder_layers, config.decoder_attention_heads
        self.num_kv_heads, self.head_dim = self.num_heads, config.d_model // self.num_heads
        self.position_limit = config.max_target_positions
        self.source_length = config.max_source_positions
        self.feature_shape = (config.num_mel_bins, 2 * self.source_length)
        self.act = activation(model, config.activation_function)
        self.embedding, self.position_table = decoder.embed_tokens.weight.detach(), decoder.embed_positions.weight.detach()
        self.layers, norm = [decoder_layer(layer, choice) for layer in decoder.layers], norm_of(decoder.layer_norm)
        self.norm = layer_norm(norm)
        self.encoder_layers = [encoder_layer(layer, choice) for layer in encoder.layers]
        self.encoder_heads, self.encoder_norm = config.encoder_attention_heads, norm_of(encoder.layer_norm)
        self.convolutions = [(conv.weight.detach(), conv.bias.detach(), conv.stride) for conv in (encoder.conv1, encoder.conv2)]
        self.encoder_positions = encoder.embed_positions.weight.detach()
        self._fuse_cross([(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj) for layer in decoder.layers])
        settings = model.generation_config
        self.opening = tuple(_token(name, token, self.vocab_size) for name, token in _forced(settings).items())
        self.begin_suppressed = _tokens(settings, "begin_suppress_tokens", self.vocab_size)
        self.project = Product(self.head_weight, self._bias(_tokens(settings, "suppress_tokens", self.vocab_size)), choice)
        ends = DecoderEnds(self.embedding, NormWeights(*norm[1:]), positions=self.position_table)
        self.describe(*described(self, config.activation_function, norms_behind=False), ends)
        self.describe_encoder(*described_encoder(self, config.activation_function, norms_behind=False))

    def _bias(self, suppressed: tuple[int, ...]) -> Float[Tensor, "V"] | None:
        """Return a bias of minus infinity for tokens that are never emitted."""
        if not suppressed:
            return None
        bias = torch.zeros(self.vocab_size, dtype=self.dtype, device=self.device)
        return bias.index_fill_(0, torch.tensor(suppressed, device=self.device), float("-inf"))

    def over(self, tokens: Int[Tensor, "K"]) -> "WhisperStack":
        part = super().over(tokens)
        assert isinstance(part, WhisperStack)
        part.begin_suppressed = tuple(place for place, token in enumerate(tokens.tolist()) if token in self.begin_suppressed)
        return part

    def embed_by_torch(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        return F.embedding(tokens, self.embedding) + lookup(self.position_table, frame)

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        batch, num_new, width = hidden.shape
        mask, causal = self.mask(frame)
        heads, head_dim, act, store, cross_mask = self.num_heads, self.head_dim, self.act, frame.store, frame.cross_mask
        x, sizes = hidden.reshape(batch * num_new, width), (heads, 2 * heads)
        for layer, keys, values, slot, cross in zip(
            self.layers[first:last], *frame.views, frame.slots, frame.cross[first:last], strict=True
        ):
            qkv, out, norm1, query, cross_out, norm2, up, down, norm3 = layer
            y = qkv(torch.layer_norm(x, *norm1)).view(batch, num_new, 3 * heads, head_dim)
            own, new = y.split_with_sizes(sizes, 2)
            store(slot, new)
            x = out(attend(own, keys, values, mask, causal), x)
            y = query(torch.layer_norm(x, *norm2)).view(batch, num_new, heads, head_dim)
            x = cross_out(attend(y, *cross, cross_mask), x)
            x = down(act(up(torch.layer_norm(x, *norm3))), x)
        return x.view(batch, num_new, width)

    def hear(self, features: Float[Tensor, "B mels frames"]) -> Float[Tensor, "B S D"]:
        hidden = features
        for weight, bias, stride in self.convolutions:
            hidden = F.gelu(F.conv1d(hidden, weight, bias, stride, padding=1))
        hidden = self.run_encoder(hidden.transpose(1, 2) + self.encoder_positions)
        return torch.layer_norm(hidden, *self.encoder_norm)

    def run_encoder_by_torch(self, hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        batch, length, width = hidden.shape
        x, heads, act = hidden.reshape(batch * length, width), self.encoder_heads, self.act
        for qkv, out, norm1, up, down, norm2 in self.encoder_layers:
            y = qkv(torch.layer_norm(x, *norm1)).view(batch, length, 3 * heads, -1)
            query, keys, values = y.split_with_sizes((heads, heads, heads), 2)
            x = out(attend(query, keys.transpose(1, 2), values.transpose(1, 2), None), x)
            x = down(act(up(torch.layer_norm(x, *norm2))), x)
            if x.dtype == torch.float16:
                most = torch.finfo(x.dtype).max - FP16_MARGIN
                x = x.clamp_(-most, most)
        return x.view(batch, length, width)


def same_encoder(stack: Stack, other: Stack) -> bool:
    """Say whether two models hear the very same: encoders of the same settings, weights, device and type of number."""
    if not isinstance(stack, WhisperStack) or not isinstance(other, WhisperStack):
        return False
    if stack.parts or other.parts or (stack.device, stack.dtype) != (other.device, other.dtype):
        return False
    if any(getattr(stack.model.config, name) != getattr(other.model.config, name) for name in ENCODER_SETTINGS):
        return False
    ours, theirs = (one.model.model.encoder.state_dict() for one in (stack, other))
    return ours.keys() == theirs.keys() and all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def forced_tokens(settings: Any) -> tuple[int, ...]:
    """Return the tokens that begin an English transcription without timestamps, from a checkpoint's generation settings.

    Raises:
        InputError: a multilingual checkpoint whose settings do not name English or transcription.
    """
    return tuple(_forced(settings).values())


def _forced(settings: Any) -> dict[str, Any]:
    """Return the forced tokens in their order, by where the settings name them."""
    forced = {"decoder_start_token_id": settings.decoder_start_token_id}
    languages = getattr(settings, "lang_to_id", None)
    if languages is not None and getattr(settings, "is_multilingual", True):
        tasks = getattr(settings, "task_to_id", None) or {}
        if LANGUAGE not in languages or TASK not in tasks:
            raise InputError(
                f"generation settings: lang_to_id has no {LANGUAGE!r} or task_to_id no {TASK!r}; expected both of a "
                f"multilingual Whisper: {REMEDY}"
            )
        forced |= {f"lang_to_id of {LANGUAGE}": languages[LANGUAGE], f"task_to_id of {TASK}": tasks[TASK]}
    no_timestamps = getattr(settings, "no_timestamps_token_id", None)
    forced |= {} if no_timestamps is None else {"no_timestamps_token_id": no_timestamps}
    return forced


def _tokens(settings: Any, name: str, vocab_size: int) -> tuple[int, ...]:
    """Return a setting that lists tokens; empty where there is none."""
    found = getattr(settings, name, None)
    if not isinstance(found, list | tuple | None):
        raise InputError(f"generation settings: {name} {found!r}; expected a list of tokens: {REMEDY}")
    return tuple(_token(name, token, vocab_size) for token in found or ())


def _token(name: str, token: Any, vocab_size: int) -> int:
    if type(token) is not int or not 0 <= token < vocab_size:
        raise InputError(f"generation settings: token {token!r} in {name}; expected one from 0 to {vocab_size - 1}: {REMEDY}")
    return token
