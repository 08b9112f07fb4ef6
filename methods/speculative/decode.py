"""Draft and verify: Algorithm 1 of Leviathan et al. with drafter, rule and schedule plugged in."""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.transfer import to_device
from kernels.verify.fused_cpu import Loop
from kernels.verify.interface import refuse_nan, refuse_token
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.captured import CapturedVerdicts, can_be_captured
from methods.speculative.rules import loop_of
from methods.speculative.verdicts import Decided, to_host
from methods.static import StaticSession
from methods.steps import Seconds, Step
from methods.types import (
    Clock,
    Drafter,
    ExpectsDrafts,
    Generation,
    Guarantee,
    Inputs,
    Outcome,
    Proposal,
    ReadsTarget,
    Schedule,
    Session,
    StartsEarly,
    Stop,
    VerifyRule,
    looks_ahead,
)


@dataclass(slots=True)
class _Row:
    """One row while it is generated. ``left`` is how many tokens it may still emit, 0 where it has ended.

    ``num_looked_at`` counts the random numbers of a stream up to the last that a round looked at.
    """

    pending: int
    left: int
    schedule: Schedule
    made: Generation
    num_looked_at: int = 0


class DraftAndVerify:
    """The one speculative loop. ``schedule_factory`` makes a schedule for each row of each generation.

    A round never drafts more than what is left less one, since it always emits a token of the target's own; so the last
    token of a full-length output is a plain step. The target's positions bound the output as they do in plain decoding.

    Random numbers belong to emitted positions, so those of rejected drafts are looked at again. A rule that looks ahead has
    emitted by them: with such a rule every round has numbers of its own.
    """

    def __init__(self, drafter: Drafter, rule: VerifyRule, schedule_factory: Callable[[], Schedule]) -> None:
        self.drafter, self.rule, self.schedule_factory = drafter, rule, schedule_factory
        self.guarantee: Guarantee = rule.guarantee
        self.looks_ahead = looks_ahead(rule)
        self._captured: dict[Hashable, CapturedVerdicts] = {}

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        uniforms = uniforms.endless() if self.looks_ahead else uniforms
        most = _most_drafts(self.schedule_factory())
        if most and isinstance(self.drafter, ExpectsDrafts):
            self.drafter.expect(most)
        pending, encode_s, draft_encode_s = self._begin(target, inputs, uniforms, clock)
        rows = [
            _Row(token, left, self.schedule_factory(), Generation([], [], "length", encode_s, draft_encode_s))
            for token, left in zip(pending, stop.budgets(target), strict=True)
        ]
        everyone, active = rows, [row for row in rows if row.left > 0]
        while active:
            if len(active) < len(everyone):
                uniforms = self._select(target, uniforms, [index for index, row in enumerate(everyone) if row.left > 0])
            self._round(target, active, sampling, uniforms, stop, clock)
            everyone, active = active, [row for row in active if row.left > 0]
        return [row.made for row in rows]

    def _begin(
        self, target: Session, inputs: Inputs, uniforms: Uniforms, clock: Clock | None
    ) -> tuple[list[int], Seconds, Seconds]:
        """Prefill target and drafter: every row's pending token, and the seconds that each took.

        Where the drafter starts early, its seconds are what it still took when the target was done.
        """
        before = clock() if clock else float("nan")
        if isinstance(self.drafter, StartsEarly):
            self.drafter.start(inputs)
        pending = target.prefill(inputs)
        encoded = clock() if clock else float("nan")
        if isinstance(self.drafter, ReadsTarget):
            self.drafter.read(target)
        self.drafter.begin(inputs, pending, uniforms)
        return pending, encoded - before, (clock() if clock else float("nan")) - encoded

    def _select(self, target: Session, uniforms: Uniforms, kept: Sequence[int]) -> Uniforms:
        """Drop the rows that have ended."""
        target.select(kept)
        self.drafter.select(kept)
        return uniforms.select(kept)

    def _round(
        self,
        target: Session,
        active: Sequence[_Row],
        sampling: Sampling,
        uniforms: Uniforms,
        stop: Stop,
        clock: Clock | None,
    ) -> None:
        started = clock() if clock else 0.0
        positions = [row.num_looked_at if self.looks_ahead else len(row.made.tokens) for row in active]
        num_draft = [min(row.schedule.next(), row.left - 1) for row in active]
        proposal = self.drafter.propose(num_draft, positions, sampling)
        drafted = clock() if clock else 0.0
        decided, logits = self._decide(target, active, proposal, positions, sampling, uniforms)
        longest = proposal.tokens.shape[1]
        for index, one in enumerate(decided):
            refuse_token(index, one.next_token, target.vocab_size, one.num_accepted)
        verified = clock() if clock else 0.0
        for row, length, one in zip(active, proposal.lengths, decided, strict=True):
            _take(row, length, one, stop)
        outcome = Outcome(
            tuple(one.num_accepted for one in decided),
            tuple(row.pending for row in active),
            tuple(one.drafted[one.num_accepted - 1] if one.num_accepted else None for one in decided),
        )
        still = sum(row.left > 0 for row in active)
        if still < len(active):
            refuse_nan(logits[:, 0])
        if still:
            target.rewind([longest - count for count in outcome.num_accepted])
            self.drafter.commit(outcome)
        if clock:
            _stamp(active, drafted - started, verified - drafted, clock() - started)

    def _decide(
        self,
        target: Session,
        active: Sequence[_Row],
        proposal: Proposal,
        positions: Sequence[int],
        sampling: Sampling,
        uniforms: Uniforms,
    ) -> tuple[list[Decided], Float[Tensor, "B n_plus_1 V"]]:
        """Extend the target by a round's tokens and let the rule decide: what it decided, on the host, and the logits.

        With a session of fixed shapes both are one captured step, where the rule can be captured; with compiled passes both are
        one call, where a loop decides as the rule does.
        """
        pending, most = [row.pending for row in active], _most_drafts(active[0].schedule)
        if isinstance(target, StaticSession) and most and not self.looks_ahead and can_be_captured(self.rule):
            captured = self._captured_for(target, proposal, sampling, most)
            if captured.fits(proposal, uniforms):
                return captured.decide(proposal, pending, positions, uniforms)
        loop = self._loop_for(proposal, sampling)
        if loop is not None and isinstance(target, ModelSession):
            numbers = None if sampling.greedy else uniforms.verify(positions, proposal.tokens.shape[1])
            verified = target.verify(pending, proposal, sampling, numbers, loop)
            if verified is not None:
                return [Decided(*row) for row in verified[0]], verified[1]
        drafted = to_device(pending, proposal.tokens.device).unsqueeze(1), proposal.tokens
        logits = target.extend(torch.cat(drafted, 1))
        numbers = uniforms.verify(positions, proposal.tokens.shape[1])
        return to_host(proposal, self.rule.verify(proposal, logits, sampling, numbers)), logits

    def _loop_for(self, proposal: Proposal, sampling: Sampling) -> Loop | None:
        """Return how the compiled loop decides as the rule does, where it can."""
        return None if proposal.has_nan is not None else loop_of(self.rule, proposal, sampling)

    def _captured_for(self, target: StaticSession, proposal: Proposal, sampling: Sampling, most: int) -> CapturedVerdicts:
        """Return the captured steps for a kind of proposals; rounds without drafts have one of their own."""
        counts = range(1, most + 1) if proposal.tokens.shape[1] else (0,)
        told = (proposal.logits, proposal.log_sum_exp, proposal.has_nan)
        kind = tuple(None if one is None else one.dtype for one in told)
        key = (target, sampling, proposal.sampling, kind, counts)
        if key not in self._captured:
            self._captured[key] = CapturedVerdicts(target, self.rule, sampling, proposal, counts)
        return self._captured[key]


