"""Drafters written for one row, lifted to a batch, and three that need no training.

They copy the text or guess (Leviathan 3.6), or continue it as it most often went on (Oliaro et al. 2024).

A row drafter is a pure function of the text so far: ``propose(text, num_draft, uniforms, sampling)`` returns a Proposal of
one row with at most ``num_draft`` tokens. The adapter keeps each row's text (prompt, or source and start token, then the
output), so a row drafter holds no state, needs no roll-back, and one object serves every row.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.speculative.options import SuffixOptions
from methods.types import Inputs, Outcome, Proposal

UNIFORM = Sampling(temperature=1.0)


@runtime_checkable
class _RowDrafter(Protocol):
    """``vocab_size`` is V; ``uniforms`` has one number for each token that may be drafted."""

    vocab_size: int

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, " n"], sampling: Sampling) -> Proposal: ...


class PerRow:
    """A Drafter from a row drafter."""

    def __init__(self, row_drafter: _RowDrafter) -> None:
        self.row_drafter = row_drafter

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        self.uniforms = uniforms
        self.texts = [opening(prompt, token) for prompt, token in zip(inputs.prompts, pending, strict=True)]
        self.drafted: list[list[int]] = [[] for _ in self.texts]

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        uniforms = self.uniforms.draft(positions, max(num_draft))
        proposals = [
            self.row_drafter.propose(text, count, row[:count], sampling) if count else Proposal.nothing(1, sampling, row.device)
            for text, count, row in zip(self.texts, num_draft, uniforms, strict=True)
        ]
        self.drafted = [one.tokens[0].tolist() for one in proposals]
        return proposals[0] if len(proposals) == 1 else _batch(proposals, self.row_drafter.vocab_size)

    def commit(self, outcome: Outcome) -> None:
        for row, (count, token) in enumerate(zip(outcome.num_accepted, outcome.next_token, strict=True)):
            self.texts[row] += [*self.drafted[row][:count], token]

    def revise(self, counts: Sequence[int], tokens: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each text and append one."""
        for text, count, token in zip(self.texts, counts, tokens, strict=True):
            del text[len(text) - count :]
            text.append(token)

    def select(self, rows: Sequence[int]) -> None:
        self.uniforms = self.uniforms.select(rows)
        self.texts = [list(self.texts[row]) for row in rows]

    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """Yield the law of the first draft before each token of a given output (one row); 0 everywhere where there is none."""
        text = opening(inputs.prompts[0], pending[0])
        for token in output:
            proposal = self.row_drafter.propose(text, 1, torch.zeros(1, dtype=torch.float64), sampling)
            yield _first_law(proposal, self.row_drafter.vocab_size)
            text.append(token)


def opening(prompt: Sequence[int], pending: int) -> list[int]:
    """Return the text before the first output token: a prompt with its pending token, a source with the start token."""
    return [*prompt] if prompt and prompt[-1] == pending else [*prompt, pending]


def point_mass(tokens: Sequence[int], sampling: Sampling, device: torch.device) -> Proposal:
    """Propose one row of tokens that were chosen, not drawn."""
    return Proposal(torch.tensor([tokens], dtype=torch.long, device=device), (len(tokens),), None, sampling)


def _first_law(proposal: Proposal, vocab_size: int) -> Float[Tensor, "1 V"]:
    if proposal.lengths[0] == 0:
        return torch.zeros(1, vocab_size, device=proposal.tokens.device)
    if proposal.logits is not None:
        return proposal.sampling.probs(proposal.logits[0, :1])
    return torch.nn.functional.one_hot(proposal.tokens[0, :1], vocab_size).float()


def _batch(proposals: Sequence[Proposal], vocab_size: int) -> Proposal:
    """Right-pad rows to the longest; rows that propose nothing do not decide whether there are logits.

    Where rows have different kinds of laws (point masses beside logits, or other samplings) all are given as log-probabilities.
    """
    lengths = tuple(one.lengths[0] for one in proposals)
    longest = max(lengths)
    tokens = proposals[0].tokens.new_zeros(len(proposals), longest)
    kinds = {None if one.logits is None else one.sampling for one in proposals if one.lengths[0]}
    proposals = [_with_law(one, vocab_size) for one in proposals] if len(kinds) > 1 else proposals
    drawn = [one.logits for one in proposals if one.logits is not None]
    logits = drawn[0].new_zeros(len(proposals), longest, vocab_size) if drawn else None
    for row, one in enumerate(proposals):
        tokens[row, : lengths[row]] = one.tokens[0]
        if logits is not None and one.logits is not None:
            logits[row, : lengths[row]] = one.logits[0]
    sampling = next((one.sampling for one in proposals if one.logits is not None), proposals[0].sampling)
    return Proposal(tokens, lengths, logits, sampling)


