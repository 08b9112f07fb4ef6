"""Choosing d-bar and k from measurements (not in the paper): the plan whose expected time a token is the least.

After each of the first generations one forward pass over its text says how often every layer from d / 2 on would have been
right for every k, and the parts of its rounds say what layers and heads take. Theorem 4.1 with these costs does the rest.
"""

import numpy as np

from methods.errors import InputError
from methods.models.base import Stack
from methods.ppd.heads import EarlyHead, TrainedHeads
from methods.ppd.match_rate import early_ranks
from methods.ppd.pipeline import PARTS, Execution, Plan, num_cores
from methods.ppd.theory import Costs, expected_latency
from methods.session import ModelSession
from methods.types import Generation, Inputs, Step

MOST_CANDIDATES = 5  # as many as the paper tries
NUM_OBSERVED = 3  # generations after which the plan stands


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
        """Raises InputError for a given part of the plan that the model cannot run."""
        Plan(early_layer=self.layers(stack)[0], num_candidates=self.most_candidates).check(stack)

    def plan(self, stack: Stack) -> Plan:
        return self._chosen or Plan(early_layer=self.layers(stack)[0], num_candidates=self.num_candidates or 1)

    def observe(self, stack: Stack, inputs: Inputs, generation: Generation) -> None:
        """Learn from one generation; the first few only, since each costs a forward pass over its text."""
        if self._num_observed >= NUM_OBSERVED or not generation.tokens:
            return
        layers = self.layers(stack)
        ranks = early_ranks(ModelSession(stack), inputs, generation.tokens, layers, self.head)[:, :-1]
        for layer, row in zip(layers, ranks.tolist(), strict=True):
            self._ranks.setdefault(layer, []).extend(row)
        self._steps += generation.steps
        self._num_observed += 1
        self._num_tokens += len(generation.tokens)
        self._chosen = self._best(stack)

    def layers(self, stack: Stack) -> list[int]:
        """The layers to choose from: the given one, those with a trained head, or all from d / 2 on."""
        if self.early_layer is not None:
            return [self.early_layer]
        lowest = -(-stack.num_layers // 2)
        known = self.head.weights if isinstance(self.head, TrainedHeads) else range(lowest, stack.num_layers)
        if not (layers := [layer for layer in known if layer >= lowest]):
            raise InputError(f"trained heads: none from layer {lowest} on; expected one there, or name the early layer")
        return layers

    def _best(self, stack: Stack) -> Plan:
        costs, depth = measured_costs(self._steps, stack.num_layers), stack.num_layers
        counts = [self.num_candidates] if self.num_candidates else range(1, self.most_candidates + 1)
        length = max(self._num_tokens / self._num_observed, 1.0)

        def seconds(plan: Plan) -> float:
            rate = float(np.mean(np.array(self._ranks[plan.early_layer] or [0]) < plan.num_candidates))
            return float(expected_latency(depth, plan.early_layer, length, rate, costs))

        plans = [Plan(early_layer=layer, num_candidates=count) for layer in self._ranks for count in counts]
        return min(plans, key=seconds)


def measured_costs(steps: list[Step], num_layers: int) -> Costs:
    """What layers, heads and hand-over took in these rounds (medians, seconds); the paper's unit costs where none was timed."""
    timed = [step for step in steps if step.parts and step.early_layer is not None and step.candidates]
    if not timed:
        return Costs()
    parts = {name: np.array([step.parts[index] for step in timed]) for index, name in enumerate(PARTS)}
    depths = np.array([num_layers - (step.early_layer or 0) for step in timed])
    ahead = [(step.units[1] - step.units[0]) / count for step, count in zip(timed, depths, strict=True) if step.units]
    matched = np.array([bool(step.matched) for step in timed])
    layer = float(np.median(parts["late_layers"] / depths))
    return Costs(
        layer=layer,
        sub_layer=float(np.median(ahead)) if ahead else None,
        early_head=float(np.median(parts["early_head"] + parts["post"])),
        final_head=float(np.median(parts["head"])),
        hand_over=float(np.median(parts["adopt"][matched])) if matched.any() else 0.0,
    )
