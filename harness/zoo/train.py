"""Trains one recipe: a fixed number of steps on one thread, so that the same recipe gives the same weights anywhere.

A killed training resumes from its last checkpoint and ends with the very same weights.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness import environment
from harness.zoo.batches import Batch, batches_for
from harness.zoo.cache import DONE, replace_file
from harness.zoo.checkpoint import CHECKPOINT, Checkpoints, Spent
from harness.zoo.corpus import Encoded, read_corpus, read_tokenizer
from harness.zoo.descriptions import Recipe
from harness.zoo.networks import Depth, build_network
from harness.zoo.recipes import CODE_VERSION

BETAS, CLIP_NORM = (0.9, 0.98), 1.0


def train(
    recipe: Recipe, corpus_folder: Path, folder: Path, source: str, teacher_folder: Path | None = None, *, position: int = 0
) -> None:
    """Train ``recipe`` in ``folder`` (which may hold a checkpoint) and leave there a complete transformers model.

    ``position`` is the line of the progress bar on stderr.
    """
    tokenizer = read_tokenizer(corpus_folder)
    rows = read_corpus(corpus_folder)
    with one_thread():
        network = _moved(build_network(recipe, tokenizer), torch.device(device_of(recipe)))
        teacher = None
        if teacher_folder is not None:
            teacher = _moved(AutoModelForCausalLM.from_pretrained(teacher_folder), network.device).eval().requires_grad_(False)
        spent = run_steps(recipe, rows, network, folder, teacher, position=position)
        loss = held_out_loss(recipe, rows, network)
    network.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {
        "recipe": asdict(recipe),
        "source": source,
        "code": CODE_VERSION,
        "held_out_loss_nats": loss,
        "unigram_entropy_nats": unigram_entropy(recipe, rows),
        "num_parameters": network.num_parameters(),
        "train_s": spent.wall_s,
        "train_cpu_s": spent.cpu_s,
        "environment": environment.describe(),
    }
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _moved(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """transformers' own ``to`` refuses quantised models, and has no type that a checker can follow."""
    nn.Module.to(model, device)
    return model


def device_of(recipe: Recipe) -> str:
    """The zoo trains on one CPU thread, so that weights repeat; the paper's sizes on a GPU where there is one."""
    return "cuda" if recipe.wants_gpu and torch.cuda.is_available() else "cpu"


def run_steps(
    recipe: Recipe,
    rows: Encoded,
    network: PreTrainedModel,
    folder: Path,
    teacher: PreTrainedModel | None = None,
    *,
    position: int = 0,
    stop_at: int | None = None,
) -> Spent:
    """From the checkpoint, if there is one, to the last step (or to ``stop_at``, leaving a checkpoint there)."""
    optimizer, depth, batches = build_optimizer(recipe, network), Depth(recipe, network), batches_for(recipe, rows)
    checkpoints = Checkpoints(folder, network, optimizer)
    start, _ = checkpoints.restore()
    last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)
    bar = tqdm(total=recipe.steps, initial=start, desc=f"train {recipe.name}", position=position, mininterval=1.0, leave=True)
    with bar:
        for step in range(start, last):
            depth.use(shallow=step < recipe.shallow_frac * recipe.steps)
            loss = train_step(recipe, network, optimizer, batches(step), step, teacher)
            bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
            bar.update()
            depth.use(shallow=False)
            checkpoints.save_if_due(step + 1)
    if last < recipe.steps:
        checkpoints.save(last)
    return checkpoints.spent()


def train_step(
    recipe: Recipe,
    network: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    step: int,
    teacher: PreTrainedModel | None = None,
) -> float:
    """One update; returns the weighted mean loss of the batch (nats a token)."""
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * group["rate_scale"] * schedule(step / recipe.steps, recipe.warmup_frac)
    losses, weights = token_losses(network, batch, teacher)
    loss = (losses * weights).sum() / weights.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def schedule(done_frac: float, warmup_frac: float) -> float:
    """Share of the peak learning rate: a linear rise, then half a cosine down to a hundredth."""
    if done_frac < warmup_frac:
        return (done_frac + 1e-3) / (warmup_frac + 1e-3)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (done_frac - warmup_frac) / (1 - warmup_frac)))


def token_losses(
    network: PreTrainedModel, batch: Batch, teacher: PreTrainedModel | None = None
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
    """Cross-entropy (nats) with the text, or with the teacher's distribution, and weight of every position that counts."""
    device = network.device
    logits = network(**{name: values.to(device) for name, values in batch.inputs.items()}, use_cache=False).logits
    weights, labels = batch.weights.to(device), batch.labels.to(device)
    counts = weights > 0
    wanted = labels[counts]
    if teacher is not None:
        with torch.no_grad():
            inputs = {name: values.to(device) for name, values in batch.inputs.items()}
            wanted = teacher(**inputs, use_cache=False).logits[counts].float().softmax(-1)
    return cross_entropy(logits[counts].float(), wanted, reduction="none"), weights[counts]


def build_optimizer(recipe: Recipe, network: PreTrainedModel) -> torch.optim.Optimizer:
    """AdamW; matrices decay; norms, biases and embeddings do not, and embeddings have a rate of their own."""
    embedding = network.get_input_embeddings().weight
    rest = [parameter for parameter in network.parameters() if parameter is not embedding]
    groups = [
        {"params": [embedding], "weight_decay": 0.0, "rate_scale": recipe.embedding_rate_scale},
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": recipe.weight_decay, "rate_scale": 1.0},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0, "rate_scale": 1.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=BETAS, fused=True)


@torch.no_grad()
def held_out_loss(recipe: Recipe, rows: Encoded, network: PreTrainedModel) -> float:
    """Mean nats a target token over rows that training never saw."""
    network.eval()
    total = count = 0.0
    for batch in batches_for(recipe, rows).held_out():
        losses, weights = token_losses(network, batch)
        total, count = total + float((losses * weights).sum()), count + float(weights.sum())
    return total / count


def unigram_entropy(recipe: Recipe, rows: Encoded) -> float:
    """Cross-entropy (nats) of the held-out targets under the training targets' add-one unigram: what any model must beat."""
    cut = int(rows.target_ends[recipe.corpus.num_held_out - 1])
    held_out, seen = rows.target[:cut].long(), rows.target[cut:].long()
    counts = torch.bincount(seen, minlength=int(rows.target.max()) + 1).double() + 1
    return float(-(counts / counts.sum()).log()[held_out].mean())


@contextmanager
def one_thread() -> Iterator[None]:
    """More threads sum in another order: other weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
