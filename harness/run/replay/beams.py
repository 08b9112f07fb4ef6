"""Beam search once more, on passes of transformers' own model and its own caches: nothing of our search or sessions is used."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from harness.models.loading import LoadedModel
from harness.run.replay.decisions import Decision
from harness.run.replay.reading import HALF, NEAR_TIE_FLOAT32, silenced, start_said
from methods.beam import BeamSearch
from methods.models.base import Stack
from methods.speculative.beam import SpeculativeBeamSearch
from methods.transformers_generate import TransformersGenerate
from methods.types import Inputs, Method


def is_searched_again(method: Method, target: LoadedModel) -> bool:
    """Say whether an output is one of beams that can be searched for again.

    In half precision no bound of a search is known, and of a target on several devices there is no pass of transformers' own.
    """
    if not isinstance(method, BeamSearch | SpeculativeBeamSearch | TransformersGenerate) or method.num_beams == 1:
        return False
    return target.stack.dtype not in HALF and not target.stack.parts


@torch.inference_mode()
def searched(
    stack: Stack, inputs: Inputs, tokens: Sequence[int], num_beams: int, ends: Collection[int], budget: int
) -> Iterator[Decision]:
    """Yield a decision for each token of one row's output up to where another search finds another one, and one of that.

    ``ends`` end a hypothesis, and ``budget`` bounds its length. Another text is off by how near the search came, until it lost
    the output, to going on with other hypotheses, in nats of a whole one; of T tokens rounding may move these by sqrt(T) times
    what it may move a margin. Raises RuntimeError where memory does not suffice.
    """
    passes, search = _Passes(stack, inputs), _Search(num_beams, frozenset(ends), budget, tuple(tokens))
    log_probs = passes.begin()
    while parents := search.advance(log_probs):
        log_probs = passes.go_on(parents, [text[-1] for _, text in search.running])
    won = search.winner()
    pairs = enumerate(zip(tokens, won, strict=False))
    first = next((place for place, (ours, other) in pairs if ours != other), min(len(tokens), len(won)))
    yield from (Decision(place, "beam", 0.0, 0.0) for place in range(first))
    if list(tokens) != list(won):
        yield Decision(first, "beam", search.nearest, NEAR_TIE_FLOAT32 * search.followed**0.5)


@dataclass
class _Search:
    """Hypotheses that run and that ended, as transformers' ``generate`` has them with ``length_penalty=1`` and
    ``early_stopping=False``.

    ``nearest`` is the least distance at which another one would have been taken, in the steps in which ``text`` was
    ``followed``: until it neither runs nor has ended. What is chosen later does not explain how it was lost.
    """

    num_beams: int
    ends: frozenset[int]
    budget: int
    text: tuple[int, ...]
    followed: int = 0
    is_lost: bool = False
    running: list[tuple[float, tuple[int, ...]]] = field(default_factory=lambda: [(0.0, ())])
    ended: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)  # the mean of a token's, best first
    nearest: float = float("inf")

    def advance(self, log_probs: Float[Tensor, "beams V"]) -> list[int]:
        """Take a step, and return which hypotheses those continue that run now: none where the search is over."""
        whole = log_probs.double() + log_probs.new_tensor([total for total, _ in self.running], dtype=torch.float64)[:, None]
        count = max(2, 1 + len(self.ends)) * self.num_beams
        top = whole.flatten().topk(min(count + 1, whole.numel()))
        totals, length = top.values.tolist(), len(self.running[0][1]) + 1
        going_on: list[tuple[float, int, tuple[int, ...]]] = []
        for rank, (total, place) in enumerate(zip(totals, top.indices.tolist(), strict=True)):
            parent, token = divmod(place, whole.shape[1])
            text = (*self.running[parent][1], token)
            if token not in self.ends and length < self.budget:
                going_on.append((total, parent, text))
                continue
            beside = self.num_beams - (rank >= self.num_beams)  # the first of those that are too late, or the last in time
            self._note(total - totals[beside] if beside < len(totals) else float("inf"))
            if rank < self.num_beams:
                self._end(total / length, text)
        if len(going_on) > self.num_beams:
            self._note(going_on[self.num_beams - 1][0] - going_on[self.num_beams][0])
        going_on = going_on[: self.num_beams]
        self.running = [(total, text) for total, _, text in going_on]
        self.followed += not self.is_lost
        is_over = False
        if len(self.ended) == self.num_beams and self.running:
            ahead = self.running[0][0] / length - self.ended[-1][0]
            self._note(ahead * length)
            is_over = ahead <= 0
        alive = [text for _, text in self.running] + ([] if length < len(self.text) else [text for _, text in self.ended])
        self.is_lost = self.is_lost or self.text[:length] not in alive
        return [] if is_over else [parent for _, parent, _ in going_on]

    def winner(self) -> tuple[int, ...]:
        """Return the text that ended best."""
        if len(self.ended) > 1:
            self._note((self.ended[0][0] - self.ended[1][0]) * len(self.ended[0][1]))
        return self.ended[0][1] if self.ended else ()

    def _end(self, mean: float, text: tuple[int, ...]) -> None:
        self.ended = sorted([*self.ended, (mean, text)], key=lambda one: -one[0])
        if len(self.ended) > self.num_beams:
            last = self.ended.pop()
            self._note((self.ended[-1][0] - last[0]) * len(text))

    def _note(self, distance: float) -> None:
        self.nearest = self.nearest if self.is_lost else min(self.nearest, abs(distance))


class _Passes:
    """Passes of transformers' own model: over what a text begins with, then over a token of each running hypothesis."""

    def __init__(self, stack: Stack, inputs: Inputs) -> None:
        model, (prompt,) = stack.model, inputs.prompts
        self.stack, self.features, self.first = stack, inputs.features, list(prompt)
        self.cache: Any = None
        self.encoded: Any = None
        self.mask: Tensor | None = None
        if stack.encodes_prompts:
            source = torch.tensor([prompt], device=stack.device)
            self.first, self.mask = [start_said(model)], torch.ones_like(source)
            self.encoded = model.get_encoder()(input_ids=source, attention_mask=self.mask, return_dict=True)
        elif inputs.features is not None:
            heard = inputs.features.to(stack.device, next(model.parameters()).dtype)
            self.encoded = model.get_encoder()(heard, return_dict=True)

    def begin(self) -> Float[Tensor, "1 V"]:
        """Return the log-probabilities of a text's first token."""
        return self._pass([self.first], at_start=True)

    def go_on(self, parents: Sequence[int], tokens: Sequence[int]) -> Float[Tensor, "beams V"]:
        """Return those behind each hypothesis: one of the last pass's rows, and its new token."""
        self.cache.reorder_cache(torch.tensor(parents, device=self.stack.device))
        return self._pass([[token] for token in tokens], at_start=False)

    def _pass(self, tokens: Sequence[Sequence[int]], at_start: bool) -> Float[Tensor, "beams V"]:
        rows = torch.tensor(tokens, device=self.stack.device)
        given: dict[str, Any] = {"input_ids": rows}
        if self.encoded is not None:
            states = self.encoded.last_hidden_state.expand(len(rows), -1, -1)
            encoded = type(self.encoded)(**{**self.encoded, "last_hidden_state": states})  # of experts it holds more
            given = {"decoder_input_ids": rows, "encoder_outputs": encoded}
        if self.mask is not None:
            given["attention_mask"] = self.mask.expand(len(rows), -1)
        made = self.stack.model(**given, past_key_values=self.cache, use_cache=True, return_dict=True)
        self.cache, logits = made.past_key_values, made.logits[:, -1].clone()
        if self.features is not None:
            silenced(self.stack.model, logits, at_start)
        return logits.log_softmax(-1)
