"""From a recipe to a freshly initialised transformers model, and the growing of its depth.

A deep narrow model learns little in a few hundred steps. So most steps run only some of its layers, spread evenly;
the others are initialised to add nothing, and joining them later changes no output: training goes on where it was. (Marian
norms behind each layer, so there joining norms what was normed already, which changes little.)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast

from harness.zoo.cache import unreadable, verify
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe, HeadRecipe, PairRecipe, Recipe, SpeechCorpus, WhisperRecipe
from harness.zoo.families import FAMILIES
from methods.models.checkpoint import load_whole
from methods.specdec.network import block_config, new_network

CONVOLUTION_SCALE = 3.0  # of Whisper's at the start: the sound outweighs the positions that are added to it
Ids = dict[str, Any]


def build_network(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Weights depend on the recipe and its seed only; the global random state is left as it was."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = NETWORKS[recipe.family](recipe, {"vocab_size": len(tokenizer), **ids})
    if recipe.shallow_frac:
        for path in FAMILIES[recipe.family].layers:
            layers: Any = network.get_submodule(path)
            for layer in set(layers) - set(spread(layers, recipe.shallow_layers)):
                silence(recipe, layer)
    return network.train()


def read_network(folder: Path, device: str = "cpu") -> Any:
    """Load a trained network of the zoo, frozen. UsageError if its files cannot be read."""
    verify(folder)
    try:
        [name] = AutoConfig.from_pretrained(folder).architectures
        network = load_whole(getattr(transformers, name), folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise unreadable(folder, error) from error
    return network.eval().requires_grad_(False).to(device)


def num_parameters(recipe: Recipe | HeadRecipe) -> int:
    """Count the weights that a recipe has at most: the tokenizer may learn fewer tokens than it is allowed.

    The network is built without memory, on torch's device "meta". A table of counts has no weights.
    """
    if isinstance(recipe, HeadRecipe):
        return len(recipe.layers) * recipe.corpus.vocab_size * recipe.teacher.width
    if recipe.family == "ngram":
        return 0
    if isinstance(recipe, BlockwiseRecipe):  # two layers with biases: to a hidden state for every head, and back
        hidden, outputs = recipe.num_drafts * recipe.ff_width, recipe.num_drafts * recipe.width
        return recipe.width * hidden + hidden + hidden * outputs + outputs
    ids = {"vocab_size": recipe.corpus.vocab_size, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    with torch.device("meta"):
        network = NETWORKS[recipe.family](recipe, ids)
    return sum(weight.numel() for weight in network.parameters())


def spread(layers: nn.ModuleList, count: int) -> nn.ModuleList:
    """The layers that run in the shallow phase: the first (T5 keeps its position bias there), the last, and some between."""
    chosen = torch.linspace(0, len(layers) - 1, min(count, len(layers))).round().int().tolist()
    return nn.ModuleList([layers[i] for i in chosen])


def silence(recipe: Recipe, layer: nn.Module) -> None:
    """Make a layer add nothing to the residual stream."""
    for name, module in layer.named_modules():
        if name.rpartition(".")[2] in FAMILIES[recipe.family].writers:
            nn.init.zeros_(module.weight)


def depth_switch(recipe: Recipe, network: nn.Module) -> Callable[[bool], None]:
    """Return a switch that has a network run its shallow layers only (True), or all of them.

    It touches neither the weights nor the order in which they are saved.
    """
    whole: dict[str, Any] = {path: network.get_submodule(path) for path in FAMILIES[recipe.family].layers}
    count = recipe.shallow_layers if recipe.shallow_frac else recipe.num_layers
    few = {path: spread(layers, count) for path, layers in whole.items()}

    def switch(is_shallow: bool) -> None:
        for path, layers in (few if is_shallow else whole).items():
            owner, _, name = path.rpartition(".")
            setattr(network.get_submodule(owner), name, layers)

    return switch


def _llama(recipe: Recipe, ids: Ids) -> PreTrainedModel:
    config = transformers.LlamaConfig(
        **ids,
        hidden_size=recipe.width,
        intermediate_size=recipe.ff_width,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=recipe.position_limit,
        initializer_range=0.5 * recipe.width**-0.5,
        tie_word_embeddings=True,
    )
    return _with_generation(transformers.LlamaForCausalLM(config))


def _gpt2(recipe: Recipe, ids: Ids) -> PreTrainedModel:
    config = transformers.GPT2Config(
        **ids,
        n_embd=recipe.width,
        n_inner=recipe.ff_width,
        n_layer=recipe.num_layers,
        n_head=recipe.num_heads,
        n_positions=recipe.position_limit,
        initializer_range=0.5 * recipe.width**-0.5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return _with_generation(transformers.GPT2LMHeadModel(config))


def _t5(recipe: Recipe, ids: Ids) -> PreTrainedModel:
    config = transformers.T5Config(
        **ids,
        d_model=recipe.width,
        d_ff=recipe.ff_width,
        d_kv=recipe.width // recipe.num_heads,
        num_heads=recipe.num_heads,
        num_layers=recipe.num_encoder_layers,
        num_decoder_layers=recipe.num_layers,
        dropout_rate=0.0,
        **{"decoder_start_token_id": ids["pad_token_id"]},
    )
    return _with_generation(transformers.T5ForConditionalGeneration(config))


def _marian_config(recipe: PairRecipe, ids: Ids) -> transformers.MarianConfig:
    """The paper's Transformer."""
    return transformers.MarianConfig(**_pair_settings(recipe, ids), scale_embedding=True)


