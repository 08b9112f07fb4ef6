"""Trains a head for each of several intermediate layers of a frozen decoder-only model (PPD Section 4 and Table 4).

A head is an output projection behind the model's own final norm, which stays frozen like everything else, and begins as the
model's own. One pass of the frozen model serves all heads: what they learn does not interact, so the sum of their losses
trains each as if it were alone. The paper names no schedule: the rate rises linearly and falls as half a cosine.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from harness.errors import UsageError
from harness.zoo.batches import generator_of
from harness.zoo.checkpoint import CHECKPOINT, Checkpoints, Spent
from harness.zoo.descriptions import HeadTraining
from harness.zoo.head_evaluation import (
    Document,
    Evaluation,
    HeadData,
    evaluate,
    final_choices,
    head_logits,
    layer_states,
    pieces,
    progress,
)
from harness.zoo.train import schedule
from methods.models.base import Stack
from methods.ppd.match_rate import scaled_layer
from methods.session import ModelSession

NUM_EVALUATIONS = 4  # beside the one before training
PAPER_LAYERS = (10, 20, 30, 35, 37)  # PPD Table 2, of 40


def paper_layers(num_layers: int) -> tuple[int, ...]:
    """The paper's fractions of depth as layers of this model, those that are intermediate."""
    return tuple(sorted({scaled_layer(layer, num_layers) for layer in PAPER_LAYERS if num_layers > 1}))


def initial_heads(stack: Stack, layers: Sequence[int]) -> nn.ParameterDict:
    """Warm start: every head [V, D] is a copy of the model's own, in fp32 so that small updates are not lost.

    Raises:
        UsageError: for a layer that is not intermediate, or a model that is not decoder-only.
    """
    if stack.is_encoder_decoder:
        kind = stack.model.config.model_type
        raise UsageError(f"target of model type {kind!r}: it is an encoder-decoder; expected a decoder-only model")
    for layer in layers:
        if not 1 <= layer < stack.num_layers:
            deepest = stack.num_layers - 1
            raise UsageError(f"layer {layer}: expected one from 1 to {deepest}, the target has {stack.num_layers} layers")
    own = stack.head_weight.t().float()
    return nn.ParameterDict({str(layer): nn.Parameter(own.clone().contiguous()) for layer in layers})


def train_heads(
    stack: Stack,
    layers: Sequence[int],
    training: HeadTraining,
    data: HeadData,
    folder: Path,
    *,
    identity: str,
    seed: int = 0,
    position: int = 0,
    stop_at: int | None = None,
) -> tuple[nn.ParameterDict, list[Evaluation], Spent]:
    """The heads, their evaluations (the first before any update: "N"), and the time it took.

    Resumes from a checkpoint in ``folder`` whose ``identity`` is the same; ``stop_at`` leaves one there after so many updates.

    Raises:
        UsageError: for layers or a model that cannot be, or a checkpoint that cannot be read or is another training's.
    """
    heads = initial_heads(stack, layers)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True)
    checkpoints = Checkpoints(folder, heads, optimizer)
    start, saved = checkpoints.restore()
    if saved.get("identity", identity) != identity:
        raise UsageError(f"{folder / CHECKPOINT}: it belongs to another training; delete it or choose another output folder")
    evaluations = [Evaluation(**item) for item in saved.get("evaluations", [])]
    batches = _Batches(pieces(data.seen[: training.max_documents], stack, training), training.batch_size, seed)
    held_out = pieces(data.held_out, stack, training)
    num_steps = training.epochs * batches.per_epoch
    last = num_steps if stop_at is None else min(stop_at, num_steps)
    session = ModelSession(stack)

    def state() -> dict[str, Any]:
        return {"identity": identity, "evaluations": [asdict(item) for item in evaluations]}

    with tqdm(total=num_steps, initial=start, desc="train heads", position=position, mininterval=1.0) as bar:
        if not evaluations:
            evaluations.append(evaluate(session, heads, held_out, 0))
        for step in range(start, last):
            rate = training.learning_rate * schedule(step / num_steps, training.warmup_frac)
            loss = train_step(session, heads, optimizer, batches(step), rate, training)
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update()
            if (step + 1) * NUM_EVALUATIONS // num_steps > step * NUM_EVALUATIONS // num_steps:
                evaluations.append(evaluate(session, heads, held_out, step + 1))
                bar.write(progress(evaluations, num_steps), file=bar.fp)
            checkpoints.save_if_due(step + 1, **state())
    if last < num_steps:
        checkpoints.save(last, **state())
    return heads, evaluations, checkpoints.spent()


def train_step(
    session: ModelSession,
    heads: nn.ParameterDict,
    optimizer: torch.optim.Optimizer,
    documents: Sequence[Document],
    learning_rate: float,
    training: HeadTraining,
) -> float:
    """One update of all heads; returns the mean loss of a position and head (nats)."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    stack, count = session.stack, sum(len(document.labels) for document in documents)
    total = torch.zeros((), device=stack.device)
    for document in documents:
        states = layer_states(session, document, tuple(map(int, heads)))
        labels = document.labels.to(stack.device)
        if training.labels == "final":
            labels = final_choices(stack, states)
        for layer, weight in heads.items():
            loss = cross_entropy(head_logits(stack, states[int(layer)], weight), labels, reduction="sum") / count
            loss.backward()
            total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return float(total) / len(heads)


class _Batches:
    """Documents in a new order each epoch; which ones a step sees depends on the seed and the step alone."""

    def __init__(self, documents: Sequence[Document], size: int, seed: int) -> None:
        self.documents, self.size, self.seed = documents, size, seed
        self.per_epoch = -(-len(documents) // size)

    def __call__(self, step: int) -> list[Document]:
        epoch, index = divmod(step, self.per_epoch)
        order = torch.randperm(len(self.documents), generator=generator_of(self.seed, epoch)).tolist()
        return [self.documents[i] for i in order[index * self.size : (index + 1) * self.size]]
