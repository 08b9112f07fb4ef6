"""Algorithms 1 and 2 as a discrete-event simulation: k + 1 units, each doing one thing at a time, that talk to each other.

Nothing here knows Theorem 4.1. Every unit runs layer after layer; the main process sends its candidates out, verifies, and
adopts the winner; a unit that is busy takes a request when it is free. A layer in progress is never cut short.

What happens if the winner is not where Algorithm 2 wants it (``late``):
    "wait": the main process waits until the sub-process has run its d - d-bar layers. This is Algorithm 2.
    "take_over": the main process goes on from the last layer that the winner finished.
The two differ only if a sub-process is late: by a request's delay, by slower layers, or below d / 2, where Theorem 4.1 refuses.
There the winner passes layer d-bar early but finds no free units for its own candidates, so either way those are sent out
when the winner is adopted. The first matched token of a run still costs d-bar layers; by then its successor's sub-process is
only at layer d-bar. Waiting makes every later one cost d - d-bar; taking over makes them alternate between d - d-bar and
d-bar. For many tokens and independent matches taking over costs 1 - p (1 - (1 - p) d-bar / d) / (1 + p) a token in units of d:
less than at d / 2 for the same match rate, more than Theorem 4.1 would say, and 1 / 2 as the rate goes to 1.
"""

import heapq
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from methods.errors import InputError
from methods.ppd.theory import Costs, Number, require_counts, require_depth

Late = Literal["wait", "take_over"]
EarlyHead = Literal["main", "sub"]
Part = Literal["layers", "early_head", "final_head", "hand_over"]


@dataclass(frozen=True)
class Span:
    """One unit's work without a break (the main process's layers break at d-bar).

    ``token`` is the output (0-based) that this forward pass yields or would have yielded. ``first_layer``..``last_layer``
    (1-based) is what ran; for a head and a hand-over both are the layer whose state it takes.
    """

    unit: int
    part: Part
    first_layer: int
    last_layer: int
    token: int
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """One generation. Unit 0 is the main process, unit i runs candidate i. Times are in the unit of the costs."""

    num_units: int
    num_tokens: int
    latency: float
    run_lengths: tuple[int, ...]
    spans: tuple[Span, ...]  # by unit, then by time

    @property
    def num_runs(self) -> int:
        return len(self.run_lengths)

    @property
    def compute(self) -> float:
        """Units x time that were busy, discarded work included."""
        return sum(span.end - span.start for span in self.spans)

    @property
    def compute_per_time_unit(self) -> float:
        """Units busy on average."""
        return self.compute / self.latency

    @property
    def utilisation(self) -> float:
        """Share of the k + 1 units' time that was busy."""
        return self.compute_per_time_unit / self.num_units

    @property
    def waiting(self) -> float:
        """Time that the main process waited for a sub-process."""
        return self.latency - sum(span.end - span.start for span in self.spans if span.unit == 0)


