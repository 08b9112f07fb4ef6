"""Trains SpecDec's models (Xia et al. 3.1, Appendix A): teacher and verifier here, the drafter's objective in zoo.drafting.

Random numbers of a step (dropout, where blocks begin, what glancing reveals) depend on the seed and the step alone, and
checkpoints that will be averaged are files: a training that was killed ends with the very same weights.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from harness import environment
from harness.zoo.batches import Batch, batches_for, generator_of
from harness.zoo.cache import DONE, replace_file
from harness.zoo.checkpoint import CHECKPOINT, Checkpoints, Spent, foreign
from harness.zoo.corpus import Encoded, read_corpus, read_tokenizer
from harness.zoo.descriptions import PairRecipe
from harness.zoo.networks import Depth, build_network
from harness.zoo.recipes import CODE_VERSION
from harness.zoo.train import device_of, held_out_loss, one_thread, unigram_entropy
from harness.zoo.train import schedule as cosine
from methods.specdec.training import average_states, token_loss

NUM_EVALUATIONS = 4
AVERAGED = "averaged-{step}.pt"
Evaluation = dict[str, float]


class Objective(Protocol):
    """What is minimised, and what is shown of held-out sentences as that goes on."""

    def loss(self, network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]: ...

    def evaluate(self, network: Any) -> Evaluation: ...


class NextToken:
    """Of a translation model: cross-entropy of the target's next token, label-smoothed in training."""

    def __init__(self, recipe: PairRecipe, rows: Encoded) -> None:
        self.recipe, self.rows = recipe, rows

    def loss(self, network: Any, batch: Batch, step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        inputs = {name: values.to(network.device) for name, values in batch.inputs.items()}
        logits = network(**inputs, use_cache=False).logits
        labels, counted = batch.labels.to(network.device), (batch.weights > 0).to(network.device)
        return token_loss(logits, labels, counted, self.recipe.label_smoothing)

    def evaluate(self, network: Any) -> Evaluation:
        return {"loss_nats": held_out_loss(self.recipe, self.rows, network)}


def train_pair(
    recipe: PairRecipe,
    corpus_folder: Path,
    folder: Path,
    source: str,
    objective_for: Callable[[Encoded], Objective] | None = None,
    prepare: Callable[[Any], None] | None = None,
    report: Callable[[Any, Encoded], dict[str, Any]] | None = None,
    *,
    position: int = 0,
) -> None:
    """Train in ``folder`` (which may hold a checkpoint) and leave there a complete model.

    The objective is that of a translation model where none is given; ``prepare`` changes the fresh network, ``report`` adds
    to recipe.json.
    """
    tokenizer, rows = read_tokenizer(corpus_folder), read_corpus(corpus_folder)
    with one_thread():
        network: Any = build_network(recipe, tokenizer)
        if prepare is not None:
            prepare(network)
        network.to(device_of(recipe))
        objective = NextToken(recipe, rows) if objective_for is None else objective_for(rows)
        evaluations, spent = run_pair_steps(recipe, rows, network, objective, folder, position=position)
        network.load_state_dict(averaged_weights(recipe, folder))
        network.eval()
        held_out = objective.evaluate(network)
        more = {} if report is None else report(network, rows)
    network.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    more |= {"unigram_entropy_nats": unigram_entropy(recipe, rows), "evaluations": evaluations}
    finish(recipe, network, folder, source, held_out, spent, more)


def finish(
    recipe: PairRecipe,
    network: nn.Module,
    folder: Path,
    source: str,
    held_out: Evaluation,
    spent: Spent,
    more: Mapping[str, Any],
) -> None:
    """The weights are there: write what says that they are whole; the checkpoints go."""
    facts = {
        "recipe": asdict(recipe),
        "source": source,
        "code": CODE_VERSION,
        "held_out": held_out,
        "held_out_loss_nats": held_out["loss_nats"],
        **more,
        "num_parameters": sum(weight.numel() for weight in network.parameters()),
        "train_s": spent.wall_s,
        "train_cpu_s": spent.cpu_s,
        "environment": environment.describe(),
    }
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())
    for leftover in (CHECKPOINT, *(AVERAGED.format(step=step) for step in averaged_steps(recipe))):
        (folder / leftover).unlink(missing_ok=True)


