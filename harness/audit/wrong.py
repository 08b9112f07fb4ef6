"""Deliberately wrong samplers and sessions, mostly mistakes that somebody shipped. A check is worth what it finds of them.

They claim the guarantee of what they were made from; nothing registers them.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.verify import reference
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.types import Clock, Generation, Guarantee, Inputs, Outcome, Proposal, Session, Stop, Verdict


class LenientBy:
    """Speculative sampling with any lenience, above 1 too, through the reference."""

    guarantee: Guarantee = "same_distribution"

    def __init__(self, lenience: float) -> None:
        self.lenience = lenience

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        target_probs = sampling.probs(target_logits)
        draft_probs = None if proposal.logits is None else proposal.sampling.probs(proposal.logits)
        lengths = torch.tensor(proposal.lengths)
        decided = reference.verify(target_probs, draft_probs, proposal.tokens, lengths, uniforms, self.lenience)
        return Verdict(*decided, *reference.drafted_probs(target_probs, draft_probs, proposal.tokens))


class NoResidual(SpeculativeSampling):
    """Draws what follows a rejection from the target itself."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        rows = torch.arange(len(target_logits))
        wrong = sampling.draw(target_logits[rows, verdict.num_accepted], uniforms[:, -1])
        return replace(verdict, next_token=wrong)


class OneUniform(SpeculativeSampling):
    """Uses the first acceptance number for all drafts of a round."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        same = torch.cat((uniforms[:, :1].expand(-1, uniforms.shape[1] - 1), uniforms[:, -1:]), 1)
        return super().verify(proposal, target_logits, sampling, same)


class DraftedBonus(SpeculativeSampling):
    """Takes the last draft as the bonus token: where all before it stand it is emitted unseen by the target."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        last = torch.tensor(proposal.lengths) - 1
        reached = (verdict.num_accepted >= last) & (last >= 0)
        drafted = proposal.tokens.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1) if max(proposal.lengths) else last
        num_accepted = torch.where(reached, last, verdict.num_accepted)
        return replace(verdict, num_accepted=num_accepted, next_token=torch.where(reached, drafted, verdict.next_token))


class NextDoor(SpeculativeSampling):
    """Puts a neighbouring token in the place of the target's own."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        return replace(verdict, next_token=(verdict.next_token + 1) % target_logits.shape[-1])


class Unsampled(ModelDrafter):
    """Draws at ``drawn_at`` times the temperature and reports the law of the temperature itself."""

    def __init__(self, session: Session, drawn_at: float) -> None:
        super().__init__(session)
        self.drawn_at = drawn_at

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        drawn = replace(sampling, temperature=self.drawn_at * sampling.temperature)
        return replace(super().propose(num_draft, positions, drawn), sampling=sampling, log_sum_exp=None)


class StaleDraft(ModelDrafter):
    """Leaves rejected drafts in its cache. Not wrong, only poor: the rule needs the law that was drawn from, whatever it is."""

    def commit(self, outcome: Outcome) -> None:
        for row, (count, token) in enumerate(zip(outcome.num_accepted, outcome.next_token, strict=True)):
            length = self.proposal.lengths[row]
            last = [int(self.proposal.tokens[row, count - 1])] if length and count == length else []
            self.cache.unseen[row] += [*last, token]


class StaleTarget(ModelSession):
    """A target that keeps what was rejected in its cache."""

    def rewind(self, counts: Sequence[int]) -> None:
        pass


class SharedNoise(Uniforms):
    """Draws a draft, decides on it, and draws what stands in its place, all with the same number."""

    def __init__(self, seeds: Sequence[int], length: int, device: torch.device | str = "cpu", level: int = 0) -> None:
        super().__init__(seeds, length, device, level)
        self.table[:, self.ACCEPT] = self.table[:, self.SAMPLE] = self.table[:, self.DRAFT]


class Reseeded(Uniforms):
    """Begins the same stream again in every round."""

    def select(self, rows: Sequence[int]) -> "Uniforms":
        chosen = super().select(rows)
        chosen.__class__ = Reseeded
        return chosen

    def _window(self, stream: int, starts: Sequence[int], count: int) -> Tensor:
        return super()._window(stream, [0] * len(starts), count)


class KeepsOn(DraftAndVerify):
    """Ends with the round in which a stopping token falls, and keeps what the round emitted behind it."""

    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        whole = Stop(max_new_tokens=stop.max_new_tokens)
        rows = super().generate(target, inputs, sampling, uniforms, whole, clock)
        return [_until_round_of(row, stop) for row in rows]


def _until_round_of(row: Generation, stop: Stop) -> Generation:
    end = next((place for place, token in enumerate(row.tokens) if token in stop.token_ids), None)
    if end is None:
        return row
    kept = 0
    for number, step in enumerate(row.steps, start=1):
        kept += step.emitted
        if kept > end:
            return Generation(row.tokens[:kept], row.steps[:number], "eos")
    raise AssertionError("every token belongs to a round")
