"""Random rounds that kernels are checked on: seeded, with odd vocabularies, ties, masked tokens, equal models and filters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.verify.adjust import adjusted_logits
from kernels.verify.interface import Adjusting
from kernels.verify.reference import inverse_cdf

VOCABULARIES = (2, 3, 5, 17, 63, 64, 100, 127, 257, 500, 777, 1000, 1024)
DRAFTS = (0, 1, 1, 1, 1, 2, 2, 3, 5)
SPREADS = (0.5, 2.0, 6.0)  # standard deviations of the target's logits
NOISES = (0.0, 0.05, 0.5, 2.0)  # and of what the draft's add to them
KINDS = ("logits", "log-sum-exp", "point mass")


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """A sampling of no other room."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class RandomProposal:
    tokens: Int[Tensor, "B n"]
    lengths: tuple[int, ...]
    logits: Float[Tensor, "B n V"] | None
    sampling: Adjusting
    log_sum_exp: Float[Tensor, "B n"] | None


@dataclass(frozen=True)
class Case:
    """A batch of rows: what a rule's ``verify`` takes."""

    proposal: RandomProposal
    target_logits: Float[Tensor, "B n_plus_1 V"]
    sampling: Adjusting
    uniforms: Float[Tensor, "B n_plus_1"]


def random_cases(
    num_rows: int, dtype: torch.dtype, seed: int, filtered_every: int | None = None, batch: int = 10
) -> Iterator[Case]:
    """Batches of ``batch`` rows, ``num_rows`` in all; one batch in ``filtered_every`` has top-k or top-p."""
    generator = torch.Generator().manual_seed(seed)
    for index in range((num_rows + batch - 1) // batch):
        filtered = filtered_every is not None and index % filtered_every == filtered_every - 1
        yield random_case(generator, dtype, min(batch, num_rows - index * batch), filtered, index)


def random_case(generator: torch.Generator, dtype: torch.dtype, batch: int, filtered: bool, index: int) -> Case:
    """One batch; ``index`` walks through the vocabularies so that even a few batches see most of them."""

    def pick(values: tuple[Any, ...]) -> Any:
        return values[int(torch.randint(len(values), (), generator=generator))]

    vocab_size, num_draft = VOCABULARIES[index % len(VOCABULARIES)], pick(DRAFTS)
    sampling = Adjustment(temperature=pick((1.0, 1.0, 0.7, 1.3)))
    if filtered:
        num_draft = min(num_draft, 1)
        options = ({"top_k": 3}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.9})
        sampling = Adjustment(temperature=sampling.temperature, **options[index // len(VOCABULARIES) % 3])
    target = pick(SPREADS) * torch.randn(batch, num_draft + 1, vocab_size, generator=generator)
    draft = target[:, :-1] + pick(NOISES) * torch.randn(batch, num_draft, vocab_size, generator=generator)
    if pick((False, False, True)):
        target, draft = target.round(), draft.round()  # ties
    if vocab_size > 4 and pick((False, False, True)):
        masked = torch.rand(vocab_size, generator=generator) < 0.3
        masked[-1] = False
        target, draft = target.masked_fill(masked, float("-inf")), draft.masked_fill(masked.roll(1), float("-inf"))
    return _case(generator, target.to(dtype), draft.to(dtype), sampling, pick(KINDS))


def _case(generator: torch.Generator, target: Tensor, draft: Tensor, sampling: Adjustment, kind: str) -> Case:
    batch, num_draft, _ = draft.shape
    scaled = adjusted_logits(draft, sampling)
    numbers = torch.rand(batch, num_draft, generator=generator, dtype=torch.float64)
    tokens = inverse_cdf(scaled.softmax(-1), numbers) if num_draft else torch.zeros(batch, 0, dtype=torch.long)
    lengths = tuple(torch.randint(num_draft + 1, (batch,), generator=generator).tolist())
    if bool(torch.rand((), generator=generator) < 0.7):
        lengths = (num_draft,) * batch
    uniforms = torch.rand(batch, num_draft + 1, generator=generator, dtype=torch.float64)
    known = scaled.logsumexp(-1) if kind == "log-sum-exp" else None
    proposal = RandomProposal(tokens, lengths, None if kind == "point mass" else draft, sampling, known)
    return Case(proposal, target, sampling, uniforms)
