"""Tiny random transformers models of every supported family, and their uncached logits: the outside truth.

Tests reach them through the fixtures ``tiny`` (the functions below) and ``family`` (every name in turn).
"""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from methods.models.base import Stack
from methods.types import Inputs

VOCAB = 48
_LLAMA = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
_LLAMA |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4}
_T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0}
_BART = {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4}
_BART |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "pad_token_id": 1, "bos_token_id": 0}
_BART |= {"eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}

FAMILIES = {
    "llama": lambda limit: LlamaForCausalLM(
        LlamaConfig(**_LLAMA, max_position_embeddings=limit, attention_bias=True, mlp_bias=True)
    ),
    "llama-gqa": lambda limit: LlamaForCausalLM(
        LlamaConfig(**_LLAMA, max_position_embeddings=limit, num_key_value_heads=2, head_dim=6)
    ),
    "llama-tied": lambda limit: LlamaForCausalLM(
        LlamaConfig(**_LLAMA, max_position_embeddings=limit, tie_word_embeddings=True, rope_parameters=_YARN)
    ),
    "mistral": lambda limit: MistralForCausalLM(
        MistralConfig(**_LLAMA, max_position_embeddings=limit, num_key_value_heads=1, head_dim=8, sliding_window=None)
    ),
    "mistral-window": lambda limit: MistralForCausalLM(
        MistralConfig(**_LLAMA, max_position_embeddings=limit, num_key_value_heads=2, head_dim=8, sliding_window=5)
    ),
    "qwen2": lambda limit: Qwen2ForCausalLM(
        Qwen2Config(**_LLAMA, max_position_embeddings=limit, num_key_value_heads=2, tie_word_embeddings=True)
    ),
    "gemma": lambda limit: GemmaForCausalLM(
        GemmaConfig(**_LLAMA, max_position_embeddings=limit, num_key_value_heads=1, head_dim=10)
    ),
    "gpt2": lambda limit: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=limit,
            scale_attn_by_inverse_layer_idx=True,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "t5": lambda limit: T5ForConditionalGeneration(T5Config(**_T5)),
    "t5-gated": lambda limit: T5ForConditionalGeneration(
        T5Config(**_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    "bart": lambda limit: BartForConditionalGeneration(BartConfig(**_BART, max_position_embeddings=limit)),
    "marian": lambda limit: MarianMTModel(
        MarianConfig(**_BART, max_position_embeddings=limit, scale_embedding=True, activation_function="swish")
    ),
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 256}
# A tied head repeats its input in a random model; a shifted copy of the embedding makes these wander instead.
UNTIED = ("t5-gated", "bart", "marian")


def build(family: str, limit: int = 512, dtype: torch.dtype = torch.float64, spread: float | None = None) -> PreTrainedModel:
    """A model whose every parameter (norms, biases, tables too) is random, so that no term is multiplied by 0 or 1."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FAMILIES[family](limit).eval()
        spread = spread or (0.1 if model.config.is_encoder_decoder else 0.4)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "shared" in name or "embed_tokens" in name:
                    parameter.mul_(0.3)
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=spread if parameter.dim() > 1 else 0.1)
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias.normal_(std=0.1)
            if family in UNTIED:
                model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.roll(7, 0))
    model = model.to(dtype)
    return exact_norms(model) if dtype == torch.float64 else model


def exact_norms(model: PreTrainedModel) -> PreTrainedModel:
    """transformers rounds root mean square norms to fp32 even in an fp64 model; here they are computed in fp64."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") or type(module).__name__ == "T5LayerNorm":
            module.forward = partial(_norm, module, float("Gemma" in type(module).__name__))
    return model


def _norm(module: torch.nn.Module, offset: float, hidden: torch.Tensor) -> torch.Tensor:
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps) * (offset + module.weight)


def source_for(stack: Stack, lengths: Sequence[int]) -> Inputs:
    return Inputs(tuple(tuple(3 + (5 * i + 11 * row) % 40 for i in range(length)) for row, length in enumerate(lengths)))


@torch.no_grad()
def reference_logits(model: PreTrainedModel, tokens: Sequence[int], source: Sequence[int]) -> torch.Tensor:
    """transformers' logits [n, V] of one unpadded, uncached text."""
    if model.config.is_encoder_decoder:
        return model(input_ids=torch.tensor([list(source)]), decoder_input_ids=torch.tensor([list(tokens)])).logits[0]
    return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]


@pytest.fixture
def tiny() -> SimpleNamespace:
    return SimpleNamespace(build=build, exact_norms=exact_norms, source_for=source_for, reference_logits=reference_logits)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param
