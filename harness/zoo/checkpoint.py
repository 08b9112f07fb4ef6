"""The state of a training in a file, so that a killed one goes on and ends with the very same weights."""

import io
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.errors import UsageError
from harness.core.files import replace_file
from harness.zoo.cache import unreadable
from harness.zoo.optimizers import Optimizers
from methods.specdec.training import average_states

CHECKPOINT = "checkpoint.pt"
AVERAGED = "averaged-{step}.pt"
CHECKPOINT_S = 20.0


@dataclass(frozen=True)
class Spent:
    """Training time so far, over all resumptions: seconds of wall clock and of this process's processor."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass
class Checkpoints:
    """Saves a network, its optimizer, the step and whatever else must survive, and counts the time of all resumptions."""

    folder: Path
    network: nn.Module
    optimizer: Optimizers
    before: Spent = field(default_factory=Spent)

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
        device = next(self.network.parameters()).device
        try:
            state = torch.load(path, weights_only=True, map_location=device)
        except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
            raise unreadable(path, error) from error
        try:
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise foreign(self.folder) from error
        self.before = Spent(**state["spent"])
        return state["step"], state.get("more", {})

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
        _save({"step": step, "spent": asdict(self.spent()), "more": more, **state}, self.folder / CHECKPOINT)

    def spent(self) -> Spent:
        wall_s, cpu_s = time.perf_counter() - self.began, time.process_time() - self.began_cpu
        return Spent(self.before.wall_s + wall_s, self.before.cpu_s + cpu_s)


def save_weights(network: nn.Module, folder: Path, step: int) -> None:
    """Keep the weights of a step for the average."""
    _save(network.state_dict(), folder / AVERAGED.format(step=step))


def averaged_weights(folder: Path, steps: Collection[int]) -> Mapping[str, Tensor]:
    """Return the mean of the weights that were kept after these steps."""
    files = [folder / AVERAGED.format(step=step) for step in sorted(steps)]
    return average_states([torch.load(file, weights_only=True, map_location="cpu") for file in files])


def _save(state: Mapping[str, Any], path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    replace_file(path, buffer.getvalue())


def foreign(folder: Path) -> UsageError:
    return UsageError(f"{folder / CHECKPOINT}: it belongs to another training; delete {folder} and run the command again")
