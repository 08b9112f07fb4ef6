"""Times of one model's passes, of texts, and of rounds: medians, with nothing compiled or captured in them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.gpu.place import Place
from harness.run.instruments import clock_for, num_waits, with_peak
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.static import Room, StaticSession
from methods.steps import Step
from methods.types import Clock, Generation, Inputs, Method, Stop

PASSES, WARM_UP = 12, 3  # of each number of tokens
DRAWN = Sampling(temperature=1.0)
Row = dict[str, Any]
NewSession = Callable[[Stack, int], ModelSession]  # of a model, for passes of up to so many tokens


def growing(stack: Stack, most_new: int) -> ModelSession:
    """Return a session whose cache grows, and whose passes are launched operation by operation."""
    return ModelSession(stack)


def fixed(place: Place) -> NewSession:
    """Return what makes sessions of fixed shapes, which are captured as soon as they are made; in a rehearsal uncaptured."""
    room = Room(1, place.sizes.prompt_tokens, place.sizes.new_tokens)
    return lambda stack, most_new: StaticSession(stack, room, most_new)


def pass_seconds(place: Place, session: ModelSession, inputs: Inputs, num_new: int) -> float:
    """Seconds of one forward pass over ``num_new`` tokens behind the prompt: the median of PASSES."""
    clock, times = clock_for(place.device), list[float]()
    session.prefill(inputs)
    tokens = torch.full((1, num_new), 3, device=session.device)
    for number in range(WARM_UP + PASSES):
        start = clock()
        session.extend(tokens)
        if number >= WARM_UP:
            times.append(clock() - start)
        else:
            clock()
        session.rewind([num_new])
    return float(np.median(times))


@dataclass(frozen=True, kw_only=True)
class Timed:
    """``seconds`` of a text, the median; the texts; the peak of memory; and the rounds of one more text, timed part by part."""

    seconds: float
    texts: Sequence[Generation]
    peak: int | None
    steps: Sequence[Step]

    @property
    def num_rounds(self) -> int:
        return num_rounds(self.texts)

    @property
    def row(self) -> Row:
        tokens = sum(len(text.tokens) for text in self.texts)
        return {
            "tokens a second": tokens / len(self.texts) / self.seconds,
            "tokens a round": tokens / self.num_rounds,
            "peak, MB": None if self.peak is None else self.peak / 1e6,
        }


def timed(place: Place, method: Method, session: ModelSession, inputs: Inputs) -> Timed:
    """Decode ``prompts`` texts after one that warms up. They have no clock inside, at which each part of a round would wait."""
    num_new, clock = place.sizes.new_tokens, clock_for(place.device)
    stop, times, texts = Stop(max_new_tokens=num_new), list[float](), list[Generation]()

    def decode(seed: int, inside: Clock | None) -> Generation:
        return method.generate(session, inputs, DRAWN, Uniforms([seed], num_new, place.device), stop, inside)[0]

    _, peak = with_peak(place.device, partial(decode, 0, None))
    for seed in range(1, place.sizes.prompts + 1):
        start = clock()
        texts.append(decode(seed, None))
        times.append(clock() - start)
    return Timed(seconds=float(np.median(times)), texts=texts, peak=peak, steps=decode(1, clock).steps)


def plain_row(place: Place, method: Method, session: ModelSession, inputs: Inputs, pass_s: float, name: str) -> Row:
    """A row of plain decoding, one token a step: also its typical step, over a bare pass."""
    found = timed(place, method, session, inputs)
    typical = float(np.median([step.round_s for step in found.steps[1:]]))
    return {"loop": name} | found.row | {"a token, ms": typical * 1e3, "of a pass": typical / pass_s}


def drafted_row(place: Place, method: Method, session: ModelSession, inputs: Inputs, name: str) -> tuple[Row, Sequence[Step]]:
    """A row of decoding with drafts, and the rounds of its text that was timed part by part."""
    found = timed(place, method, session, inputs)
    round_s = found.seconds * len(found.texts) / found.num_rounds
    waits = waits_a_round(place, method, session, inputs)
    return {"loop": name} | found.row | {"a round, ms": round_s * 1e3, "waits a round": waits}, found.steps


def waits_a_round(place: Place, method: Method, session: ModelSession, inputs: Inputs) -> float | None:
    """How often the host waits for the device in one text, over its rounds, without a clock; None in a rehearsal."""
    num_new, texts = place.sizes.new_tokens, list[Generation]()

    def decode() -> None:
        texts.extend(
            method.generate(session, inputs, DRAWN, Uniforms([0], num_new, place.device), Stop(max_new_tokens=num_new))
        )

    count = num_waits(decode, place.device)
    return None if place.is_rehearsal else count / num_rounds(texts)


def num_rounds(texts: Sequence[Generation]) -> int:
    return max(1, sum(len(text.steps) for text in texts))