def _with_law(proposal: Proposal, vocab_size: int) -> Proposal:
    """Return a row's proposal with the logarithms of its law as logits, at temperature 1."""
    if proposal.logits is None:
        probs = torch.nn.functional.one_hot(proposal.tokens, vocab_size).float()
    else:
        probs = proposal.sampling.probs(proposal.logits)
    return Proposal(proposal.tokens, proposal.lengths, probs.log(), UNIFORM)


class CopyDrafter:
    """Continues as the text did where its end occurred before: the longest such suffix, the latest of equals.

    Args:
        min_match, max_match: how many tokens must agree, and how many are looked at.

    Differs from the paper: it only says "copies tokens from the context in case we find a matching prefix".
    """

    def __init__(self, vocab_size: int, min_match: int = 1, max_match: int = 8) -> None:
        if not 1 <= min_match <= max_match:
            raise InputError(f"min_match {min_match!r}, max_match {max_match!r}: expected 1 <= min_match <= max_match")
        self.vocab_size, self.min_match, self.max_match = vocab_size, min_match, max_match

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, " n"], sampling: Sampling) -> Proposal:
        start, copied = self._match(text), list(text)
        if start is not None:
            for index in range(start, start + num_draft):
                copied.append(copied[index])  # may read what was just copied: a loop goes on
        return point_mass(copied[len(text) :], sampling, uniforms.device)

    def _match(self, text: Sequence[int]) -> int | None:
        """Find where the copy starts: behind the best earlier occurrence of the text's end."""
        best, best_length, backwards = None, self.min_match - 1, text[::-1]
        for index in _recurrences(backwards):
            length = _agreement(backwards, index, self.max_match)
            if length > best_length:
                best, best_length = len(text) - index, length
            if best_length == self.max_match:
                break
        return best


class SuffixDrafter:
    """Continues as the text most often did behind its own end, as far as that is likely (SuffixDecoding, Oliaro et al. 2024).

    Every length of the end that occurred before makes a chain: the token that most of its occurrences went on with, then that
    which most of those went on with, and so on. A token's share is the chance to come so far, by these counts. The chain with
    the largest sum of shares, so many drafts are expected to stand, is proposed; of equals that of the longest end.

    Args:
        match_factor: a chain has at most so many times as many tokens as its end. min_share: it ends before a smaller share.

    Differs from the paper: the counts are of this text alone, prompt and output, not of earlier answers too; a chain, not a
    tree. At most MAX_MATCH tokens of an end are looked at, as deep as the authors' tree is in vLLM.
    """

    MAX_MATCH = 24

    def __init__(self, vocab_size: int, match_factor: float = 1.0, min_share: float = 0.1) -> None:
        SuffixOptions(match_factor=match_factor, min_share=min_share)
        self.vocab_size, self.match_factor, self.min_share = vocab_size, match_factor, min_share

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, " n"], sampling: Sampling) -> Proposal:
        backwards = text[::-1]
        ends = [(_agreement(backwards, index, self.MAX_MATCH), len(text) - index) for index in _recurrences(backwards)]
        best, most = list[int](), 0.0
        for length in sorted({length for length, _ in ends}):  # between two of these the occurrences are the same
            room = min(num_draft, int(length * self.match_factor))
            chain, expected = self._chain(text, [start for own, start in ends if own >= length], room)
            if expected >= most:
                best, most = chain, expected
        return point_mass(best, sampling, uniforms.device)

    def _chain(self, text: Sequence[int], starts: list[int], room: int) -> tuple[list[int], float]:
        """Follow what most occurrences, which go on at ``starts``, went on with, of equals the latest; its sum of shares."""
        chain, share, expected = list[int](), 1.0, 0.0
        while len(chain) < room and (followed := [start for start in starts if start + len(chain) < len(text)]):
            [(token, count)] = Counter(text[start + len(chain)] for start in followed).most_common(1)
            share *= count / len(followed)
            if share < self.min_share:
                break
            starts = [start for start in followed if text[start + len(chain)] == token]
            chain.append(token)
            expected += share
        return chain, expected


class RandomDrafter:
    """Every token equally likely, whatever the target's sampling: even this gains a little (Leviathan 3.6)."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, " n"], sampling: Sampling) -> Proposal:
        tokens = (uniforms.double() * self.vocab_size).long().clamp_(max=self.vocab_size - 1)
        logits = torch.zeros(1, 1, 1, device=uniforms.device).expand(1, num_draft, self.vocab_size)
        return Proposal(tokens[None, :num_draft], (num_draft,), logits, UNIFORM)


def _agreement(backwards: Sequence[int], index: int, most: int) -> int:
    """Return how many tokens, at most so many, are the same from the first on and from ``index`` on."""
    length, limit = 1, min(most, len(backwards) - index)
    while length < limit and backwards[index + length] == backwards[length]:
        length += 1
    return length


def _recurrences(tokens: Sequence[int]) -> Iterator[int]:
    """Find where the first token occurs again."""
    index = 0
    for _ in range(tokens.count(tokens[0]) - 1):
        index = tokens.index(tokens[0], index + 1)
        yield index
