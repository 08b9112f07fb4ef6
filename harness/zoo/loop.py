"""One training loop for everything that learns here: steps, learning rates, evaluations, checkpoints and recipe.json.

A step's batch and random numbers depend on the seed and the step's number alone, and checkpoints hold the whole state: a
training that is killed goes on and ends with the very same weights. The zoo trains on one CPU thread, because more threads sum
in another order; the paper's sizes train on a GPU where there is one.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from harness.core import environment
from harness.core.errors import UsageError
from harness.core.files import replace_file
from harness.zoo.cache import DONE
from harness.zoo.descriptions import PairRecipe, RateSchedule, Recipe
from harness.zoo.networks import depth_switch
from harness.zoo.recipes import CODE_VERSION
from harness.zoo.state import (
    CHECKPOINT,
    Checkpoints,
    Evaluation,
    Optimizers,
    Spent,
    build_optimizer,
    generator_of,
    load_averaged,
    rate_share,
    save_weights,
)
from methods.errors import InputError
from methods.models.checkpoint import refuse_not_finite

NUM_EVALUATIONS = 4
CLIP_NORM = 1.0


def show_values(evaluations: Sequence[Evaluation]) -> str:
    """The values of the last evaluation in one line."""
    values = ((name.replace("_", " "), value) for name, value in evaluations[-1].items() if name != "step")
    return ", ".join(f"{name} {value:.3f}" for name, value in values)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The batches that a network learns from, the loss that it minimises, and its evaluation on held-out rows.

    ``loss(network, batch(step), step, generator)`` is a scalar in nats a token. A loss that goes backward itself, piece by
    piece to save memory, returns it detached. ``show`` puts the last of several evaluations into a line.
    """

    batch: Callable[[int], Any]
    loss: Callable[[Any, Any, int, torch.Generator], Float[Tensor, ""]]
    evaluate: Callable[[Any], Evaluation]
    show: Callable[[Sequence[Evaluation]], str] = show_values


@dataclass(frozen=True, kw_only=True)
class Course:
    """The length and the speed of a training, and the steps after which it is evaluated (0: before any).

    ``rate`` gives the share of the peak learning rate at a step. The weights after ``averaged_after`` steps are kept for an
    average. A checkpoint of another ``identity`` is refused. Until ``shallow_steps`` only some layers run.
    """

    name: str
    identity: str
    steps: int
    learning_rate: float
    rate: Callable[[int], float]
    seed: int = 0
    clip_norm: float | None = None
    evaluated_after: frozenset[int] = frozenset()
    averaged_after: frozenset[int] = frozenset()
    shallow_steps: float = 0.0


def course_of(recipe: Recipe) -> Course:
    pair = recipe if isinstance(recipe, PairRecipe) else None
    schedule: RateSchedule = "cosine" if pair is None else pair.rate_schedule
    return Course(
        name=recipe.name,
        identity=repr(recipe),
        steps=recipe.steps,
        learning_rate=recipe.learning_rate,
        rate=lambda step: rate_share(step, recipe.steps, recipe.warmup_frac, schedule),
        seed=recipe.seed,
        clip_norm=CLIP_NORM if pair is None else pair.clip_norm,
        evaluated_after=frozenset() if pair is None else evenly(recipe.steps),
        averaged_after=frozenset() if pair is None else averaged_steps(pair),
        shallow_steps=recipe.shallow_frac * recipe.steps,
    )


