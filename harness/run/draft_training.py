"""Distils a small draft for a decoder-only model or a Whisper from its next-token laws (`foretoken draft`).

The draft begins as harness.run.draft_network says. It learns the target's likeliest tokens at every place of prompts and of
what the target answered (harness.run.draft_material), in the end of the answers alone. It may know the most frequent part of
the vocabulary: what it lacks has probability 0 in the draft, so that any exact rule stays exact; all of it is read as one
token.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import tasks
from harness.core.errors import UsageError
from harness.core.files import checksum_of, made, parsed, readable, regular, replace_file, short_hash
from harness.models.loading import LoadedModel, load_model
from harness.run.draft_material import ROWS, Material, Reading, collect
from harness.run.draft_network import always_kept, check_sizes, learner_of, new_network, states_and_head
from harness.zoo.build import ensure
from harness.zoo.cache import DONE, locked, quiet, read_facts, unreadable
from harness.zoo.loop import Course, Evaluation, Objective, evenly, finish, run_steps
from harness.zoo.state import Optimizers, generator_of, rate_share

PLAN = "plan.json"
BATCH_TOKENS = 1500  # of a step, at least one text
PLACES_A_TOKEN = 8  # of what is heard: so many cost as much as a token
COLLECTING = 0.5  # share of the time for laws; the rest is training
HELD_OUT = 8  # of the greedy texts, and of the sampled ones
TRIED_S = 10.0  # how long steps are tried to say how many fit into the time
SPARE = 0.95  # of the time is planned for
ANSWERS = 0.5  # of the training: from there on only answers are learned from


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the draft but for the processor.

    ``width``: None for the target's own, whose layers it begins with. ``vocabulary``: how many tokens it knows; None: all. With
    ``texts`` and ``steps`` the result depends on no clock; else it is what ``minutes`` allow.
    """

    material: Material
    layers: int
    width: int | None
    vocabulary: int | None
    minutes: float
    texts: int | None
    steps: int | None
    learning_rate: float
    seed: int

    @property
    def identity(self) -> str:
        own = {name: value for name, value in vars(self).items() if name != "material"}
        return short_hash(json.dumps([own, self.material.identity], sort_keys=True))


@dataclass(frozen=True)
class Plan:
    """What has been settled of a job, the one of this ``identity``: the texts and steps that its time allows."""

    identity: str
    collecting_s: float = 0.0
    texts: int | None = None
    steps: int | None = None


Known = tuple[Int[Tensor, " V"], int]  # the draft's number of each token of the target, and how many tokens it knows


def train(job: Job, folder: Path) -> str:
    """Distil, unless that has been done, and say what came of it.

    Raises:
        UsageError: a model or folder that cannot be used.
        DataError: data that cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        if (folder / DONE).is_file():
            if read_facts(folder).get("identity") != job.identity:
                raise UsageError(f"output {folder}: it holds a draft of another training; choose another folder or delete it")
            with readable(f"{folder / DONE}", f"delete {folder} and run the command again"):
                return shown(read_facts(folder)["evaluations"])
        _check_output(folder, job)
        spec = job.material.target
        if spec.zoo_name is not None:
            ensure([spec.zoo_name], "toy", job.material.source, workers=0)
        target = load_model(spec)
        check_sizes(target, job.layers, job.width, job.vocabulary)
        if job.material.chat_template and target.listener is not None:
            raise UsageError(f"chat-template: {target.name} hears, and reads no prompt to be a turn of a chat; leave it out")
        clock = _Clock(folder, job)
        readings = collect(job.material, target, job.texts or clock.plan.texts, clock.is_over)
        clock.note(texts=len(readings))
        return distil(job, target, folder, readings, clock)


def _check_output(folder: Path, job: Job) -> None:
    """UsageError unless a folder is empty or holds this very job, unfinished."""
    plan = folder / PLAN
    if not plan.is_file():
        if foreign := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
            raise UsageError(f"output {folder}: it holds {foreign[0]!r}, which is not of a draft; choose another folder")
        _write_plan(folder, Plan(job.identity, steps=job.steps))
    elif _read_plan(folder).identity != job.identity:
        raise UsageError(f"output {folder}: it holds a draft of another training; choose another folder or delete it")


def _read_plan(folder: Path) -> Plan:
    path = folder / PLAN
    try:
        regular(path)
        values = dict(parsed(path.read_bytes()))
        if values.pop("checksum", None) != checksum_of(values):
            raise ValueError("it is not as it was written: its checksum differs")
        return made(Plan, values)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise unreadable(path, error) from error


def _write_plan(folder: Path, plan: Plan) -> None:
    values = asdict(plan)
    replace_file(folder / PLAN, json.dumps(values | {"checksum": checksum_of(values)}))


class _Clock:
    """What has been settled of a job, and the seconds spent on laws, over all processes that worked on it."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.minutes, self.plan = folder, job.minutes, _read_plan(folder)
        self.began = time.monotonic() - self.plan.collecting_s

    def is_over(self) -> bool:
        """Say whether the collecting of laws has had its share of the time, and note the time for whoever goes on."""
        self.note()
        return self.plan.collecting_s >= COLLECTING * self.minutes * 60

    def left_s(self) -> float:
        """The seconds that the training may take."""
        return self.minutes * 60 - self.plan.collecting_s

    def note(self, **settled: Any) -> None:
        if self.plan.texts is None:
            settled["collecting_s"] = time.monotonic() - self.began
        self.plan = replace(self.plan, **settled)
        _write_plan(self.folder, self.plan)


