"""The shared parts of encoder-decoders: the start token, the encoder pass and the cross-attention cache."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from methods.errors import InputError
from methods.models.base import Stack, linear
from methods.models.weights import fuse


class EncoderDecoderStack(Stack):
    is_encoder_decoder = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        settings = (model.generation_config, model.config)
        starts = [getattr(one, "decoder_start_token_id", None) for one in settings]
        self.start_token = next((start for start in starts if start is not None), None)
        if self.start_token is None:
            raise InputError(
                f"decoder_start_token_id of model type {model.config.model_type!r}: expected a token id, found none; "
                "set it in the checkpoint's generation_config.json"
            )
        self.input_vocab_size = model.get_encoder().get_input_embeddings().weight.shape[0]

    def _fuse_cross(self, pairs: Sequence[tuple[nn.Linear, nn.Linear]]) -> None:
        self._cross_weight, self._cross_bias = fuse([projection for pair in pairs for projection in pair])

    def encode(self, tokens: Int[Tensor, "B S"], mask: Int[Tensor, "B S"] | None) -> Float[Tensor, "B S D"]:
        return self.model.get_encoder()(input_ids=tokens, attention_mask=mask).last_hidden_state.to(self.dtype)

    def cross(self, states: Float[Tensor, "B S D"]) -> Float[Tensor, "L B H2 S head_dim"]:
        batch, length, width = states.shape
        projected = linear(states.reshape(batch * length, width), self._cross_weight, self._cross_bias)
        shape = (batch, length, self.num_layers, 2 * self.num_heads, self.head_dim)
        return projected.view(shape).permute(2, 0, 3, 1, 4).contiguous()
