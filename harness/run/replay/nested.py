"""Drafts that are drafted for in turn: which inner draft stood, and which number drew the one behind it, said again.

Nobody wrote the inner rounds down. They follow from the text, the numbers of the level below and the inner drafter's laws:
inside, too, a draft stands where number * its inner law <= the draft model's, and what follows is drawn from the residual
(Leviathan, Algorithm 1). Nothing of the drafter's own loop, rule or numbers is used.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.run.replay.decisions import Decision, draw_off
from harness.run.replay.drafts import Drafts, Place, decided, pending_of
from harness.run.replay.reading import ACCEPT, DRAFT, HALF, SAMPLE, Reader
from methods.speculative.model import HierarchicalDrafter, ModelDrafter
from methods.speculative.overlap import teacher_logits
from methods.speculative.per_row import PerRow, opening
from methods.speculative.translation import TextDrafter
from methods.types import Inputs


class _Guess(NamedTuple):
    """An inner draft and the law that it was drawn from; no token where rounding decides which it was."""

    token: int | None
    law: Float[Tensor, "V"]


class NestedDrafts:
    """The inner rounds of an output whose drafts were drafted for; ``numbers`` are those of its seed's next level."""

    def __init__(self, drafts: Drafts, reader: Reader, inputs: Inputs, numbers: Float[Tensor, "3 length"]) -> None:
        assert isinstance(drafts.drafter, HierarchicalDrafter)
        self.drafts, self.numbers, self.sampling = drafts, numbers, reader.sampling
        self.inner, self.inner_draft = drafts.drafter.inner, drafts.drafter.inner_draft
        self.text = opening(inputs.prompts[0], pending_of(reader, inputs))
        laws, self.inner_laws = drafts.laws, torch.empty(0)
        if isinstance(self.inner, ModelDrafter):
            found = list(teacher_logits(self.inner.session, inputs, drafts.output.tokens)[1])
            self.inner_laws = self.sampling.probs(torch.cat(found)).double() if found else self.inner_laws
        is_row = isinstance(self.inner, PerRow) and not isinstance(self.inner.row_drafter, TextDrafter)
        is_half = reader.target.stack.dtype in HALF  # of which no bound is known
        self.is_known = not is_half and laws is not None and (is_row or len(self.inner_laws) > 0)
        self.laws = torch.empty(0) if laws is None else laws

    def decisions(self) -> Iterator[Decision]:
        """Yield how far every draft that was decided on is from what inner drafts and numbers give."""
        for one in self.drafts.output.rounds if self.is_known else ():
            places = [place for place in decided([one]) if place.position < len(self.laws)]
            while places:
                made = list(self._inner_round(places))
                yield from (decision for decision in made if decision is not None)
                if None in made or not made:
                    break  # rounding decides where the next round begins
                places = places[len(made) :]

    def _inner_round(self, places: list[Place]) -> Iterator[Decision | None]:
        """Yield a decision for each draft of the inner round that begins at the first place; None where rounding decides."""
        first, left = places[0], len(places[0].step.drafted) - places[0].place
        guesses = self._guesses(places[: max(0, min(self.inner_draft, left - 1))])
        for one, guess in zip(places, guesses, strict=False):
            if guess.token is None:
                yield None
                return
            own, bound = float(self.laws[one.position, guess.token]), self.drafts.bound(one.position)
            beyond = float(self.numbers[ACCEPT, one.number]) * float(guess.law[guess.token]) - own
            if beyond < -bound or (beyond <= bound and one.token == guess.token):
                yield Decision(one.position, "draft", float(one.token != guess.token), 0.0)
                if one.token != guess.token:
                    return
                continue
            yield self._drawn(one, (self.laws[one.position] - guess.law).clamp(min=0), first)
            return
        if len(guesses) < len(places):
            yield self._drawn(places[len(guesses)], self.laws[places[len(guesses)].position], first)

    def _drawn(self, one: Place, weights: Float[Tensor, "V"], first: Place) -> Decision:
        number = self.numbers[SAMPLE][[first.number]]
        off = float(draw_off(weights[None], torch.tensor([one.token]), number))
        return Decision(one.position, "draft", off, self.drafts.bound(one.position))

    def _guesses(self, places: list[Place]) -> list[_Guess]:
        """Return the inner drafts at these places, behind drafts that stood."""
        if not places:
            return []
        first = places[0]
        if isinstance(self.inner, PerRow):
            text = [*self.text, *self.drafts.output.tokens[: first.start], *first.step.drafted[: first.place]]
            draws = self.numbers[DRAFT][first.number : first.number + len(places)].to(self.laws.device)
            proposal = self.inner.row_drafter.propose(text, len(places), draws, self.sampling)
            tokens = proposal.tokens[0, : proposal.lengths[0]].tolist()
            if proposal.logits is None:
                laws = torch.nn.functional.one_hot(proposal.tokens[0], self.laws.shape[-1]).double()
            else:
                laws = proposal.sampling.probs(proposal.logits[0]).double()
            return [_Guess(token, law) for token, law in zip(tokens, laws, strict=False)]
        return [self._guess(one, self.inner_laws[one.position]) for one in places if one.position < len(self.inner_laws)]

    def _guess(self, one: Place, law: Float[Tensor, "V"]) -> _Guess:
        """Return what a number draws: the draft itself where it may be, nothing where the number is near a border."""
        number, bound = self.numbers[DRAFT, one.number], self.drafts.bound(one.position)
        if float(draw_off(law[None], torch.tensor([one.token]), number[None])) <= bound:
            return _Guess(one.token, law)
        lower, drawn, upper = (_drawn_by(law, float(number) + shift) for shift in (-bound, 0.0, bound))
        return _Guess(drawn if lower == upper else None, law)


def _drawn_by(law: Float[Tensor, "V"], number: float) -> int:
    borders = law.cumsum(-1)
    goal = min(max(number, 0.0), 1.0) * borders[-1]
    return min(int(torch.searchsorted(borders, goal, right=True)), len(law) - 1)
