"""Trains what drafts for a verifier, and counts how many of its tokens the verifier accepts.

SpecDec's block drafter (Xia et al. 3.1), which learns from a teacher's corpus, and blockwise heads (Stern et al. 2018) on the
frozen verifier itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness.zoo.corpus import Encoded, read_corpus
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe, SharedEncoderRecipe
from harness.zoo.loop import Evaluation, Objective, device_of, finish, network_facts, one_thread, train
from harness.zoo.networks import read_network, spread
from harness.zoo.recipes import digest, folder_of
from harness.zoo.state import generator_of
from harness.zoo.text import START, Batch, batches_for, train_model
from methods.autoregressive import Autoregressive
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.blockwise import BlockwiseHeads, blockwise_loss
from methods.specdec.network import new_network
from methods.specdec.training import Blocks, cut_blocks, drafter_loss, glancing_ratio, leading_correct, random_prefix_lengths
from methods.types import Inputs, Stop

SENTENCES = 64  # decoded, and drafted for, at a time
# (accepted drafts, rounds) of strict verification, from sources, their mask, the verifier's outputs and their lengths.
CountAccepted = Callable[[Int[Tensor, "B S"], Bool[Tensor, "B S"], Int[Tensor, "B M"], Int[Tensor, "B"]], tuple[int, int]]
Project = Callable[[Tensor], Tensor]


def train_drafter(recipe: DrafterRecipe, folder: Path, source: str, position: int, make_verifier: Callable[[], None]) -> None:
    """Train a drafter. Training needs no verifier, the report does: both train at once, and the report waits (or trains it)."""

    def report(network: Any, rows: Encoded) -> dict[str, Any]:
        make_verifier()
        verifier = read_network(folder_of(recipe.verifier, source), device_of(recipe))
        return accepted_by_verifier(recipe, verifier, rows, partial(count_accepted, network))

    prepare = None
    if recipe.initial is not None:
        keeps_encoder = isinstance(recipe, SharedEncoderRecipe)
        prepare = partial(start_from, folder_of(recipe.initial, source), keep_encoder=keeps_encoder)
    train_model(recipe, folder, source, partial(next_block, recipe), prepare=prepare, report=report, position=position)


def next_block(recipe: DrafterRecipe, rows: Encoded) -> Objective:
    """Cross-entropy of the block behind a random prefix of the target."""
    batches = batches_for(recipe, rows)
    held_out = batches.held_out()

    def loss(network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        source, mask, blocks = random_blocks(recipe, network, batch, generator)
        glancing = 0.0 if recipe.glancing is None else glancing_ratio(step / recipe.steps, *recipe.glancing)
        return drafter_loss(network, source, mask, blocks, generator, glancing, recipe.label_smoothing, recipe.place_decay)

    def evaluate(network: Any) -> Evaluation:
        """Loss (nats a token) of blocks behind random prefixes; accepted tokens a round if the verifier emits the targets."""
        generator, total, count, accepted, rounds = generator_of(recipe.seed, 0), 0.0, 0, 0, 0
        for batch in held_out:
            source, mask, blocks = random_blocks(recipe, network, batch, generator)
            num_tokens = int(blocks.counted.sum())
            total += drafter_loss(network, source, mask, blocks, generator).item() * num_tokens
            more = count_accepted(network, source, mask, batch.labels.to(network.device), _lengths(network, batch))
            count, accepted, rounds = count + num_tokens, accepted + more[0], rounds + more[1]
        return {"loss_nats": total / count, "accepted_per_round": accepted / rounds}

    return Objective(batch=batches, loss=loss, evaluate=evaluate)


def random_blocks(
    recipe: DrafterRecipe, network: Any, batch: Batch, generator: torch.Generator
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Blocks]:
    """The sources of a batch, their mask, and a block behind a random prefix of each target."""
    source, mask = (batch.inputs[name].to(network.device) for name in ("input_ids", "attention_mask"))
    lengths = _lengths(network, batch)
    prefixes = random_prefix_lengths(lengths, generator)
    return source, mask.bool(), cut_blocks(batch.labels.to(network.device), lengths, prefixes, recipe.block_size, START)


def start_from(folder: Path, network: Any, keep_encoder: bool = False) -> None:
    """Give a fresh drafter the weights of a translation model of its width; of more layers than it has, evenly spread ones.
    ``keep_encoder`` freezes the encoder and the embeddings.

    Without the paper's many updates a drafter learns next to nothing from scratch: no token of a block sees its
    neighbours, so it must find the source in a sea of MASKs. The model has found it already.
    """
    model = read_network(folder)
    for part in ("encoder", "decoder"):
        stack = getattr(model.model, part)
        stack.layers = spread(stack.layers, len(getattr(network.model, part).layers))
    started: Any = new_network(network.config, model)
    network.load_state_dict(started.state_dict())
    for frozen in (network.model.encoder, network.get_input_embeddings()) if keep_encoder else ():
        frozen.requires_grad_(False)


@torch.no_grad()
def count_accepted(
    network: Any, source: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], outputs: Int[Tensor, "B M"], lengths: Int[Tensor, "B"]
) -> tuple[int, int]:
    """(accepted drafts, rounds) of strict SpecDec whose verifier emits exactly ``outputs``, EOS included."""
    accepted, rounds = 0, 0
    ends = torch.zeros_like(lengths)
    while bool((running := ends < lengths).any()):
        kept = running.nonzero().flatten()
        blocks = cut_blocks(outputs[kept], lengths[kept], ends[kept], network.block_size, START)
        leading = leading_correct(network, source[kept], mask[kept], blocks)
        accepted, rounds = accepted + int(leading.sum()), rounds + len(kept)
        ends[kept] += leading + 1
    return accepted, rounds


def _lengths(network: Any, batch: Batch) -> Int[Tensor, "B"]:
    return batch.weights.sum(-1).long().to(network.device)


def accepted_by_verifier(
    recipe: DrafterRecipe | BlockwiseRecipe, verifier: Any, rows: Encoded, count: CountAccepted
) -> dict[str, Any]:
    """Mean accepted and emitted tokens a round against the verifier's own greedy outputs for held-out sentences."""
    num_sentences, accepted, rounds, num_tokens = recipe.corpus.num_held_out, 0, 0, 0
    for first in range(0, num_sentences, SENTENCES):
        sources = [rows.row(row)[0].long() for row in range(first, min(first + SENTENCES, num_sentences))]
        outputs = greedy_outputs(verifier, sources, recipe.corpus.max_target)
        source, output = (pad_sequence(part, batch_first=True).to(verifier.device) for part in (sources, outputs))
        source_ends, lengths = (torch.tensor([len(one) for one in part], device=source.device) for part in (sources, outputs))
        mask = torch.arange(source.shape[1], device=source.device) < source_ends.unsqueeze(1)
        more = count(source, mask, output, lengths)
        accepted, rounds, num_tokens = accepted + more[0], rounds + more[1], num_tokens + int(lengths.sum())
    return {
        "against_verifier": {
            "verifier": recipe.verifier.name,
            "num_sentences": num_sentences,
            "num_rounds": rounds,
            "accepted_per_round": accepted / rounds,
            "tokens_per_round": num_tokens / rounds,
        }
    }


