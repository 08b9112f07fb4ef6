"""Drafters of transformers' assisted generation, and the rounds that they led to.

Three of its candidate generators: a draft model, prompt lookup (the text so far), and early exit (the target's first layers).
For each a function lends, while a context lasts, the arguments that ``generate`` gets for it; ``settings`` are the target's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig

from methods.errors import InputError
from methods.models.base import Stack
from methods.steps import Step

Seen = list[tuple[int, Tensor]]  # how long the text of a round was, and that text with its drafts [1, length]


Assistance = Callable[[Any, GenerationConfig], AbstractContextManager[dict[str, Any]]]  # of a target and its settings


@contextmanager
def lend_model(
    target: Any,
    settings: GenerationConfig,
    *,
    draft: Stack,
    gamma: int,
    schedule: str = "constant",
    tokenizers: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """A draft model; ``schedule`` is "constant" or "heuristic" (+2 / -1) and begins at ``gamma``.

    ``tokenizers``, of the target and the draft, by generate's names, where they are two (universal assisted generation).
    Differs from transformers: its threshold of confidence, below which a draft ends early, is off, as no drafter here has one.
    """
    with _drafting(draft.model, GenerationConfig(**_how_many(gamma, schedule))):
        yield {"generation_config": settings, "assistant_model": draft.model, **(tokenizers or {})}


@contextmanager
def lend_lookup(target: Any, settings: GenerationConfig, *, gamma: int) -> Iterator[dict[str, Any]]:
    """Continue as the text did where its last two tokens, or its last one, occurred first.

    The text is what the decoder has: the prompt and the output of a decoder-only model, the output alone of an encoder-decoder.
    """
    yield {"generation_config": _changed(settings, prompt_lookup_num_tokens=gamma)}


@contextmanager
def lend_early_exit(
    target: Any, settings: GenerationConfig, *, layer: int, gamma: int, schedule: str = "constant"
) -> Iterator[dict[str, Any]]:
    """The target's first ``layer`` layers with its own head, which keep a cache of their own (its threshold is off too).

    The target drafts by ``generate`` too, which takes what it is not told from the model's settings: were early exit among
    these, its drafts would be drafted for in turn. A failure may leave it with fewer layers than it has.
    """
    num_layers = target.config.num_hidden_layers
    with _drafting(target, _changed(settings, **_how_many(gamma, schedule))):
        try:
            yield {"generation_config": _changed(settings, assistant_early_exit=layer)}
        finally:
            target.config.num_hidden_layers = num_layers


def check_early_exit(stack: Stack, layer: int) -> None:
    """Raise InputError for a layer that the model does not have, or a family whose decoder always runs all of them."""
    if not stack.can_exit_early:
        raise InputError(
            f"model type {stack.model.config.model_type!r}: transformers' early exit works where a decoder heeds "
            "num_hidden_layers while it runs; expected one of llama, mistral, qwen2, gemma"
        )
    if not 1 <= layer < stack.num_layers:
        expected = f"1 to {stack.num_layers - 1}" if stack.num_layers > 1 else "a deeper model"
        raise InputError(f"early layer {layer}: the model has {stack.num_layers} layers; expected {expected}")


def check_schedule(schedule: str, drafts_by_lookup: bool = False) -> None:
    """Raise InputError for a schedule that transformers does not have."""
    if drafts_by_lookup and schedule != "constant":
        raise InputError(f"schedule {schedule!r}: transformers' prompt lookup has constant alone")
    if schedule not in ("constant", "heuristic"):
        raise InputError(f"schedule {schedule!r}: transformers' assisted generation has constant and heuristic")


def _how_many(gamma: int, schedule: str) -> dict[str, Any]:
    check_schedule(schedule)
    return {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": schedule,
        "assistant_confidence_threshold": 0.0,
    }


def _changed(settings: GenerationConfig, **changes: Any) -> GenerationConfig:
    changed = deepcopy(settings)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


@contextmanager
def only(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Put the model's own settings aside: ``generate`` takes from them what is None in the given ones."""
    own = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _drafting(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """A model whose own ``generate`` is called for drafts: its settings say how many, and a Whisper's is the shared loop."""
    with only(model, settings):
        model.generate = partial(transformers.GenerationMixin.generate, model)
        try:
            yield
        finally:
            del model.generate


@contextmanager
def watched(model: Any, limit: int | None) -> Iterator[Seen]:
    """Record each round of ``generate``: the length of the text, and the text with its drafts.

    Differs from transformers: drafts end where the model's positions do; prompt lookup's would be looked up behind them.
    """
    seen: Seen = []

    def watch(propose: Callable[..., Any]) -> Callable[..., Any]:
        def get_candidates(text: Tensor, **state: Any) -> tuple[Tensor, Tensor | None]:
            candidates, logits = propose(text, **state)
            if limit is not None and candidates.shape[1] > limit:
                candidates = candidates[:, : max(limit, text.shape[1])]
                logits = None if logits is None else logits[:, : candidates.shape[1] - text.shape[1]]
            seen.append((text.shape[1], candidates))
            return candidates, logits

        return get_candidates

    def choose(**parts: Any) -> Any:
        generator = type(model)._get_candidate_generator(model, **parts)
        generator.get_candidates = watch(generator.get_candidates)
        return generator

    model._get_candidate_generator = choose
    try:
        yield seen
    finally:
        del model._get_candidate_generator


def rounds(seen: Seen, skipped: int, tokens: Sequence[int]) -> list[Step]:
    """Return the rounds that made ``tokens``, which follow the first ``skipped``; probabilities and times are unknown.

    A draft stands where it was emitted: what the target puts in a refused one's place is never that draft.
    """
    starts = [length - skipped for length, _ in seen]
    steps = []
    for (_, candidates), start, end in zip(seen, starts, [*starts[1:], len(tokens)], strict=True):
        drafted, emitted = candidates[0, skipped + start :].tolist(), tokens[start:end]
        differs = (index for index, (draft, token) in enumerate(zip(drafted, emitted, strict=False)) if draft != token)
        steps.append(Step(drafted, next(differs, min(len(drafted), len(emitted))), len(emitted)))
    return steps


@contextmanager
def random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators, which transformers draws from, and restore them afterwards.

    A CPU's takes the low 32 bits of the seed: two of n rows share a stream with a chance of about n**2 / 2**33.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed % 2**63)
        yield
