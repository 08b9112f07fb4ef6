"""Real target and draft distributions, on which a rule's output law is integrated: those along a text of the run's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from methods.sampling import Sampling
from methods.speculative.overlap import teacher_logits
from methods.types import Drafter, Inputs, Session

LAW_BOUND = 1e-6


@dataclass(frozen=True)
class Window:
    """n + 1 neighbouring places of a text, cut to the K tokens that are likeliest there, in fp64.

    ``draft_logits`` are logarithms of the draft's adjusted law, renormalised: they are sampled at temperature 1.
    """

    target_logits: Float[Tensor, "n_plus_1 K"]
    draft_logits: Float[Tensor, "n K"]


def windows_of(
    session: Session,
    drafter: Drafter,
    inputs: Inputs,
    tokens: Sequence[int],
    sampling: Sampling,
    num_draft: int,
    count: int,
    kept: int,
) -> Iterator[Window]:
    """Up to ``count`` windows of ``num_draft`` drafts and a bonus, spread over the first half of an output (one row).

    They begin where the drafter proposes something. ``kept`` tokens of the target's and of the draft's stay.
    """
    pending, chunks = teacher_logits(session, inputs, tokens)
    logits = torch.cat(list(chunks)).double().cpu()
    laws = torch.cat(list(drafter.teacher_probs(inputs, pending, tokens, sampling))).double().cpu()
    drafted = laws.sum(-1) > 0
    last = max(0, (len(laws) - num_draft - 1) // 2)
    starts = [start for start in range(last + 1) if bool(drafted[start : start + num_draft].all())]
    for start in [starts[index * (len(starts) - 1) // max(1, count - 1)] for index in range(min(count, len(starts)))]:
        window = slice(start, start + num_draft + 1)
        fewer = min(kept, logits.shape[-1])
        both = torch.cat((logits[window].topk(fewer).indices, laws[window].topk(fewer).indices)).unique()
        draft = laws[window, both][:num_draft]
        target = logits[window][:, both]
        if len(target) == num_draft + 1 and bool((draft.sum(-1) > 0).all()):
            yield Window(target, (draft / draft.sum(-1, keepdim=True)).log())
