"""Plain decoding by transformers' own ``generate`` over the same weights: what the project's own loops are measured against."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from methods.errors import InputError
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession, check_inputs
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Step, Stop

FILL = 0  # what ``generate`` puts behind a row's end; any id of the vocabulary


class TransformersGenerate:
    """Greedy decoding (``num_beams`` 1: the tokens of ``Autoregressive``) or beam search (those of ``BeamSearch``).

    A checkpoint's own generation settings (forced tokens, penalties, lengths) do not apply, as they do not elsewhere here.
    Rows are decoded together where they may emit equally many tokens. A step is recorded a token, without times, since
    ``generate`` reports none; for beams these are the winner's tokens, not the steps of the search.
    """

    def __init__(self, num_beams: int = 1) -> None:
        if num_beams < 1:
            raise InputError(f"num_beams {num_beams!r}: expected an integer >= 1 (1 is greedy decoding)")
        self.num_beams = num_beams
        self.guarantee: Guarantee = "identical" if num_beams == 1 else "lossy"

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        if not sampling.greedy:
            raise InputError(
                f"temperature {sampling.temperature}: transformers' generate draws nothing here; set temperature 0"
            )
        if not isinstance(target, ModelSession):
            raise InputError(f"target {type(target).__name__}: transformers' generate needs the model of a ModelSession")
        stack = target.stack
        if stack.feature_shape is not None:
            kind = stack.model.config.model_type
            raise InputError(f"model type {kind!r}: transformers' generate is offered for text only; use autoregressive")
        check_inputs(inputs, stack.input_vocab_size, stack.source_limit if stack.is_encoder_decoder else stack.position_limit)
        budgets = [_budget(stack, prompt, stop) for prompt in inputs.prompts]
        rows = [Generation([], [], "length") for _ in budgets]
        for budget in set(budgets) - {0}:
            group = [row for row, own in enumerate(budgets) if own == budget]
            outputs = self._decode(stack, [inputs.prompts[row] for row in group], budget, stop)
            for row, output in zip(group, outputs, strict=True):
                rows[row] = _generation(output, stop)
        return rows

    def _decode(self, stack: Stack, prompts: Sequence[Sequence[int]], budget: int, stop: Stop) -> list[list[int]]:
        """What ``generate`` returns behind the prompts; a row that has ended is filled up."""
        longest = max(map(len, prompts))
        pads = [[FILL] * (longest - len(prompt)) for prompt in prompts]
        masks = [[0] * len(pad) + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
        padded = [[*pad, *prompt] for pad, prompt in zip(pads, prompts, strict=True)]
        if stack.is_encoder_decoder:
            masks = [mask[::-1] for mask in masks]
            padded = [[*prompt, *pad] for pad, prompt in zip(pads, prompts, strict=True)]
        settings = GenerationConfig(
            do_sample=False,
            num_beams=self.num_beams,
            max_new_tokens=budget,
            eos_token_id=sorted(stop.token_ids) or None,
            pad_token_id=FILL,
            decoder_start_token_id=stack.start_token,
        )
        with _only(stack.model, settings):
            tokens, mask = (torch.tensor(rows, device=stack.device) for rows in (padded, masks))
            outputs = stack.model.generate(tokens, attention_mask=mask, generation_config=settings)
        return outputs[:, 1 if stack.is_encoder_decoder else longest :].tolist()


@contextmanager
def _only(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """``generate`` takes what is None in the settings that it is given from the model's own, which are put aside meanwhile."""
    own = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = own


def _budget(stack: Stack, prompt: Sequence[int], stop: Stop) -> int:
    """As ``autoregressive.token_budgets`` has it behind a prefill, which would cost time here."""
    if stack.position_limit is None:
        return stop.max_new_tokens
    cached = 0 if stack.is_encoder_decoder else len(prompt) - 1
    return max(0, min(stop.max_new_tokens, stack.position_limit - cached))


def _generation(output: list[int], stop: Stop) -> Generation:
    end = next((index + 1 for index, token in enumerate(output) if token in stop.token_ids), None)
    tokens = output[:end]
    steps = [Step([], 0, 1) for _ in tokens]
    if steps:
        steps[-1].stop_reason = "eos" if end else "length"
    return Generation(tokens, steps, "eos" if end else "length")
