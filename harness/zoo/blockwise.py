"""Trains blockwise heads (Stern et al. 2018) on a frozen verifier, and counts how many of their tokens it accepts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.zoo.corpus import Encoded, read_corpus
from harness.zoo.descriptions import BlockwiseRecipe
from harness.zoo.drafting import accepted_by_verifier, read_verifier
from harness.zoo.loop import Evaluation, Objective, finish, network_facts, one_thread, train
from harness.zoo.recipes import digest, folder_of
from harness.zoo.text import START, Batch, batches_for
from methods.specdec.blockwise import BlockwiseHeads, blockwise_loss

Project = Callable[[Tensor], Tensor]


def train_blockwise(recipe: BlockwiseRecipe, folder: Path, source: str, position: int = 0) -> None:
    """Train heads in ``folder``, which may hold a checkpoint, on the corpus that their verifier learned from."""
    rows = read_corpus(folder_of(recipe.corpus, source))
    with one_thread():
        verifier = read_verifier(recipe, folder_of(recipe.verifier, source))
        heads = new_heads(recipe).to(verifier.device)
        objective = next_tokens(recipe, verifier, rows)
        evaluations, spent = train(recipe, heads, objective, folder, position=position)
        with torch.no_grad():
            held_out = objective.evaluate(heads)
        against = accepted_by_verifier(recipe, verifier, rows, partial(count_accepted, verifier, heads))
    heads.cpu().save(folder)
    base = {"name": f"zoo:{recipe.verifier.name}", "revision": digest(recipe.verifier, source)}
    facts = network_facts(recipe, heads, source, held_out) | {"base": base, "evaluations": evaluations} | against
    finish(folder, facts, spent)


def new_heads(recipe: BlockwiseRecipe) -> BlockwiseHeads:
    """Weights depend on the recipe and its seed only; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return BlockwiseHeads(recipe.width, recipe.num_drafts, recipe.ff_width).train()


def next_tokens(recipe: BlockwiseRecipe, verifier: Any, rows: Encoded) -> Objective:
    """Cross-entropy of the tokens behind the verifier's own, the verifier reading the text."""
    batches, project = batches_for(recipe, rows), partial(_project, verifier)
    held_out = batches.held_out()

    def loss(heads: BlockwiseHeads, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        hidden, outputs, lengths = read_batch(verifier, batch)
        drawn = int(torch.randint(heads.num_heads, (), generator=generator)) if recipe.draws_head else None
        return blockwise_loss(heads, project, hidden, outputs, lengths, drawn, recipe.label_smoothing)

    def evaluate(heads: BlockwiseHeads) -> Evaluation:
        """Loss (nats a token) of all heads; accepted tokens a round of a verifier that emits the targets."""
        total, count, accepted, rounds = 0.0, 0, 0, 0
        for batch in held_out:
            hidden, outputs, lengths = read_batch(verifier, batch)
            reach = torch.arange(1, heads.num_heads + 1, device=lengths.device)
            num_tokens = int((lengths.unsqueeze(1) - reach).clamp(min=0).sum())
            total += blockwise_loss(heads, project, hidden, outputs, lengths).item() * num_tokens
            more = count_rounds(leading_correct(heads, project, hidden, outputs, lengths), lengths)
            count, accepted, rounds = count + num_tokens, accepted + more[0], rounds + more[1]
        return {"loss_nats": total / count, "accepted_per_round": accepted / rounds}

    return Objective(batch=batches, loss=loss, evaluate=evaluate)


def read_batch(verifier: Any, batch: Batch) -> tuple[Float[Tensor, "B M D"], Int[Tensor, "B M"], Int[Tensor, "B"]]:
    """The verifier's hidden states over a batch's targets, the targets and their lengths."""
    device = verifier.device
    inputs = {name: values.to(device) for name, values in batch.inputs.items()}
    return verifier_states(verifier, inputs), batch.labels.to(device), batch.weights.sum(-1).long().to(device)


@torch.no_grad()
def verifier_states(verifier: Any, inputs: dict[str, Tensor]) -> Float[Tensor, "B M D"]:
    """The verifier's last hidden states, from which it predicts each token of the text."""
    return verifier.model(**inputs, use_cache=False).last_hidden_state


@torch.no_grad()
def leading_correct(
    heads: BlockwiseHeads,
    project: Project,
    hidden: Float[Tensor, "B M D"],
    outputs: Int[Tensor, "B M"],
    lengths: Int[Tensor, "B"],
) -> Int[Tensor, "B M"]:
    """Count the drafts made at each position that agree with the outputs behind it, up to the first that does not."""
    num_tokens, device = outputs.shape[1], outputs.device
    inside = torch.arange(num_tokens, device=device) < lengths.unsqueeze(1)
    ahead = F.pad(outputs.masked_fill(~inside, -1), (0, heads.num_heads), value=-1)[:, 1:]
    wanted = ahead.unfold(1, heads.num_heads, 1)[:, :num_tokens]
    added = heads(hidden)
    guesses = [project(added[:, :, head]).argmax(-1) for head in range(heads.num_heads)]  # one head's logits at a time
    return (torch.stack(guesses, -1) == wanted).long().cumprod(-1).sum(-1)


def count_rounds(leading: Int[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> tuple[int, int]:
    """(accepted drafts, rounds) of strict verification by a model that emits the outputs. The first round drafts nothing."""
    accepted, rounds = 0, 0
    for row, length in zip(leading.tolist(), lengths.tolist(), strict=True):
        position, rounds = 0, rounds + 1
        while position < length - 1:
            accepted, rounds, position = accepted + row[position], rounds + 1, position + row[position] + 1
    return accepted, rounds


@torch.no_grad()
def count_accepted(
    verifier: Any,
    heads: BlockwiseHeads,
    source: Int[Tensor, "B S"],
    mask: Bool[Tensor, "B S"],
    outputs: Int[Tensor, "B M"],
    lengths: Int[Tensor, "B"],
) -> tuple[int, int]:
    """(accepted drafts, rounds) of strict blockwise decoding by the verifier whose ``outputs`` these are, EOS included."""
    fed = F.pad(outputs, (1, -1), value=START)
    hidden = verifier_states(verifier, {"input_ids": source, "attention_mask": mask.long(), "decoder_input_ids": fed})
    return count_rounds(leading_correct(heads, partial(_project, verifier), hidden, outputs, lengths), lengths)


def _project(verifier: Any, hidden: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
    return verifier.lm_head(hidden) + verifier.final_logits_bias[0]
