"""The optimizer of a recipe: AdamW, and Muon for the matrices of layers where a recipe asks for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from harness.zoo.descriptions import HeadTraining, PairRecipe, Recipe, WhisperRecipe

BETAS, EPS = (0.9, 0.98), 1e-8


class Optimizers:
    """One or several optimizers, used as one by a training step and a checkpoint.

    The peak learning rate of a group is the recipe's times its ``rate_scale``. ``clipped`` are the weights whose gradient's
    norm is bounded, in an order on which the norm's rounding depends.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], clipped: Sequence[nn.Parameter] = ()) -> None:
        self.optimizers, self.clipped = tuple(optimizers), list(clipped)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    def step(self) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self) -> None:
        for one in self.optimizers:
            one.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [one.state_dict() for one in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ValueError for the state of other optimizers."""
        for one, saved in zip(self.optimizers, state.get("optimizers", ()), strict=True):
            one.load_state_dict(saved)


def build_optimizer(recipe: Recipe, network: nn.Module) -> Optimizers:
    """Embeddings learn at a rate of their own. Matrices decay; norms, biases and embeddings do not, but of SpecDec all weights
    decay, as in the paper. Muon trains the matrices of a Whisper's layers, at rates that suit AdamW."""
    pair = recipe if isinstance(recipe, PairRecipe) else None
    embedding = network.get_input_embeddings().weight if isinstance(network, PreTrainedModel) else None
    learning = [(name, w) for name, w in network.named_parameters() if w.requires_grad and w is not embedding]
    scale = recipe.muon_rate_scale if isinstance(recipe, WhisperRecipe) else 0.0
    by_muon = [w for name, w in learning if scale and w.ndim == 2 and ".layers." in name]
    rest = [w for _, w in learning if all(w is not other for other in by_muon)]
    decay = recipe.weight_decay
    small_decay = 0.0 if pair is None else decay
    groups = [
        {"params": [w for w in rest if w.ndim > 1], "weight_decay": decay, "rate_scale": 1.0},
        {"params": [w for w in rest if w.ndim <= 1], "weight_decay": small_decay, "rate_scale": 1.0},
    ]
    if embedding is not None:
        groups.append({"params": [embedding], "weight_decay": small_decay, "rate_scale": recipe.embedding_rate_scale})
    betas, eps = (BETAS, EPS) if pair is None else (pair.adam_betas, pair.adam_eps)
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=eps, weight_decay=decay, fused=True)
    ]
    if by_muon:
        group = {"params": by_muon, "rate_scale": scale}
        made.append(torch.optim.Muon([group], lr=recipe.learning_rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    found = Optimizers(made, list(network.parameters()))
    if isinstance(recipe, WhisperRecipe):
        found.clipped = [weight for group in found.param_groups for weight in group["params"]]
    return found


def heads_optimizer(training: HeadTraining, heads: nn.Module) -> Optimizers:
    """Plain AdamW (PPD Table 4)."""
    groups = [{"params": list(heads.parameters()), "rate_scale": 1.0}]
    settings: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay, "fused": True}
    return Optimizers([torch.optim.AdamW(groups, **settings)])
