"""How likely a model finds a given text: one teacher-forced pass, in chunks, no probability matrix kept."""

import torch

from methods.types import Inputs, Session
from tasks.base import ReferenceScore

CHUNK = 256


def score_reference(session: Session, prompt: tuple[int, ...], reference: tuple[int, ...], text: str) -> ReferenceScore:
    """Sum of natural-log probabilities of ``reference`` after ``prompt``; tokens past the position limit are left out.

    ``num_bytes`` is scaled to the part of the text that was scored.
    """
    pending = session.prefill(Inputs((prompt,)))
    room = len(reference) if session.position_limit is None else session.position_limit - len(prompt)
    scored = reference[: max(room, 0)]
    fed = [pending[0], *scored[:-1]]
    total = 0.0
    for start in range(0, len(scored), CHUNK):
        logits = session.extend(torch.tensor([fed[start : start + CHUNK]]))[0]
        goal = torch.tensor(scored[start : start + CHUNK], device=logits.device)
        total += logits.double().log_softmax(-1).gather(-1, goal[:, None]).sum().item()
    share = len(scored) / len(reference) if reference else 0.0
    return ReferenceScore(total, len(scored), round(len(text.encode()) * share))
