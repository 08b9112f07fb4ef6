"""A toy task (write each token's successor, then EOS), and a verifier and a block drafter that have learned most of it.

The drafter is a little under-trained on purpose: some of its drafts stand, some do not, some blocks stand whole.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BartConfig, MarianConfig, MarianMTModel, PreTrainedModel

from methods.specdec.network import BlockNetwork, block_config, new_network
from methods.specdec.training import cut_blocks, drafter_loss, glancing_ratio, random_prefix_lengths
from methods.types import Inputs

PAD, EOS, START, FIRST, VOCAB = 0, 1, 2, 3, 14
BLOCK = 7
LONGEST = 10
_SIZES = {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4}
_SIZES |= {
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": PAD,
    "bos_token_id": START,
}
_SIZES |= {"eos_token_id": EOS, "decoder_start_token_id": START, "forced_eos_token_id": None, "dropout": 0.0}
_SIZES |= {"max_position_embeddings": 32, "activation_function": "gelu", "init_std": 0.15}
CONFIGS: dict[str, Callable[[], MarianConfig | BartConfig]] = {
    "marian": lambda: MarianConfig(**_SIZES, scale_embedding=True),
    "bart": lambda: BartConfig(**_SIZES),
}


@dataclass(frozen=True)
class Batch:
    source: Tensor
    source_mask: Tensor
    outputs: Tensor
    lengths: Tensor


def batch_of(num_rows: int, generator: torch.Generator, longest: int = LONGEST) -> Batch:
    """Sources of 2 to ``longest`` tokens; outputs are their successors, with EOS."""
    sizes = torch.randint(2, longest + 1, (num_rows,), generator=generator)
    source = torch.randint(FIRST, VOCAB, (num_rows, longest), generator=generator)
    inside = torch.arange(longest) < sizes.unsqueeze(1)
    source = source.masked_fill(~inside, PAD)
    outputs = torch.full((num_rows, longest + 1), PAD)
    for row, size in enumerate(sizes.tolist()):
        outputs[row, :size] = (source[row, :size] - FIRST + 1) % (VOCAB - FIRST) + FIRST
        outputs[row, size] = EOS
    return Batch(source, inside, outputs, sizes + 1)


def inputs_of(batch: Batch) -> Inputs:
    return Inputs(tuple(tuple(row[seen].tolist()) for row, seen in zip(batch.source, batch.source_mask, strict=True)))


def verifier_loss(model: PreTrainedModel, batch: Batch) -> Tensor:
    shifted = torch.cat((torch.full((len(batch.outputs), 1), START), batch.outputs[:, :-1]), 1)
    logits = model(
        input_ids=batch.source, attention_mask=batch.source_mask.long(), decoder_input_ids=shifted, use_cache=False
    ).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.outputs.flatten(), ignore_index=PAD)


def train(model: PreTrainedModel, loss: Callable[[Batch, float], Tensor], num_steps: int, seed: int = 0) -> list[float]:
    """Adam with a linear warm-up and decay; the losses."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=num_steps + 1, pct_start=0.1)
    losses = []
    for step in range(num_steps):
        value = loss(batch_of(32, generator), step / num_steps)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses


def train_drafter(network: BlockNetwork, num_steps: int, seed: int = 1) -> list[float]:
    draws = torch.Generator().manual_seed(seed)

    def loss(batch: Batch, progress: float) -> Tensor:
        blocks = cut_blocks(
            batch.outputs, batch.lengths, random_prefix_lengths(batch.lengths, draws), network.block_size, START
        )
        return drafter_loss(network, batch.source, batch.source_mask, blocks, draws, glancing=glancing_ratio(progress))

    return train(network.train(), loss, num_steps, seed)


def seeded(make: Callable[[], PreTrainedModel], seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def random_network(family: str, block_size: int, dtype: torch.dtype = torch.float64) -> BlockNetwork:
    """Every parameter random, so that no term is multiplied by 0 or 1."""

    def make() -> BlockNetwork:
        network = new_network(block_config(CONFIGS[family](), block_size)).to(dtype)
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=0.2)
            network.final_logits_bias.normal_(std=0.1)
        return network.eval().requires_grad_(False)

    return seeded(make)


@dataclass(frozen=True, eq=False)
class Pair:
    verifier: PreTrainedModel
    drafter: BlockNetwork
    drafter_losses: list[float]


def train_pair() -> Pair:
    verifier = seeded(lambda: MarianMTModel(CONFIGS["marian"]()).train())
    train(verifier, lambda batch, progress: verifier_loss(verifier, batch), 250)
    drafter = seeded(lambda: new_network(block_config(verifier.config, BLOCK), verifier))
    losses = train_drafter(drafter, 100)
    for model in (verifier, drafter):
        model.double().eval().requires_grad_(False)
    return Pair(verifier, drafter, losses)
