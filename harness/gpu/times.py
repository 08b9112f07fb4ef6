"""Times of one model's passes, of texts, and of rounds: medians, with nothing compiled or captured in them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.gpu.place import Place
from harness.run.instruments import clock_for, marking_clock, num_waits, settled, with_peak
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.static import Room, StaticSession
from methods.steps import Step
from methods.types import Generation, Inputs, Method, Stop

PASSES, WARM_UP = 12, 3  # of each number of tokens
BRIEF_TOKENS = 32  # of a text by transformers' slower loops, one of which is timed
DRAWN = Sampling(temperature=1.0)
Row = dict[str, Any]
NewSession = Callable[[Stack, int], ModelSession]  # of a model, for passes of up to so many tokens


def growing(stack: Stack, most_new: int) -> ModelSession:
    """Return a session whose cache grows, and whose passes are launched operation by operation."""
    return ModelSession(stack)


def room_of(place: Place) -> Room:
    """Return the room of a text that is timed."""
    return Room(1, place.sizes.prompt_tokens, place.sizes.new_tokens)


def fixed(room: Room) -> NewSession:
    """Return what makes sessions of fixed shapes, which are captured as soon as they are made; in a rehearsal uncaptured."""
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
    """``seconds`` of a text, the median; the texts, whose rounds are timed part by part; and the peak of memory."""

    seconds: float
    texts: Sequence[Generation]
    peak: int | None

    @property
    def steps(self) -> Sequence[Step]:
        return self.texts[-1].steps

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


def timed(
    place: Place, method: Method, session: ModelSession, inputs: Inputs, most_drafts: int = 0, brief: bool = False
) -> Timed:
    """Decode ``prompts`` texts after one that warms up, or, if it is to be ``brief``, one shorter text.

    Texts of 1, 2, ... tokens warm up rounds of every number of drafts up to ``most_drafts``, each of which is compiled apart.
    """
    num_new, clock = place.sizes.new_tokens, marking_clock(place.device)
    num_new = min(num_new, BRIEF_TOKENS) if brief else num_new
    times, texts = list[float](), list[Generation]()

    def decode(seed: int, count: int = num_new) -> Generation:
        numbers = Uniforms([seed], num_new, place.device)
        return method.generate(session, inputs, DRAWN, numbers, Stop(max_new_tokens=count), clock)[0]

    decode(0)  # what is captured, or compiled, is no part of the peak
    _, peak = with_peak(place.device, partial(decode, 0))
    for count in range(1, min(most_drafts, num_new - 1) + 1):
        decode(0, count)
    for seed in range(1, 1 + (1 if brief else place.sizes.prompts)):
        start = clock()
        made = decode(seed)
        times.append(float(clock() - start))
        texts += settled([made])
    return Timed(seconds=float(np.median(times)), texts=texts, peak=peak)


def plain_row(place: Place, method: Method, session: ModelSession, inputs: Inputs, pass_s: float, name: str) -> Row:
    """A row of plain decoding, one token a step: also its typical step, over a bare pass."""
    found = timed(place, method, session, inputs)
    typical = float(np.median([step.round_s for step in found.steps[1:]]))
    return {"loop": name} | found.row | {"a token, ms": typical * 1e3, "of a pass": typical / pass_s}


def drafted_row(
    place: Place, method: Method, session: ModelSession, inputs: Inputs, name: str, gamma: int, brief: bool = False
) -> tuple[Row, Sequence[Step]]:
    """A row of decoding with drafts, and the rounds of its last text."""
    found = timed(place, method, session, inputs, gamma, brief)
    round_s = found.seconds * len(found.texts) / found.num_rounds
    waits = None if brief else waits_a_round(place, method, session, inputs)
    return {"loop": name} | found.row | {"a round, ms": round_s * 1e3, "waits a round": waits}, found.steps


def waits_a_round(place: Place, method: Method, session: ModelSession, inputs: Inputs) -> float | None:
    """How often the host waits for the device in a round: those of a text less those of one with a single round.

    None in a rehearsal, and where no round is left.
    """

    def seen(num_new: int) -> tuple[int, int]:
        texts, numbers, stop = list[Generation](), Uniforms([0], num_new, place.device), Stop(max_new_tokens=num_new)
        decode = partial(method.generate, session, inputs, DRAWN, numbers, stop, marking_clock(place.device))
        return num_waits(lambda: texts.extend(decode()), place.device), num_rounds(texts)

    (few, first), (many, all_rounds) = seen(1), seen(min(BRIEF_TOKENS, place.sizes.new_tokens))
    return None if place.is_rehearsal or all_rounds == first else (many - few) / (all_rounds - first)


def num_rounds(texts: Sequence[Generation]) -> int:
    return max(1, sum(len(text.steps) for text in texts))
