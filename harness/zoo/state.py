"""The state of a training: the random numbers of a step, optimizers and their rates, and checkpoints.

A checkpoint is a file with the whole state, so that a training that is killed goes on and ends with the very same weights.
"""

import io
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.core.errors import UsageError
from harness.core.files import replace_file
from harness.zoo.cache import unreadable
from harness.zoo.descriptions import HeadTraining, PairRecipe, RateSchedule, Recipe, WhisperRecipe
from methods.errors import InputError
from methods.specdec.training import average_states

BETAS, EPS = (0.9, 0.98), 1e-8
CHECKPOINT = "checkpoint.pt"
AVERAGED = "averaged-{step}.pt"
CHECKPOINT_S = 20.0
DIGEST_BYTES = 32
Spent = dict[str, float]  # training time over all resumptions: "wall_s" of wall clock, "cpu_s" of this process's processor


def generator_of(seed: int, index: int) -> torch.Generator:
    """A generator that depends on its arguments alone; steps have negative indices, epochs others."""
    return torch.Generator().manual_seed((seed * 1_000_003 + index * 7_919) % 2**63)


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


def rate_share(step: int, steps: int, warmup_frac: float, schedule: RateSchedule = "cosine") -> float:
    """Share of the peak learning rate: a linear rise, then half a cosine down to a hundredth ("cosine"), or a fall with one
    over the square root of the steps ("inverse-sqrt")."""
    if schedule == "inverse-sqrt":
        done_frac = (step + 1) / steps
        return min(done_frac / warmup_frac, math.sqrt(warmup_frac / done_frac))
    done_frac = step / steps
    if done_frac < warmup_frac:
        return (done_frac + 1e-3) / (warmup_frac + 1e-3)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (done_frac - warmup_frac) / (1 - warmup_frac)))


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


@dataclass
class Checkpoints:
    """Saves a network, its optimizer, the step and whatever else must survive, and counts the time of all resumptions."""

    folder: Path
    network: nn.Module
    optimizer: Optimizers
    before: Spent = field(default_factory=lambda: {"wall_s": 0.0, "cpu_s": 0.0})

    def __post_init__(self) -> None:
        self.began, self.began_cpu = time.perf_counter(), time.process_time()
        self.due = self.began + CHECKPOINT_S

    def restore(self) -> tuple[int, dict[str, Any]]:
        """Return the step to go on with and the rest that was saved; (0, {}) without a checkpoint.

        Raises:
            UsageError: for a file that cannot be read, or that holds another network.
        """
        path = self.folder / CHECKPOINT
        if not path.exists():
            return 0, {}
        state = load_state(path, next(self.network.parameters()).device)
        try:
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
            step, self.before, more = state["step"], state["spent"], state["more"]
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise foreign(path) from error
        return step, more

    def save_if_due(self, step: int, **more: Any) -> None:
        """Every ``CHECKPOINT_S`` seconds, less often where saving itself takes long."""
        if time.perf_counter() > self.due:
            began = time.perf_counter()
            self.save(step, **more)
            now = time.perf_counter()
            self.due = now + max(CHECKPOINT_S, 20 * (now - began))

    def save(self, step: int, **more: Any) -> None:
        """``step`` is the next one to do."""
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        save_state({"step": step, "spent": self.spent(), "more": more, **state}, self.folder / CHECKPOINT)

    def spent(self) -> Spent:
        now = {"wall_s": time.perf_counter() - self.began, "cpu_s": time.process_time() - self.began_cpu}
        return {name: self.before[name] + seconds for name, seconds in now.items()}


def save_weights(network: nn.Module, folder: Path, step: int) -> None:
    """Keep the weights of a step for the average."""
    save_state(network.state_dict(), folder / AVERAGED.format(step=step))


def load_averaged(network: nn.Module, folder: Path, steps: Collection[int]) -> None:
    """Give a network the mean of the weights that were kept after these steps. UsageError for those of another network."""
    try:
        network.load_state_dict(averaged_weights(folder, steps))
    except (InputError, RuntimeError, TypeError, AttributeError) as error:
        raise foreign(folder / AVERAGED.format(step="*")) from error


def averaged_weights(folder: Path, steps: Collection[int]) -> Mapping[str, Tensor]:
    """Return the mean of the weights that were kept after these steps."""
    files = [folder / AVERAGED.format(step=step) for step in sorted(steps)]
    return average_states([load_state(file, torch.device("cpu")) for file in files])


def save_state(state: Any, path: Path) -> None:
    """Write a state, and behind it the sha256 of its bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    replace_file(path, content + sha256(content).digest())


def load_state(path: Path, device: torch.device) -> Any:
    """Read what ``save_state`` wrote; UsageError for a file that is not as it was written."""
    try:
        whole = path.read_bytes()
        content, digest = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
        if sha256(content).digest() != digest:
            raise ValueError("it is not as it was written: its checksum differs")
        return torch.load(io.BytesIO(content), weights_only=True, map_location=device)
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, UnpicklingError) as error:
        raise unreadable(path, error) from error


def foreign(path: Path) -> UsageError:
    return UsageError(f"{path}: it belongs to another training; delete {path.parent} and run the command again")
