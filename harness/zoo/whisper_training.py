"""Trains a Whisper of the zoo: a fixed number of steps on one thread, resumable, as every model of the zoo.

A step's batch, shifts and hidden parts depend on the seed and the step alone.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, ctc_loss
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, WhisperForConditionalGeneration

from harness import environment
from harness.zoo.batches import generator_of
from harness.zoo.cache import DONE, replace_file
from harness.zoo.checkpoint import CHECKPOINT, Checkpoints, Spent
from harness.zoo.corpus import read_tokenizer
from harness.zoo.networks import Depth, build_network, spread
from harness.zoo.recipes import CODE_VERSION
from harness.zoo.train import BETAS, CLIP_NORM, device_of, one_thread, schedule
from harness.zoo.whisper_corpus import Heard, feature_extractor, generation_settings, read_speech
from harness.zoo.whisper_recipes import SpeechCorpus, WhisperRecipe
from methods.autoregressive import Autoregressive
from methods.hearing import WhisperSession
from methods.models.whisper import WhisperStack, forced_tokens
from methods.sampling import Sampling, Uniforms
from methods.types import Inputs, Stop
from tasks.scoring.wer import edit_counts, rate_from_sums

IGNORED = -100


class Optimizers:
    """Several as one, as a training step and a checkpoint use them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)

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
        """ValueError for the state of others."""
        states = state.get("optimizers", ())
        for one, own in zip(self.optimizers, states, strict=True):
            one.load_state_dict(own)


def train_whisper(
    recipe: WhisperRecipe,
    corpus_folder: Path,
    folder: Path,
    source: str,
    teacher_folder: Path | None = None,
    *,
    position: int = 0,
) -> None:
    """Train ``recipe`` in ``folder`` (which may hold a checkpoint) and leave there a complete transformers model."""
    corpus, tokenizer, rows = recipe.corpus, read_tokenizer(corpus_folder), read_speech(corpus_folder)
    assert isinstance(corpus, SpeechCorpus)
    with one_thread():
        network: Any = build_network(recipe, tokenizer)
        network.generation_config = generation_settings(tokenizer, recipe.position_limit)
        teacher: Any = None
        if teacher_folder is not None:
            teacher = WhisperForConditionalGeneration.from_pretrained(teacher_folder).eval().requires_grad_(False)
            copy_teacher(teacher, network)
            teacher.to(device_of(recipe))
        network.to(device_of(recipe))
        spent = run_whisper_steps(recipe, rows, network, folder, teacher, position=position)
        network.cpu().eval()
        held_out = {"loss_nats": held_out_loss(recipe, rows, network)}
        network.save_pretrained(folder)
        held_out["wer"] = held_out_wer(recipe, rows, network, tokenizer)
    tokenizer.save_pretrained(folder)
    feature_extractor(corpus).save_pretrained(folder)
    facts = {
        "recipe": asdict(recipe),
        "source": source,
        "code": CODE_VERSION,
        "held_out": held_out,
        "held_out_loss_nats": held_out["loss_nats"],
        "num_parameters": network.num_parameters(),
        "train_s": spent.wall_s,
        "train_cpu_s": spent.cpu_s,
        "environment": environment.describe(),
    }
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())
    (folder / CHECKPOINT).unlink(missing_ok=True)


