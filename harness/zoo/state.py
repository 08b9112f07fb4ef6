"""The state of a training: the random numbers of a step, optimizers and their rates, and checkpoints.

A checkpoint is a file with the whole state, so that a training that is killed goes on and ends with the very same weights. What
is read is held against the training that goes on, before any of it is used: torch itself takes moments of any shape.
"""

import io
import math
import os
import reprlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.core.errors import UsageError
from harness.core.files import regular, replace_file
from harness.core.messages import is_memory
from harness.zoo.cache import unreadable
from harness.zoo.descriptions import HeadTraining, PairRecipe, RateSchedule, Recipe, WhisperRecipe
from methods.models.checkpoint import refuse_not_finite
from methods.specdec.training import average_states

BETAS, EPS = (0.9, 0.98), 1e-8
CHECKPOINT = "checkpoint.pt"
AVERAGED = "averaged-{step}.pt"
CHECKPOINT_S = 20.0
DIGEST_BYTES = 32
SQUARED, COUNTED = "exp_avg_sq", "step"  # what an optimizer keeps of each weight: tensors of its shape, and a count of steps
MOMENTS = {torch.optim.AdamW: ("exp_avg", SQUARED, COUNTED), torch.optim.Muon: ("momentum_buffer",)}
Evaluation = dict[str, Any]
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
        for one, saved in zip(self.optimizers, state["optimizers"], strict=True):
            one.load_state_dict(saved)

    def refuse_others(self, states: Any, step: int) -> None:
        """ValueError or the like unless this is the state of these very optimizers after so many steps."""
        _refuse_names("optimizer", states, {"optimizers"})
        if len(states["optimizers"]) != len(self.optimizers):
            raise ValueError(f"optimizer: {len(states['optimizers'])} of them; expected {len(self.optimizers)}")
        for one, state in zip(self.optimizers, states["optimizers"], strict=True):
            _refuse_names("optimizer", state, {"state", "param_groups"})
            if _settings(state["param_groups"]) != _settings(one.state_dict()["param_groups"]):
                raise ValueError("optimizer: its settings are others")
            weights = dict(enumerate(weight for group in one.param_groups for weight in group["params"]))
            if not isinstance(state["state"], dict) or not state["state"] or state["state"].keys() - weights.keys():
                raise ValueError("optimizer: its moments are not those of these weights")
            for number, moments in state["state"].items():
                expected = {name: torch.zeros(()) if name == COUNTED else weights[number] for name in MOMENTS[type(one)]}
                _refuse_other_tensors("optimizer", moments, expected)
                if SQUARED in moments and moments[SQUARED].min() < 0:
                    raise ValueError(f"optimizer: {SQUARED!r} holds numbers that are no squares")
            done = [float(moments.get(COUNTED, step)) for moments in state["state"].values()]
            if max(done) != step or set(done) - set(range(1, step + 1)):  # a weight may have joined late
                raise ValueError(f"optimizer: a weight did {max(done):g} steps; expected {step}")


