"""Trains a Whisper of the zoo on toy speech, or distils one from it. Recordings are shifted and hidden as they are read."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, ctc_loss
from transformers import PreTrainedTokenizerFast

from harness.zoo.corpus import read_tokenizer
from harness.zoo.descriptions import SpeechCorpus, WhisperRecipe
from harness.zoo.loop import Objective, device_of, finish, network_facts, one_thread, train
from harness.zoo.networks import build_network, read_network, spread
from harness.zoo.recipes import data_of, folder_of
from harness.zoo.speech import SpeechRows, feature_extractor, generation_settings, read_speech
from harness.zoo.state import generator_of
from methods.autoregressive import Autoregressive
from methods.models.whisper import WhisperStack, forced_tokens
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Inputs, Stop
from tasks.speech import edit_counts, rate_from_sums

IGNORED = -100


def train_whisper(recipe: WhisperRecipe, folder: Path, source: str, position: int = 0) -> None:
    """Train ``recipe`` in ``folder`` (which may hold a checkpoint) and leave there a complete transformers model."""
    corpus, corpus_folder = recipe.corpus, folder_of(recipe.corpus, source)
    assert isinstance(corpus, SpeechCorpus)
    tokenizer, rows = read_tokenizer(corpus_folder), read_speech(corpus_folder)
    with one_thread():
        network: Any = build_network(recipe, tokenizer)
        network.generation_config = generation_settings(tokenizer, recipe.position_limit)
        teacher: Any = None
        if recipe.teacher is not None:
            teacher = read_network(folder_of(recipe.teacher, source))
            copy_teacher(teacher, network)
            teacher.to(device_of(recipe))
        parts = with_alignment(recipe, network).to(device_of(recipe))
        objective = transcription(recipe, rows, tokenizer, teacher)
        _, spent = train(recipe, parts, objective, folder, grown=network, position=position)
        network.cpu().save_pretrained(folder)
        parts.cpu()
        with torch.no_grad():  # after saving: decoding lays the weights out anew
            held_out = objective.evaluate(parts)
    tokenizer.save_pretrained(folder)
    feature_extractor(corpus).save_pretrained(folder)
    finish(folder, network_facts(recipe, network, data_of(corpus, source), held_out), spent)


def with_alignment(recipe: WhisperRecipe, network: Any) -> nn.ModuleDict:
    """The network and the head from which its encoder learns to align; the head is dropped after training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return nn.ModuleDict({"network": network, "ctc": nn.Linear(recipe.width, network.config.vocab_size)})


@torch.no_grad()
def copy_teacher(teacher: Any, network: Any) -> None:
    """The teacher's encoder, frozen, its embeddings and last norm, and layers spread over its decoder's depth."""
    network.model.encoder.load_state_dict(teacher.model.encoder.state_dict())
    network.model.encoder.requires_grad_(False)
    student, source = network.model.decoder, teacher.model.decoder
    for name in ("embed_tokens", "embed_positions", "layer_norm"):
        getattr(student, name).load_state_dict(getattr(source, name).state_dict())
    for layer, other in zip(student.layers, spread(source.layers, len(student.layers)), strict=True):
        layer.load_state_dict(other.state_dict())


def transcription(
    recipe: WhisperRecipe, rows: SpeechRows, tokenizer: PreTrainedTokenizerFast, teacher: Any = None
) -> Objective:
    """Cross-entropy with the transcript's next token and the encoder's alignment, or with the teacher's distribution."""
    settings = generation_settings(tokenizer, recipe.position_limit)

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen = rows_of_step(recipe, rows, step)
        features = disturb(recipe, rows.features[chosen].float(), generator_of(recipe.seed, -1 - step))
        return features, *decoder_tokens(settings, [rows.tokens(row) for row in chosen])

    def loss(parts: Any, batch: tuple[Tensor, ...], step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        network = parts["network"]
        features, inputs, labels = (values.to(network.device) for values in batch)
        states = network.model.encoder(features).last_hidden_state
        found = decoder_loss(recipe, network, states, inputs, labels, teacher)
        if teacher is not None or not recipe.ctc_weight:
            return found
        return (1 - recipe.ctc_weight) * found + recipe.ctc_weight * alignment_loss(parts["ctc"](states), labels)

    def evaluate(parts: Any) -> dict[str, float]:
        network = parts["network"]
        wer = held_out_wer(recipe, rows, network, tokenizer)
        return {"loss_nats": held_out_loss(recipe, rows, network), "wer": wer}

    return Objective(batch=batch, loss=loss, evaluate=evaluate)


def rows_of_step(recipe: WhisperRecipe, rows: SpeechRows, step: int) -> list[int]:
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
    """The decoder's inputs, forced tokens first, and the token that should follow each; IGNORED where nothing is learned."""
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


@torch.no_grad()
def held_out_loss(recipe: WhisperRecipe, rows: SpeechRows, network: Any) -> float:
    """Mean nats a token over recordings that training never saw."""
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


def held_out_wer(recipe: WhisperRecipe, rows: SpeechRows, network: Any, tokenizer: PreTrainedTokenizerFast) -> float:
    """Word error rate of greedy transcriptions of the held-out recordings of the corpus's first part."""
    stack = WhisperStack(network)
    chosen = [row for row in range(recipe.corpus.num_held_out) if rows.part[row] == 0]
    inputs = Inputs((stack.opening,) * len(chosen), rows.features[chosen].float())
    stop = Stop(max_new_tokens=recipe.corpus.max_target, token_ids=frozenset({tokenizer.eos_token_id}))
    uniforms = Uniforms([0] * len(chosen), stop.max_new_tokens)
    found = Autoregressive().generate(ModelSession(stack), inputs, Sampling(), uniforms, stop)
    outputs = [str(tokenizer.decode(row.tokens, skip_special_tokens=True)) for row in found]
    wanted = [str(tokenizer.decode(rows.tokens(row), skip_special_tokens=True)) for row in chosen]
    counts = [edit_counts(*pair) for pair in zip(outputs, wanted, strict=True)]
    return float(rate_from_sums({name: np.sum([one[name] for one in counts]) for name in counts[0]}))
