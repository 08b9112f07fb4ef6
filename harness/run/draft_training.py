"""Distils a small draft for a decoder-only model from its next-token laws (`foretoken draft`).

The draft is a Llama of the target's tokenizer. Its embeddings, which are its head too, begin as the target's by principal
components; it learns the target's likeliest tokens (``LIKELIEST``) at every place of real text of the tasks, then of what the
target writes itself, greedily and at temperature 1. It may know the most frequent part of the vocabulary alone: what it lacks
has probability 0 in the draft, so that any exact rule stays exact; all of it is read as one token.

Every stage leaves files, so that a killed training goes on: what the target wrote, its laws, the weights.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

import tasks
from harness.core.errors import UsageError
from harness.core.experiment import ZOO, ModelSpec
from harness.core.files import replace_file, whole_lines
from harness.models.loading import LoadedModel, load_model
from harness.zoo.build import ensure
from harness.zoo.cache import DONE, locked, quiet, read_facts, unreadable
from harness.zoo.loop import Course, Evaluation, Objective, evenly, finish, run_steps
from harness.zoo.state import Optimizers, generator_of, load_state, rate_share, save_state
from methods.autoregressive import Autoregressive
from methods.models.checkpoint import KEPT_TOKENS
from methods.sampling import Sampling, Uniforms
from methods.types import Inputs, Stop
from tasks.base import DataError
from tasks.sources.read import read_examples, training_pairs
from tasks.text import Text

LIKELIEST = 64  # tokens of a law that are kept
HEAD_WIDTH = 64
WRITTEN, LAWS, PLAN = "written.jsonl", "laws-{number}.pt", "plan.json"
ROWS, CHUNK = 16, 32  # texts that are written together; whose laws are a file
BATCH = 8  # texts of a step
MOST_TOKENS = 512  # of a text
NEW_TOKENS = 96  # that the target writes to a prompt
WRITING, READING = 0.2, 0.35  # shares of the time; the rest is training
HELD_OUT = 16  # texts of the target's own, half of them greedy
TRIED_STEPS = 3  # which say how many fit into the time
OWN = 0.5  # of the training: from there on only what the target wrote is learned from


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the draft but for the processor. ``target`` is pinned.

    ``vocabulary``: how many tokens it knows; None: all. With ``steps`` (and ``texts``) the result depends on no clock; else as
    many are taken as ``minutes`` allow.
    """

    target: ModelSpec
    tasks: tuple[str, ...]
    source: str
    layers: int
    width: int
    vocabulary: int | None
    minutes: float
    texts: int | None
    steps: int | None
    chat_template: bool
    learning_rate: float
    seed: int

    @property
    def identity(self) -> str:
        data = [tasks.fingerprint(task, self.source) for task in self.tasks]
        return hashlib.sha256(json.dumps([asdict(self), data], sort_keys=True).encode()).hexdigest()[:16]


Known = tuple[Int[Tensor, " V"], int]  # the draft's number of each token of the target, and how many tokens it knows


@dataclass(frozen=True)
class Reading:
    """A text, and the target's laws behind its tokens from ``first - 1`` on: the likeliest tokens and their probabilities."""

    tokens: Int[Tensor, " n"]
    first: int
    likely: Int[Tensor, "m k"]
    probs: Float[Tensor, "m k"]
    is_own: bool


