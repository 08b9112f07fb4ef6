"""Standardised sampling (Leviathan 2.2): temperature, argmax, top-k and top-p as adjusted distributions.

Every decoding method draws from ``Sampling.probs(logits)`` by inverting its cumulative distribution at a given uniform,
so the random numbers are inputs and two methods that are given the same ones can be compared token by token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.transfer import to_device
from kernels.verify.reference import Sampling

__all__ = ["EndlessUniforms", "LaidUniforms", "Sampling", "Uniforms", "log_sum_exp"]


class Uniforms:
    """Uniform numbers keyed by the position of the emitted token, one independent stream a row and a purpose.

    Keying by position makes a row's output independent of the batch it is in and of how others advance. A number may be
    looked at twice (a drafted position that was never verified is drafted again), but nothing that was emitted ever
    depended on the first look, so the emitted tokens keep their law. Plain sampling and a round that starts at position t
    both draw their final token with ``sample[t]``. A rule that looks ahead breaks this: see ``endless``.

    Args:
        seeds: one a row, from 0 to 2**64 - 1; all their bits count (Philox, Salmon et al. 2011).
        length: the number of positions: max_new_tokens. What a ragged batch reads beyond it is padding.
    """

    DRAFT, ACCEPT, SAMPLE = range(3)

    def __init__(self, seeds: Sequence[int], length: int, device: torch.device | str = "cpu", level: int = 0) -> None:
        self.seeds, self.length, self.level = tuple(seeds), length, level
        rows = [_numbers(seed, level, length) for seed in self.seeds]
        self.table: Float[Tensor, "B 3 length"] = torch.from_numpy(np.stack(rows)).to(device)

    def draft(self, starts: Sequence[int], count: int) -> Float[Tensor, "B count"]:
        return self._window(self.DRAFT, starts, count)

    def verify(self, starts: Sequence[int], count: int) -> Float[Tensor, "B count_plus_1"]:
        """``count`` acceptance uniforms followed by the one that draws the round's last token."""
        return torch.cat((self._window(self.ACCEPT, starts, count), self._window(self.SAMPLE, starts, 1)), -1)

    def sample(self, starts: Sequence[int]) -> Float[Tensor, " B"]:
        return self._window(self.SAMPLE, starts, 1).squeeze(-1)

    def nested(self) -> "Uniforms":
        """Independent numbers, as endless as these, for a drafter that itself drafts and verifies."""
        return type(self)(self.seeds, self.length, self.table.device, self.level + 1)

    def endless(self) -> "Uniforms":
        """The same numbers and more behind them, for rounds that must never look at a number again."""
        return EndlessUniforms(self.seeds, self.length, self.table.device, self.level)

    def select(self, rows: Sequence[int]) -> "Uniforms":
        chosen = object.__new__(type(self))
        chosen.seeds, chosen.length, chosen.level = tuple(self.seeds[r] for r in rows), self.length, self.level
        chosen.table = self.table.index_select(0, to_device(rows, self.table.device))
        return chosen

    def _window(self, stream: int, starts: Sequence[int], count: int) -> Float[Tensor, "B count"]:
        if len(starts) == 1:
            return self.table[:, stream, starts[0] : starts[0] + count]
        return _gathered(self.table[:, stream], to_device(starts, self.table.device), count)


class LaidUniforms:
    """Numbers at a fixed place, where captured steps read those of text after text, at positions that lie on the device, too.

    Rows behind those of a batch hold anything.
    """

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.length = length
        self._table = torch.zeros(rows, 3, length, device=device, dtype=torch.float64)
        self._held: Uniforms | None = None

    def can_hold(self, uniforms: Uniforms) -> bool:
        """Say whether a text's numbers fit: those of a rule that looks ahead have no end."""
        return type(uniforms) is Uniforms and uniforms.length <= self.length

    def hold(self, uniforms: Uniforms) -> None:
        """Copy what is read from now on, once."""
        if uniforms is not self._held:
            rows, _, length = uniforms.table.shape
            self._table[:rows, :, :length].copy_(uniforms.table)
            self._held = uniforms

    def draft(self, starts: Int[Tensor, " rows"], count: int) -> Float[Tensor, "rows count"]:
        """As ``Uniforms``'."""
        return _gathered(self._table[:, Uniforms.DRAFT], starts, count)

    def verify(self, starts: Int[Tensor, " rows"], count: int) -> Float[Tensor, "rows count_plus_1"]:
        """As ``Uniforms``'."""
        drawn = _gathered(self._table[:, Uniforms.SAMPLE], starts, 1)
        return torch.cat((_gathered(self._table[:, Uniforms.ACCEPT], starts, count), drawn), -1)

    def sample(self, starts: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """As ``Uniforms``'."""
        return _gathered(self._table[:, Uniforms.SAMPLE], starts, 1).squeeze(-1)


def _gathered(table: Float[Tensor, "B length"], starts: Int[Tensor, " B"], count: int) -> Float[Tensor, "B count"]:
    columns = starts.unsqueeze(-1) + torch.arange(count, device=table.device)
    return table.gather(-1, columns.clamp(max=table.shape[-1] - 1))


class EndlessUniforms(Uniforms):
    """Uniform numbers whose table grows by ``length`` columns when one behind its end is asked for."""

    def _window(self, stream: int, starts: Sequence[int], count: int) -> Float[Tensor, "B count"]:
        while self.table.shape[-1] < max(starts) + count:
            block = self.table.shape[-1] // self.length
            rows = [_numbers(seed, self.level, self.length, block) for seed in self.seeds]
            self.table = torch.cat((self.table, torch.from_numpy(np.stack(rows)).to(self.table.device)), -1)
        return super()._window(stream, starts, count)


def _numbers(seed: int, level: int, length: int, block: int = 0) -> np.ndarray:
    """[3, length] fp64 in [0, 1) of the generator that a seed and a level of nesting are the key of.

    Blocks of one key are 2**64 steps of its counter apart.
    """
    key, counter = np.array([seed, level], dtype=np.uint64), np.array([0, block, 0, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).random((3, length))


def log_sum_exp(
    logits: Float[Tensor, "*batch V"], tokens: Int[Tensor, "*batch"], probs: Float[Tensor, "*batch"], sampling: Sampling
) -> Float[Tensor, "*batch"]:
    """Compute the log-sum-exp of logits over the temperature from the probabilities of tokens: no row is read again."""
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).to(probs.dtype)
    return chosen / sampling.temperature - probs.log()
