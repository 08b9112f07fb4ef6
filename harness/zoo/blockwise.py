"""Trains blockwise heads (Stern et al. 2018) on a frozen verifier, and says how many of their tokens would stand."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.zoo.against_verifier import accepted_by_verifier, read_verifier
from harness.zoo.batches import Batch, batches_for
from harness.zoo.corpus import Encoded, read_corpus
from harness.zoo.descriptions import BlockwiseRecipe
from harness.zoo.drafting import START
from harness.zoo.pairs import Evaluation, averaged_weights, finish, run_pair_steps
from harness.zoo.recipes import digest
from harness.zoo.train import one_thread
from methods.specdec.blockwise import BlockwiseHeads, blockwise_loss

Project = Callable[[Tensor], Tensor]


class NextTokens:
    """Of the heads: cross-entropy of the tokens behind the verifier's own, the verifier reading the text."""

    def __init__(self, recipe: BlockwiseRecipe, verifier: Any, rows: Encoded) -> None:
        self.recipe, self.verifier, self.project = recipe, verifier, partial(_project, verifier)
        self.held_out = batches_for(recipe, rows).held_out()

    def loss(self, network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        hidden, outputs, lengths = self._read(batch)
        drawn = int(torch.randint(network.num_heads, (), generator=generator)) if self.recipe.draws_head else None
        return blockwise_loss(network, self.project, hidden, outputs, lengths, drawn, self.recipe.label_smoothing)

    def evaluate(self, network: Any) -> Evaluation:
        """Loss (nats a token) of all heads; accepted tokens a round of a verifier that says the targets."""
        total, count, accepted, rounds = 0.0, 0, 0, 0
        for batch in self.held_out:
            hidden, outputs, lengths = self._read(batch)
            reach = torch.arange(1, network.num_heads + 1, device=lengths.device)
            num_tokens = int((lengths.unsqueeze(1) - reach).clamp(min=0).sum())
            total += blockwise_loss(network, self.project, hidden, outputs, lengths).item() * num_tokens
            more = count_rounds(leading_correct(network, self.project, hidden, outputs, lengths), lengths)
            count, accepted, rounds = count + num_tokens, accepted + more[0], rounds + more[1]
        return {"loss_nats": total / count, "accepted_per_round": accepted / rounds}

    def _read(self, batch: Batch) -> tuple[Float[Tensor, "B M D"], Int[Tensor, "B M"], Int[Tensor, "B"]]:
        device = self.verifier.device
        inputs = {name: values.to(device) for name, values in batch.inputs.items()}
        return verifier_states(self.verifier, inputs), batch.labels.to(device), batch.weights.sum(-1).long().to(device)


def make_blockwise(
    recipe: BlockwiseRecipe, corpus_folder: Path, verifier_folder: Path, folder: Path, source: str, position: int = 0
) -> None:
    """Train heads in ``folder``, which may hold a checkpoint, on the corpus that their verifier learned from."""
    rows = read_corpus(corpus_folder)
    with one_thread():
        verifier = read_verifier(recipe, verifier_folder)
        heads = new_heads(recipe).to(verifier.device)
        objective = NextTokens(recipe, verifier, rows)
        evaluations, spent = run_pair_steps(recipe, rows, heads, objective, folder, position=position)
        heads.load_state_dict(averaged_weights(recipe, folder))
        heads.eval()
        held_out = objective.evaluate(heads)
        against = accepted_by_verifier(recipe, verifier, rows, partial(count_accepted, verifier, heads))
    heads.cpu().save(folder)
    base = {"name": f"zoo:{recipe.verifier.name}", "revision": digest(recipe.verifier, source)}
    finish(recipe, heads, folder, source, held_out, spent, {"base": base, "evaluations": evaluations, **against})


def new_heads(recipe: BlockwiseRecipe) -> BlockwiseHeads:
    """Weights depend on the recipe and its seed only; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return BlockwiseHeads(recipe.width, recipe.num_drafts, recipe.ff_width).train()


@torch.no_grad()
def verifier_states(verifier: Any, inputs: dict[str, Tensor]) -> Float[Tensor, "B M D"]:
    """Its last hidden states, from which it predicts each token of the text."""
    return verifier.model(**inputs, use_cache=False).last_hidden_state


@torch.no_grad()
def leading_correct(
    heads: BlockwiseHeads,
    project: Project,
    hidden: Float[Tensor, "B M D"],
    outputs: Int[Tensor, "B M"],
    lengths: Int[Tensor, "B"],
) -> Int[Tensor, "B M"]:
    """How many drafts made at each position agree with the outputs behind it before the first that does not."""
    num_tokens, device = outputs.shape[1], outputs.device
    inside = torch.arange(num_tokens, device=device) < lengths.unsqueeze(1)
    ahead = F.pad(outputs.masked_fill(~inside, -1), (0, heads.num_heads), value=-1)[:, 1:]
    wanted = ahead.unfold(1, heads.num_heads, 1)[:, :num_tokens]
    added = heads(hidden)
    guesses = [project(added[:, :, head]).argmax(-1) for head in range(heads.num_heads)]  # one head's logits at a time
    return (torch.stack(guesses, -1) == wanted).long().cumprod(-1).sum(-1)


def count_rounds(leading: Int[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> tuple[int, int]:
    """(accepted drafts, rounds) of strict verification by a model that says the outputs. The first round drafts nothing."""
    accepted, rounds = 0, 0
    for row, length in zip(leading.tolist(), lengths.tolist(), strict=True):
        position, rounds = 0, rounds + 1
        while position < length - 1:
            stood = row[position]
            accepted, rounds, position = accepted + stood, rounds + 1, position + stood + 1
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