def check_job(job: Job, target: LoadedModel) -> None:
    """UsageError for a target or sizes of which no draft is made."""
    if target.is_encoder_decoder:
        raise UsageError(f"target {target.name}: it is an encoder-decoder; expected a decoder-only model")
    if job.width % HEAD_WIDTH:
        raise UsageError(f"width {job.width}: expected a multiple of {HEAD_WIDTH}")
    width = int(target.stack.model.get_input_embeddings().weight.shape[1])
    if job.width > width:
        raise UsageError(f"width {job.width}: expected at most {width}, the target's; its embeddings are where a draft begins")
    if job.vocabulary is not None and not 2 <= job.vocabulary <= target.vocab_size:
        raise UsageError(f"vocabulary {job.vocabulary}: expected 2 to {target.vocab_size}, the target's tokens")
    if not target.eos_token_ids:
        raise UsageError(f"target {target.name}: it has no end of text, which a draft must know; name a model that has one")


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
            return shown(read_facts(folder)["evaluations"])
        _check_output(folder, job)
        if job.target.base.startswith(ZOO):
            ensure([job.target.base.removeprefix(ZOO)], "toy", job.source, workers=0)
        target = load_model(job.target)
        check_job(job, target)
        clock = _Clock(folder, job)
        written = write(job, target, folder, clock)
        readings = read(job, target, folder, written, clock)
        return distil(job, target, folder, readings, clock)


def _check_output(folder: Path, job: Job) -> None:
    """UsageError unless a folder is empty or holds this very job, unfinished."""
    plan = folder / PLAN
    if not plan.is_file():
        if foreign := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
            raise UsageError(f"output {folder}: it holds {foreign[0]!r}, which is not of a draft; choose another folder")
        replace_file(plan, json.dumps({"identity": job.identity, "spent_s": {}, "steps": job.steps}))
    elif _read_plan(folder).get("identity") != job.identity:
        raise UsageError(f"output {folder}: it holds a draft of another training; choose another folder or delete it")


def _read_plan(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / PLAN).read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError) as error:
        raise unreadable(folder / PLAN, error) from error


class _Clock:
    """The seconds that each stage took, over all processes that worked on it, and how many steps are to be taken."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job, self.plan = folder, job, _read_plan(folder)
        self.began = time.monotonic()

    def is_over(self, stage: str, share: float) -> bool:
        """Say whether a stage has had its share of the time; never where the number of texts is given."""
        return self.job.texts is None and self.spent(stage) >= share * self.job.minutes * 60

    def spent(self, stage: str) -> float:
        return float(self.plan["spent_s"].get(stage, 0.0)) + time.monotonic() - self.began

    def left(self) -> float:
        return self.job.minutes * 60 - sum(self.plan["spent_s"].values())

    def note(self, stage: str, **more: Any) -> None:
        self.plan["spent_s"][stage] = self.spent(stage)
        self.plan |= more
        self.began = time.monotonic()
        replace_file(self.folder / PLAN, json.dumps(self.plan))


def prompts_of(job: Job, target: LoadedModel) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield prompts, as a run gives them, and the answers of the data, of the training parts of all tasks in turns."""
    streams = [_pairs(job, name) for name in job.tasks]
    encode = target.encode_chat if job.chat_template else target.encode
    while streams:
        for stream in list(streams):
            pair = next(stream, None)
            if pair is None:
                streams.remove(stream)
                continue
            prompt = encode(pair[0])[-(MOST_TOKENS - NEW_TOKENS) :] if pair[0] else target.encode("")[:1]
            yield prompt or target.eos_token_ids[:1], (*target.encode_continuation(pair[1]), *target.eos_token_ids[:1])


def _pairs(job: Job, name: str) -> Iterator[tuple[str, str]]:
    task, most = tasks.get_training_task(name), 5000 if job.source == "toy" else None
    if isinstance(task, Text):
        yield from training_pairs(task, job.source, most, job.seed)
        return
    for example in read_examples(task, job.source, "train", most, job.seed):
        yield task.prompt(example, "instruction"), f" {example.references[0].strip()}"