def draw_matches(match_rate: float, num_tokens: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Independent matches with one rate, as Section 4.1 assumes."""
    return generator.random(num_tokens) < match_rate


def simulate(
    matches: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_],
    *,
    num_layers: int,
    early_layer: int,
    num_candidates: int,
    costs: Costs | None = None,
    early_head: EarlyHead = "main",
    late: Late = "wait",
) -> Simulation:
    """Runs Algorithm 2 over one generation whose matches are known.

    Args:
        matches: one per output token: which candidate (1..k) the token turns out to be, 0 for none; booleans mean the first.
            The last token's is not used.
        costs: what each part takes; default: one unit a layer, all else free.
        early_head: who reads the candidates off layer d-bar: the main process (Algorithm 2), or every sub-process for itself,
            beside the main process (not in the paper; takes the early head off the main process's path).
        late: see the module.

    Raises:
        InputError: a layer, candidate or number of tokens that cannot be.
    """
    require_depth(num_layers, early_layer)
    winners = [int(winner) for winner in matches]
    require_counts(num_tokens=len(winners), num_candidates=num_candidates)
    for token, winner in enumerate(winners):
        if not 0 <= winner <= num_candidates:
            raise InputError(f"matches[{token}] {winner}: expected 0 (none) or a candidate from 1 to {num_candidates}")
    return _Pipeline(winners, num_layers, early_layer, num_candidates, costs or Costs(), early_head, late).run()


@dataclass(eq=False)
class _Signal:
    """What a process waits for; firing it wakes all that wait."""

    waiting: list["_Process"] = field(default_factory=list)


@dataclass(eq=False)
class _Forward:
    """One token's pass through the layers on one unit: how many are done, and whether one is in progress."""

    token: int
    layers: int = 0
    arrives: float = 0.0
    busy: bool = False
    stopped: bool = False
    progress: _Signal = field(default_factory=_Signal)


Steps = Generator[Number | _Signal, None, None]


@dataclass(eq=False)
class _Process:
    """A unit's programme. It yields how long its next piece of work takes, or what it waits for."""

    unit: int
    steps: Steps


class _Pipeline:
    def __init__(
        self,
        winners: list[int],
        num_layers: int,
        early_layer: int,
        num_candidates: int,
        costs: Costs,
        early_head: EarlyHead,
        late: Late,
    ) -> None:
        self.winners, self.costs, self.early_head, self.late = winners, costs, early_head, late
        self.num_layers, self.early_layer = num_layers, early_layer
        self.now = 0.0
        self.order = count()
        self.agenda: list[tuple[float, int, int, _Process]] = []
        self.spans: list[list[Span]] = [[] for _ in range(num_candidates + 1)]
        self.run_lengths = [1]
        self.inboxes: list[deque[_Forward]] = [deque() for _ in range(num_candidates)]
        self.arrivals = [_Signal() for _ in range(num_candidates)]

    def run(self) -> Simulation:
        """Events in order of time, the main process's before the others' at the same time, until the main process is done."""
        num_units = len(self.inboxes) + 1
        main = _Process(0, self._main())
        self._schedule(main, 0.0)
        for unit in range(1, num_units):
            self._schedule(_Process(unit, self._sub(unit)), 0.0)
        process, step = None, None
        while process is not main or step is not None:
            self.now, _, _, process = heapq.heappop(self.agenda)
            step = next(process.steps, None)
            if isinstance(step, _Signal):
                step.waiting.append(process)
            elif step is not None:
                self._schedule(process, step)
        spans = (replace(span, end=min(span.end, self.now)) for unit_spans in self.spans for span in unit_spans)
        done = tuple(span for span in spans if span.end > span.start)
        return Simulation(num_units, len(self.winners), self.now, tuple(self.run_lengths), done)

    def _main(self) -> Steps:
        forward = _Forward(0)
        for winner in self.winners:
            yield from self._layers(0, forward, self.early_layer)
            if self.early_head == "main":
                yield from self._other(0, "early_head", self.early_layer, forward.token, self.costs.early_head)
            candidates = self._request(forward.token + 1)
            yield from self._layers(0, forward, self.num_layers)
            yield from self._other(0, "final_head", self.num_layers, forward.token, self.costs.final_head)
            for rank, candidate in enumerate(candidates, 1):
                candidate.stopped = rank != winner
            if forward.token + 1 == len(self.winners):
                return
            forward = _Forward(forward.token + 1)
            if winner:
                yield from self._adopt(candidates[winner - 1])
                forward.layers = candidates[winner - 1].layers
                self.run_lengths[-1] += 1
            else:
                self.run_lengths.append(1)

    def _adopt(self, candidate: _Forward) -> Steps:
        """Until the winner's hidden state is the main process's."""
        if self.late == "wait":
            while candidate.layers < self.num_layers - self.early_layer:
                yield candidate.progress
        candidate.stopped = True
        while candidate.busy:
            yield candidate.progress
        if candidate.layers:
            yield from self._other(0, "hand_over", candidate.layers, candidate.token, self.costs.hand_over)

    def _request(self, token: int) -> list[_Forward]:
        """One candidate for each sub-process, which get them ``request`` later."""
        candidates = [_Forward(token, arrives=self.now + self.costs.request) for _ in self.inboxes]
        for inbox, arrival, candidate in zip(self.inboxes, self.arrivals, candidates, strict=True):
            inbox.append(candidate)
            self._fire(arrival)
        return candidates

    def _sub(self, unit: int) -> Steps:
        inbox, arrival = self.inboxes[unit - 1], self.arrivals[unit - 1]
        while True:
            while not inbox:
                yield arrival
            candidate = inbox.popleft()
            yield max(0.0, candidate.arrives - self.now)
            if self.early_head == "sub" and not candidate.stopped:
                yield from self._other(unit, "early_head", self.early_layer, candidate.token - 1, self.costs.early_head)
            yield from self._layers(unit, candidate, self.num_layers - self.early_layer)

    def _layers(self, unit: int, forward: _Forward, last: int) -> Steps:
        """Layer after layer up to ``last``, or until the pass is stopped."""
        duration = self.costs.candidate_layer if unit else self.costs.layer
        start, first, spans = self.now, forward.layers + 1, self.spans[unit]
        while forward.layers < last and not forward.stopped:
            if forward.layers >= first:
                spans.pop()
            spans.append(Span(unit, "layers", first, forward.layers + 1, forward.token, start, self.now + duration))
            forward.busy = True
            yield duration
            forward.busy = False
            forward.layers += 1
            self._fire(forward.progress)

    def _other(self, unit: int, part: Part, layer: int, token: int, duration: Number) -> Steps:
        self.spans[unit].append(Span(unit, part, layer, layer, token, self.now, self.now + duration))
        yield duration

    def _fire(self, signal: _Signal) -> None:
        for process in signal.waiting:
            self._schedule(process, 0.0)
        signal.waiting.clear()

    def _schedule(self, process: _Process, delay: Number) -> None:
        heapq.heappush(self.agenda, (self.now + delay, process.unit, next(self.order), process))
