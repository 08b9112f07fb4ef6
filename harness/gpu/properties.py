"""Properties of verification kernels that need no reference: rows do not see one another, runs agree, and the ends of numbers.

Each function returns whether a property holds of one kernel in one dtype. Faults that they are for: a race between programs,
an index of another row, ``<=`` in place of ``<`` at uniform 0, a residual with what the draft alone emits, NaN that is drawn.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernels.inputs import InputError
from kernels.verify.check import Case, case_at, moved
from kernels.verify.filter_gpu import thresholds
from kernels.verify.interface import Backend, Proposal, Verdict
from kernels.verify.reference import Sampling, adjusted_logits
from kernels.verify.registry import KERNELS

PLAIN = Sampling(temperature=1.0)
ROWS, DRAFTS, VOCAB_SIZE = 8, 3, 700
AGAIN = 5  # runs of the same rows
Decide = Callable[[Case], Verdict]


def check_all(kernel: str, dtype: torch.dtype, device: str, backend: Backend | None) -> dict[str, bool]:
    """Return whether each property holds."""
    options = {} if kernel == "baseline" else {"backend": backend}

    def decide(case: Case) -> Verdict:
        return KERNELS[kernel](*moved(case, device), **options)

    given = case_at(torch.Generator().manual_seed(1), dtype, ROWS, VOCAB_SIZE, DRAFTS, PLAIN)
    found = {
        "the same again": is_repeatable(decide, given),
        "equal rows alike": treats_alike(decide, given),
        "permuted rows permuted": is_row_wise(decide, given),
        "rejected rows draw from the target's own": draws_residual(decide, dtype),
        "NaN and infinity draw nothing": refuses_not_finite(decide, dtype, device),
    }
    if kernel == "baseline":  # which accepts it as transformers' function does, once in 2**53
        return found
    return found | {"what the target never emits is refused at uniform 0": refuses_at_zero(decide, dtype)}


def is_repeatable(decide: Decide, given: Case) -> bool:
    """A race would show as another decision on the same rows, now and then."""
    first = decide(given)
    return all(_equal(first, decide(given)) for _ in range(AGAIN))


def treats_alike(decide: Decide, given: Case) -> bool:
    """Copies of one row, side by side."""
    verdict = decide(_chosen(given, [0] * ROWS))
    return bool((verdict.num_accepted == verdict.num_accepted[0]).all() and (verdict.next_token == verdict.next_token[0]).all())


def is_row_wise(decide: Decide, given: Case) -> bool:
    """Rows in another order, with lengths of their own."""
    order = list(reversed(range(ROWS)))
    proposal = replace(given[0], lengths=tuple(row % (DRAFTS + 1) for row in range(ROWS)))
    ragged = (proposal, *given[1:])
    straight, turned = decide(ragged), decide(_chosen(ragged, order))
    return torch.equal(straight.num_accepted[order], turned.num_accepted) and torch.equal(
        straight.next_token[order], turned.next_token
    )


def refuses_at_zero(decide: Decide, dtype: torch.dtype) -> bool:
    """A draft of target probability 0 at uniform 0 exactly: refused, and the token drawn in its place has a probability."""
    target = torch.zeros(2, 2, 9, dtype=dtype)
    target[:, :, :3] = float("-inf")
    verdict = decide(_case(target, torch.zeros(2, 1, 9, dtype=dtype), torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 2)))
    return verdict.num_accepted.tolist() == [0, 0] and verdict.next_token.tolist() == [3, 3]


def draws_residual(decide: Decide, dtype: torch.dtype) -> bool:
    """Every row refuses its draft; what follows is never a token that only the draft emits."""
    target, draft = torch.zeros(4, 2, 8, dtype=dtype), torch.zeros(4, 1, 8, dtype=dtype)
    target[:, :, :4] = draft[:, :, 4:] = float("-inf")
    numbers = torch.tensor([[0.5, at] for at in (0.0, 0.3, 0.7, 1 - 2.0**-53)], dtype=torch.float64)
    verdict = decide(_case(target, draft, torch.tensor([[0], [1], [2], [3]]), numbers))
    return verdict.num_accepted.tolist() == [0] * 4 and verdict.next_token.tolist() == [4, 5, 6, 7]


def refuses_not_finite(decide: Decide, dtype: torch.dtype, device: str) -> bool:
    """On a device the token is the vocabulary's size, in that row alone, without a wait; on a CPU the round is refused."""
    for value in (float("nan"), float("inf")):
        target = torch.zeros(2, 2, 9, dtype=dtype)
        target[1, :, 4] = value
        given = _case(target, torch.zeros(2, 1, 9, dtype=dtype), torch.zeros(2, 1, dtype=torch.long), torch.full((2, 2), 0.5))
        try:
            drawn = decide(given).next_token.tolist()
        except InputError:
            drawn = None
        is_right = drawn is None if device == "cpu" else drawn is not None and drawn[0] != 9 and drawn[1] == 9
        if not is_right:
            return False
    return True


def check_thresholds(device: str, vocab_size: int) -> bool:
    """Rows with nearly all mass on one token, on two alike, and on none: the filter's cut is that of a stable sort."""
    logits = torch.randn(1, 3, vocab_size, generator=torch.Generator().manual_seed(2))
    logits[0, 0, vocab_size // 2], logits[0, 1, 5], logits[0, 1, 7] = 40.0, 30.0, 30.0
    sampling = Sampling(temperature=1.0, top_p=0.6)
    limits, ties = (part.cpu() for part in thresholds((logits.to(device), sampling))[0])
    ids = torch.arange(vocab_size)
    keep = (logits > limits[..., None]) | ((logits == limits[..., None]) & (ids >= ties[..., None]))
    return torch.equal(keep, adjusted_logits(logits.double(), sampling).isfinite())


def _case(target: Tensor, draft: Tensor, tokens: Tensor, uniforms: Tensor) -> Case:
    return Proposal(tokens, (tokens.shape[1],) * len(tokens), draft, PLAIN), target, PLAIN, uniforms.double()


def _chosen(given: Case, rows: list[int]) -> Case:
    proposal, target, sampling, uniforms = given
    pick = partial(_rows, rows=rows)
    chosen = Proposal(
        proposal.tokens[rows], tuple(proposal.lengths[row] for row in rows), pick(proposal.logits), proposal.sampling,
        pick(proposal.log_sum_exp),
    )  # fmt: skip
    return chosen, target[rows], sampling, uniforms[rows]


def _rows(part: Tensor | None, rows: list[int]) -> Tensor | None:
    return None if part is None else part[rows]


def _equal(first: Verdict, second: Verdict) -> bool:
    return torch.equal(first.num_accepted, second.num_accepted) and torch.equal(first.next_token, second.next_token)