def write(job: Job, target: LoadedModel, folder: Path, clock: _Clock) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Have the target answer prompts, half of them greedily, and keep each batch as a line."""
    path = folder / WRITTEN
    lines = list(whole_lines(path)) if path.exists() else []
    try:
        done = [(tuple(prompt), tuple(answer)) for line in lines for prompt, answer in json.loads(line)]
    except (ValueError, TypeError) as error:
        raise unreadable(path, error) from error
    replace_file(path, b"".join(lines))
    prompts = (prompt for prompt, _ in prompts_of(job, target))
    for _ in done:
        next(prompts, None)
    bar = tqdm(desc=f"write with {target.name}", initial=len(done), unit="texts", total=job.texts)
    with bar, path.open("a", encoding="utf8") as file:
        while len(done) < 2 * ROWS or not clock.is_over("writing", WRITING):
            left = ROWS if job.texts is None else job.texts - len(done)
            batch = list(islice(prompts, min(ROWS, left)))
            if not batch:
                break
            answers = _answers(job, target, batch, len(done))
            file.write(json.dumps(list(zip(batch, answers, strict=True))) + "\n")
            file.flush()
            done += zip(batch, answers, strict=True)
            bar.update(len(batch))
    clock.note("writing")
    if len(done) < 2:
        raise DataError(f"data '{job.source}': {len(done)} prompts of {', '.join(job.tasks)}; expected at least 2")
    return done


def _answers(job: Job, target: LoadedModel, prompts: Sequence[tuple[int, ...]], number: int) -> list[tuple[int, ...]]:
    sampling = Sampling() if number // ROWS % 2 == 0 else Sampling(temperature=1.0)
    uniforms = Uniforms([job.seed + number + place for place in range(len(prompts))], NEW_TOKENS)
    stop = Stop(max_new_tokens=NEW_TOKENS, token_ids=frozenset(target.eos_token_ids))
    made = Autoregressive().generate(target.session(), Inputs(tuple(prompts)), sampling, uniforms, stop)
    return [tuple(one.tokens) for one in made]


def read(
    job: Job, target: LoadedModel, folder: Path, written: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], clock: _Clock
) -> list[Reading]:
    """Read the target's laws along what it wrote, then along the data's own answers while time lasts."""
    found, number = list[Reading](), 0
    while (path := folder / LAWS.format(number=number)).exists():
        found += [Reading(**one) for one in load_state(path, torch.device("cpu"))]
        number += 1
    texts = _to_read(job, target, written)
    for _ in found:
        next(texts, None)
    bar = tqdm(desc=f"read {target.name}'s laws", initial=len(found), unit="texts", total=job.texts and 2 * job.texts)
    with bar:
        while len(found) < len(written) or not clock.is_over("reading", READING):
            chunk = [_read_one(target, *text) for text in islice(texts, CHUNK)]
            if not chunk:
                break
            save_state([vars(one) for one in chunk], folder / LAWS.format(number=number))
            found, number = found + chunk, number + 1
            bar.update(len(chunk))
    clock.note("reading")
    return found


def _to_read(
    job: Job, target: LoadedModel, written: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Iterator[tuple[tuple[int, ...], int, bool]]:
    """Yield texts, the place from which their laws count, and whether the target wrote them. Prompts are real text, too."""
    yield from (((*prompt, *answer), len(prompt), True) for prompt, answer in written)
    others = (pair for number, pair in enumerate(prompts_of(job, target)) if number >= 2 * ROWS)  # none of those held out
    for number, (prompt, answer) in enumerate(others):
        if job.texts is not None and number >= job.texts:
            return
        yield (*prompt, *answer)[:MOST_TOKENS], 1, False


@torch.inference_mode()
def _read_one(target: LoadedModel, tokens: tuple[int, ...], first: int, is_own: bool) -> Reading:
    session = target.session()
    session.prefill(Inputs((tokens[:first],)))
    logits = session.extend(torch.tensor([tokens[first - 1 : -1]], device=session.device))[0].float()
    probs, likely = logits.softmax(-1).topk(min(LIKELIEST, logits.shape[-1]))
    return Reading(torch.tensor(tokens), first, likely.int().cpu(), probs.half().cpu(), is_own)


def kept_tokens(job: Job, target: LoadedModel, readings: Sequence[Reading]) -> list[int]:
    """Return the tokens that the draft knows, in the target's order: those with the most mass in its laws, and its ends."""
    if job.vocabulary is None or job.vocabulary == target.vocab_size:
        return list(range(target.vocab_size))
    mass = torch.zeros(target.vocab_size, dtype=torch.float64)
    for one in readings:
        mass.index_add_(0, one.likely.flatten().long(), one.probs.flatten().double() * (2 if one.is_own else 1))
    mass[list(target.eos_token_ids)] = float("inf")
    return sorted(mass.topk(job.vocabulary).indices.tolist())