def _most_drafts(schedule: Schedule) -> int | None:
    """Return the most that a schedule ever drafts; None where it does not say."""
    return getattr(schedule, "most", None)


def _take(row: _Row, length: int, decided: Decided, stop: Stop) -> None:
    """Emit the accepted drafts and the token behind them, cut at the first stopping token or the length limit.

    What was accepted behind the cut never entered the output, so the step does not count it.
    """
    num_accepted, row.pending, drafted = decided.num_accepted, decided.next_token, list(decided.drafted[:length])
    emitted, reason = stop.cut([*drafted[:num_accepted], row.pending], row.left)
    row.left = row.left - len(emitted) if reason is None else 0
    row.num_looked_at += length + 1
    step = Step(drafted, min(num_accepted, len(emitted)), len(emitted), stop_reason=reason)
    step.target_probs = _looked_at(decided.target_probs[:length])
    step.draft_probs = _looked_at(decided.draft_probs[:length])
    step.choices = list(decided.choices[: length + 1])
    row.made.add(emitted, step)
    row.schedule.observe(length, num_accepted)


def _looked_at(probs: Sequence[float]) -> list[float]:
    """Return the probabilities that the rule evaluated: behind the first rejection it may have left NaN."""
    return list(itertools.takewhile(lambda prob: not math.isnan(prob), probs))


def _stamp(active: Sequence[_Row], draft_s: Seconds, verify_s: Seconds, round_s: Seconds) -> None:
    for row in active:
        step = row.made.steps[-1]
        step.draft_s, step.verify_s, step.round_s = draft_s, verify_s, round_s