def kept_tokens(job: Job, target: LoadedModel, readings: Sequence[Reading]) -> list[int]:
    """Return the tokens that the draft knows, in the target's order: those with the most mass in its laws, and those that it
    needs."""
    if job.vocabulary is None or job.vocabulary == target.vocab_size:
        return list(range(target.vocab_size))
    mass = torch.zeros(target.vocab_size, dtype=torch.float64)
    for one in readings:
        mass.index_add_(0, one.likely.flatten().long(), one.probs.flatten().double())
        answer = slice(one.num_prompt - 1, None)  # what is drafted in the end counts as often as ten places of a prompt
        mass.index_add_(0, one.likely[answer].flatten().long(), 9 * one.probs[answer].flatten().double())
    mass[always_kept(target)] = float("inf")
    return sorted(mass.topk(job.vocabulary).indices.tolist())


def distil(job: Job, target: LoadedModel, folder: Path, readings: Sequence[Reading], clock: _Clock) -> str:
    """Train the draft on the laws and leave it in the folder with the target's tokenizer."""
    kept, rows = kept_tokens(job, target, readings), job.material.rows(len(readings))
    first = readings[: 2 * ROWS]
    held_out = [one for kind in (True, False) for one in [one for one in first if one.is_greedy is kind][: _spared(readings)]]
    groups = {one.group for one in held_out}
    learned = [one for one in readings if one.group not in groups]
    if not learned:
        raise UsageError(f"texts {len(readings)}: all are held out to judge the draft; expected more")
    place = torch.full((target.vocab_size,), len(kept), dtype=torch.long)
    place[list(kept)] = torch.arange(len(kept))
    steps, begun = clock.plan.steps or 0, (job.layers, job.width, job.seed, target, kept)
    objective = _objective(job, learned, held_out, (place, len(kept)), lambda: steps)
    if not steps:
        tried = learner_of(new_network(*begun)).train()
        clock.note(steps=(steps := _steps_in(objective, tried, job, clock.left_s())))
    network = new_network(*begun)
    course = Course(
        name="draft",
        identity=f"{job.identity} of {len(readings)} texts, {steps} steps",
        steps=steps,
        learning_rate=job.learning_rate,
        rate=lambda step: rate_share(step, steps, 0.05),
        seed=job.seed,
        clip_norm=1.0,
        evaluated_after=evenly(steps) | {0},
    )
    learner = learner_of(network).train()
    evaluations, spent = run_steps(course, learner, _optimizer(job, learner), objective, folder)
    with quiet():
        network.eval().save_pretrained(folder)
        target.tokenizer.save_pretrained(folder)
        if target.listener is not None:
            target.listener.extractor.save_pretrained(folder)
    facts = {
        **asdict(job),
        "identity": job.identity,
        "learned": tasks.training_files(job.material.tasks, job.material.source),
        "rows": rows,
        "num_kept": len(kept),
        "num_texts": len(readings),
        "num_tokens": sum(len(one.likely) for one in readings),
        "num_answer_tokens": sum(len(one.tokens) - one.num_prompt for one in readings),
        "num_held_out": len(held_out),
        "num_not_learned": len(readings) - len(learned),
        "steps": steps,
        "evaluations": evaluations,
        "num_parameters": sum(weight.numel() for weight in network.parameters()),
        "num_learning_parameters": sum(weight.numel() for weight in learner.parameters() if weight.requires_grad),
        "collecting_s": clock.plan.collecting_s,
    }
    finish(folder, facts, spent)
    (folder / PLAN).unlink(missing_ok=True)
    return shown(evaluations)


