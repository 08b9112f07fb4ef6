"""From a recipe to a freshly initialised transformers model, and the growing of its depth.

A deep narrow model learns little in a few hundred steps. So most steps run only some of its layers, spread evenly;
the others are initialised to add nothing, and joining them later changes no output: training goes on where it was. (Marian
norms behind each layer, so there joining norms what was normed already, which changes little.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe, HeadRecipe, PairRecipe, Recipe
from harness.zoo.whisper_recipes import SpeechCorpus, WhisperRecipe
from methods.specdec.blockwise import BlockwiseHeads
from methods.specdec.network import block_config, new_network
from tasks.sound import SAMPLE_RATE

# Per family: where the layers are, and the projections through which a layer adds to the residual stream.
# BART's are Marian's; blockwise heads have none.
PAIRS = ("marian", "bart", "block", "bart-block")
LAYERS: dict[str, tuple[str, ...]] = {
    "t5": ("decoder.block", "encoder.block"),
    "llama": ("model.layers",),
    "gpt2": ("transformer.h",),
    "blockwise": (),
    "whisper": ("model.decoder.layers",),
    **dict.fromkeys(PAIRS, ("model.decoder.layers", "model.encoder.layers")),
}
WRITERS = {
    "t5": ("o", "wo"),
    "llama": ("o_proj", "down_proj"),
    "gpt2": ("c_proj",),
    "whisper": ("out_proj", "fc2"),
    **dict.fromkeys(PAIRS, ("out_proj", "fc2")),
}
CONVOLUTION_SCALE = 3.0  # of Whisper's at the start: what is heard outweighs the positions that are added to it
Ids = dict[str, Any]


def build_network(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Weights depend on the recipe and its seed only; the global random state is left as it was."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = NETWORKS[recipe.family](recipe, {"vocab_size": len(tokenizer), **ids})
    if recipe.shallow_frac:
        for path in LAYERS[recipe.family]:
            layers: Any = network.get_submodule(path)
            for layer in set(layers) - set(spread(layers, recipe.shallow_layers)):
                silence(recipe, layer)
    return network.train()


def num_parameters(recipe: Recipe | HeadRecipe) -> int:
    """How many weights a recipe has at most: the tokenizer may learn fewer tokens than it is allowed."""
    if isinstance(recipe, HeadRecipe):
        return len(recipe.layers) * recipe.corpus.vocab_size * recipe.teacher.width
    with torch.device("meta"):
        if isinstance(recipe, BlockwiseRecipe):
            heads = BlockwiseHeads(recipe.width, recipe.num_drafts, recipe.ff_width)
            return sum(weight.numel() for weight in heads.parameters())
        ids = {"pad_token_id": 0, "eos_token_id": 1}
        network = NETWORKS[recipe.family](recipe, {"vocab_size": recipe.corpus.vocab_size, **ids})
    return network.num_parameters()


def spread(layers: nn.ModuleList, count: int) -> nn.ModuleList:
    """The layers that run in the shallow phase: the first (T5 keeps its position bias there), the last, and some between."""
    chosen = torch.linspace(0, len(layers) - 1, min(count, len(layers))).round().int().tolist()
    return nn.ModuleList([layers[i] for i in chosen])


def silence(recipe: Recipe, layer: nn.Module) -> None:
    """Make a layer add nothing to the residual stream."""
    for name, module in layer.named_modules():
        if name.rpartition(".")[2] in WRITERS[recipe.family]:
            nn.init.zeros_(module.weight)


class Depth:
    """Runs a network's shallow layers only, or all of them, without touching weights or the order in which they are saved."""

    def __init__(self, recipe: Recipe, network: nn.Module) -> None:
        self.network = network
        self.all: dict[str, Any] = {path: network.get_submodule(path) for path in LAYERS[recipe.family]}
        count = recipe.shallow_layers if recipe.shallow_frac else recipe.num_layers
        self.shallow = {path: spread(layers, count) for path, layers in self.all.items()}

    def use(self, *, shallow: bool) -> None:
        for path, layers in (self.shallow if shallow else self.all).items():
            owner, _, name = path.rpartition(".")
            setattr(self.network.get_submodule(owner), name, layers)


