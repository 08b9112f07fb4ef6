"""How likely a model finds a given text: one teacher-forced pass, in chunks, no probability matrix kept."""

import torch

from methods.speculative.overlap import teacher_logits
from methods.types import Inputs, Session
from tasks.base import ReferenceScore


def score_reference(session: Session, prompt: tuple[int, ...], reference: tuple[int, ...], text: str) -> ReferenceScore:
    """Sum of natural-log probabilities of ``reference`` after ``prompt``; tokens past the position limit are left out.

    ``num_bytes`` is scaled to the part of the text that was scored.
    """
    total, scored = 0.0, 0
    for logits in teacher_logits(session, Inputs((prompt,)), reference)[1]:
        goal = torch.tensor(reference[scored : scored + len(logits)], device=logits.device)
        total += logits.double().log_softmax(-1).gather(-1, goal[:, None]).sum().item()
        scored += len(logits)
    share = scored / len(reference) if reference else 0.0
    return ReferenceScore(total, scored, round(len(text.encode()) * share))
