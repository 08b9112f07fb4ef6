"""A draft model that is itself accelerated by a cheaper drafter (Leviathan, Discussion: the hierarchical version)."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.speculative.model import DraftCache
from methods.speculative.overlap import teacher_logits
from methods.speculative.rules import SpeculativeSampling
from methods.types import Drafter, Inputs, Outcome, Proposal, Session


@runtime_checkable
class RevisableDrafter(Drafter, Protocol):
    """A drafter that can take back what it has committed: needed when its tokens were drafts of a draft."""

    def revise(self, counts: Sequence[int], tokens: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each text and append one. Called between commit and propose."""


class HierarchicalDrafter:
    """Drafts have exactly the draft model's law: each round inside is speculative sampling with numbers of its own.

    Args:
        inner: drafts for the draft model. inner_draft: how many tokens it drafts a round.
    """

    def __init__(self, session: Session, inner: RevisableDrafter, inner_draft: int) -> None:
        if inner_draft < 1:
            raise InputError(f"inner_draft {inner_draft!r}: expected an integer >= 1; or draft with the model alone")
        self.session, self.inner, self.inner_draft = session, inner, inner_draft
        self.cache, self.rule = DraftCache(session), SpeculativeSampling()

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        self.uniforms = uniforms.nested()
        self.cache.begin(inputs)
        self.inner.begin(inputs, pending, self.uniforms)

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        self.lengths = self.cache.fitting(num_draft)
        self.drafted: list[list[int]] = [[] for _ in self.lengths]
        self.inner_commits = [0] * len(self.lengths)
        logits: list[list[Tensor]] = [[] for _ in self.lengths]
        while any(len(row) < length for row, length in zip(self.drafted, self.lengths, strict=True)):
            self._round(positions, sampling, logits)
        return self._proposal(logits, sampling)

    def _round(self, positions: Sequence[int], sampling: Sampling, logits: list[list[Tensor]]) -> None:
        """Run one inner round; rows that have all their drafts take part with nothing."""
        left = [length - len(row) for length, row in zip(self.lengths, self.drafted, strict=True)]
        starts = [position + len(row) for position, row in zip(positions, self.drafted, strict=True)]
        proposal = self.inner.propose([max(0, min(self.inner_draft, count - 1)) for count in left], starts, sampling)
        fed, rows = self._feed(proposal, left)
        verdict = self.rule.verify(proposal, rows, sampling, self.uniforms.verify(starts, proposal.tokens.shape[1]))
        accepted, following = verdict.num_accepted.tolist(), verdict.next_token.tolist()
        self.inner.commit(Outcome(tuple(accepted), tuple(following)))
        drafts = proposal.tokens.tolist()
        self.cache.rewind([proposal.lengths[row] - count for row, count in enumerate(accepted)])
        for row, count in enumerate(accepted):
            self.inner_commits[row] += count + 1
            if fed[row]:
                self.drafted[row] += [*drafts[row][:count], following[row]]
                self.cache.unseen[row] = [following[row]]
                logits[row].append(rows[row, : count + 1])

    def _feed(self, proposal: Proposal, left: Sequence[int]) -> tuple[list[list[int]], Float[Tensor, "B n_plus_1 V"]]:
        """Compute the draft model's logits at the inner drafts and behind them."""
        drafts = proposal.tokens.tolist()
        fed = [
            [*unseen, *drafts[row][: proposal.lengths[row]]] if left[row] else []
            for row, unseen in enumerate(self.cache.unseen)
        ]
        logits = self.cache.feed(fed)
        first = [max(0, len(tokens) - proposal.lengths[row] - 1) for row, tokens in enumerate(fed)]
        columns = torch.tensor(first, device=logits.device).unsqueeze(-1) + torch.arange(
            proposal.tokens.shape[1] + 1, device=logits.device
        )
        rows = torch.arange(len(fed), device=logits.device).unsqueeze(-1)
        return fed, logits[rows, columns.clamp(max=logits.shape[1] - 1)]

    def _proposal(self, logits: Sequence[Sequence[Tensor]], sampling: Sampling) -> Proposal:
        longest = max(self.lengths)
        padded = [[*row, *[0] * (longest - len(row))] for row in self.drafted]
        tokens = torch.tensor(padded, dtype=torch.long, device=self.session.device).reshape(len(padded), longest)
        if sampling.greedy or longest == 0:
            return Proposal(tokens, self.lengths, None, sampling)
        rows = [
            torch.cat(list(parts)) if parts else torch.zeros(0, self.session.vocab_size, device=self.session.device)
            for parts in logits
        ]
        return Proposal(tokens, self.lengths, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), sampling)

    def commit(self, outcome: Outcome) -> None:
        """The text ends in the last draft, which the cache has not seen; what was rejected is taken back everywhere."""
        rejected = [length - count for length, count in zip(self.lengths, outcome.num_accepted, strict=True)]
        self.cache.revise(rejected, outcome.next_token)
        surplus = [commits - count for commits, count in zip(self.inner_commits, outcome.num_accepted, strict=True)]
        self.inner.revise(surplus, outcome.next_token)

    def revise(self, counts: Sequence[int], tokens: Sequence[int]) -> None:
        self.cache.revise(counts, tokens)
        self.inner.revise(counts, tokens)

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        self.inner.select(rows)
        self.uniforms = self.uniforms.select(rows)

    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """Return the draft model's law: acceleration does not change it."""
        return (sampling.probs(logits) for logits in teacher_logits(self.session, inputs, output)[1])
