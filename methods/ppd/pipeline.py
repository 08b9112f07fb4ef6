"""Predictive Pipelined Decoding (PPD Algorithms 1 and 2): the next token is begun while this one is still being computed.

After ``early_layer`` of d layers a head predicts the token that the last layer will choose. Compute units run its first
d - early_layer layers, one unit a candidate, while the main process runs the layers that are left. If a candidate proves
right, the main process takes its state over and goes on from there; if none does, it begins at the first layer. Whatever was
predicted, every emitted token comes from the last layer, so the output is that of plain decoding.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.verify.interface import refuse_nan
from methods.cores import num_cores
from methods.errors import InputError, NotFiniteError
from methods.models.base import Stack
from methods.ppd.heads import EarlyHead
from methods.ppd.memory import PipelineSession
from methods.ppd.plans import Execution, Plan, Planner
from methods.ppd.units import Simulated, SubProcesses, Units
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.steps import Step
from methods.types import Clock, Generation, Guarantee, Inputs, Session, Stop

CACHE_BYTES = 64 << 20  # a first cache of this size or of all positions, so that it seldom must grow between two texts
ANSWER_S = 8.0  # a round takes milliseconds; on a machine that swaps, seconds


class PredictivePipelinedDecoding:
    """A Method over decoder-only models. Rows of a batch are decoded one after another: the pipeline is for latency.

    Differs from the paper: no candidate is begun for the token behind the last one; ``batched`` runs all candidates in one
    sub-process; ``simulated`` in none.
    """

    guarantee: Guarantee = "identical"

    def __init__(self, stack: Stack, head: EarlyHead, planner: Planner, execution: Execution = "process") -> None:
        """While it decodes, torch's CPU threads are divided among the processes; prompts use all of them.

        Raises:
            InputError: an encoder-decoder, or a plan that the model cannot run.
        """
        if stack.is_encoder_decoder:
            raise InputError(
                f"model type {stack.model.config.model_type!r}: PPD splits the layers of decoder-only models; choose one"
            )
        planner.check(stack)
        self.stack, self.head, self.planner, self.execution = stack, head, planner, execution
        self._units: Units | None = None
        self._capacity = 0

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        """``target`` must be a session of this method's model; its own cache is left alone.

        Raises:
            InputError: another session, or a prompt and output that together outgrow the model's window.
        """
        if not isinstance(target, ModelSession) or target.stack is not self.stack:
            raise InputError("target: PPD decodes with the model that it was made for; give a session of that model")
        generations = []
        for row, prompt in enumerate(inputs.prompts):
            self._check_window(len(prompt) + stop.max_new_tokens)
            units, session = self._ready(len(prompt) + stop.max_new_tokens)
            pending = session.prefill(Inputs((prompt,)))[0]
            plan = self.planner.plan(self.stack)
            threads = torch.get_num_threads()
            torch.set_num_threads(self._num_threads())
            units.open()
            try:
                one = uniforms.select([row])
                generation = _decode(session, units, plan, self.head, pending, sampling, one, stop, clock)
            except NotFiniteError:
                self.close()  # a process that lags would write NaN among what the next text has
                raise
            finally:
                units.close()
                torch.set_num_threads(threads)
            self.planner.observe(self.stack, Inputs((prompt,)), generation)
            generations.append(generation)
        return generations

    def close(self) -> None:
        """End the sub-processes; they also end with this object and with the process."""
        if isinstance(self._units, SubProcesses):
            self._units.stop()
        self._units, self._capacity = None, 0

    def _check_window(self, num_tokens: int) -> None:
        """Refuse texts that outgrow a window: a candidate's place in the cache is not its place in the text."""
        window = self.stack.window
        if window is not None and num_tokens > window:
            raise InputError(
                f"sliding_window {window} of model type {self.stack.model.config.model_type!r}: PPD reads candidates in an "
                f"order of its own, and prompt and output may have {num_tokens} tokens; expected no more than the window: "
                "shorten them"
            )

    def _ready(self, num_tokens: int) -> tuple[Units, PipelineSession]:
        """Return units whose cache holds this many tokens: those of the last generation where they do."""
        slots = self.planner.most_candidates
        if self._units is None or num_tokens > self._capacity:
            self.close()
            self._capacity = max(self._roomy(), 1 << (num_tokens - 1).bit_length())
            self._units = self._start(slots)
        return self._units, PipelineSession(self.stack, self._units.storage, slots)

    def _roomy(self) -> int:
        stack = self.stack
        fitting = CACHE_BYTES // (stack.num_layers * 2 * stack.num_kv_heads * stack.head_dim * stack.dtype.itemsize)
        return fitting if stack.position_limit is None else min(fitting, stack.position_limit)

    def _start(self, num_slots: int) -> Units:
        if self.execution == "simulated":
            return Simulated(self.stack, self._capacity, num_slots)
        per_unit = num_slots if self.execution == "batched" else 1
        spins = num_cores() >= num_processes(self.execution, num_slots)
        return SubProcesses(self.stack, self._capacity, num_slots, per_unit, self._num_threads(), spins, ANSWER_S)

    def _num_threads(self) -> int:
        """Return the CPU threads of each process while it decodes."""
        return max(1, torch.get_num_threads() // num_processes(self.execution, self.planner.most_candidates))


def num_processes(execution: Execution, num_candidates: int) -> int:
    """Return the number of processes, the main one included."""
    return 1 + {"process": num_candidates, "batched": 1, "simulated": 0}[execution]


def overload(execution: Execution, num_candidates: int, cores: int) -> str | None:
    """Warn of more processes than cores; None where there are enough cores."""
    processes = num_processes(execution, num_candidates)
    if processes <= cores:
        return None
    remedy = f"use --execution batched or at most {cores - 1} candidates" if cores > 1 else "give it two cores or more"
    return (
        f"candidates {num_candidates}: {processes} processes share {cores} cores, so they block instead of spinning and wait "
        f"for each other; expect rounds up to {processes / cores:.1f} times as long, and no speed-up: {remedy}"
    )


class _Laps:
    """The times of one round's parts, by the units' clock; nothing is read without a clock."""

    def __init__(self, units: Units, clock: Clock | None) -> None:
        self._now = None if clock is None else lambda: units.now(clock)
        self.marks: list[float] = [] if self._now is None else [self._now()]

    def mark(self) -> None:
        if self._now is not None:
            self.marks.append(self._now())

    def next_round(self, step: Step, spans: Sequence[float]) -> None:
        """Write the times into the round that ends, and begin the next where it ended."""
        if self.marks:
            begin, end = self.marks[0], self.marks[-1]
            step.round_s, step.parts = end - begin, [after - before for before, after in pairwise(self.marks)]
            step.units = [time - begin for time in spans]
            self.marks = [end]


def _decode(
    session: PipelineSession,
    units: Units,
    plan: Plan,
    head: EarlyHead,
    pending: int,
    sampling: Sampling,
    uniforms: Uniforms,
    stop: Stop,
    clock: Clock | None,
) -> Generation:
    """Run Algorithm 2 on one prefilled row."""
    early, depth = plan.early_layer, session.num_layers
    ahead, weight, budget = depth - early, head.weight(early), stop.budgets(session)[0]
    generation, laps = Generation([], [], "length"), _Laps(units, clock)
    hidden, token = None, torch.tensor([[pending]], device=session.device)
    for position in range(budget):
        if hidden is None:
            hidden = session.run_layers(session.embed(token), 0, early)
        elif early > ahead:
            hidden = session.run_layers(hidden, ahead, early)
        laps.mark()
        candidates = _most_likely(session.head(hidden, weight), plan.num_candidates) if position + 1 < budget else []
        laps.mark()
        if candidates:
            units.post(candidates, session.lengths[0][0], ahead)
        laps.mark()
        hidden = session.run_layers(hidden, early, depth)
        laps.mark()
        logits = session.head(hidden)[:, -1]
        token = sampling.draw(logits, uniforms.sample([position])).unsqueeze(1)
        emitted = int(token)
        laps.mark()
        _, reason = stop.cut([emitted], budget - position)
        matched, hidden = emitted in candidates, None
        if matched and reason is None:
            slot = candidates.index(emitted)
            hidden = units.wait(slot)
            laps.mark()
            session.adopt(slot, ahead)
        else:
            laps.mark()
        laps.mark()
        step = Step([], 0, 1, stop_reason=reason, candidates=candidates, early_layer=early)
        step.matched = matched if candidates else None
        laps.next_round(step, units.times() if candidates else [])
        generation.add([emitted], step)
        if reason is not None:
            refuse_nan(logits)
            break
    return generation


def _most_likely(logits: Float[Tensor, "1 1 V"], count: int) -> list[int]:
    """Return the candidates, the likeliest first."""
    if count == 1:
        return [int(logits.argmax())]
    return logits.flatten().topk(count).indices.tolist()