def new_network(job: Job, target: LoadedModel, kept: Sequence[int]) -> Any:
    """Make the draft: embeddings by the target's principal components, everything else at random by the seed."""
    model: Any = target.stack.model
    ends = [kept.index(token) for token in target.eos_token_ids if token in kept]
    size = len(kept) + (len(kept) < target.vocab_size)  # the last token stands for all that are not known
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=job.width,
        intermediate_size=-(-job.width * 8 // 3 // 64) * 64,
        num_hidden_layers=job.layers,
        num_attention_heads=job.width // HEAD_WIDTH,
        num_key_value_heads=job.width // HEAD_WIDTH,
        max_position_embeddings=target.stack.position_limit or 2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends if len(ends) > 1 else ends[0],
        pad_token_id=None,
        initializer_range=0.5 * job.width**-0.5,
    )
    if len(kept) < target.vocab_size:
        setattr(config, KEPT_TOKENS, list(kept))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        network: Any = transformers.LlamaForCausalLM(config)
    whole = model.get_input_embeddings().weight.detach().float().cpu()
    known = whole[list(kept)]
    mean = known.mean(0)
    axes = torch.linalg.svd(known - mean, full_matrices=False).Vh[: job.width]
    begun = (known - mean) @ axes.t()
    with torch.no_grad():
        weight: Tensor = network.get_input_embeddings().weight
        weight.zero_()
        weight[: len(kept)] = begun * (job.width**-0.5 / begun.std())
    network.generation_config = transformers.GenerationConfig.from_model_config(config)
    return network


def distil(job: Job, target: LoadedModel, folder: Path, readings: list[Reading], clock: _Clock) -> str:
    """Train the draft on the laws and leave it in the folder with the target's tokenizer."""
    kept = kept_tokens(job, target, readings)
    own = [one for one in readings if one.is_own]
    held_out = [one for number, one in enumerate(own[: 2 * ROWS]) if number % ROWS < min(HELD_OUT, len(own) // 2) // 2] or own[
        :1
    ]
    learned = [one for one in readings if all(one is not other for other in held_out)]
    network = new_network(job, target, kept)
    place = torch.full((target.vocab_size,), len(kept), dtype=torch.long)
    place[list(kept)] = torch.arange(len(kept))
    objective = _objective(job, learned, held_out, (place, len(kept)), lambda: steps)
    optimizer = _optimizer(job, network)
    steps = int(clock.plan["steps"] or 0)
    if not steps:
        steps = _steps_in(objective, network, clock.left())
        clock.note("tried", steps=steps)
        network, optimizer = (made := new_network(job, target, kept)), _optimizer(job, made)
    course = Course(
        name="draft",
        identity=job.identity,
        steps=steps,
        learning_rate=job.learning_rate,
        rate=lambda step: rate_share(step, steps, 0.05),
        seed=job.seed,
        clip_norm=1.0,
        evaluated_after=evenly(steps) | {0},
    )
    evaluations, spent = run_steps(course, network.train(), optimizer, objective, folder)
    with quiet():
        network.eval().save_pretrained(folder)
        target.tokenizer.save_pretrained(folder)
    clock.note("training")
    facts = {
        **asdict(job),
        "identity": job.identity,
        "base": {"name": target.name, "revision": job.target.revision},
        "num_kept": len(kept),
        "num_written": len(own),
        "num_read": len(readings),
        "num_tokens": sum(len(one.likely) for one in readings),
        "num_held_out": len(held_out),
        "steps": steps,
        "evaluations": evaluations,
        "num_parameters": sum(weight.numel() for weight in network.parameters()),
        "stages_s": clock.plan["spent_s"],
    }
    finish(folder, facts, spent)
    for leftover in (folder / PLAN, folder / WRITTEN, *folder.glob("laws-*.pt")):
        leftover.unlink(missing_ok=True)
    return shown(evaluations)


def _optimizer(job: Job, network: Any) -> Optimizers:
    weights = list(network.parameters())
    groups = [{"params": weights, "rate_scale": 1.0}]
    return Optimizers([torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)], weights)


