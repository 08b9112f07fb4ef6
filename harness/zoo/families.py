"""The table of the zoo's model families: their tokens, their layers and how many weights they have. Imports no network code.

A new family is a row here, a function in ``networks.NETWORKS`` and a recipe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

END = "<|endoftext|>"
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>"}
T5_BUCKETS = 32  # of relative positions


@dataclass(frozen=True, kw_only=True)
class Family:
    """The facts about a kind of network, or about the corpora that it reads, that training depends on.

    ``special`` are the special tokens of a learned tokenizer, the padding token first; ``template`` says where they stand
    around a prompt. ``layers`` are the paths of the lists of layers that may join late, ``writers`` the projections through
    which a layer adds to the residual stream. ``has_prompts``: rows of a corpus have a source before their target.
    ``has_learned_positions``: positions behind the block length must be trained too. ``weights`` counts a recipe's weights.
    """

    is_encoder_decoder: bool = False
    special: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    layers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    has_prompts: bool = True
    has_learned_positions: bool = False
    weights: Callable[[Any], int]


def num_parameters(recipe: Any) -> int:
    """Count the weights that a recipe has at most: the tokenizer may learn fewer tokens than it is allowed."""
    return FAMILIES[recipe.family].weights(recipe)


def _attention(width: int, inner: int | None = None, *, num_biases: int = 0) -> int:
    return 4 * width * (inner or width) + num_biases * width


def _linear(width: int, ff_width: int) -> int:
    """Two layers with biases."""
    return 2 * width * ff_width + width + ff_width


def _llama(recipe: Any) -> int:
    width = recipe.width
    layer = _attention(width) + 3 * width * recipe.ff_width + 2 * width
    return recipe.corpus.vocab_size * width + recipe.num_layers * layer + width


def _gpt2(recipe: Any) -> int:
    width = recipe.width
    layer = _attention(width, num_biases=4) + _linear(width, recipe.ff_width) + 4 * width
    return (recipe.corpus.vocab_size + recipe.position_limit) * width + recipe.num_layers * layer + 2 * width


def _t5(recipe: Any) -> int:
    width, inner = recipe.width, recipe.width // recipe.num_heads * recipe.num_heads
    attention, rest = _attention(width, inner) + width, 2 * width * recipe.ff_width + width
    layers = recipe.num_encoder_layers * (attention + rest) + recipe.num_layers * (2 * attention + rest)
    return recipe.corpus.vocab_size * width + layers + 2 * (width + T5_BUCKETS * recipe.num_heads)


def _translator(recipe: Any, *, num_biases: int = 4) -> int:
    """The layers of an encoder and a decoder with biases and norms; Whisper's keys have no bias."""
    width = recipe.width
    attention, rest = _attention(width, num_biases=num_biases) + 2 * width, _linear(width, recipe.ff_width) + 2 * width
    return recipe.num_encoder_layers * (attention + rest) + recipe.num_layers * (2 * attention + rest)


def _marian(recipe: Any, *, num_more_tokens: int = 0) -> int:
    tokens = recipe.corpus.vocab_size + num_more_tokens
    return _translator(recipe) + (tokens + 2 * recipe.position_limit) * recipe.width


def _bart(recipe: Any, *, num_more_tokens: int = 0) -> int:
    """A BART has two more positions than a Marian and a norm of the embeddings, in encoder and decoder."""
    return _marian(recipe, num_more_tokens=num_more_tokens) + 2 * (2 + 2) * recipe.width


def _block(recipe: Any) -> int:
    return _marian(recipe, num_more_tokens=1)


def _bart_block(recipe: Any) -> int:
    return _bart(recipe, num_more_tokens=1)


def _blockwise(recipe: Any) -> int:
    hidden = recipe.num_drafts * recipe.ff_width
    return recipe.width * hidden + hidden + hidden * recipe.num_drafts * recipe.width + recipe.num_drafts * recipe.width


def _whisper(recipe: Any) -> int:
    width, corpus = recipe.width, recipe.corpus
    convolutions = 3 * width * (corpus.num_mel_bins + width) + 2 * width
    positions = corpus.num_frames // 2 + recipe.position_limit + corpus.vocab_size
    return _translator(recipe, num_biases=3) + convolutions + positions * width + 4 * width


def _heads(recipe: Any) -> int:
    return len(recipe.layers) * recipe.corpus.vocab_size * recipe.teacher.width


def _no_network(recipe: Any) -> int:
    """A table of counts has no weights that could be trained."""
    return 0


_MARIAN: dict[str, Any] = {
    "is_encoder_decoder": True,
    "special": T5_TOKENS,
    "template": "$A </s>",
    "layers": ("model.decoder.layers", "model.encoder.layers"),
    "writers": ("out_proj", "fc2"),
}
FAMILIES: dict[str, Family] = {
    "llama": Family(
        special=T5_TOKENS | {"bos_token": "<s>"},
        template="<s> $A",
        layers=("model.layers",),
        writers=("o_proj", "down_proj"),
        weights=_llama,
    ),
    "gpt2": Family(
        special={"pad_token": "<pad>", "eos_token": END, "bos_token": END},
        layers=("transformer.h",),
        writers=("c_proj",),
        has_prompts=False,
        has_learned_positions=True,
        weights=_gpt2,
    ),
    "t5": Family(
        is_encoder_decoder=True,
        special=T5_TOKENS,
        template="$A </s>",
        layers=("decoder.block", "encoder.block"),
        writers=("o", "wo"),
        weights=_t5,
    ),
    "marian": Family(**_MARIAN, weights=_marian),
    "bart": Family(**_MARIAN, weights=_bart),
    "block": Family(**_MARIAN, weights=_block),
    "bart-block": Family(**_MARIAN, weights=_bart_block),
    "blockwise": Family(is_encoder_decoder=True, weights=_blockwise),
    "whisper": Family(
        is_encoder_decoder=True,
        special={"pad_token": END, "eos_token": END, "bos_token": END},
        layers=("model.decoder.layers",),
        writers=("out_proj", "fc2"),
        weights=_whisper,
    ),
    "heads": Family(weights=_heads),
    "ngram": Family(weights=_no_network),
}
