"""alpha as the paper measures it: the mean over a given text of sum_x min(target, draft) (Corollary 3.6, Section 4.2)."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from methods.sampling import Sampling
from methods.speculative.rules import Lenience
from methods.speculative.translation import TranslatedSession
from methods.types import Drafter, Inputs, Session, TextSession

CHUNK = 256


def teacher_logits(
    session: TextSession, inputs: Inputs, output: Sequence[int]
) -> tuple[list[int], Iterator[Float[Tensor, "chunk V"]]]:
    """Return one row's pending token, and the logits before each of its output tokens, at most CHUNK at a time.

    Output tokens that lie past the session's position limit are left out.
    """
    pending = session.prefill(inputs)
    text = [*pending, *output[:-1]] if output else []
    if isinstance(session, TranslatedSession):
        text = text[: session.fitting(text)]
    elif session.position_limit is not None:
        text = text[: session.position_limit - session.lengths[0][0]]
    pieces = (torch.tensor([text[start : start + CHUNK]], device=session.device) for start in range(0, len(text), CHUNK))
    return pending, (session.extend(piece)[0] for piece in pieces)


def log_prob(session: Session, inputs: Inputs, text: Sequence[int]) -> tuple[float, int]:
    """Sum of natural-log probabilities of a text, and of how many of its tokens: those past the position limit are left out."""
    total, scored = 0.0, 0
    for logits in teacher_logits(session, inputs, text)[1]:
        goal = torch.tensor(text[scored : scored + len(logits)], device=logits.device)
        total += logits.double().log_softmax(-1).gather(-1, goal[:, None]).sum().item()
        scored += len(logits)
    return total, scored


def overlap(
    target: Session,
    drafters: Sequence[Drafter],
    inputs: Inputs,
    output: Sequence[int],
    sampling: Sampling,
    leniences: Sequence[float] = (1.0,),
) -> list[dict[float, Float[Tensor, "T"]]]:
    """Compute, for each drafter and position of one row's output, the chance that a draft stands at each lenience (A.5).

    Lenience 1 is ``sum_x min(target, draft)`` of the adjusted laws: at temperature 0, whether the argmaxes agree. Below 1
    it is ``sum_x min(target / lenience, draft)``; at temperature 0 the draft's mass on tokens whose temperature-1 target
    probability is at least lenience times the largest. The target is run once for all drafters. Positions that the target
    or a drafter cannot hold are left out.
    """
    pending, target_chunks = teacher_logits(target, inputs, output)
    streams = [_Rows(drafter.teacher_probs(inputs, pending, output, sampling)) for drafter in drafters]
    parts: list[dict[float, list[Tensor]]] = [{lenience: [] for lenience in leniences} for _ in drafters]
    for logits in target_chunks:
        for stream, by_lenience in zip(streams, parts, strict=True):
            draft_probs = stream.take(len(logits)).to(logits.device)
            for lenience, values in by_lenience.items() if len(draft_probs) else ():
                values.append(acceptance(logits[: len(draft_probs)], draft_probs, sampling, lenience).double().cpu())
    return [
        {lenience: torch.cat(values) if values else torch.zeros(0) for lenience, values in by_lenience.items()}
        for by_lenience in parts
    ]


def acceptance(
    target_logits: Float[Tensor, "T V"], draft_probs: Float[Tensor, "T V"], sampling: Sampling, lenience: float
) -> Float[Tensor, "T"]:
    """Compute by position the chance that a token drawn from ``draft_probs`` stands."""
    if sampling.greedy and lenience < 1:
        return (draft_probs * Lenience(lenience).greedy_accepts(target_logits)).sum(-1)
    return torch.minimum(sampling.probs(target_logits) / lenience, draft_probs).sum(-1)


class _Rows:
    """Hands out rows of a stream of chunks in the numbers that are asked for."""

    def __init__(self, chunks: Iterator[Tensor]) -> None:
        self.chunks = chunks
        self.held: list[Tensor] = []

    def take(self, count: int) -> Float[Tensor, "count V"]:
        """Take ``count`` rows, or as many as are left."""
        while sum(map(len, self.held)) < count and (chunk := next(self.chunks, None)) is not None:
            self.held.append(chunk)
        if not self.held:
            return torch.empty(0, 0)
        rows = torch.cat(self.held)
        self.held = [rows[count:]]
        return rows[:count]
