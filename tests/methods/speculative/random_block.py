"""A block drafter's network that has learned nothing, for a vocabulary of any size."""

import torch
from transformers import MarianConfig

from methods.specdec.network import block_config, new_network
from methods.specdec.stack import BlockStack


def random_block(vocab_size: int, block_size: int = 4) -> BlockStack:
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=96,
        init_std=1.0,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        decoder_start_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = new_network(block_config(config, block_size))
    return BlockStack(network.double().eval().requires_grad_(False))