def _llama(recipe: Recipe, ids: Ids) -> PreTrainedModel:
    config = LlamaConfig(
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
    return _with_generation(LlamaForCausalLM(config))


def _gpt2(recipe: Recipe, ids: Ids) -> PreTrainedModel:
    config = GPT2Config(
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
    return _with_generation(GPT2LMHeadModel(config))


def _t5(recipe: Recipe, ids: Ids) -> PreTrainedModel:
    config = T5Config(
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
    return _with_generation(T5ForConditionalGeneration(config))


def _marian_config(recipe: PairRecipe, ids: Ids) -> MarianConfig:
    """As the paper's Transformer."""
    return MarianConfig(**_pair_settings(recipe, ids), scale_embedding=True)


def _marian(recipe: PairRecipe, ids: Ids) -> PreTrainedModel:
    return _with_generation(MarianMTModel(_marian_config(recipe, ids)))


def _bart_config(recipe: PairRecipe, ids: Ids) -> BartConfig:
    return BartConfig(**_pair_settings(recipe, ids))


def _pair_settings(recipe: PairRecipe, ids: Ids) -> dict[str, Any]:
    """Decoding starts with the padding token everywhere in the zoo, Marian's and T5's habit, and ends without being told to."""
    return ids | {
        "decoder_start_token_id": ids["pad_token_id"],
        "forced_eos_token_id": None,
        "d_model": recipe.width,
        "encoder_layers": recipe.num_encoder_layers,
        "decoder_layers": recipe.num_layers,
        "encoder_attention_heads": recipe.num_heads,
        "decoder_attention_heads": recipe.num_heads,
        "encoder_ffn_dim": recipe.ff_width,
        "decoder_ffn_dim": recipe.ff_width,
        "max_position_embeddings": recipe.position_limit,
        "activation_function": recipe.activation,
        "dropout": recipe.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "init_std": recipe.width**-0.5,
    }


def _bart(recipe: PairRecipe, ids: Ids) -> PreTrainedModel:
    return _with_generation(BartForConditionalGeneration(_bart_config(recipe, ids)))


def _whisper(recipe: WhisperRecipe, ids: Ids) -> PreTrainedModel:
    """What its generation suppresses is said by the trainer, which knows the tokens' names."""
    corpus = recipe.corpus
    assert isinstance(corpus, SpeechCorpus)
    config = WhisperConfig(
        **ids,
        num_mel_bins=corpus.num_mel_bins,
        max_source_positions=corpus.window_s * SAMPLE_RATE // corpus.hop_length // 2,
        max_target_positions=recipe.position_limit,
        d_model=recipe.width,
        encoder_layers=recipe.num_encoder_layers,
        decoder_layers=recipe.num_layers,
        encoder_attention_heads=recipe.num_heads,
        decoder_attention_heads=recipe.num_heads,
        encoder_ffn_dim=recipe.ff_width,
        decoder_ffn_dim=recipe.ff_width,
        decoder_start_token_id=ids["eos_token_id"],
        begin_suppress_tokens=None,
        init_std=0.5 * recipe.width**-0.5,
    )
    network: Any = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for convolution in (network.model.encoder.conv1, network.model.encoder.conv2):
            convolution.weight.mul_(CONVOLUTION_SCALE)
    return network


def _block(recipe: DrafterRecipe, ids: Ids) -> PreTrainedModel:
    config = _bart_config(recipe, ids) if recipe.family == "bart-block" else _marian_config(recipe, ids)
    network: Any = new_network(block_config(config, recipe.block_size))
    return _with_generation(network)


def _with_generation(network: PreTrainedModel) -> PreTrainedModel:
    network.generation_config = GenerationConfig.from_model_config(network.config)
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
