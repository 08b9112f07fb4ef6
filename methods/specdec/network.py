"""SpecDec's drafter (Xia et al. 3.1): a Marian or BART model whose decoder fills in a block of k [MASK] tokens at once.

[MASK] is one more id behind the vocabulary, and the network's output leaves it out: every tokenizer serves as it is, verifier
and drafter keep one vocabulary, no text can contain [MASK] and it is never drafted.

Differs from the authors' code: it uses the unknown token for [MASK] and gives the drafter no start token, which Figure 1 shows.
"""

import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import BartForConditionalGeneration, MarianMTModel, PretrainedConfig

from methods.errors import InputError
from methods.models.checkpoint import load_whole
from methods.specdec.stack import MODEL_TYPES, BlockInputs


class BlockNetwork:
    """Makes a transformers encoder-decoder a block drafter; mixed into the classes of ``KINDS``.

    The weights, their names, ``save_pretrained`` and ``from_pretrained`` are those of the transformers class; the
    configuration has one more token than the vocabulary, and ``block_size``.
    """

    config: Any
    model: Any
    lm_head: Any
    final_logits_bias: Any

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def mask_token_id(self) -> int:
        return self.config.vocab_size - 1

    @property
    def vocab_size(self) -> int:
        """Tokens that can be drafted: the verifier's vocabulary."""
        return self.config.vocab_size - 1

    def encode(self, source: Int[Tensor, "B T"], source_mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        mask = None if source_mask is None else source_mask.long()
        return self.model.encoder(input_ids=source, attention_mask=mask).last_hidden_state

    def block_logits(
        self, states: Float[Tensor, "B T D"], source_mask: Bool[Tensor, "B T"] | None, inputs: BlockInputs
    ) -> Float[Tensor, "B k V"]:
        """Logits of the block's tokens, given the encoder's states."""
        decoder = self.model.decoder
        hidden = _embed(decoder, inputs)
        seen = inputs.allowed[:, None, None]
        cross = None if source_mask is None else source_mask[:, None, None]
        for layer in decoder.layers:
            hidden = layer(hidden, seen, states, encoder_attention_mask=cross, use_cache=False)
        block = hidden[:, : self.block_size]
        return (self.lm_head(block) + self.final_logits_bias)[..., :-1]

    def forward(
        self, source: Int[Tensor, "B T"], source_mask: Bool[Tensor, "B T"] | None, inputs: BlockInputs
    ) -> Float[Tensor, "B k V"]:
        return self.block_logits(self.encode(source, source_mask), source_mask, inputs)


class MarianBlockNetwork(BlockNetwork, MarianMTModel):
    """Sinusoidal positions, as the paper's Transformer."""


class BartBlockNetwork(BlockNetwork, BartForConditionalGeneration):
    """Learned positions; the paper's choice for summarization."""


KINDS: dict[str, type[Any]] = dict(zip(MODEL_TYPES, (MarianBlockNetwork, BartBlockNetwork), strict=True))


def block_config(config: PretrainedConfig, block_size: int) -> PretrainedConfig:
    """Copy an encoder-decoder's configuration for a drafter of blocks: one token more, and ``block_size``.

    Raises:
        InputError: another model type, embeddings that are not shared, or a block size that the positions do not hold.
    """
    if config.model_type not in KINDS:
        raise InputError(f"model type {config.model_type!r}: a block drafter is built as one of {', '.join(KINDS)}")
    if getattr(config, "share_encoder_decoder_embeddings", True) is False:
        raise InputError("share_encoder_decoder_embeddings False: a block drafter has one joint vocabulary; expected True")
    _check_block_size(block_size, config.max_position_embeddings)
    values = config.to_dict() | {"vocab_size": config.vocab_size + 1, "block_size": block_size}
    values.pop("decoder_vocab_size", None)
    return type(config)(**values)


def new_network(config: PretrainedConfig, verifier: Any = None) -> BlockNetwork:
    """Make a network of a ``block_config``, initialised from torch's random state.

    With ``verifier``, a model of the same shape, it starts from all of the verifier's weights; [MASK] from the mean embedding.
    """
    network = KINDS[config.model_type](config)
    if verifier is not None:
        _copy_weights(network, verifier)
    return network


def load_network(folder: str | Path, dtype: torch.dtype = torch.float32) -> BlockNetwork:
    """Load a network that ``network.save_pretrained(folder)`` wrote, switched to evaluation.

    Raises:
        InputError: no configuration there, or that of another kind of model; weights that are not whole (``load_whole``).
    """
    config = read_block_config(folder)
    return load_whole(KINDS[config["model_type"]], folder, dtype=dtype).eval()


def read_block_config(folder: str | Path) -> dict[str, Any]:
    """Read a block drafter's configuration without its weights. Raises InputError as ``load_network`` does."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError(f"block drafter {folder}: no config.json there; expected a folder that a block drafter was saved to")
    config = json.loads(file.read_text(encoding="utf8"))
    if config.get("model_type") not in KINDS or not {"block_size", "max_position_embeddings"} <= config.keys():
        raise InputError(
            f"block drafter {folder}: it holds a {config.get('model_type', 'nameless')!r} model without block_size or "
            "positions; expected a drafter that was trained on blocks"
        )
    _check_block_size(config["block_size"], config["max_position_embeddings"])
    return config


def _check_block_size(block_size: Any, position_limit: int) -> None:
    if type(block_size) is not int or not 1 <= block_size < position_limit:
        raise InputError(
            f"block_size {block_size!r}: expected an integer from 1 to {position_limit - 1}: the network has {position_limit} "
            "positions and the start token takes one"
        )


def _embed(decoder: Any, inputs: BlockInputs) -> Float[Tensor, "B S D"]:
    """Embed as the decoder's own forward pass does, but at given positions."""
    tokens = decoder.embed_tokens(inputs.tokens)
    if hasattr(decoder, "embed_scale"):  # Marian scales here, BART in the embedding itself
        tokens = tokens * decoder.embed_scale
    table = decoder.embed_positions.weight[getattr(decoder.embed_positions, "offset", 0) :]
    hidden = tokens + torch.nn.functional.embedding(inputs.positions, table)
    if hasattr(decoder, "layernorm_embedding"):
        hidden = decoder.layernorm_embedding(hidden)
    return torch.nn.functional.dropout(hidden, decoder.dropout, decoder.training)


@torch.no_grad()
def _copy_weights(network: Any, verifier: Any) -> None:
    theirs, ours = verifier.state_dict(), network.state_dict()
    if set(theirs) != set(ours):
        raise InputError(f"verifier of type {verifier.config.model_type!r}: its weights have other names than the drafter's")
    for name, weight in ours.items():
        given = theirs[name]
        if weight.shape == given.shape:
            weight.copy_(given)
        elif weight.dim() == 2 and weight.shape[0] == given.shape[0] + 1 and weight.shape[1] == given.shape[1]:
            weight.copy_(torch.cat((given, given.mean(0, keepdim=True))))
        elif weight.dim() == 2 and weight.shape[1] == given.shape[1] + 1 and weight.shape[0] == given.shape[0]:
            weight.copy_(torch.cat((given, given.new_zeros(len(given), 1)), 1))
        else:
            raise InputError(f"verifier: its {name} has shape {list(given.shape)}, the drafter's {list(weight.shape)}")
