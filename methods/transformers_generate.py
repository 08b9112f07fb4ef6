"""Decoding by transformers' own ``generate`` over the same weights: what the project's own loops are measured against."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin

from methods.errors import InputError
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession, check_features, check_inputs
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Step, Stop

FILL = 0  # what ``generate`` puts behind a row's end; any id of the vocabulary


@dataclass(frozen=True)
class Assistant:
    """A draft model of assisted generation; ``schedule`` is "constant" or "heuristic" (+2 / -1) and begins at ``gamma``.

    Differs from transformers: its threshold of confidence, below which a draft ends early, is off, as no drafter here has one.
    """

    stack: Stack
    gamma: int
    schedule: str

    def __post_init__(self) -> None:
        if self.schedule not in ("constant", "heuristic"):
            raise InputError(f"schedule {self.schedule!r}: transformers' assisted generation has constant and heuristic")


class TransformersGenerate:
    """Greedy decoding (``num_beams`` 1: the tokens of ``Autoregressive``), with an ``assistant`` or without, or beam search
    (those of ``BeamSearch``).

    A checkpoint's own generation settings (forced tokens, penalties, lengths) do not apply, as they do not elsewhere here; but
    what a Whisper's suppress does. Rows are decoded together where they may emit equally many tokens, one by one with an
    assistant. A step is recorded a token, without times, since ``generate`` reports none; for beams these are the winner's
    tokens, not the steps of the search, and with an assistant nothing is known of the drafts.

    Differs from transformers: of a Whisper it is the loop that all models share, not the one around it, which cuts long
    recordings, drops the end of text, and with an assistant lets a text end before it begins.
    """

    def __init__(self, num_beams: int = 1, assistant: Assistant | None = None) -> None:
        if num_beams < 1:
            raise InputError(f"num_beams {num_beams!r}: expected an integer >= 1 (1 is greedy decoding)")
        if assistant is not None and num_beams > 1:
            raise InputError(f"num_beams {num_beams}: transformers' assisted generation has no beams; expected 1, or no draft")
        self.num_beams, self.assistant = num_beams, assistant
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
        check_inputs(inputs, stack.input_vocab_size, stack.source_limit if _reads(stack) else stack.position_limit)
        check_features(inputs, stack.feature_shape)
        budgets = [_budget(stack, prompt, stop) for prompt in inputs.prompts]
        rows = [Generation([], [], "length") for _ in budgets]
        for group in _groups(budgets, alone=self.assistant is not None):
            outputs = self._decode(stack, _chosen(inputs, group), budgets[group[0]], stop)
            for row, output in zip(group, outputs, strict=True):
                rows[row] = _generation(output, stop)
        return rows

    def _decode(self, stack: Stack, inputs: Inputs, budget: int, stop: Stop) -> list[list[int]]:
        """What ``generate`` returns behind the prompts; a row that has ended is filled up."""
        own, settings = stack.model.generation_config, GenerationConfig(
            do_sample=False,
            num_beams=self.num_beams,
            max_new_tokens=budget,
            eos_token_id=sorted(stop.token_ids) or None,
            pad_token_id=FILL,
            decoder_start_token_id=stack.start_token,
        )  # fmt: skip
        if inputs.features is None:
            given, skipped = _padded(stack, inputs.prompts)
        else:
            settings.suppress_tokens, settings.begin_suppress_tokens = own.suppress_tokens, own.begin_suppress_tokens
            prompts = torch.tensor(inputs.prompts, device=stack.device)
            given, skipped = {"input_features": inputs.features.to(stack.device, stack.dtype)}, prompts.shape[1]
            given["decoder_input_ids"] = prompts
        with _only(stack.model, settings), self._assisting() as draft:
            outputs = GenerationMixin.generate(stack.model, generation_config=settings, **draft, **given)
        return outputs[:, skipped:].tolist()

    @contextmanager
    def _assisting(self) -> Iterator[dict[str, Any]]:
        """The draft model as ``generate`` wants it: its settings say how much it drafts, and a Whisper's is the shared loop."""
        if self.assistant is None:
            yield {}
            return
        model = self.assistant.stack.model
        settings = GenerationConfig(
            num_assistant_tokens=self.assistant.gamma,
            num_assistant_tokens_schedule=self.assistant.schedule,
            assistant_confidence_threshold=0.0,
        )
        with _only(model, settings):
            model.generate = partial(GenerationMixin.generate, model)
            try:
                yield {"assistant_model": model}
            finally:
                del model.generate


def _groups(budgets: Sequence[int], *, alone: bool) -> list[list[int]]:
    """Rows that are decoded together; none that may emit nothing."""
    if alone:
        return [[row] for row, budget in enumerate(budgets) if budget]
    return [[row for row, own in enumerate(budgets) if own == budget] for budget in sorted(set(budgets) - {0})]


def _chosen(inputs: Inputs, rows: Sequence[int]) -> Inputs:
    features = None if inputs.features is None else inputs.features[list(rows)]
    return Inputs(tuple(inputs.prompts[row] for row in rows), features)


def _padded(stack: Stack, prompts: Sequence[Sequence[int]]) -> tuple[dict[str, Any], int]:
    """Prompts as ``generate`` takes them, and how many tokens of its output are not new."""
    longest = max(map(len, prompts))
    pads = [[FILL] * (longest - len(prompt)) for prompt in prompts]
    masks = [[0] * len(pad) + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
    padded = [[*pad, *prompt] for pad, prompt in zip(pads, prompts, strict=True)]
    if stack.is_encoder_decoder:
        masks = [mask[::-1] for mask in masks]
        padded = [[*prompt, *pad] for pad, prompt in zip(pads, prompts, strict=True)]
    tokens, mask = (torch.tensor(rows, device=stack.device) for rows in (padded, masks))
    return {"inputs": tokens, "attention_mask": mask}, 1 if stack.is_encoder_decoder else longest


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
    cached = 0 if _reads(stack) else len(prompt) - 1
    return max(0, min(stop.max_new_tokens, stack.position_limit - cached))


def _reads(stack: Stack) -> bool:
    """Whether the prompt is an encoder's source; a Whisper's is what its decoder begins with."""
    return stack.is_encoder_decoder and stack.feature_shape is None


def _generation(output: list[int], stop: Stop) -> Generation:
    end = next((index + 1 for index, token in enumerate(output) if token in stop.token_ids), None)
    tokens = output[:end]
    steps = [Step([], 0, 1) for _ in tokens]
    if steps:
        steps[-1].stop_reason = "eos" if end else "length"
    return Generation(tokens, steps, "eos" if end else "length")
