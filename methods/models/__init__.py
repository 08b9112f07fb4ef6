"""Decoder stacks over the weights of transformers models: ``ModelSession(stack_for(model))`` decodes with one."""

from typing import TYPE_CHECKING

from kernels.products.matrix import TORCH, Choice
from methods.errors import InputError
from methods.models.bart import BartStack
from methods.models.base import Stack
from methods.models.general import GeneralEncoderDecoderStack, GeneralStack
from methods.models.gpt2 import Gpt2Stack
from methods.models.llama import LlamaStack
from methods.models.t5 import T5Stack
from methods.models.whisper import WhisperStack

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # whose module takes a second to import

STACKS: dict[str, type[Stack]] = {
    "llama": LlamaStack,
    "mistral": LlamaStack,
    "qwen2": LlamaStack,
    "gemma": LlamaStack,
    "gpt2": Gpt2Stack,
    "t5": T5Stack,
    "bart": BartStack,
    "marian": BartStack,
    "whisper": WhisperStack,
}


def stack_for(model: "PreTrainedModel", choice: Choice = TORCH) -> Stack:
    """Return the stack of a trained language model, on its device and in its dtype; ``choice`` says who multiplies.

    It re-lays the model's weights in place (values stay, the model keeps working) and switches it to evaluation. Save it
    before: transformers' ``save_pretrained`` refuses weights that lie side by side.

    Families that have no stack of their own run by transformers' forward pass.

    Raises:
        InputError: a model that no stack runs: without a language modelling head, or with a state that cannot be rewound.
    """
    kind = model.config.model_type
    if model.get_output_embeddings() is None:
        raise InputError(
            f"model type {kind!r} ({type(model).__name__}): it has no language modelling head; expected one that has"
        )
    general = GeneralEncoderDecoderStack if model.config.is_encoder_decoder else GeneralStack
    return STACKS.get(kind, general)(model.eval(), choice)
