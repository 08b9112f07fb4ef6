"""A round's verdict on its way to the host."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.verify.interface import refuse_rows
from methods.types import Proposal, Verdict


class Decided(NamedTuple):
    """A row's round on the host. Lists are as long as the longest row's drafts; ``choices`` has one more, or none at all."""

    num_accepted: int
    next_token: int
    drafted: Sequence[int]
    target_probs: Sequence[float]
    draft_probs: Sequence[float]
    choices: Sequence[int] = ()


def to_host(proposal: Proposal, verdict: Verdict) -> list[Decided]:
    """Bring a round's results to the host. From a GPU in one transfer.

    NotFiniteError where the draft's logits hold NaN.
    """
    if proposal.tokens.is_cuda:
        return parted(joined(proposal, verdict), proposal.tokens.shape[1], proposal.has_nan is not None)
    if proposal.has_nan is not None:
        refuse_rows(proposal.has_nan.tolist())
    return [Decided(*row) for row in zip(*(column.tolist() for column in _columns(proposal, verdict)), strict=True)]


def joined(proposal: Proposal, verdict: Verdict) -> Float[Tensor, "B columns"]:
    """Join a round's results, for one transfer: fp32 holds token ids exactly up to 2**24. On a CPU that takes five times as
    long as to read them one by one."""
    columns = _columns(proposal, verdict)
    columns += [] if proposal.has_nan is None else [proposal.has_nan]
    return torch.cat([column.unsqueeze(1) if column.dim() == 1 else column for column in columns], 1)


def parted(results: Float[Tensor, "B columns"], num_draft: int, knows_nan: bool) -> list[Decided]:
    """Bring joined results to the host and part them again.

    NotFiniteError where the draft's logits hold NaN.
    """
    host = results.cpu()
    whole = host.long()
    if knows_nan:
        refuse_rows(whole[:, -1].bool().tolist())
        whole = whole[:, :-1]
    target, draft = (2 + place * num_draft for place in (1, 2))
    behind = 2 + 3 * num_draft
    columns = (whole[:, 0], whole[:, 1], whole[:, 2:target], host[:, target:draft], host[:, draft:behind], whole[:, behind:])
    return [Decided(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _columns(proposal: Proposal, verdict: Verdict) -> list[Tensor]:
    """Number of accepted drafts, next token, drafts, probabilities of both models and, where a rule has them, choices."""
    columns = [verdict.num_accepted, verdict.next_token, proposal.tokens, verdict.target_probs, verdict.draft_probs]
    return columns if verdict.choices is None else [*columns, verdict.choices]
