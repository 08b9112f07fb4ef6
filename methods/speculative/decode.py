"""Draft and verify: Algorithm 1 of Leviathan et al. with drafter, rule and schedule plugged in."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.transfer import to_device
from kernels.verify.interface import refuse_nan, refuse_rows, refuse_token
from methods.sampling import Sampling, Uniforms
from methods.steps import Seconds, Step
from methods.types import (
    Clock,
    Drafter,
    Generation,
    Guarantee,
    Inputs,
    Outcome,
    Proposal,
    Schedule,
    Session,
    Stop,
    Verdict,
    VerifyRule,
)


class _Decided(NamedTuple):
    """A row's round on the host. Lists are as long as the longest row's drafts; ``choices`` has one more, or none at all."""

    num_accepted: int
    next_token: int
    drafted: Sequence[int]
    target_probs: Sequence[float]
    draft_probs: Sequence[float]
    choices: Sequence[int] = ()


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
        self.looks_ahead: bool = getattr(rule, "looks_ahead", False)

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        uniforms = uniforms.endless() if self.looks_ahead else uniforms
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
        if hasattr(self.drafter, "start"):
            self.drafter.start(inputs)
        pending = target.prefill(inputs)
        encoded = clock() if clock else float("nan")
        if hasattr(self.drafter, "read"):
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
        pending = to_device([row.pending for row in active], proposal.tokens.device)
        logits = target.extend(torch.cat((pending.unsqueeze(1), proposal.tokens), 1))
        longest = proposal.tokens.shape[1]
        verdict = self.rule.verify(proposal, logits, sampling, uniforms.verify(positions, longest))
        decided = _to_host(proposal, verdict)
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


def _to_host(proposal: Proposal, verdict: Verdict) -> list[_Decided]:
    """Bring a round's results to the host. From a GPU in one transfer: fp32 holds token ids exactly up to 2**24.

    NotFiniteError where the draft's logits hold NaN.
    """
    columns = [verdict.num_accepted, verdict.next_token, proposal.tokens, verdict.target_probs, verdict.draft_probs]
    columns += [one for one in (verdict.choices, proposal.has_nan) if one is not None]
    if proposal.tokens.is_cuda:  # to join them on a CPU would take five times as long as to read them one by one
        wide = [column.unsqueeze(1) if column.dim() == 1 else column for column in columns]
        parts = torch.cat(wide, 1).cpu().split([column.shape[1] for column in wide], 1)
        columns = [part.reshape(column.shape).to(column.dtype) for part, column in zip(parts, columns, strict=True)]
    if proposal.has_nan is not None:
        refuse_rows(columns.pop().tolist())
    return [_Decided(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _take(row: _Row, length: int, decided: _Decided, stop: Stop) -> None:
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
