"""Drafting with a smaller model and its own key/value cache (M_q in the paper), which a cheaper drafter may accelerate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.transfer import to_device
from kernels.verify.interface import nan_rows, refuse_rows
from methods.errors import InputError
from methods.sampling import EndlessUniforms, Sampling, Uniforms, log_sum_exp
from methods.speculative.captured import CapturedDrafts
from methods.speculative.overlap import teacher_logits
from methods.speculative.rules import SpeculativeSampling
from methods.static import StaticSession
from methods.types import Inputs, Outcome, Proposal, Session, TakesBack, TextSession

# Tokens [B, n], the logits [B, n or 1, V] that they were drawn from, and these logits' log-sum-exp [B, n] where it is known.
Drawn = tuple[Tensor, Tensor, Tensor | None]


class _DraftCache:
    """A draft session and, per row, the text's last tokens that it has not seen yet (at least the pending one).

    Rows that feed different numbers of tokens are padded on the right and the padding is rewound.
    """

    def __init__(self, session: TextSession) -> None:
        self.session = session

    def begin(self, inputs: Inputs) -> None:
        self.unseen = [[token] for token in self.session.prefill(inputs)]

    def fitting(self, num_draft: Sequence[int]) -> tuple[int, ...]:
        """Limit the drafts to the model's positions; drafting n caches the unseen tokens and n - 1 drafts.

        The last position stays free: a row that drafts nothing takes part in other rows' passes with padding.
        """
        limit = self.session.position_limit
        if limit is None:
            return tuple(num_draft)
        cached = self.session.lengths[0]
        rooms = (limit - length - len(unseen) for length, unseen in zip(cached, self.unseen, strict=True))
        return tuple(max(0, min(count, room)) for count, room in zip(num_draft, rooms, strict=True))

    def feed(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "B width V"]:
        """Cache each row's tokens; return the logits behind them, meaningless in the padding."""
        width = max(map(len, rows))
        padded = [[*row, *[0] * (width - len(row))] for row in rows]
        fed = to_device([token for row in padded for token in row], self.session.device)
        logits = self.session.extend(fed.view(len(padded), width))
        self.rewind([width - len(row) for row in rows])
        return logits

    def rewind(self, counts: Sequence[int]) -> None:
        if any(counts):
            self.session.rewind(counts)

    def revise(self, counts: Sequence[int], tokens: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each text, seen or not, and append one."""
        seen = [max(0, count - len(unseen)) for count, unseen in zip(counts, self.unseen, strict=True)]
        self.rewind(seen)
        for unseen, count, token in zip(self.unseen, counts, tokens, strict=True):
            del unseen[max(0, len(unseen) - count) :]
            unseen.append(token)

    def select(self, rows: Sequence[int]) -> None:
        self.session.select(rows)
        self.unseen = [list(self.unseen[row]) for row in rows]


class ModelDrafter:
    """Draws n tokens with n forward passes; after a round in which all stood, the first pass also feeds the last draft.

    With a session of fixed shapes each pass is captured together with its draw; where passes are compiled, all are one call.
    """

    def __init__(self, session: TextSession) -> None:
        self.session, self.cache = session, _DraftCache(session)
        self.most_drafts = 0  # of any round; 0: unknown
        self._captured: dict[Sampling, CapturedDrafts] = {}

    def expect(self, most_drafts: int) -> None:
        if most_drafts != self.most_drafts:
            self.most_drafts, self._captured = most_drafts, {}

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        self.uniforms = uniforms
        self.cache.begin(inputs)

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        lengths = self.cache.fitting(num_draft)
        self.proposal = self._draw(lengths, positions, sampling)
        return self.proposal

    def _draw(self, lengths: tuple[int, ...], positions: Sequence[int], sampling: Sampling) -> Proposal:
        longest = max(lengths)
        if longest == 0:
            return Proposal.nothing(len(lengths), sampling, self.session.device)
        fed = self._fed(lengths)
        captured = self._draw_captured(fed, lengths, positions, sampling)
        if captured is not None:
            return captured
        uniforms = None if sampling.greedy else self.uniforms.draft(positions, longest)
        drawn = self._draw_compiled(fed, longest, sampling, uniforms) or self._draw_by_passes(fed, lengths, sampling, uniforms)
        self._forget_unseen(lengths)
        tokens, logits, sums = drawn
        if sampling.greedy:
            # A verify rule never sees these logits; what is NaN once stays in the cache.
            return Proposal(tokens, lengths, None, sampling, has_nan=nan_rows(logits[:, -1]))
        return Proposal(tokens, lengths, logits, sampling, None if sampling.filters else sums)

    def _draw_captured(
        self, fed: list[list[int]], lengths: tuple[int, ...], positions: Sequence[int], sampling: Sampling
    ) -> Proposal | None:
        """Draw with a session of fixed shapes, where a round fits into what it is laid out for."""
        session = self.session
        if not isinstance(session, StaticSession) or not self.most_drafts or isinstance(self.uniforms, EndlessUniforms):
            return None
        if sampling not in self._captured:
            self._captured[sampling] = CapturedDrafts(session, sampling, self.most_drafts)
        captured = self._captured[sampling]
        if not captured.fits(fed, lengths, self.uniforms):
            return None
        self._forget_unseen(lengths)
        return captured.draft(fed, lengths, positions, self.uniforms)

    def _draw_compiled(
        self, fed: Sequence[Sequence[int]], count: int, sampling: Sampling, uniforms: Float[Tensor, "B n"] | None
    ) -> Drawn | None:
        """Draw all in one compiled call, where there is one; any token from logits that hold NaN."""
        draft = getattr(self.session, "draft", None)
        drawn = None if draft is None or len(fed) > 1 else draft(fed[0], count, sampling, uniforms)
        return None if drawn is None else (drawn[0].clamp(max=self.session.vocab_size - 1), *drawn[1:])

    def _draw_by_passes(
        self,
        fed: Sequence[Sequence[int]],
        lengths: Sequence[int],
        sampling: Sampling,
        uniforms: Float[Tensor, "B n"] | None,
    ) -> Drawn:
        """Draw one after another; of greedy drafts only the last one's logits are returned."""
        logits, tokens, probs = [self._first(fed)], list[Tensor](), list[Tensor]()
        for step in range(max(lengths)):
            if step:
                logits.append(self.session.extend(tokens[-1])[:, -1])
                self.cache.rewind([int(length <= step) for length in lengths])
            if uniforms is None:
                tokens.append(logits[-1].argmax(-1, keepdim=True))
                continue
            token, prob = sampling.draw_with_prob(logits[-1], uniforms[:, step])
            tokens.append(token.unsqueeze(-1))
            probs.append(prob)
        drafted = torch.cat(tokens, 1)
        if uniforms is None:
            return drafted, logits[-1].unsqueeze(1), None
        drawn = torch.stack(logits, 1)
        known = None if sampling.filters else log_sum_exp(drawn, drafted, torch.stack(probs, 1), sampling)
        return drafted, drawn, known

    def _fed(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return what each row reads first; one that drafts nothing reads nothing."""
        return [list(unseen) if length else [] for unseen, length in zip(self.cache.unseen, lengths, strict=True)]

    def _forget_unseen(self, lengths: Sequence[int]) -> None:
        self.cache.unseen = [[] if length else unseen for unseen, length in zip(self.cache.unseen, lengths, strict=True)]

    def _first(self, fed: Sequence[Sequence[int]]) -> Float[Tensor, "B V"]:
        """Compute the logits of the first draft."""
        logits = self.cache.feed(fed)
        if len(fed) == 1:
            return logits[:, -1]
        last = to_device([max(0, len(row) - 1) for row in fed], logits.device)
        return logits[torch.arange(len(fed), device=logits.device), last]

    def commit(self, outcome: Outcome) -> None:
        """Keep the accepted drafts that are cached; a last draft that stood is not, so it waits with the next token."""
        lengths = self.proposal.lengths
        in_cache = [max(0, length - 1) for length in lengths]
        kept = [min(count, cached) for count, cached in zip(outcome.num_accepted, in_cache, strict=True)]
        self.cache.rewind([cached - count for cached, count in zip(in_cache, kept, strict=True)])
        for row, (count, token) in enumerate(zip(outcome.num_accepted, outcome.next_token, strict=True)):
            last = [self._last_draft(outcome, row)] if count > kept[row] else []
            self.cache.unseen[row] += [*last, token]

    def _last_draft(self, outcome: Outcome, row: int) -> int:
        """Return a row's last accepted draft; read off the device only where the outcome does not have it."""
        last = outcome.last_draft[row] if outcome.last_draft else None
        return int(self.proposal.tokens[row, outcome.num_accepted[row] - 1]) if last is None else last

    def revise(self, counts: Sequence[int], tokens: Sequence[int]) -> None:
        self.cache.revise(counts, tokens)

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        self.uniforms = self.uniforms.select(rows)

    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """Yield the adjusted law of the draft before each token of a given output (one row), in chunks."""
        return (sampling.probs(logits) for logits in teacher_logits(self.session, inputs, output)[1])


class SameEncoderDrafter(ModelDrafter):
    """A draft whose encoder is the target's: it reads what the target's session encoded in place of encoding it once more.

    That changes no draft.
    """

    _encoded: Tensor | None = None

    def read(self, target: Session) -> None:
        """Take what the target's session encoded for the text that is begun next."""
        self._encoded = getattr(target, "encoded", None)

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        encoded, self._encoded = self._encoded, None
        super().begin(inputs if encoded is None else replace(inputs, encoded=encoded), pending, uniforms)


class HierarchicalDrafter:
    """Drafts have exactly the draft model's law: each round inside is speculative sampling with numbers of its own.

    Args:
        inner: drafts for the draft model. inner_draft: how many tokens it drafts a round.
    """

    def __init__(self, session: TextSession, inner: TakesBack, inner_draft: int) -> None:
        if inner_draft < 1:
            raise InputError(f"inner_draft {inner_draft!r}: expected an integer >= 1; or draft with the model alone")
        self.session, self.inner, self.inner_draft = session, inner, inner_draft
        self.cache, self.rule = _DraftCache(session), SpeculativeSampling()

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
        if proposal.has_nan is not None:
            refuse_rows(proposal.has_nan.tolist())
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
