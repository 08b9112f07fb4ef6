"""The objective of SpecDec's block drafter (Xia et al. 3.1), and how many of its tokens would stand on held-out sentences."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from harness.zoo.batches import Batch, batches_for, generator_of
from harness.zoo.corpus import Encoded
from harness.zoo.descriptions import DrafterRecipe
from harness.zoo.networks import spread
from harness.zoo.pairs import Evaluation
from methods.specdec.network import new_network
from methods.specdec.training import Blocks, cut_blocks, drafter_loss, glancing_ratio, leading_correct, random_prefix_lengths

START = 0  # the padding token, as in zoo.batches


class NextBlock:
    """Of a drafter: cross-entropy of the block behind a random prefix of the target."""

    def __init__(self, recipe: DrafterRecipe, rows: Encoded) -> None:
        self.recipe, self.held_out = recipe, batches_for(recipe, rows).held_out()

    def loss(self, network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        recipe = self.recipe
        source, mask, blocks = self._blocks(network, batch, generator)
        glancing = 0.0 if recipe.glancing is None else glancing_ratio(step / recipe.steps, *recipe.glancing)
        settings = (glancing, recipe.label_smoothing, recipe.place_decay)
        return drafter_loss(network, source, mask, blocks, generator, *settings)

    def evaluate(self, network: Any) -> Evaluation:
        """Loss (nats a token) of blocks behind random prefixes; accepted tokens a round of a verifier that says the targets."""
        generator, total, count, stood, rounds = generator_of(self.recipe.seed, 0), 0.0, 0, 0, 0
        for batch in self.held_out:
            source, mask, blocks = self._blocks(network, batch, generator)
            num_tokens = int(blocks.counted.sum())
            total += drafter_loss(network, source, mask, blocks, generator).item() * num_tokens
            count += num_tokens
            more = count_accepted(network, source, mask, batch.labels.to(network.device), _lengths(network, batch))
            stood, rounds = stood + more[0], rounds + more[1]
        return {"loss_nats": total / count, "accepted_per_round": stood / rounds}

    def _blocks(
        self, network: Any, batch: Batch, generator: torch.Generator
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Blocks]:
        source, mask = (batch.inputs[name].to(network.device) for name in ("input_ids", "attention_mask"))
        lengths = _lengths(network, batch)
        prefixes = random_prefix_lengths(lengths, generator)
        blocks = cut_blocks(batch.labels.to(network.device), lengths, prefixes, self.recipe.block_size, START)
        return source, mask.bool(), blocks


def start_from(folder: Path, network: Any, keep_encoder: bool = False) -> None:
    """Give a fresh drafter the weights of a translation model of its width; of more layers than it has, evenly spread ones.
    ``keep_encoder`` freezes the encoder and the embeddings.

    Without the paper's many updates a drafter learns next to nothing from scratch: no token of a block sees its
    neighbours, so it must find the source in a sea of MASKs. The model has found it already.
    """
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)
    for part in ("encoder", "decoder"):
        theirs = getattr(model.model, part)
        theirs.layers = spread(theirs.layers, len(getattr(network.model, part).layers))
    begun: Any = new_network(network.config, model)
    network.load_state_dict(begun.state_dict())
    for frozen in (network.model.encoder, network.get_input_embeddings()) if keep_encoder else ():
        frozen.requires_grad_(False)


@torch.no_grad()
def count_accepted(
    network: Any,
    source: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    outputs: Int[Tensor, "B M"],
    lengths: Int[Tensor, "B"],
) -> tuple[int, int]:
    """(accepted drafts, rounds) of strict SpecDec whose verifier says exactly ``outputs``, EOS included."""
    accepted, rounds = 0, 0
    ends = torch.zeros_like(lengths)
    while bool((running := ends < lengths).any()):
        kept = running.nonzero().flatten()
        blocks = cut_blocks(outputs[kept], lengths[kept], ends[kept], network.block_size, START)
        stood = leading_correct(network, source[kept], mask[kept], blocks)
        accepted, rounds = accepted + int(stood.sum()), rounds + len(kept)
        ends[kept] += stood + 1
    return accepted, rounds


def _lengths(network: Any, batch: Batch) -> Int[Tensor, "B"]:
    return batch.weights.sum(-1).long().to(network.device)