def greedy_outputs(model: Any, sources: Sequence[Int[Tensor, " s"]], max_new_tokens: int) -> list[Int[Tensor, " m"]]:
    """Decode each source greedily; outputs end with EOS."""
    session = ModelSession(stack_for(model))
    inputs = Inputs(tuple(tuple(source.tolist()) for source in sources))
    stop = Stop(max_new_tokens=max_new_tokens, token_ids=frozenset({model.generation_config.eos_token_id}))
    uniforms = Uniforms([0] * len(sources), max_new_tokens)
    found = Autoregressive().generate(session, inputs, Sampling(temperature=0.0), uniforms, stop)
    return [torch.tensor(generation.tokens) for generation in found]


def train_blockwise(recipe: BlockwiseRecipe, folder: Path, source: str, position: int = 0) -> None:
    """Train heads in ``folder``, which may hold a checkpoint, on the corpus that their verifier learned from."""
    rows = read_corpus(folder_of(recipe.corpus, source))
    with one_thread():
        verifier = read_network(folder_of(recipe.verifier, source), device_of(recipe))
        heads = new_heads(recipe).to(verifier.device)
        objective = next_tokens(recipe, verifier, rows)
        evaluations, spent = train(recipe, heads, objective, folder, position=position)
        with torch.no_grad():
            held_out = objective.evaluate(heads)
        against = accepted_by_verifier(recipe, verifier, rows, partial(count_accepted_heads, verifier, heads))
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
            more = count_rounds(count_correct_heads(heads, project, hidden, outputs, lengths), lengths)
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
def count_correct_heads(
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
def count_accepted_heads(
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
    return count_rounds(count_correct_heads(heads, partial(_project, verifier), hidden, outputs, lengths), lengths)


def _project(verifier: Any, hidden: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
    return verifier.lm_head(hidden) + verifier.final_logits_bias[0]
