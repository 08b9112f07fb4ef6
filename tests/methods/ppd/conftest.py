"""Small deep models whose later layers change little, so that early predictions are sometimes right and sometimes not."""

from collections.abc import Callable

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from methods.models import stack_for
from methods.models.base import Stack

VOCAB, DEPTH = 48, 6
WRITERS = ("o_proj", "down_proj", "c_proj")


def deep_stack(family: str = "llama", dtype: torch.dtype = torch.float64, late: float = 0.35, width: int = 32) -> Stack:
    """``late`` scales what the second half of the layers adds to the residual stream: 0 makes every prediction right."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if family == "gpt2":
            model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=width, n_layer=DEPTH, n_head=4, n_positions=256))
        else:
            heads = {"num_attention_heads": 4, "num_key_value_heads": 2 if family == "llama-gqa" else 4}
            config = LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=width,
                intermediate_size=2 * width,
                num_hidden_layers=DEPTH,
                max_position_embeddings=256,
                **heads,
            )
            model = LlamaForCausalLM(config)
        model = model.eval().requires_grad_(False).to(dtype)
        layers = model.transformer.h if family == "gpt2" else model.model.layers
        for index, layer in enumerate(layers):
            for name, module in layer.named_modules():
                if hasattr(module, "weight"):
                    writes = name.rpartition(".")[2] in WRITERS
                    if module.weight.dim() > 1:
                        module.weight.normal_(std=width**-0.5 * (late if writes and index >= DEPTH // 2 else 1.0))
        model.get_input_embeddings().weight.normal_(std=0.7)
        if family != "gpt2":
            model.lm_head.weight.normal_(std=0.7)
    return stack_for(model)


@pytest.fixture
def deep() -> Callable[..., Stack]:
    return deep_stack