def _spared(readings: Sequence[Reading]) -> int:
    """How many texts of either kind are held out: together at most a quarter of all, but one of either kind at least."""
    return max(1, min(HELD_OUT, len(readings) // 8))


def _optimizer(job: Job, network: nn.Module) -> Optimizers:
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    groups = [{"params": weights, "rate_scale": 1.0}]
    return Optimizers([torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)], weights)


def _steps_in(objective: Objective, network: Any, job: Job, left_s: float) -> int:
    """Try some steps, whose results are thrown away, and say how many fit into the time that is left."""
    optimizer, count = _optimizer(job, network), 0
    objective.loss(network, objective.batch(0), 0, generator_of(0, 0)).backward()  # the first is slow
    began = time.monotonic()
    while not count or (time.monotonic() - began < min(TRIED_S, left_s / 10)):
        count += 1
        objective.loss(network, objective.batch(count), count, generator_of(0, count)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return max(1, int(SPARE * left_s / ((time.monotonic() - began) / count)))


def _batches(pool: Sequence[Reading], seed: int, epoch: int) -> list[list[Reading]]:
    """Part the texts, in an order that the seed draws anew in every epoch, into batches of about as many tokens."""
    batches, room = list[list[Reading]](), 0
    for index in torch.randperm(len(pool), generator=generator_of(seed, epoch)).tolist():
        one = pool[index]
        cost = len(one.tokens) + (0 if one.heard is None else len(one.heard) // PLACES_A_TOKEN)
        if room < cost:
            batches.append([])
            room = BATCH_TOKENS
        batches[-1].append(one)
        room -= cost
    return batches


def _objective(
    job: Job, learned: Sequence[Reading], held_out: Sequence[Reading], known: Known, steps: Callable[[], int]
) -> Objective:
    epochs: dict[int, list[list[Reading]]] = {}

    def batch(step: int) -> list[Reading]:
        epoch, before = 0, 0
        while True:
            if epoch not in epochs:
                epochs[epoch] = _batches(learned, job.seed, epoch)
            if step < before + len(epochs[epoch]):
                return epochs[epoch][step - before]
            epoch, before = epoch + 1, before + len(epochs[epoch])

    def loss(network: Any, batch: Sequence[Reading], step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """Cross-entropy with what the draft can say of the target's law, in nats a place."""
        log_probs, labels, weights = _laws(network, batch, known, answers_alone=bool(steps()) and step >= ANSWERS * steps())
        return -(log_probs.gather(-1, labels) * weights).sum() / weights.sum()

    def judge(network: Any) -> Evaluation:
        kinds = {"overlap_greedy_text": True, "overlap_sampled_text": False}
        texts = {name: [one for one in held_out if one.is_greedy is kind] for name, kind in kinds.items()}
        return {name: _overlap(network, chosen, known) for name, chosen in texts.items() if chosen}

    return Objective(batch=batch, loss=loss, evaluate=judge)


def _laws(
    network: Any, batch: Sequence[Reading], known: Known, answers_alone: bool
) -> tuple[Float[Tensor, "M W"], Int[Tensor, "M k"], Float[Tensor, "M k"]]:
    """Return the draft's log-laws at the places of a batch, the target's likeliest tokens, and the mass of those it knows."""
    place, num_kept = known
    tokens = torch.nn.utils.rnn.pad_sequence([place[one.tokens[:-1]] for one in batch], batch_first=True)
    heard = [one.heard.float() for one in batch if one.heard is not None]
    hidden, head = states_and_head(network, tokens, torch.stack(heard) if heard else None)
    counted = [slice(one.num_prompt - 1 if answers_alone else 0, len(one.likely)) for one in batch]
    rows = torch.cat([hidden[row, places] for row, places in enumerate(counted)])
    logits = head(rows)[:, :num_kept].float()  # the token that stands for all others is never drafted
    labels = place[torch.cat([one.likely[places] for one, places in zip(batch, counted, strict=True)]).long()]
    inside = labels < num_kept
    probs = torch.cat([one.probs[places] for one, places in zip(batch, counted, strict=True)]).float()
    return logits.log_softmax(-1), labels * inside, probs * inside


@torch.no_grad()
def _overlap(network: Any, readings: Sequence[Reading], known: Known) -> float:
    """Return the mean over the places of answers of sum min(p, q), of the tokens kept of each law.

    It is a lower bound of alpha at temperature 1.
    """
    total = count = 0.0
    for one in readings:
        log_probs, labels, probs = _laws(network, [one], known, answers_alone=True)
        total += float(torch.minimum(log_probs.exp().gather(-1, labels), probs).sum())
        count += len(labels)
    return total / count


def shown(evaluations: Sequence[Evaluation]) -> str:
    """A line for each evaluation."""
    values = ([f"{name.replace('_', ' ')} {value:.3f}" for name, value in one.items() if name != "step"] for one in evaluations)
    return "\n".join(f"after {one['step']} steps: {', '.join(own)}" for one, own in zip(evaluations, values, strict=True))