def _marian(recipe: PairRecipe, ids: Ids) -> PreTrainedModel:
    return _with_generation(transformers.MarianMTModel(_marian_config(recipe, ids)))


def _bart_config(recipe: PairRecipe, ids: Ids) -> transformers.BartConfig:
    return transformers.BartConfig(**_pair_settings(recipe, ids))


def _transformer(recipe: Recipe) -> dict[str, Any]:
    """The sizes of an encoder and a decoder, by the names that Marian, BART and Whisper have for them."""
    return {
        "d_model": recipe.width,
        "encoder_layers": recipe.num_encoder_layers,
        "decoder_layers": recipe.num_layers,
        "encoder_attention_heads": recipe.num_heads,
        "decoder_attention_heads": recipe.num_heads,
        "encoder_ffn_dim": recipe.ff_width,
        "decoder_ffn_dim": recipe.ff_width,
    }


def _pair_settings(recipe: PairRecipe, ids: Ids) -> dict[str, Any]:
    """Decoding starts with the padding token everywhere in the zoo, as in Marian and T5; no end token is forced."""
    return {
        **ids,
        **_transformer(recipe),
        "decoder_start_token_id": ids["pad_token_id"],
        "forced_eos_token_id": None,
        "max_position_embeddings": recipe.position_limit,
        "activation_function": recipe.activation,
        "dropout": recipe.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "init_std": recipe.width**-0.5,
    }


def _bart(recipe: PairRecipe, ids: Ids) -> PreTrainedModel:
    return _with_generation(transformers.BartForConditionalGeneration(_bart_config(recipe, ids)))


def _whisper(recipe: WhisperRecipe, ids: Ids) -> PreTrainedModel:
    """The trainer sets the tokens that generation suppresses: it knows their names."""
    corpus = recipe.corpus
    assert isinstance(corpus, SpeechCorpus)
    config = transformers.WhisperConfig(
        **ids,
        **_transformer(recipe),
        num_mel_bins=corpus.num_mel_bins,
        max_source_positions=corpus.num_frames // 2,
        max_target_positions=recipe.position_limit,
        decoder_start_token_id=ids["eos_token_id"],
        begin_suppress_tokens=None,
        init_std=0.5 * recipe.width**-0.5,
    )
    network: Any = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for convolution in (network.model.encoder.conv1, network.model.encoder.conv2):
            convolution.weight.mul_(CONVOLUTION_SCALE)
    return network


def _block(recipe: DrafterRecipe, ids: Ids) -> PreTrainedModel:
    config = _bart_config(recipe, ids) if recipe.family == "bart-block" else _marian_config(recipe, ids)
    network: Any = new_network(block_config(config, recipe.block_size))
    return _with_generation(network)


def _with_generation(network: PreTrainedModel) -> PreTrainedModel:
    network.generation_config = transformers.GenerationConfig.from_model_config(network.config)
    return network


NETWORKS: dict[str, Callable[[Any, Ids], PreTrainedModel]] = {
    "t5": _t5,
    "llama": _llama,
    "gpt2": _gpt2,
    "marian": _marian,
    "bart": _bart,
    "block": _block,
    "bart-block": _block,
    "whisper": _whisper,
}
