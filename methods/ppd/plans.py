"""Where to predict early and how many candidates to begin: a fixed plan, or one chosen from measurements (not in the paper).

That one is the plan whose expected time a token is the least. After each of the first generations one forward pass over its
text says how often every layer from d / 2 on would have been right for every k, and the parts of its rounds say what layers,
heads and sub-processes take. Theorem 4.1 with these costs does the rest. More candidates cost more (one batch of them, or more
processes that share memory), so the first two generations try the fewest and the most; what lies between is interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from methods.cores import num_cores
from methods.errors import InputError
from methods.models.base import Stack
from methods.ppd.heads import EarlyHead, TrainedHeads, early_ranks
from methods.ppd.theory import Costs, expected_latency
from methods.session import ModelSession
from methods.steps import PARTS, Step
from methods.types import Generation, Inputs

MOST_CANDIDATES = 5  # as many as the paper tries
NUM_OBSERVED = 3  # generations after which the plan stands
Execution = Literal["process", "batched", "simulated"]
COSTS = ("layer", "sub_layer", "early_head", "final_head", "request", "hand_over")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The layer to predict at (``early_layer``, d-bar) and the number of candidates to begin (``num_candidates``, k).

    As a planner it is its own choice, for all generations.
    """

    early_layer: int
    num_candidates: int

    @property
    def most_candidates(self) -> int:
        return self.num_candidates

    def plan(self, stack: Stack) -> "Plan":
        return self

    def observe(self, stack: Stack, inputs: Inputs, generation: Generation) -> None: ...

    def check(self, stack: Stack) -> None:
        """Raise InputError for a plan that Algorithm 2 cannot run on this model."""
        depth = stack.num_layers
        if not 1 <= self.early_layer < depth:
            raise InputError(
                f"early layer {self.early_layer}: the model has {depth} layers; expected {-(-depth // 2)} to {depth - 1}"
            )
        if 2 * self.early_layer < depth:
            raise InputError(
                f"early layer {self.early_layer} of {depth}: below half the depth a candidate's {depth - self.early_layer} "
                f"layers would have to pass layer {self.early_layer}, where its own next token is predicted, before the main "
                f"process is there; expected {-(-depth // 2)} to {depth - 1}"
            )
        if not 1 <= self.num_candidates <= stack.vocab_size:
            raise InputError(
                f"candidates {self.num_candidates}: expected 1 to the vocabulary's {stack.vocab_size} tokens; lower it"
            )


