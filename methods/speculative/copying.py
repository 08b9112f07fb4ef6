"""Negligible-cost drafters that need no training (Leviathan 3.6): copy from the context, and guess at random."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling
from methods.speculative.per_row import point_mass
from methods.types import Proposal

UNIFORM = Sampling(temperature=1.0)


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

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, "n"], sampling: Sampling) -> Proposal:
        start, copied = self._match(text), list(text)
        if start is not None:
            for index in range(start, start + num_draft):
                copied.append(copied[index])  # may read what was just copied: a loop goes on
        return point_mass(copied[len(text) :], sampling, uniforms.device)

    def _match(self, text: Sequence[int]) -> int | None:
        """Find where the copy starts: behind the best earlier occurrence of the text's end."""
        best, best_length, backwards = None, self.min_match - 1, text[::-1]
        for index in _recurrences(backwards):
            length = self._agreement(backwards, index)
            if length > best_length:
                best, best_length = len(text) - index, length
            if best_length == self.max_match:
                break
        return best

    def _agreement(self, backwards: Sequence[int], index: int) -> int:
        length, limit = 1, min(self.max_match, len(backwards) - index)
        while length < limit and backwards[index + length] == backwards[length]:
            length += 1
        return length


class RandomDrafter:
    """Every token equally likely, whatever the target's sampling: even this gains a little (Leviathan 3.6)."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, "n"], sampling: Sampling) -> Proposal:
        tokens = (uniforms.double() * self.vocab_size).long().clamp_(max=self.vocab_size - 1)
        logits = torch.zeros(1, 1, 1, device=uniforms.device).expand(1, num_draft, self.vocab_size)
        return Proposal(tokens[None, :num_draft], (num_draft,), logits, UNIFORM)


def _recurrences(tokens: Sequence[int]) -> Iterator[int]:
    """Find where the first token occurs again."""
    index = 0
    for _ in range(tokens.count(tokens[0]) - 1):
        index = tokens.index(tokens[0], index + 1)
        yield index