def _settings(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what no step changes."""
    return [{**group, "lr": None} for group in groups]


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
    """Saves a network, its optimizer, the step and the evaluations, and counts the time of all resumptions.

    ``identity`` tells one training from another.
    """

    folder: Path
    network: nn.Module
    optimizer: Optimizers
    identity: str
    before: Spent = field(default_factory=lambda: {"wall_s": 0.0, "cpu_s": 0.0})

    def __post_init__(self) -> None:
        self.began, self.began_cpu = time.perf_counter(), time.process_time()
        self.due = self.began + CHECKPOINT_S

    def restore(self, steps: int, evaluated_after: Collection[int] = ()) -> tuple[int, list[Evaluation]]:
        """Return the step to go on with and the evaluations until then; (0, []) without a checkpoint.

        Args:
            steps: of the whole training.
            evaluated_after: the numbers of steps after which it is evaluated.

        Raises:
            UsageError: for a file that cannot be read, is another training's, or holds what this one cannot have saved.
        """
        path = self.folder / CHECKPOINT
        if not os.path.lexists(path):
            return 0, []
        state = load_state(path, next(self.network.parameters()).device)
        with judged(path):
            _refuse_names("checkpoint", state, {"network", "optimizer", "step", "spent", "more"})
            step, more, spent = state["step"], state["more"], state["spent"]
            _refuse_names("more", more, {"evaluations", "identity"})
            _refuse_foreign(path, more["identity"], self.identity)
            if type(step) is not int or not 1 <= step <= steps:
                raise ValueError(f"step {reprlib.repr(step)}: expected 1 to {steps}")
            _refuse_names("spent", spent, self.before)
            if not _are_numbers(spent) or min(spent.values()) < 0:
                raise ValueError(f"spent {reprlib.repr(spent)}: expected seconds")
            _refuse_other_evaluations(more["evaluations"], [done for done in sorted(evaluated_after) if done <= step])
            _refuse_other_tensors("network", state["network"], self.network.state_dict())
            self.optimizer.refuse_others(state["optimizer"], step)
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.before = spent
        return step, more["evaluations"]

    def save_if_due(self, step: int, evaluations: Sequence[Evaluation] = ()) -> None:
        """Every ``CHECKPOINT_S`` seconds, less often where saving itself takes long."""
        if time.perf_counter() > self.due:
            began = time.perf_counter()
            self.save(step, evaluations)
            now = time.perf_counter()
            self.due = now + max(CHECKPOINT_S, 20 * (now - began))

    def save(self, step: int, evaluations: Sequence[Evaluation] = ()) -> None:
        """``step`` is the next one to do."""
        more = {"evaluations": list(evaluations), "identity": self.identity}
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        save_state({"step": step, "spent": self.spent(), "more": more, **state}, self.folder / CHECKPOINT)

    def spent(self) -> Spent:
        now = {"wall_s": time.perf_counter() - self.began, "cpu_s": time.process_time() - self.began_cpu}
        return {name: self.before[name] + seconds for name, seconds in now.items()}


def save_weights(network: nn.Module, folder: Path, step: int, identity: str) -> None:
    """Keep the weights of a step for the average."""
    state = {"network": network.state_dict(), "step": step, "identity": identity}
    save_state(state, folder / AVERAGED.format(step=step))


def load_averaged(network: nn.Module, folder: Path, steps: Collection[int], identity: str) -> None:
    """Give a network the mean of the weights that its training kept after these steps. UsageError for those of another."""
    network.load_state_dict(averaged_weights(network, folder, steps, identity))


def averaged_weights(network: nn.Module, folder: Path, steps: Collection[int], identity: str) -> Mapping[str, Tensor]:
    """Return the mean of the weights that a training of such a network kept after these steps."""
    expected, kept = network.state_dict(), []
    for step in sorted(steps):
        path = folder / AVERAGED.format(step=step)
        state = load_state(path, torch.device("cpu"))
        with judged(path):
            _refuse_names("average", state, {"network", "step", "identity"})
            _refuse_foreign(path, (state["identity"], state["step"]), (identity, step))
            _refuse_other_tensors("network", state["network"], expected)
        kept.append(state["network"])
    return average_states(kept)


@contextmanager
def judged(path: Path) -> Iterator[None]:
    """Turn whatever a saved file leads to that is not as it was written into a UsageError; a full memory is not its fault."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # what was never saved here makes readers fail in any way
        if is_memory(error):
            raise UsageError(f"{path}: no memory to read it; free some and run the command again") from error
        raise unreadable(path, error) from error


def _refuse_foreign(path: Path, found: Any, expected: Any) -> None:
    if found != expected:
        raise UsageError(f"{path}: it belongs to another training; delete {path.parent} and run the command again")


def _refuse_names(what: str, found: Any, expected: Collection[str]) -> None:
    if not isinstance(found, dict):
        raise TypeError(f"{what}: it is of type {type(found).__name__}; expected a dictionary")
    if other := sorted(map(str, found.keys() ^ set(expected))):
        raise ValueError(f"{what}: {other[0]!r} is {'left over' if other[0] in found else 'missing'}")


def _refuse_other_tensors(what: str, found: Any, expected: Mapping[str, Tensor]) -> None:
    """ValueError or the like unless these are finite tensors of the same names, shapes and types."""
    _refuse_names(what, found, expected)
    for name, like in expected.items():
        one, kind = found[name], f"a tensor of shape {list(like.shape)} in {str(like.dtype).removeprefix('torch.')}"
        if (
            not isinstance(one, Tensor)
            or (one.shape, one.dtype, one.layout) != (like.shape, like.dtype, like.layout)
            or one.is_meta
        ):
            raise ValueError(f"{what}: {name!r} is of another kind; expected {kind}")
    refuse_not_finite(found)


def _refuse_other_evaluations(found: Any, steps: Sequence[int]) -> None:
    if not isinstance(found, list) or [isinstance(one, dict) and one.get("step") for one in found] != list(steps):
        raise ValueError(f"evaluations: expected those after {', '.join(map(str, steps)) or 'no'} steps")
    for one in found:
        _refuse_names("evaluations", one, found[0])
        if not _are_numbers(one):
            raise ValueError(f"evaluations: {reprlib.repr(one)} are no finite numbers")


def _are_numbers(found: Any) -> bool:
    """Whether this is a finite number, or a dictionary of such."""
    if isinstance(found, dict):
        return all(map(_are_numbers, found.values()))
    return type(found) in (int, float) and math.isfinite(found)


def save_state(state: Any, path: Path) -> None:
    """Write a state, and behind it the sha256 of its bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    replace_file(path, content + sha256(content).digest())


def load_state(path: Path, device: torch.device) -> Any:
    """Read what ``save_state`` wrote; UsageError for a file that is not as it was written."""
    with judged(path):
        regular(path)
        whole = path.read_bytes()
        content, digest = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
        if sha256(content).digest() != digest:
            raise ValueError("it is not as it was written: its checksum differs")
        return torch.load(io.BytesIO(content), weights_only=True, map_location=device)
