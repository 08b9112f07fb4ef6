"""Unigram and bigram drafters: counted tables whose evaluation is a lookup (Leviathan 3.6 and 4.2)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling
from methods.types import Proposal

MOST_TOKENS = 2**53  # a count that fp64 holds exactly


@dataclass(frozen=True)
class NGramTable:
    """How often each token occurred, and how often after each other one (sparse rows: ``indptr`` delimits a context's).

    Raises:
        InputError: if nothing was counted.
    """

    unigram_counts: Int[Tensor, "V"]
    indptr: Int[Tensor, " V_plus_1"]
    tokens: Int[Tensor, " pairs"]
    counts: Int[Tensor, " pairs"]

    def __post_init__(self) -> None:
        if int(self.unigram_counts.sum()) == 0:
            raise InputError("n-gram table: no token was counted; give at least one non-empty text")

    @property
    def vocab_size(self) -> int:
        return len(self.unigram_counts)

    @classmethod
    def count(cls, texts: Iterable[Sequence[int]], vocab_size: int) -> "NGramTable":
        """Count tokens, and pairs within each text. Raises InputError for an id outside the vocabulary."""
        arrays = [np.asarray(text, dtype=np.int64) for text in texts]
        flat = np.concatenate([*arrays, np.empty(0, dtype=np.int64)])
        if len(flat) and not 0 <= flat.min() <= flat.max() < vocab_size:
            raise InputError(f"token ids {flat.min()} to {flat.max()}: expected 0 to {vocab_size - 1}, the vocabulary")
        is_first = np.zeros(len(flat) + 1, dtype=bool)
        is_first[np.cumsum([0, *map(len, arrays)])] = True
        after = np.flatnonzero(~is_first[:-1])
        pairs, counts = np.unique(flat[after - 1] * vocab_size + flat[after], return_counts=True)
        indptr = np.concatenate(([0], np.cumsum(np.bincount(pairs // vocab_size, minlength=vocab_size))))
        unigram_counts = np.bincount(flat, minlength=vocab_size)
        return cls(*(torch.from_numpy(part) for part in (unigram_counts, indptr, pairs % vocab_size, counts)))

    @cached_property
    def unigram_log_probs(self) -> Float[Tensor, "V"]:
        return (self.unigram_counts.double() / self.unigram_counts.sum()).log().float()

    @cached_property
    def _pair_log_probs(self) -> Float[Tensor, " pairs"]:
        """Compute the log frequency of every pair's second token behind its first."""
        widths = self.indptr.diff()
        contexts = torch.arange(self.vocab_size).repeat_interleave(widths)
        totals = torch.zeros(self.vocab_size, dtype=torch.float64).index_add_(0, contexts, self.counts.double())
        return (self.counts.double() / totals[contexts]).log().float()

    def bigram_log_probs(self, context: int) -> Float[Tensor, "V"]:
        """Return the log frequency of each token behind ``token``; one that nothing followed backs off to the unigram."""
        row = slice(int(self.indptr[context]), int(self.indptr[context + 1]))
        if row.start == row.stop:
            return self.unigram_log_probs
        log_probs = torch.full((self.vocab_size,), float("-inf"))
        log_probs[self.tokens[row]] = self._pair_log_probs[row]
        return log_probs

    def save(self, path: Path) -> None:
        parts = {name: getattr(self, name).contiguous() for name in ("unigram_counts", "indptr", "tokens", "counts")}
        save_file(parts, path)

    @classmethod
    def load(cls, path: Path) -> "NGramTable":
        """Load a table; InputError for a file that is none."""
        try:
            parts = load_file(path)
            _check(parts)
            return cls(**parts)
        except (OSError, SafetensorError, TypeError, InputError) as error:
            raise InputError(f"n-gram table {path}: cannot be read ({error}); delete it and count it again") from error


def _check(parts: Mapping[str, Tensor]) -> None:
    """InputError for the first part of a file that cannot be one of a table."""
    if parts.keys() != {"unigram_counts", "indptr", "tokens", "counts"}:
        raise InputError(f"it holds {', '.join(parts) or 'nothing'}; expected unigram_counts, indptr, tokens, counts")
    size, pairs = len(parts["unigram_counts"]), len(parts["tokens"])
    ranges = {  # length, smallest, largest
        "unigram_counts": (size, 0, MOST_TOKENS),
        "indptr": (size + 1, 0, pairs),
        "tokens": (pairs, 0, size - 1),
        "counts": (pairs, 1, MOST_TOKENS),
    }
    for name, (length, least, most) in ranges.items():
        part = parts[name]
        if part.dtype != torch.int64 or tuple(part.shape) != (length,):
            kind = str(part.dtype).removeprefix("torch.")
            raise InputError(f"{name} has shape {list(part.shape)}, {kind}; expected [{length}], int64")
        if length and (int(part.min()) < least or int(part.max()) > most):
            raise InputError(f"{name} from {int(part.min())} to {int(part.max())}; expected {least} to {most}")
    indptr = parts["indptr"]
    if int(indptr[0]) != 0 or int(indptr[-1]) != pairs or bool((indptr.diff() < 0).any()):
        raise InputError(f"indptr does not rise from 0 to {pairs}, the number of pairs")


class NGramDrafter:
    """A row drafter over a counted table: order 1 ignores the text, order 2 looks at its last token."""

    def __init__(self, table: NGramTable, order: int) -> None:
        if order not in (1, 2):
            raise InputError(f"order {order!r}: expected 1 (unigram) or 2 (bigram)")
        self.table, self.order, self.vocab_size = table, order, table.vocab_size

    def log_probs(self, context: int) -> Float[Tensor, "V"]:
        return self.table.unigram_log_probs if self.order == 1 else self.table.bigram_log_probs(context)

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Float[Tensor, " n"], sampling: Sampling) -> Proposal:
        tokens, rows = [text[-1]], []
        for step in range(num_draft):
            rows.append(self.log_probs(tokens[-1]).to(uniforms.device))
            tokens.append(int(sampling.draw(rows[-1], uniforms[step])))
        logits = None if sampling.greedy else torch.stack(rows).unsqueeze(0)
        return Proposal(torch.tensor([tokens[1:]], device=uniforms.device), (num_draft,), logits, sampling)
