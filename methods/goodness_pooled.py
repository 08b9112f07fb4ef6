"""Goodness of fit over all contexts at once, for laws so flat that no context is seen often (``goodness`` tests contexts).

A sampled token is turned into a number that is uniform and independent of all before it if the token has the target's law: its
place in the cumulative law, chosen at random within the token's own share (the randomised probability integral transform).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.goodness import Fit, Sampled, goodness_of_fit
from methods.sampling import Sampling
from methods.types import Inputs, Session

CELLS, SIDE = 8, 4


class Numbers:
    """The uniform numbers of outputs of one length, from a forward pass of the target over all of them.

    ``by_rank`` takes tokens from the likeliest down and so shows where too many likely or unlikely ones are drawn; ``by_id``
    takes them in the order in which sampling inverts the law and so shows random numbers that are used twice.
    """

    def __init__(self, samples: Sequence[Sampled], target: Session, sampling: Sampling, batch: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        length = max(len(row.tokens) for one in samples for row in one.rows)
        ranks, ids, first = [], [], []
        for one in samples:
            rows = [row for row in one.rows if len(row.tokens) == length]
            for start in range(0, len(rows), batch):
                some = rows[start : start + batch]
                tokens = torch.tensor([row.tokens for row in some])
                probs = sampling.probs(_logits(target, one.inputs, tokens)).double().cpu()
                by_rank, by_id = places_of(probs, tokens, generator)
                ranks.append(by_rank)
                ids.append(by_id)
                first += [row.steps[0].emitted for row in some]
        self.by_rank: Float[Tensor, "N L"] = torch.cat(ranks)
        self.by_id: Float[Tensor, "N L"] = torch.cat(ids)
        self.first_round = torch.tensor(first)

    def fits(self, num_draft: int, false_alarm: float) -> dict[str, Fit]:
        """Ranks at every position and place of the first round, and neighbouring positions' numbers against one another."""
        length = self.by_rank.shape[1]
        found = {f"ranks at position {place}": evenness(self.by_rank[:, place], false_alarm) for place in range(length)}
        for place in range(1, num_draft + 1) if num_draft else ():
            name = "bonus" if place == num_draft else f"draft {place}"
            found[f"ranks of {name}"] = evenness(self.by_rank[self.first_round > place, place], false_alarm)
        for place in range(1, length):
            cells = (self.by_id[:, place - 1 : place + 1].clamp(0, 1 - 1e-12) * SIDE).long()
            counts = torch.bincount(cells[:, 0] * SIDE + cells[:, 1], minlength=SIDE**2)
            found[f"numbers at {place - 1}, {place}"] = goodness_of_fit([counts.tolist()], [[SIDE**-2] * SIDE**2], false_alarm)
        return found


def places_of(
    probs: Float[Tensor, "*batch V"], tokens: Int[Tensor, "*batch"], generator: torch.Generator
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Where tokens lie in their laws: among the tokens by rank, and by id. Uniform if they were drawn from these laws."""
    spread = torch.rand(tokens.shape, dtype=torch.float64, generator=generator)
    own = probs.gather(-1, tokens.unsqueeze(-1))
    likelier = torch.where(probs > own, probs, 0.0).sum(-1)
    tied = torch.where(probs == own, probs, 0.0)
    before = tied.cumsum(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - own.squeeze(-1)
    below = probs.cumsum(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - own.squeeze(-1)
    total = probs.sum(-1)
    return (likelier + before + spread * own.squeeze(-1)) / total, (below + spread * own.squeeze(-1)) / total


def evenness(numbers: Float[Tensor, "N"], false_alarm: float) -> Fit:
    """Whether numbers are uniform on [0, 1], by counts in CELLS equal parts."""
    counts = torch.bincount((numbers.clamp(0, 1 - 1e-12) * CELLS).long(), minlength=CELLS)
    return goodness_of_fit([counts.tolist()], [[1 / CELLS] * CELLS], false_alarm)


@torch.inference_mode()
def _logits(target: Session, inputs: Inputs, tokens: Tensor) -> Float[Tensor, "B L V"]:
    features = None if inputs.features is None else inputs.features.expand(len(tokens), -1, -1)
    pending = target.prefill(Inputs(inputs.prompts * len(tokens), features))
    text = torch.cat((torch.tensor(pending).unsqueeze(1), tokens[:, :-1]), 1)
    return target.extend(text.to(target.device))
