"""The table of the zoo's model families: their tokens and their layers. Imports no network code.

A new family is a row here, a function in ``networks.NETWORKS`` and a recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

END = "<|endoftext|>"
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>"}


@dataclass(frozen=True, kw_only=True)
class _Family:
    """The facts about a kind of network, or about the corpora that it reads, that training depends on.

    ``special`` are the special tokens of a learned tokenizer, the padding token first; ``template`` says where they stand
    around a prompt. ``layers`` are the paths of the lists of layers that may join late, ``writers`` the projections through
    which a layer adds to the residual stream. ``has_prompts``: rows of a corpus have a source before their target.
    ``has_learned_positions``: positions behind the block length must be trained too.
    """

    is_encoder_decoder: bool = False
    special: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    layers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    has_prompts: bool = True
    has_learned_positions: bool = False


_MARIAN: dict[str, Any] = {
    "is_encoder_decoder": True,
    "special": T5_TOKENS,
    "template": "$A </s>",
    "layers": ("model.decoder.layers", "model.encoder.layers"),
    "writers": ("out_proj", "fc2"),
}
FAMILIES: dict[str, _Family] = {
    "llama": _Family(
        special=T5_TOKENS | {"bos_token": "<s>"},
        template="<s> $A",
        layers=("model.layers",),
        writers=("o_proj", "down_proj"),
    ),
    "gpt2": _Family(
        special={"pad_token": "<pad>", "eos_token": END, "bos_token": END},
        layers=("transformer.h",),
        writers=("c_proj",),
        has_prompts=False,
        has_learned_positions=True,
    ),
    "t5": _Family(
        is_encoder_decoder=True,
        special=T5_TOKENS,
        template="$A </s>",
        layers=("decoder.block", "encoder.block"),
        writers=("o", "wo"),
    ),
    "marian": _Family(**_MARIAN),
    "bart": _Family(**_MARIAN),
    "block": _Family(**_MARIAN),
    "bart-block": _Family(**_MARIAN),
    "blockwise": _Family(is_encoder_decoder=True),
    "whisper": _Family(
        is_encoder_decoder=True,
        special={"pad_token": END, "eos_token": END, "bos_token": END},
        layers=("model.decoder.layers",),
        writers=("out_proj", "fc2"),
    ),
    "heads": _Family(),
    "ngram": _Family(),
}
