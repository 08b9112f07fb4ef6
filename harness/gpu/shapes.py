"""Models of the papers' sizes with random weights, built on the device: times do not depend on what weights hold.

The pairs: Leviathan's T5 v1.1 (XXL, 11 B, with Table 4's drafts; XL) and GPT-like pair (Section 4.2); a 7 B Llama with one of
160 M; Whisper large with small, a vocabulary that verification kernels were measured on (Optimized, Section 4).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers

from methods.models import stack_for
from methods.models.base import Stack


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's sizes; ``num_layers`` of the decoder and, where there is one, of the encoder."""

    name: str
    family: str
    width: int
    ff_width: int
    num_layers: int
    num_heads: int
    head_dim: int
    vocab_size: int

    @property
    def tiny(self) -> "Shape":
        """The same family with weights of a few dozen rows, for a rehearsal; a deeper model stays deeper."""
        layers = 2 + (self.num_layers > 12)
        return replace(self, width=32, ff_width=64, num_layers=layers, num_heads=2, head_dim=16, vocab_size=257)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target with its drafts, the cheapest first; ``gamma`` tokens are drafted a round."""

    name: str
    target: Shape
    drafts: tuple[Shape, ...]
    gamma: int

    @property
    def tiny(self) -> "Pair":
        drafts = tuple(replace(draft.tiny, num_layers=1) for draft in self.drafts[:1])
        return replace(self, target=self.target.tiny, drafts=drafts)


def _t5(name: str, width: int, ff_width: int, layers: int, heads: int) -> Shape:
    return Shape(
        name=name,
        family="t5",
        width=width,
        ff_width=ff_width,
        num_layers=layers,
        num_heads=heads,
        head_dim=64,
        vocab_size=32_128,
    )


def _other(name: str, family: str, width: int, ff_width: int, layers: int, heads: int, vocab_size: int) -> Shape:
    return Shape(
        name=name, family=family, width=width, ff_width=ff_width, num_layers=layers, num_heads=heads, head_dim=width // heads,
        vocab_size=vocab_size,
    )  # fmt: skip


T5_SMALL, T5_BASE = _t5("T5-small", 512, 1024, 8, 6), _t5("T5-base", 768, 2048, 12, 12)
T5_LARGE, T5_XL = _t5("T5-large", 1024, 2816, 24, 16), _t5("T5-XL", 2048, 5120, 24, 32)
T5_XXL = _t5("T5-XXL", 4096, 10_240, 24, 64)
LLAMA_7B = _other("Llama 7B", "llama", 4096, 11_008, 32, 32, 32_000)
LLAMA_160M = _other("Llama 160M", "llama", 768, 3072, 12, 12, 32_000)
WHISPER_LARGE = _other("Whisper large", "whisper", 1280, 5120, 32, 20, 51_865)
WHISPER_SMALL = _other("Whisper small", "whisper", 768, 3072, 12, 12, 51_865)
GPT_97M = _other("GPT-like (97M)", "gpt2", 768, 3072, 12, 12, 8000)
GPT_6M = _other("GPT-like (6M)", "gpt2", 256, 1024, 2, 4, 8000)
PIPELINE = _other("Llama 1.3B", "llama", 2048, 5504, 24, 16, 32_000)
PAIRS = (
    Pair(name="T5-XXL", target=T5_XXL, drafts=(T5_SMALL, T5_BASE, T5_LARGE), gamma=7),
    Pair(name="Llama 7B", target=LLAMA_7B, drafts=(LLAMA_160M,), gamma=5),
    Pair(name="GPT-like (97M)", target=GPT_97M, drafts=(GPT_6M,), gamma=5),
    Pair(name="Whisper large", target=WHISPER_LARGE, drafts=(WHISPER_SMALL,), gamma=5),
    Pair(name="T5-XL", target=T5_XL, drafts=(T5_SMALL,), gamma=7),
)
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
T5_SETTINGS: dict[str, Any] = {  # of version 1.1
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
POSITIONS = 1024
SPREAD = 0.02  # of the weights


def build(shape: Shape, device: str, dtype: str, seed: int = 0) -> Stack:
    """Make a model on the device; nothing passes through the host. Norms are ones, biases zeros, all else is normal."""
    kind, config = _MODELS[shape.family]
    with torch.random.fork_rng([device] if device.startswith("cuda") else []), torch.device(device):
        torch.manual_seed(seed)
        model = kind.from_config(config(shape), dtype=getattr(torch, dtype))
        _fill(model)
    model.generation_config = transformers.GenerationConfig.from_model_config(model.config)
    return stack_for(model.eval().requires_grad_(False))


@torch.no_grad()
def _fill(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, SPREAD)
        elif name.endswith("bias"):
            weight.zero_()
        else:
            weight.fill_(1.0)


def _llama(shape: Shape) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        **IDS, vocab_size=shape.vocab_size, hidden_size=shape.width, intermediate_size=shape.ff_width,
        num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads, num_key_value_heads=shape.num_heads,
        max_position_embeddings=POSITIONS,
    )  # fmt: skip


def _gpt2(shape: Shape) -> transformers.GPT2Config:
    return transformers.GPT2Config(
        **IDS, vocab_size=shape.vocab_size, n_embd=shape.width, n_inner=shape.ff_width, n_layer=shape.num_layers,
        n_head=shape.num_heads, n_positions=POSITIONS,
    )  # fmt: skip


def _t5_config(shape: Shape) -> transformers.T5Config:
    return transformers.T5Config(
        **T5_SETTINGS, vocab_size=shape.vocab_size, d_model=shape.width, d_ff=shape.ff_width, d_kv=shape.head_dim,
        num_heads=shape.num_heads, num_layers=shape.num_layers, num_decoder_layers=shape.num_layers,
    )  # fmt: skip


def _whisper(shape: Shape) -> transformers.WhisperConfig:
    return transformers.WhisperConfig(
        **IDS, decoder_start_token_id=3, begin_suppress_tokens=None, suppress_tokens=None, vocab_size=shape.vocab_size,
        d_model=shape.width, encoder_layers=shape.num_layers, decoder_layers=shape.num_layers,
        encoder_attention_heads=shape.num_heads, decoder_attention_heads=shape.num_heads, encoder_ffn_dim=shape.ff_width,
        decoder_ffn_dim=shape.ff_width,
    )  # fmt: skip


_MODELS: dict[str, tuple[Any, Callable[[Shape], Any]]] = {
    "llama": (transformers.AutoModelForCausalLM, _llama),
    "gpt2": (transformers.AutoModelForCausalLM, _gpt2),
    "t5": (transformers.AutoModelForSeq2SeqLM, _t5_config),
    "whisper": (transformers.AutoModelForSpeechSeq2Seq, _whisper),
}