def evenly(steps: int) -> frozenset[int]:
    """The numbers of steps after which a training is evaluated, the last one among them."""
    return frozenset(-(-steps * number // NUM_EVALUATIONS) for number in range(1, NUM_EVALUATIONS + 1))


def averaged_steps(recipe: PairRecipe) -> frozenset[int]:
    """The numbers of steps after which the weights are kept for the average."""
    steps = (recipe.steps - index * recipe.average_every for index in range(recipe.num_averaged))
    return frozenset(step for step in steps if step > 0)


def train(
    recipe: Recipe, network: nn.Module, objective: Objective, folder: Path, *, grown: nn.Module | None = None, position: int = 0
) -> tuple[list[Evaluation], Spent]:
    """Train a network as its recipe says, in a folder that may hold a checkpoint, and leave the averaged weights in it.

    ``grown`` is the part whose layers join late, where it is not all of ``network``. ``position`` is the line of the progress
    bar on stderr.
    """
    named = f"{folder.name}: {recipe!r}"  # a folder's name knows the content of the data too
    course, optimizer = replace(course_of(recipe), identity=named), build_optimizer(recipe, network)
    depth = depth_switch(recipe, network if grown is None else grown)
    outcome = run_steps(course, network, optimizer, objective, folder, depth=depth, position=position)
    if course.averaged_after:
        load_averaged(network, folder, course.averaged_after, course.identity)
    network.eval()
    return outcome


def run_steps(
    course: Course,
    network: nn.Module,
    optimizer: Optimizers,
    objective: Objective,
    folder: Path,
    *,
    depth: Callable[[bool], None] | None = None,
    position: int = 0,
) -> tuple[list[Evaluation], Spent]:
    """Train from the checkpoint, if there is one, to the last step; the last checkpoint stays until ``finish``.

    Raises:
        UsageError: a checkpoint that cannot be read, or that is another training's; a loss or weights that are not finite.
    """
    checkpoints = Checkpoints(folder, network, optimizer, course.identity)
    start, evaluations = checkpoints.restore(course.steps, course.evaluated_after)
    bar = tqdm(total=course.steps, initial=start, desc=f"train {course.name}", position=position, mininterval=1.0)
    with bar, torch.random.fork_rng(devices=[]):
        if not evaluations and 0 in course.evaluated_after:
            evaluations.append({"step": 0, **_evaluate(objective, network)})
        for step in range(start, course.steps):
            with _shallow(depth, step < course.shallow_steps):
                loss = _step(course, network, optimizer, objective, step)
            if not math.isfinite(loss):
                raise _diverged(course, folder, f"the loss of step {step + 1} of {course.steps} is {loss}")
            bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
            bar.update()
            done = step + 1
            if done in course.evaluated_after:
                evaluations.append({"step": done, **_evaluate(objective, network)})
                shown = objective.show(evaluations)
                bar.write(f"{course.name} after {done} of {course.steps} steps, held out: {shown}", file=bar.fp)
            if done in course.averaged_after:
                save_weights(network, folder, done, course.identity)
            checkpoints.save_if_due(done, evaluations)
        try:
            refuse_not_finite(network.state_dict())
        except InputError as error:
            raise _diverged(course, folder, error) from error
    if start < course.steps:
        checkpoints.save(course.steps, evaluations)
    return evaluations, checkpoints.spent()


def _diverged(course: Course, folder: Path, reason: object) -> UsageError:
    """The error of a training that no further step would mend."""
    return UsageError(f"training {course.name}: {reason}; {_mended(folder)}")


def _mended(folder: Path) -> str:
    return f"lower its learning rate or look at its data, then delete {folder} and run it again"


@contextmanager
def _shallow(depth: Callable[[bool], None] | None, is_shallow: bool) -> Iterator[None]:
    if depth is not None:
        depth(is_shallow)
    try:
        yield
    finally:
        if depth is not None:
            depth(False)


def _step(course: Course, network: nn.Module, optimizer: Optimizers, objective: Objective, step: int) -> float:
    """One update; returns the loss (nats a token)."""
    generator = generator_of(course.seed, -1 - step)
    torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    for group in optimizer.param_groups:
        group["lr"] = course.learning_rate * group["rate_scale"] * course.rate(step)
    loss = objective.loss(network, objective.batch(step), step, generator)
    if loss.requires_grad:
        loss.backward()
    if course.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(optimizer.clipped, course.clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _evaluate(objective: Objective, network: nn.Module) -> Evaluation:
    network.eval()
    with torch.no_grad():
        found = objective.evaluate(network)
    network.train()
    return found


def finish(folder: Path, facts: Mapping[str, Any], spent: Spent) -> None:
    """Write recipe.json, which says that the weights beside it are whole; then delete the checkpoints.

    Raises:
        UsageError: facts that hold no numbers, as evaluations of a network that learned nothing do.
    """
    whole = {
        **facts,
        "code": CODE_VERSION,
        "train_s": spent["wall_s"],
        "train_cpu_s": spent["cpu_s"],
        "environment": environment.describe(),
    }
    try:
        content = json.dumps(whole, indent=1, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"training in {folder}: what came of it is not finite; {_mended(folder)}") from error
    replace_file(folder / DONE, content)
    for leftover in (folder / CHECKPOINT, *folder.glob("averaged-*.pt")):
        leftover.unlink(missing_ok=True)


def network_facts(recipe: Recipe, network: nn.Module, source: str, held_out: Evaluation) -> dict[str, Any]:
    """The part of recipe.json that every network of the zoo has."""
    return {
        "recipe": asdict(recipe),
        "source": source,
        "held_out": held_out,
        "held_out_loss_nats": held_out["loss_nats"],
        "num_parameters": sum(weight.numel() for weight in network.parameters()),
    }


def device_of(recipe: Recipe) -> str:
    return "cuda" if recipe.wants_gpu and torch.cuda.is_available() else "cpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: more threads sum in another order and give other weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
