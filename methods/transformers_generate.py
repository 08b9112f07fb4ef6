"""Decode by transformers' own ``generate`` over the same weights; the project's own loops are measured against it."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from methods.errors import InputError
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.steps import Step
from methods.transformers_assisted import Assistance, Seen, only, random_numbers, rounds, watched
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Stop

FILL = 0  # what ``generate`` puts behind a row's end; any id of the vocabulary
LOGGER = logging.getLogger("transformers.generation.utils")


class TransformersGenerate:
    """Decoding with ``num_beams`` 1, assisted or not (greedy the tokens of ``Autoregressive``, sampled its law, by random
    numbers of transformers' own), or beam search (the tokens of ``BeamSearch``).

    A checkpoint's own generation settings (forced tokens, penalties, lengths) do not apply, as they do not elsewhere here; but
    what a Whisper's suppress does. Rows are decoded together where they may emit equally many tokens, one by one where they are
    assisted, which transformers does with no batch. Rows that are sampled together share random numbers, those of the first
    row's seed. A step is a round of assisted generation, else a token (of beams one of the winner's, not of the search),
    without times and probabilities, which ``generate`` does not report.

    Differs from transformers: of a Whisper it is the loop that all models share, not the one around it, which cuts long
    recordings, drops the end of text, and with an assistant lets a text end before it begins. With an assistant an
    encoder-decoder's text is given a mask: without one drafts (of 5.23) follow what is cached and the whole text once more.
    """

    def __init__(
        self, num_beams: int = 1, assistance: Assistance | None = None, cache: Mapping[str, Any] | None = None
    ) -> None:
        """``cache``: generate's settings of its cache, such as ``cache_implementation="static"``; None: as it comes."""
        if num_beams < 1:
            raise InputError(f"num_beams {num_beams!r}: expected an integer >= 1 (1 is greedy decoding)")
        if assistance is not None and num_beams > 1:
            raise InputError(f"num_beams {num_beams}: transformers' assisted generation has no beams; expected 1, or no draft")
        self.num_beams, self.assistance, self.cache = num_beams, assistance, dict(cache or {})
        self.guarantee: Guarantee = "same_distribution" if num_beams == 1 else "lossy"

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        if self.num_beams > 1 and not sampling.greedy:
            raise InputError(f"temperature {sampling.temperature}: transformers' beams draw nothing here; set temperature 0")
        if not isinstance(target, ModelSession):
            raise InputError(f"target {type(target).__name__}: transformers' generate needs the model of a ModelSession")
        stack = target.stack
        inputs.check(stack.input_vocab_size, stack.prompt_limit, stack.feature_shape)
        # As Stop.budgets has it behind a prefill, which would cost time here.
        cached = [0 if stack.encodes_prompts else len(prompt) - 1 for prompt in inputs.prompts]
        budgets = [max(0, stop.room(length, stack.position_limit)) for length in cached]
        rows = [Generation([], [], "length") for _ in budgets]
        for group in _groups(budgets, alone=self.assistance is not None):
            drawn = nullcontext() if sampling.greedy else random_numbers(uniforms.seeds[group[0]], stack.device)
            with drawn, _unwarned():
                made = self._decode(stack, _chosen(inputs, group), sampling, budgets[group[0]], stop)
            for row, generation in zip(group, made, strict=True):
                rows[row] = generation
        return rows

    def _decode(self, stack: Stack, inputs: Inputs, sampling: Sampling, budget: int, stop: Stop) -> list[Generation]:
        own, settings = stack.model.generation_config, GenerationConfig(
            **({"do_sample": False} if sampling.greedy else _drawn(sampling)),
            **self.cache,
            num_beams=self.num_beams,
            max_new_tokens=budget,
            eos_token_id=sorted(stop.token_ids) or None,
            pad_token_id=FILL if self.assistance is None else min(stop.token_ids, default=None),  # a draft model hides pads
            decoder_start_token_id=stack.start_token,
        )  # fmt: skip
        if inputs.features is None:
            given, skipped = _padded(stack, inputs.prompts)
        else:
            settings.suppress_tokens, settings.begin_suppress_tokens = own.suppress_tokens, own.begin_suppress_tokens
            prompts = torch.tensor(inputs.prompts, device=stack.device)
            given, skipped = {"input_features": inputs.features.to(stack.device, stack.dtype)}, prompts.shape[1]
            given["decoder_input_ids"] = prompts
        if self.assistance is not None and stack.is_encoder_decoder:
            given["decoder_attention_mask"] = torch.ones(1, skipped, dtype=torch.long, device=stack.device)
        unassisted = nullcontext({"generation_config": settings})
        asked = unassisted if self.assistance is None else self.assistance(stack.model, settings)
        with only(stack.model, settings), asked as arguments, watched(stack.model, stack.position_limit) as seen:
            outputs = transformers.GenerationMixin.generate(stack.model, **arguments, **given)
        return [_generation(output, budget, stop, seen, skipped) for output in outputs[:, skipped:].tolist()]


def _drawn(sampling: Sampling) -> dict[str, Any]:
    """Return the settings of sampling. None would mean transformers' default, a top-k of 50."""
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    return {"do_sample": True, "temperature": float(sampling.temperature), "top_k": sampling.top_k or 0, "top_p": top_p}


@contextmanager
def _unwarned() -> Iterator[None]:
    """Silence transformers: assisted generation calls ``generate`` for its drafts in ways that it then warns of."""
    level = LOGGER.level
    LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        LOGGER.setLevel(level)


def _groups(budgets: Sequence[int], *, alone: bool) -> list[list[int]]:
    """Group the rows that are decoded together; rows that may emit nothing are left out."""
    if alone:
        return [[row] for row, budget in enumerate(budgets) if budget]
    return [[row for row, own in enumerate(budgets) if own == budget] for budget in sorted(set(budgets) - {0})]


def _chosen(inputs: Inputs, rows: Sequence[int]) -> Inputs:
    features = None if inputs.features is None else inputs.features[list(rows)]
    return Inputs(tuple(inputs.prompts[row] for row in rows), features)


def _padded(stack: Stack, prompts: Sequence[Sequence[int]]) -> tuple[dict[str, Any], int]:
    """Return prompts as ``generate`` takes them, and how many tokens of its output are not new."""
    longest = max(map(len, prompts))
    pads = [[FILL] * (longest - len(prompt)) for prompt in prompts]
    masks = [[0] * len(pad) + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
    padded = [[*pad, *prompt] for pad, prompt in zip(pads, prompts, strict=True)]
    if stack.is_encoder_decoder:
        masks = [mask[::-1] for mask in masks]
        padded = [[*prompt, *pad] for pad, prompt in zip(pads, prompts, strict=True)]
    tokens, mask = (torch.tensor(rows, device=stack.device) for rows in (padded, masks))
    return {"inputs": tokens, "attention_mask": mask}, 1 if stack.is_encoder_decoder else longest


def _generation(output: list[int], budget: int, stop: Stop, seen: Seen, skipped: int) -> Generation:
    """Cut what fills up a row that has ended. Where no round was seen, a step is a token."""
    tokens, reason = stop.cut(output, budget)
    steps = rounds(seen, skipped, tokens) if seen else [Step([], 0, 1) for _ in tokens]
    if steps:
        steps[-1].stop_reason = reason or "length"
    return Generation(tokens, steps, reason or "length")