def run_pair_steps(
    recipe: PairRecipe,
    rows: Encoded,
    network: nn.Module,
    objective: Objective,
    folder: Path,
    *,
    position: int = 0,
    stop_at: int | None = None,
) -> tuple[list[Evaluation], Spent]:
    """From the checkpoint, if there is one, to the last step (or to ``stop_at``), leaving a checkpoint there.

    Raises:
        UsageError: a checkpoint that cannot be read, or that is another recipe's.
    """
    optimizer, batches, depth = build_optimizer(recipe, network), batches_for(recipe, rows), Depth(recipe, network)
    checkpoints = Checkpoints(folder, network, optimizer)
    start, saved = checkpoints.restore()
    identity = repr(recipe)
    if saved.get("identity", identity) != identity:
        raise foreign(folder)
    evaluations: list[Evaluation] = saved.get("evaluations", [])
    last, to_average = recipe.steps if stop_at is None else min(stop_at, recipe.steps), averaged_steps(recipe)
    bar = tqdm(total=recipe.steps, initial=start, desc=f"train {recipe.name}", position=position, mininterval=1.0)
    with bar, torch.random.fork_rng(devices=[]):
        for step in range(start, last):
            depth.use(shallow=step < recipe.shallow_frac * recipe.steps)
            loss = train_pair_step(recipe, network, optimizer, objective, batches(step), step)
            depth.use(shallow=False)
            bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
            bar.update()
            done = step + 1
            if done * NUM_EVALUATIONS // recipe.steps > step * NUM_EVALUATIONS // recipe.steps:
                evaluations.append({"step": done, **_evaluate(objective, network)})
                bar.write(progress(recipe, evaluations[-1]), file=bar.fp)
            if done in to_average:
                _save_weights(network, folder / AVERAGED.format(step=done))
            checkpoints.save_if_due(done, evaluations=evaluations, identity=identity)
    if last > start:
        checkpoints.save(last, evaluations=evaluations, identity=identity)
    return evaluations, checkpoints.spent()


def train_pair_step(
    recipe: PairRecipe, network: Any, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch, step: int
) -> float:
    """One update; returns the loss (nats a token)."""
    generator = generator_of(recipe.seed, -1 - step)
    torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * group["rate_scale"] * rate(recipe, step)
    loss = objective.loss(network, batch, step, generator)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def rate(recipe: PairRecipe, step: int) -> float:
    """Share of the peak learning rate: a linear rise; then with one over the square root of the steps, or half a cosine."""
    done_frac = (step + 1) / recipe.steps
    if recipe.rate_schedule == "cosine":
        return cosine(step / recipe.steps, recipe.warmup_frac)
    return min(done_frac / recipe.warmup_frac, math.sqrt(recipe.warmup_frac / done_frac))


def build_optimizer(recipe: PairRecipe, network: nn.Module) -> torch.optim.Optimizer:
    """AdamW; embeddings have a rate of their own. The paper decays every weight."""
    embedding = network.get_input_embeddings().weight if isinstance(network, PreTrainedModel) else None
    rest = [p for p in network.parameters() if p is not embedding and p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": rest, "rate_scale": 1.0}]
    if embedding is not None:
        groups.insert(0, {"params": [embedding], "rate_scale": recipe.embedding_rate_scale})
    settings: dict[str, Any] = {"betas": recipe.adam_betas, "eps": recipe.adam_eps, "weight_decay": recipe.weight_decay}
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, **settings, fused=True)


def averaged_steps(recipe: PairRecipe) -> set[int]:
    """After how many steps a checkpoint is kept for the average."""
    steps = (recipe.steps - index * recipe.average_every for index in range(recipe.num_averaged))
    return {step for step in steps if step > 0}


def averaged_weights(recipe: PairRecipe, folder: Path) -> Mapping[str, Tensor]:
    files = [folder / AVERAGED.format(step=step) for step in sorted(averaged_steps(recipe))]
    return average_states([torch.load(file, weights_only=True, map_location="cpu") for file in files])


def progress(recipe: PairRecipe, evaluation: Evaluation) -> str:
    """One line: what held-out sentences say after so many steps."""
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in evaluation.items() if name != "step")
    return f"{recipe.name} after {evaluation['step']} of {recipe.steps} steps, held out: {shown}"


def _evaluate(objective: Objective, network: Any) -> Evaluation:
    network.eval()
    with torch.no_grad():
        found = objective.evaluate(network)
    network.train()
    return found


def _save_weights(network: nn.Module, path: Path) -> None:
    buffer = BytesIO()
    torch.save(network.state_dict(), buffer)
    replace_file(path, buffer.getvalue())
