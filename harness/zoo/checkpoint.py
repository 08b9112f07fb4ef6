"""The state of a training, saved now and then, so that one that is killed goes on and ends with the very same weights."""

import io
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import nn

from harness.errors import UsageError
from harness.zoo.cache import replace_file, unreadable

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_S = 20.0


@dataclass(frozen=True)
class Spent:
    """Training time so far, over all resumptions: seconds of wall clock and of this process's processor."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class Optimizer(Protocol):
    """What a checkpoint needs of one, or of several that are used as one."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass
class Checkpoints:
    """Saves a network, its optimizer, the step and whatever else must survive; knows how long the training took."""

    folder: Path
    network: nn.Module
    optimizer: Optimizer
    before: Spent = field(default_factory=Spent)

    def __post_init__(self) -> None:
        self.began, self.began_cpu = time.perf_counter(), time.process_time()
        self.due = self.began + CHECKPOINT_S

    def restore(self) -> tuple[int, dict[str, Any]]:
        """The step to go on with and what else was saved; (0, {}) without a checkpoint.

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
        buffer = io.BytesIO()
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({"step": step, "spent": asdict(self.spent()), "more": more, **state}, buffer)
        replace_file(self.folder / CHECKPOINT, buffer.getvalue())

    def spent(self) -> Spent:
        wall_s, cpu_s = time.perf_counter() - self.began, time.process_time() - self.began_cpu
        return Spent(self.before.wall_s + wall_s, self.before.cpu_s + cpu_s)


def foreign(folder: Path) -> UsageError:
    return UsageError(f"{folder / CHECKPOINT}: it belongs to another training; delete {folder} and run the command again")