class Adaptive:
    """A planner that begins at d / 2 and then follows what it measured. ``early_layer`` or ``num_candidates`` may be given."""

    def __init__(self, head: EarlyHead, early_layer: int | None, num_candidates: int | None, execution: Execution) -> None:
        self.head, self.early_layer, self.num_candidates = head, early_layer, num_candidates
        free = max(1, num_cores() - 1) if execution == "process" else MOST_CANDIDATES
        self.most_candidates = num_candidates or min(free, MOST_CANDIDATES)
        self._ranks: dict[int, list[int]] = {}
        self._steps: list[Step] = []
        self._num_observed, self._num_tokens = 0, 0
        self._chosen: Plan | None = None

    def check(self, stack: Stack) -> None:
        """Raise InputError for a given part of the plan that the model cannot run."""
        Plan(early_layer=self.layers(stack)[0], num_candidates=self.most_candidates).check(stack)

    def plan(self, stack: Stack) -> Plan:
        """Return the chosen plan; before there is one, the fewest candidates and then the most at the lowest layer."""
        if self._chosen is not None:
            return self._chosen
        count = self.counts[0] if self._num_observed == 0 else self.counts[-1]
        return Plan(early_layer=self.layers(stack)[0], num_candidates=count)

    @property
    def counts(self) -> range:
        """Return the numbers of candidates to choose from."""
        return range(self.num_candidates or 1, self.most_candidates + 1)

    def observe(self, stack: Stack, inputs: Inputs, generation: Generation) -> None:
        """Learn from one generation; the first few only, since each costs a forward pass over its text."""
        if self._num_observed >= NUM_OBSERVED or len(generation.tokens) < 2:
            return
        layers = self.layers(stack)
        ranks = early_ranks(ModelSession(stack), inputs, generation.tokens, layers, [self.head])[0, :, :-1]
        for layer, row in zip(layers, ranks.tolist(), strict=True):
            self._ranks.setdefault(layer, []).extend(row)
        self._steps += generation.steps
        self._num_observed += 1
        self._num_tokens += len(generation.tokens)
        if self._num_observed > 1 or len(self.counts) == 1:
            self._chosen = self._best(stack)

    def layers(self, stack: Stack) -> list[int]:
        """Return the layers to choose from: the given one, those with a trained head, or all from d / 2 on."""
        if self.early_layer is not None:
            return [self.early_layer]
        lowest = -(-stack.num_layers // 2)
        known = self.head.weights if isinstance(self.head, TrainedHeads) else range(lowest, stack.num_layers)
        if not (layers := [layer for layer in known if layer >= lowest]):
            raise InputError(f"trained heads: none from layer {lowest} on; expected one there, or name the early layer")
        return layers

    def _best(self, stack: Stack) -> Plan:
        """Return the fastest plan; of equally fast ones the lowest layer and the fewest candidates."""
        length, depth = self._num_tokens / self._num_observed, stack.num_layers
        costs = {count: measured_costs(self._steps, depth, count) for count in self.counts}

        def seconds(plan: Plan) -> float:
            rate = float(np.mean(np.array(self._ranks[plan.early_layer]) < plan.num_candidates))
            return float(expected_latency(depth, plan.early_layer, length, rate, costs[plan.num_candidates]))

        plans = [Plan(early_layer=layer, num_candidates=count) for layer in self._ranks for count in self.counts]
        return min(plans, key=seconds)


Planner = Plan | Adaptive


def measured_costs(steps: Sequence[Step], num_layers: int, num_candidates: int) -> Costs:
    """Measure layers, heads, requests and hand-overs in these rounds with this many candidates (medians, seconds).

    Between numbers of candidates that ran, costs are interpolated; beyond them the nearest counts. Where nothing was timed,
    the paper's: a layer 1, all else free.
    """
    timed = [step for step in steps if step.parts and step.candidates]
    if not timed:
        return Costs()
    known = sorted({len(step.candidates) for step in timed})
    rows = [_costs([step for step in timed if len(step.candidates) == count], num_layers) for count in known]
    columns = zip(COSTS, np.array(rows).T, strict=True)
    return Costs(**{name: float(np.interp(num_candidates, known, column)) for name, column in columns})


def _costs(steps: Sequence[Step], num_layers: int) -> list[float]:
    """Return the costs of rounds with one number of candidates."""
    parts = {name: np.array([step.parts[index] for step in steps]) for index, name in enumerate(PARTS)}
    ahead = np.array([num_layers - (step.early_layer or 0) for step in steps])
    posted = parts["early_layers"] + parts["early_head"] + parts["post"]
    adopted = parts["adopt"][[bool(step.matched) for step in steps]]
    layer = float(np.median(parts["late_layers"] / ahead))
    sub_layer, request = _unit_costs(steps, ahead, posted) or (layer, 0.0)
    return [
        layer,
        sub_layer,
        float(np.median(parts["early_head"] + parts["post"])),
        float(np.median(parts["head"])),
        request,
        float(np.median(adopted)) if len(adopted) else 0.0,
    ]


def _unit_costs(steps: Sequence[Step], ahead: NDArray[np.int64], posted: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return (a layer of the slowest unit, the last unit's begin after the request); None where no unit was timed.

    A round that does not match ends without waiting, and then has times only of units that were quick: those that match count.
    """
    timed = [index for index, step in enumerate(steps) if step.units]
    rounds = [index for index in timed if steps[index].matched] or timed
    if not rounds:
        return None
    spans = [np.reshape(steps[index].units, (-1, 2)) for index in rounds]
    layers = [np.diff(span).max() / ahead[index] for index, span in zip(rounds, spans, strict=True)]
    starts = [max(span[:, 0].max() - posted[index], 0.0) for index, span in zip(rounds, spans, strict=True)]
    return float(np.median(layers)), float(np.median(starts))
