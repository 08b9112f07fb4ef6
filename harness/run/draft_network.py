"""The network of a draft (`foretoken draft`): how it begins, which part of it learns, and what this gives for a text.

A draft of the target's own width begins as some of its layers; a narrower one is a Llama whose embeddings, which are its head
too, begin as the target's by principal components. A Whisper's is a decoder of few layers over the target's encoder, as
Distil-Whisper (Gandhi et al. 2023): the encoder's weights are copied and never learn, so that the folder loads anywhere, and a
run beside the target reads what the target's encoder heard.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn

from harness.core.errors import UsageError
from harness.models.loading import LoadedModel
from methods.models.checkpoint import KEPT_TOKENS
from methods.models.whisper import LANGUAGE, TASK

HEAD_WIDTH = 64


def check_sizes(target: LoadedModel, layers: int, width: int | None, vocabulary: int | None) -> None:
    """UsageError for a target or sizes of which no draft is made."""
    if target.is_encoder_decoder and target.listener is None:
        raise UsageError(f"target {target.name}: it is an encoder-decoder; expected a decoder-only model or a Whisper")
    if width is not None and target.listener is not None:
        raise UsageError(f"width {width}: a draft of a Whisper reads its encoder, at the target's own; leave it out")
    most = int(target.stack.model.get_input_embeddings().weight.shape[1])
    if width is None:
        if layers > target.stack.num_layers:
            raise UsageError(f"layers {layers}: expected at most {target.stack.num_layers}, the target's own")
    elif width % HEAD_WIDTH:
        raise UsageError(f"width {width}: expected a multiple of {HEAD_WIDTH}")
    elif width > most:
        raise UsageError(f"width {width}: expected at most {most}, the target's; its embeddings are where a draft begins")
    least = max(2, len(always_kept(target)) + 1)
    if vocabulary is not None and not least <= vocabulary <= target.vocab_size:
        raise UsageError(f"vocabulary {vocabulary}: expected {least} to {target.vocab_size}, the target's tokens")
    if not target.eos_token_ids:
        raise UsageError(f"target {target.name}: it has no end of text, which a draft must know; name a model that has one")


def always_kept(target: LoadedModel) -> list[int]:
    """The tokens that a draft of any vocabulary knows: those that texts end with, and a Whisper's begin with."""
    return sorted({*target.eos_token_ids, *target.opening})


