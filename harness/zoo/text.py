"""Trains models of text: decoder-only ones and T5s on the next token, SpecDec's teachers and verifiers (Xia et al. 3.1)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness.zoo.batches import Batch, batches_for
from harness.zoo.corpus import Encoded, read_corpus, read_tokenizer
from harness.zoo.descriptions import PairRecipe, Recipe
from harness.zoo.loop import Objective, device_of, finish, network_facts, one_thread, train
from harness.zoo.networks import build_network
from harness.zoo.recipes import folder_of
from methods.specdec.training import token_loss

ObjectiveFor = Callable[[Encoded], Objective]


def train_language_model(recipe: Recipe, folder: Path, source: str, position: int = 0) -> None:
    """Train a model on the text's next tokens, or on its teacher's distributions."""
    teacher = None if recipe.teacher is None else read_teacher(recipe, folder_of(recipe.teacher, source))
    train_model(recipe, folder, source, lambda rows: next_token(recipe, rows, teacher), position=position)


def train_translator(recipe: PairRecipe, folder: Path, source: str, position: int = 0) -> None:
    """Train a translation model, or one that summarizes, on the target's next tokens."""
    train_model(recipe, folder, source, lambda rows: smoothed_next_token(recipe, rows), position=position)


def train_model(
    recipe: Recipe,
    folder: Path,
    source: str,
    objective_for: ObjectiveFor,
    *,
    prepare: Callable[[Any], None] | None = None,
    report: Callable[[Any, Encoded], dict[str, Any]] | None = None,
    position: int = 0,
) -> None:
    """Train in ``folder`` (which may hold a checkpoint) and leave a complete transformers model there.

    ``prepare`` changes the fresh network, ``report`` adds to recipe.json.
    """
    corpus_folder = folder_of(recipe.corpus, source)
    tokenizer, rows = read_tokenizer(corpus_folder), read_corpus(corpus_folder)
    with one_thread():
        network: Any = build_network(recipe, tokenizer)
        if prepare is not None:
            prepare(network)
        network.to(device_of(recipe))
        objective = objective_for(rows)
        evaluations, spent = train(recipe, network, objective, folder, position=position)
        with torch.no_grad():
            held_out = objective.evaluate(network)
        more = {} if report is None else report(network, rows)
    network.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = network_facts(recipe, network, source, held_out) | more
    facts |= {"unigram_entropy_nats": unigram_entropy(recipe, rows), "evaluations": evaluations}
    finish(folder, facts, spent)


def read_teacher(recipe: Recipe, folder: Path) -> PreTrainedModel:
    """Load the frozen model whose distributions are learned, where the recipe trains."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    return model.eval().requires_grad_(False).to(device_of(recipe))


def next_token(recipe: Recipe, rows: Encoded, teacher: PreTrainedModel | None = None) -> Objective:
    """Cross-entropy with the text's next token, or with the teacher's distribution over it."""

    def loss(network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        losses, weights = token_losses(network, batch, teacher)
        return (losses * weights).sum() / weights.sum()

    return Objective(batch=batches_for(recipe, rows), loss=loss, evaluate=lambda network: held_out(recipe, rows, network))


def smoothed_next_token(recipe: PairRecipe, rows: Encoded) -> Objective:
    """Cross-entropy with the target's next token, label-smoothed in training."""

    def loss(network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        inputs = {name: values.to(network.device) for name, values in batch.inputs.items()}
        logits = network(**inputs, use_cache=False).logits
        labels, counted = batch.labels.to(network.device), (batch.weights > 0).to(network.device)
        return token_loss(logits, labels, counted, recipe.label_smoothing)

    return Objective(batch=batches_for(recipe, rows), loss=loss, evaluate=lambda network: held_out(recipe, rows, network))


def token_losses(
    network: Any, batch: Batch, teacher: PreTrainedModel | None = None
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
    """Cross-entropy (nats) with the text, or with the teacher's distribution, and weight of every position that counts."""
    device = network.device
    inputs = {name: values.to(device) for name, values in batch.inputs.items()}
    logits = network(**inputs, use_cache=False).logits
    weights, labels = batch.weights.to(device), batch.labels.to(device)
    counts = weights > 0
    wanted = labels[counts]
    if teacher is not None:
        with torch.no_grad():
            wanted = teacher(**inputs, use_cache=False).logits[counts].float().softmax(-1)
    return cross_entropy(logits[counts].float(), wanted, reduction="none"), weights[counts]


@torch.no_grad()
def held_out(recipe: Recipe, rows: Encoded, network: nn.Module) -> dict[str, float]:
    """Mean nats a target token over rows that training never saw."""
    total = count = 0.0
    for batch in batches_for(recipe, rows).held_out():
        losses, weights = token_losses(network, batch)
        total, count = total + float((losses * weights).sum()), count + float(weights.sum())
    return {"loss_nats": total / count}


def unigram_entropy(recipe: Recipe, rows: Encoded) -> float:
    """Cross-entropy (nats) of the held-out targets under the training targets' add-one unigram: any model must beat it."""
    cut = int(rows.target_ends[recipe.corpus.num_held_out - 1])
    unseen, seen = rows.target[:cut].long(), rows.target[cut:].long()
    counts = torch.bincount(seen, minlength=int(rows.target.max()) + 1).double() + 1
    return float(-(counts / counts.sum()).log()[unseen].mean())