@torch.no_grad()
def copy_teacher(teacher: Any, network: Any) -> None:
    """The teacher's encoder, frozen, its embeddings and last norm, and layers spread over its decoder's depth."""
    network.model.encoder.load_state_dict(teacher.model.encoder.state_dict())
    network.model.encoder.requires_grad_(False)
    ours, theirs = network.model.decoder, teacher.model.decoder
    for name in ("embed_tokens", "embed_positions", "layer_norm"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    for layer, source in zip(ours.layers, spread(theirs.layers, len(ours.layers)), strict=True):
        layer.load_state_dict(source.state_dict())


def run_whisper_steps(
    recipe: WhisperRecipe,
    rows: Heard,
    network: Any,
    folder: Path,
    teacher: Any = None,
    *,
    position: int = 0,
    stop_at: int | None = None,
) -> Spent:
    """From the checkpoint, if there is one, to the last step (or to ``stop_at``, leaving a checkpoint there)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        ctc = nn.Linear(recipe.width, network.config.vocab_size).to(network.device)
    parts = nn.ModuleDict({"network": network, "ctc": ctc})
    optimizer, depth = build_optimizer(recipe, parts), Depth(recipe, network)
    checkpoints = Checkpoints(folder, parts, optimizer)
    start, _ = checkpoints.restore()
    last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)
    bar = tqdm(total=recipe.steps, initial=start, desc=f"train {recipe.name}", position=position, mininterval=1.0)
    with bar:
        for step in range(start, last):
            depth.use(shallow=step < recipe.shallow_frac * recipe.steps)
            loss = train_whisper_step(recipe, rows, network, ctc, optimizer, step, teacher)
            depth.use(shallow=False)
            bar.set_postfix_str(f"loss {loss:.2f}", refresh=False)
            bar.update()
            checkpoints.save_if_due(step + 1)
    if last < recipe.steps:
        checkpoints.save(last)
    return checkpoints.spent()


def train_whisper_step(
    recipe: WhisperRecipe, rows: Heard, network: Any, ctc: nn.Linear, optimizer: Optimizers, step: int, teacher: Any
) -> float:
    """One update; returns the decoder's loss (nats a token)."""
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * group["rate_scale"] * schedule(step / recipe.steps, recipe.warmup_frac)
    chosen = rows_of_step(recipe, rows, step)
    features = disturb(recipe, rows.features[chosen].float(), generator_of(recipe.seed, -1 - step)).to(network.device)
    inputs, labels = decoder_tokens(network.generation_config, [rows.tokens(row) for row in chosen])
    inputs, labels = inputs.to(network.device), labels.to(network.device)
    states = network.model.encoder(features).last_hidden_state
    loss = decoder_loss(recipe, network, states, inputs, labels, teacher)
    total = loss
    if teacher is None and recipe.ctc_weight:
        total = (1 - recipe.ctc_weight) * loss + recipe.ctc_weight * alignment_loss(ctc(states), labels)
    total.backward()
    torch.nn.utils.clip_grad_norm_([weight for group in optimizer.param_groups for weight in group["params"]], CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def rows_of_step(recipe: WhisperRecipe, rows: Heard, step: int) -> list[int]:
    """Training rows in a new order each epoch."""
    first = recipe.corpus.num_held_out
    per_epoch = max(1, (len(rows) - first) // recipe.batch_size)
    epoch, index = divmod(step, per_epoch)
    order = first + torch.randperm(len(rows) - first, generator=generator_of(recipe.seed, epoch))
    return order[index * recipe.batch_size : (index + 1) * recipe.batch_size].tolist()


def disturb(
    recipe: WhisperRecipe, features: Float[Tensor, "B mels frames"], generator: torch.Generator
) -> Float[Tensor, "B mels frames"]:
    """Shift each recording along the Mel scale, as another throat would, and hide a band and a stretch of it."""
    num_mels, num_frames = features.shape[1:]

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    for one in features:
        one.copy_(one.roll(below(2 * recipe.mel_shift + 1) - recipe.mel_shift, 0))
        bins, frames, mean = below(recipe.hidden_bins + 1), below(recipe.hidden_frames + 1), one.mean()
        band, stretch = below(num_mels - bins + 1), below(num_frames - frames + 1)
        one[band : band + bins] = mean
        one[:, stretch : stretch + frames] = mean
    return features


def decoder_tokens(settings: Any, targets: list[list[int]]) -> tuple[Int[Tensor, "B n"], Int[Tensor, "B n"]]:
    """What the decoder is fed, forced tokens first, and what should follow each; IGNORED where nothing is learned."""
    opening, longest = list(forced_tokens(settings)), max(map(len, targets))
    fed = [[*opening, *target[:-1], *[settings.pad_token_id] * (longest - len(target))] for target in targets]
    labels = [[IGNORED] * (len(opening) - 1) + [*target, *[IGNORED] * (longest - len(target))] for target in targets]
    return torch.tensor(fed), torch.tensor(labels)


def decoder_loss(
    recipe: WhisperRecipe, network: Any, states: Tensor, inputs: Tensor, labels: Tensor, teacher: Any = None
) -> Float[Tensor, ""]:
    """Cross-entropy (nats a token) with the transcript, or with the teacher's distribution over the same states."""

    def logits_of(model: Any) -> Float[Tensor, "M V"]:
        return model(encoder_outputs=(states,), decoder_input_ids=inputs, use_cache=False).logits[labels != IGNORED]

    if teacher is None:
        return cross_entropy(logits_of(network), labels[labels != IGNORED], label_smoothing=recipe.label_smoothing)
    with torch.no_grad():
        wanted = logits_of(teacher).softmax(-1)
    return cross_entropy(logits_of(network), wanted)


def alignment_loss(logits: Float[Tensor, "B S V"], labels: Int[Tensor, "B n"]) -> Float[Tensor, ""]:
    """Connectionist temporal classification (nats a token); the end of text, which is never in a text, is the blank."""
    counted = labels != IGNORED
    ends = counted & ~torch.nn.functional.pad(counted, (0, 1))[:, 1:]
    words = counted & ~ends
    blank = int(labels[ends][0])
    lengths = torch.full((len(labels),), logits.shape[1])
    steps = logits.log_softmax(-1).transpose(0, 1)
    return ctc_loss(steps, labels[words], lengths, words.sum(1), blank=blank, zero_infinity=True)


def build_optimizer(recipe: WhisperRecipe, parts: nn.Module) -> Optimizers:
    """Muon for the matrices of layers, at rates that suit AdamW; AdamW for embeddings, convolutions and heads, which decay, and
    for norms and biases."""
    named = [(name, weight) for name, weight in parts.named_parameters() if weight.requires_grad]
    layered = [weight for name, weight in named if weight.ndim == 2 and ".layers." in name and recipe.muon_rate_scale]
    rest = [weight for _, weight in named if all(weight is not other for other in layered)]
    groups = [
        {"params": [weight for weight in rest if weight.ndim > 1], "weight_decay": recipe.weight_decay, "rate_scale": 1.0},
        {"params": [weight for weight in rest if weight.ndim <= 1], "weight_decay": 0.0, "rate_scale": 1.0},
    ]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=BETAS, fused=True)]
    if layered:
        group = {"params": layered, "rate_scale": recipe.muon_rate_scale}
        made.append(
            torch.optim.Muon([group], lr=recipe.learning_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return Optimizers(made)


@torch.no_grad()
def held_out_loss(recipe: WhisperRecipe, rows: Heard, network: Any) -> float:
    """Mean nats a token over recordings that training never heard."""
    total, count = 0.0, 0
    for first in range(0, recipe.corpus.num_held_out, recipe.batch_size):
        chosen = range(first, min(first + recipe.batch_size, recipe.corpus.num_held_out))
        inputs, labels = decoder_tokens(network.generation_config, [rows.tokens(row) for row in chosen])
        states = network.model.encoder(rows.features[list(chosen)].float()).last_hidden_state
        logits = network(encoder_outputs=(states,), decoder_input_ids=inputs, use_cache=False).logits
        counted = labels != IGNORED
        total += cross_entropy(logits[counted], labels[counted], reduction="sum").item()
        count += int(counted.sum())
    return total / count


def held_out_wer(recipe: WhisperRecipe, rows: Heard, network: Any, tokenizer: PreTrainedTokenizerFast) -> float:
    """Word error rate of greedy transcriptions of the held-out recordings of the corpus's first part."""
    stack = WhisperStack(network)
    chosen = [row for row in range(recipe.corpus.num_held_out) if rows.part[row] == 0]
    inputs = Inputs((stack.opening,) * len(chosen), rows.features[chosen].float())
    stop = Stop(max_new_tokens=recipe.corpus.max_target, token_ids=frozenset({tokenizer.eos_token_id}))
    uniforms = Uniforms([0] * len(chosen), stop.max_new_tokens)
    found = Autoregressive().generate(WhisperSession(stack), inputs, Sampling(), uniforms, stop)
    said = [str(tokenizer.decode(row.tokens, skip_special_tokens=True)) for row in found]
    wanted = [str(tokenizer.decode(rows.tokens(row), skip_special_tokens=True)) for row in chosen]
    counts = [edit_counts(*pair) for pair in zip(said, wanted, strict=True)]
    return float(rate_from_sums({name: np.sum([one[name] for one in counts]) for name in counts[0]}))