def new_network(layers: int, width: int | None, seed: int, target: LoadedModel, kept: Sequence[int]) -> Any:
    """Make the draft as it is before any step; what does not begin as the target's is random by the seed."""
    ends = [kept.index(token) for token in target.eos_token_ids if token in kept]
    size = len(kept) + (len(kept) < target.vocab_size)  # the last token stands for all that are not known
    config = _own_config(layers, target) if width is None else _narrow_config(width, layers, target)
    config.update({
        "vocab_size": size, "bos_token_id": None, "eos_token_id": ends if len(ends) > 1 else ends[0], "pad_token_id": None,
    })  # fmt: skip
    if len(kept) < target.vocab_size:
        setattr(config, KEPT_TOKENS, list(kept))
    make, settings = transformers.AutoModelForCausalLM.from_config, None
    if target.listener is not None:
        make, settings = transformers.WhisperForConditionalGeneration._from_config, _whisper_settings(target, kept)
        config.update({name: getattr(settings, name) for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id")})
        config.update(dict.fromkeys(("suppress_tokens", "begin_suppress_tokens")))  # the settings say it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: Any = make(config, dtype=torch.float32)
    with torch.no_grad():
        if width is None:
            _begin_as(network, target, kept, layers)
        else:
            weight: Tensor = network.get_input_embeddings().weight
            weight.zero_()
            weight[: len(kept)] = _main_components(target, kept, width)
    network.generation_config = settings or transformers.GenerationConfig.from_model_config(config)
    return network


def learner_of(network: Any) -> nn.Module:
    """Return the part of a draft that learns: of a Whisper its decoder's layers.

    Embeddings, which are its head too, stay the target's: learned from minutes of speech they forget the words that it lacks.
    In a first trial, with another rate and vocabulary, the overlap on held-out greedy transcripts was 0.45; it is 0.77 now.
    """
    if network.config.model_type != "whisper":
        return cast(nn.Module, network)
    decoder = network.model.decoder
    for part in (decoder.embed_tokens, decoder.embed_positions):
        part.requires_grad_(False)
    return cast(nn.Module, decoder)


def states_and_head(
    learner: Any, tokens: Int[Tensor, "B n"], heard: Float[Tensor, "B S D"] | None
) -> tuple[Float[Tensor, "B n D"], Callable[[Tensor], Tensor]]:
    """Return a learner's last hidden states of texts, of what was ``heard`` if it listens, and what gives logits of them."""
    if heard is None:
        return learner.base_model(input_ids=tokens, use_cache=False).last_hidden_state, learner.lm_head
    states = learner(input_ids=tokens, encoder_hidden_states=heard, use_cache=False).last_hidden_state
    return states, partial(F.linear, weight=learner.embed_tokens.weight)


def _narrow_config(width: int, layers: int, target: LoadedModel) -> Any:
    return transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=-(-width * 8 // 3 // 64) * 64,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=width // HEAD_WIDTH,
        max_position_embeddings=target.stack.position_limit or 2048,
        tie_word_embeddings=True,
        initializer_range=0.5 * width**-0.5,
    )


def _main_components(target: LoadedModel, kept: Sequence[int], width: int) -> Float[Tensor, "W width"]:
    model: Any = target.stack.model
    known = model.get_input_embeddings().weight.detach().float().cpu()[list(kept)]
    mean = known.mean(0)
    axes = torch.linalg.svd(known - mean, full_matrices=False).Vh[:width]
    begun: Tensor = (known - mean) @ axes.t()
    return begun * (width**-0.5 / begun.std())


def chosen_layers(count: int, depth: int) -> list[int]:
    """Return the target's layers that a draft begins with, spread evenly from the first to the last."""
    return [round(number * (depth - 1) / max(1, count - 1)) for number in range(count)]


def _own_config(layers: int, target: LoadedModel) -> Any:
    config = copy.deepcopy(target.stack.model.config)
    kinds = getattr(config, "layer_types", None)
    config.update({"num_hidden_layers" if target.listener is None else "decoder_layers": layers})
    if kinds:
        config.update({"layer_types": [kinds[layer] for layer in chosen_layers(layers, len(kinds))]})
    return config


def _whisper_settings(target: LoadedModel, kept: Sequence[int]) -> transformers.GenerationConfig:
    """Return what a Whisper's generation settings say of transcribing English, in the draft's numbers of tokens."""
    theirs, place = target.stack.model.generation_config, {token: place for place, token in enumerate(kept)}
    ends = [place[token] for token in target.eos_token_ids if token in place]
    settings: dict[str, Any] = {
        name: [place[token] for token in getattr(theirs, name, None) or () if token in place] or None
        for name in ("begin_suppress_tokens", "suppress_tokens")
    }
    for name, word in (("lang_to_id", LANGUAGE), ("task_to_id", TASK)):
        if (found := getattr(theirs, name, None)) and found.get(word) in place:
            settings[name] = {word: place[found[word]]}
    for name in ("decoder_start_token_id", "no_timestamps_token_id"):
        if (token := getattr(theirs, name, None)) is not None:
            settings[name] = place[token]
    return transformers.GenerationConfig(
        bos_token_id=ends[0], eos_token_id=ends if len(ends) > 1 else ends[0], pad_token_id=ends[0],
        max_length=target.stack.position_limit, return_timestamps=False,
        is_multilingual=getattr(theirs, "is_multilingual", True), **settings,
    )  # fmt: skip


def _begin_as(network: Any, target: LoadedModel, kept: Sequence[int], count: int) -> None:
    """Copy the target's weights: of the decoder's layers those chosen, of matrices with a row for every token some rows."""
    numbers = chosen_layers(count, target.stack.num_layers)
    theirs = target.stack.model.state_dict()
    for name, weight in network.state_dict().items():
        before, layer, behind = _layer_in(name)
        is_whole = layer is None or ".encoder." in before
        source = theirs[name if is_whole else f"{before}{numbers[layer or 0]}{behind}"].float().cpu()
        if source.shape[0] == target.vocab_size != weight.shape[0] or source.shape[0] > weight.shape[0]:
            weight[: len(kept)] = source[list(kept)]
            weight[len(kept) :] = source.mean(0)
        else:
            weight.copy_(source)


def _layer_in(name: str) -> tuple[str, int | None, str]:
    """Part the name of a weight at the number of its layer, where it has one."""
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    if place is None:
        return name, None, ""
    return "".join(f"{part}." for part in parts[:place]), int(parts[place]), "".join(f".{part}" for part in parts[place + 1 :])