def _steps_in(objective: Objective, network: Any, left_s: float) -> int:
    """Try some steps, whose results are thrown away, and say how many fit into the time that is left."""
    began = time.monotonic()
    for step in range(TRIED_STEPS):
        objective.loss(network, objective.batch(step), step, generator_of(0, step)).backward()
    return max(1, int(left_s / ((time.monotonic() - began) / TRIED_STEPS)))


def _objective(
    job: Job, learned: Sequence[Reading], held_out: Sequence[Reading], known: Known, steps: Callable[[], int]
) -> Objective:
    own = [one for one in learned if one.is_own] or list(learned)

    def batch(step: int) -> list[Reading]:
        pool = own if steps() and step >= OWN * steps() else learned
        per_epoch = -(-len(pool) // BATCH)
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(pool), generator=generator_of(job.seed, epoch)).tolist()
        return [pool[i] for i in order[index * BATCH : (index + 1) * BATCH]]

    def loss(network: Any, batch: Sequence[Reading], step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """Cross-entropy with what the draft can say of the target's law, in nats a place."""
        log_probs, labels, weights = _laws(network, batch, known)
        return -(log_probs.gather(-1, labels) * weights).sum() / weights.sum()

    def judge(network: Any) -> Evaluation:
        kinds = {"overlap_greedy_text": True, "overlap_sampled_text": False}
        texts = {name: [one for one in held_out if _is_greedy(one) is greedy] for name, greedy in kinds.items()}
        return {name: _overlap(network, chosen, known) for name, chosen in texts.items() if chosen}

    return Objective(batch=batch, loss=loss, evaluate=judge)


def _is_greedy(one: Reading) -> bool:
    """Say whether the target took its first choice at every place."""
    return bool((one.likely[:, 0].long() == one.tokens[one.first :]).all())


def _laws(
    network: Any, batch: Sequence[Reading], known: Known
) -> tuple[Float[Tensor, "M W"], Int[Tensor, "M k"], Float[Tensor, "M k"]]:
    """Return the draft's log-laws at all places of a batch, the target's likeliest tokens, and the mass of those it knows."""
    place, num_kept = known
    tokens = torch.nn.utils.rnn.pad_sequence([place[one.tokens[:-1]] for one in batch], batch_first=True)
    hidden = network.model(input_ids=tokens, use_cache=False).last_hidden_state
    counted = torch.cat([hidden[row, one.first - 1 : len(one.tokens) - 1] for row, one in enumerate(batch)])
    logits = network.lm_head(counted)[:, :num_kept].float()  # the token that stands for all others is never drafted
    labels = place[torch.cat([one.likely for one in batch]).long()]
    inside = labels < num_kept
    return logits.log_softmax(-1), labels * inside, torch.cat([one.probs for one in batch]).float() * inside


@torch.no_grad()
def _overlap(network: Any, readings: Sequence[Reading], known: Known) -> float:
    """Return the mean of sum min(p, q) over places, of the tokens kept of each law: a lower bound of alpha at temperature 1."""
    total = count = 0.0
    for one in readings:
        log_probs, labels, probs = _laws(network, [one], known)
        total += float(torch.minimum(log_probs.exp().gather(-1, labels), probs).sum())
        count += len(labels)
    return total / count


def shown(evaluations: Sequence[Evaluation]) -> str:
    """A line for each evaluation."""
    values = ([f"{name.replace('_', ' ')} {value:.3f}" for name, value in one.items() if name != "step"] for one in evaluations)
    return "\n".join(f"after {one['step']} steps: {', '.join(own)}" for one, own in zip(evaluations, values, strict=True))
