"""A round over sessions of fixed shapes: each draft is one launch, and so is the target's pass with its verdict.

What a launch reads from the host is brought to a fixed place beforehand, one table a round and model. Columns behind a row's
drafts, and rows behind the batch, are padding. On a CPU the same work runs uncaptured.
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.transfer import bring
from methods.sampling import LaidUniforms, Sampling, Uniforms, log_sum_exp
from methods.speculative.verdicts import Decided, joined, parted
from methods.static import StaticSession
from methods.types import Proposal, VerifyRule

START, READ, LENGTH, POSITION, TOKENS = range(5)  # columns of the drafts' table: tokens are those that are read first
PENDING = 1  # of the verdicts' table, in the place of READ


def can_be_captured(rule: VerifyRule) -> bool:
    """Say whether the class that decides promises it: who only inherits ``can_be_captured`` has promised nothing."""
    decides = next((kind for kind in type(rule).__mro__ if "verify" in vars(kind)), type(rule))
    return bool(vars(decides).get("can_be_captured", False))


class CapturedDrafts:
    """The passes and draws of a draft model. What it returns holds until it drafts again."""

    @torch.inference_mode()
    def __init__(self, session: StaticSession, sampling: Sampling, most_drafts: int) -> None:
        rows, device, self.session, self.sampling = session.rows, session.device, session, sampling
        self.most_drafts, self._uniforms = most_drafts, LaidUniforms(rows, session.capacity, device)
        self._given = torch.zeros(rows, TOKENS + session.most_new, dtype=torch.long, device=device)
        self._tokens = torch.zeros(rows, most_drafts, dtype=torch.long, device=device)
        self._has_nan = torch.zeros(rows, dtype=torch.bool, device=device)
        shape, dtype = (rows, 0 if sampling.greedy else most_drafts, session.vocab_size), session.logits_dtype
        self._logits = torch.zeros(shape, dtype=dtype, device=device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self._sums = torch.zeros(rows, most_drafts, dtype=wide, device=device)
        widths = range(1, session.most_new + 1)
        self._first = {width: session.capture(partial(self._draft_first, width)) for width in widths}
        self._next = [session.capture(partial(self._draft_next, place)) for place in range(1, most_drafts)]

    def fits(self, unseen: Sequence[Sequence[int]], lengths: Sequence[int], uniforms: Uniforms) -> bool:
        """Say whether a round is of the shapes that were captured."""
        width = max(map(len, unseen))
        return (
            width in self._first
            and 0 < max(lengths) <= self.most_drafts
            and self._uniforms.can_hold(uniforms)
            and not self.session.begins_output(width)
        )

    @torch.inference_mode()
    def draft(
        self, unseen: Sequence[Sequence[int]], lengths: tuple[int, ...], positions: Sequence[int], uniforms: Uniforms
    ) -> Proposal:
        """Feed each row's unseen tokens (none where it drafts nothing) and draw ``lengths[row]`` drafts behind them.

        The session then holds what was fed and all drafts but the last.
        """
        rows, longest, width, session = len(lengths), max(lengths), max(map(len, unseen)), self.session
        starts = session.starts(rows, width)
        told = zip(starts, unseen, lengths, positions, strict=True)
        table = [
            [start, len(read), length, position, *read, *[0] * (session.most_new - len(read))]
            for start, read, length, position in told
        ]
        bring([*table, *[[0] * self._given.shape[1]] * (session.rows - rows)], self._given)
        self._uniforms.hold(uniforms)
        self._first[width]()
        session.advance([len(read) for read in unseen])
        for place in range(1, longest):
            session.starts(rows, 1)
            self._next[place - 1]()
            session.advance([int(place < length) for length in lengths])
        tokens, greedy = self._tokens[:rows, :longest], self.sampling.greedy
        known = None if greedy or self.sampling.filters else self._sums[:rows, :longest]
        logits, has_nan = (None, self._has_nan[:rows]) if greedy else (self._logits[:rows, :longest], None)
        return Proposal(tokens, lengths, logits, self.sampling, known, has_nan)

    def _draft_first(self, width: int) -> tuple[()]:
        given = self._given
        _, logits = self.session.pass_at(given[:, TOKENS : TOKENS + width], given[:, START])
        last = (given[:, READ] - 1).clamp(min=0, max=width - 1)
        return self._draw(logits[torch.arange(len(given), device=given.device), last], 0)

    def _draft_next(self, place: int) -> tuple[()]:
        """Draw the draft at a place behind the first; rows that have all theirs feed the last one over and over."""
        given = self._given
        fed = (given[:, LENGTH] - 1).clamp(min=0, max=place - 1)
        _, logits = self.session.pass_at(self._tokens[:, place - 1 : place], given[:, START] + given[:, READ] + fed)
        return self._draw(logits[:, 0], place)

    def _draw(self, logits: Float[Tensor, "rows V"], place: int) -> tuple[()]:
        if self.sampling.greedy:
            self._tokens[:, place].copy_(logits.argmax(-1))
            self._has_nan.copy_(logits.isnan().any(-1))
            return ()
        uniforms = self._uniforms.draft(self._given[:, POSITION] + place, 1).squeeze(-1)
        tokens, probs = self.sampling.draw_with_prob(logits, uniforms)
        self._tokens[:, place].copy_(tokens)
        self._logits[:, place].copy_(logits)
        if not self.sampling.filters:
            self._sums[:, place].copy_(log_sum_exp(logits, tokens, probs, self.sampling))
        return ()


class CapturedVerdicts:
    """The target's pass over drafts and the rule's verdict on them, packed for one transfer to the host."""

    @torch.inference_mode()
    def __init__(
        self, session: StaticSession, rule: VerifyRule, sampling: Sampling, like: Proposal, counts: Sequence[int]
    ) -> None:
        """``like``: a proposal of the kind that it decides on; of its tensors it takes dtypes, and which there are. ``counts``:
        of drafts, the longest row's, of every round."""
        rows, device, most = session.rows, session.device, max(counts)
        self.session, self.rule, self.sampling, self.drafted_with = session, rule, sampling, like.sampling
        self._uniforms = LaidUniforms(rows, session.capacity, device)
        self._given = torch.zeros(rows, 4, dtype=torch.long, device=device)
        self._tokens = torch.zeros(rows, most, dtype=torch.long, device=device)
        self._logits = None if like.logits is None else like.logits.new_zeros(rows, most, session.vocab_size, device=device)
        self._sums = None if like.log_sum_exp is None else like.log_sum_exp.new_zeros(rows, most)
        self._has_nan = None if like.has_nan is None else like.has_nan.new_zeros(rows)
        self._lengths: tuple[int, ...] = ()
        self._steps = {}
        for count in counts:
            self._lengths = (count,) * rows  # a single row always has as many as are captured
            self._steps[count] = session.capture(partial(self._decide, count))

    def fits(self, proposal: Proposal, uniforms: Uniforms) -> bool:
        """Say whether a round is of the shapes that were captured."""
        count = proposal.tokens.shape[1]
        return count in self._steps and self._uniforms.can_hold(uniforms) and not self.session.begins_output(count + 1)

    @torch.inference_mode()
    def decide(
        self, proposal: Proposal, pending: Sequence[int], positions: Sequence[int], uniforms: Uniforms
    ) -> tuple[list[Decided], Float[Tensor, "B n_plus_1 V"]]:
        """Each row's round on the host, and the target's logits, which hold until the next one.

        Raises:
            NotFiniteError: the draft's logits hold NaN.
        """
        session, (rows, count) = self.session, proposal.tokens.shape
        starts, padding = session.starts(rows, count + 1), session.rows - rows
        self._lengths = (*proposal.lengths, *[0] * padding)
        table = [list(row) for row in zip(starts, pending, proposal.lengths, positions, strict=True)]
        bring([*table, *[[0] * 4] * padding], self._given)
        self._uniforms.hold(uniforms)
        for place, new in (
            (self._tokens, proposal.tokens), (self._logits, proposal.logits), (self._sums, proposal.log_sum_exp)
        ):  # fmt: skip
            if place is not None and new is not None and count:
                place[:rows, :count].copy_(new)
        if self._has_nan is not None and proposal.has_nan is not None:
            self._has_nan[:rows].copy_(proposal.has_nan)
        packed, hidden, logits = self._steps[count]()
        session.advance([count + 1] * rows)
        session.hidden = hidden[:rows]
        return parted(packed[:rows], count, self._has_nan is not None), logits[:rows]

    def _decide(self, count: int) -> tuple[Float[Tensor, "rows columns"], Tensor, Float[Tensor, "rows n_plus_1 V"]]:
        given, tokens = self._given, self._tokens[:, :count]
        hidden, logits = self.session.pass_at(torch.cat((given[:, PENDING : PENDING + 1], tokens), 1), given[:, START])
        proposal = Proposal(
            tokens,
            self._lengths,
            None if self._logits is None else self._logits[:, :count],
            self.drafted_with,
            None if self._sums is None else self._sums[:, :count],
            self._has_nan,
            given[:, LENGTH] if len(given) > 1 else None,
        )
        verdict = self.rule.verify(proposal, logits, self.sampling, self._uniforms.verify(given[:, POSITION], count))
        return joined(proposal, verdict), hidden, logits
