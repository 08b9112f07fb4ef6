"""The rounds of an output, and the laws that its drafts were drawn from, where the text alone says what they were."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.run.replay.reading import DRAFT, HALF, Reader, border_of, scores_of, unfiltered, widened
from methods.specdec.blockwise import BlockwiseDrafter
from methods.specdec.drafter import BlockDrafter
from methods.speculative.model import HierarchicalDrafter, ModelDrafter
from methods.speculative.overlap import teacher_logits
from methods.speculative.per_row import PerRow, opening
from methods.speculative.translation import TextDrafter
from methods.steps import Step
from methods.types import Drafter, Inputs, Proposal


class Place(NamedTuple):
    """A place in a round that began at ``start``, and the position of an output that it stands for.

    ``first`` is the round's first random number in each stream.
    """

    start: int
    first: int
    place: int
    step: Step

    @property
    def position(self) -> int:
        return self.start + self.place

    @property
    def number(self) -> int:
        return self.first + self.place

    @property
    def token(self) -> int:
        return self.step.drafted[self.place]

    @property
    def stands(self) -> bool:
        return self.place < self.step.num_accepted


def rounds_of(steps: Sequence[Step], looks_ahead: bool = False) -> list[Place]:
    """Return the first place of every round. A rule that looks ahead looks at each random number in one round only."""
    start, first, found = 0, 0, []
    for step in steps:
        found.append(Place(start, first, 0, step))
        start += step.emitted
        first = first + len(step.drafted) + 1 if looks_ahead else start
    return found


def decided(rounds: Sequence[Place]) -> list[Place]:
    """Return the drafts that were decided on, each round's up to the first that was rejected: behind it no law is known."""
    found = []
    for one in rounds:
        kept = one.step.num_accepted
        reached = kept + (kept < min(len(one.step.drafted), one.step.emitted))
        found += [one._replace(place=place) for place in range(reached)]
    return found


def ends_of(rounds: Sequence[Place]) -> list[Place]:
    """Return the places of the tokens behind every round's accepted drafts, of rounds that no stop has cut."""
    return [one._replace(place=one.step.num_accepted) for one in rounds if one.step.emitted == one.step.num_accepted + 1]


@dataclass(frozen=True)
class Sampled:
    """A sampled output of drafts as it is replayed: its text, the target's laws, its seed's numbers and its rounds.

    Rounding may move the difference of two probabilities by ``bounds``, and a probability by ``shares`` of it.
    """

    tokens: Sequence[int]
    laws: Float[Tensor, "T V"]
    bounds: Float[Tensor, "T"]
    shares: Float[Tensor, "T"]
    numbers: Float[Tensor, "3 length"]
    rounds: Sequence[Place]


def asked_again(
    drafter: Drafter,
    reader: Reader,
    inputs: Inputs,
    tokens: Sequence[int],
    numbers: Float[Tensor, "3 length"],
    rounds: Sequence[Place],
) -> dict[int, Proposal]:
    """Return what a row drafter proposes for every round when it is asked again, by the round's start; empty of other drafters.

    Not of those that go on with a text by a model (SLEM), which is read anew (``written_on``).
    """
    if not isinstance(drafter, PerRow) or isinstance(drafter.row_drafter, TextDrafter):
        return {}
    start, found = opening(inputs.prompts[0], pending_of(reader, inputs)), {}
    draws = numbers[DRAFT].to(reader.target.stack.device)
    for one in rounds:
        if count := len(one.step.drafted):
            own = draws[one.first : one.first + count]
            found[one.start] = drafter.row_drafter.propose([*start, *tokens[: one.start]], count, own, reader.sampling)
    return found


def pending_of(reader: Reader, inputs: Inputs) -> int:
    """Return the token that an output begins behind."""
    stack = reader.target.stack
    pending = stack.start_token if stack.encodes_prompts else inputs.prompts[0][-1]
    assert pending is not None
    return pending


class Drafts:
    """What a drafter's laws were, where its text alone says so.

    A model's are known everywhere, those of a block at the drafts that were decided on, a row drafter's by asking it again.
    With ``as_points`` the rule took every draft for a point mass, whatever it was drawn from. Those of a row drafter that is
    not asked again are such. ``off``: by how much rounding may move a log-probability, and a nucleus.
    """

    def __init__(
        self, drafter: Drafter, reader: Reader, inputs: Inputs, output: Sampled, as_points: bool, off: tuple[float, float]
    ) -> None:
        self.drafter, self.output = drafter, output
        self.again = asked_again(drafter, reader, inputs, output.tokens, output.numbers, output.rounds)
        self.as_points = as_points or (isinstance(drafter, PerRow) and not self.again)
        self.vocab_size, self.device = reader.target.vocab_size, reader.target.stack.device
        self.sampling = sampling = reader.sampling
        self.laws: Tensor | None = None
        self.widest: Tensor | None = None  # of a draft that is drafted for: what its filters leave at most
        self.border: list[float] | None = None
        self.logits = _logits_by_position(drafter, inputs, pending_of(reader, inputs), output)
        if self.logits is not None:
            self.laws = sampling.probs(self.logits).double()
            if sampling.filters:
                whole = unfiltered(sampling).probs(self.logits).double()
                margin, nucleus = (whole.new_full(whole.shape[:1], by) for by in off)
                self.border = border_of(whole, sampling, margin, nucleus).tolist()
            is_half = reader.target.stack.dtype in HALF  # of which no bound is known
            if isinstance(drafter, HierarchicalDrafter) and sampling.filters and not is_half:
                self.widest = widened(sampling).probs(self.logits).double()

    def bound(self, position: int) -> float:
        """Return by how much rounding may move a draft's law there, or its difference from the target's."""
        return float(self.output.bounds[position]) + self.border_at(position)

    def border_at(self, position: int) -> float:
        """Return the part of that by which a token of the draft's may enter or leave what its filters leave."""
        return 0.0 if self.border is None or position >= len(self.border) else self.border[position]

    def laws_of(self, places: Sequence[Place]) -> tuple[list[Place], Float[Tensor, "k V"]]:
        """Return the places at which the law that the rule took for a draft's is known, behind drafts that stood; and these."""
        if self.as_points and places:
            return list(places), _point_masses([one.token for one in places], self.vocab_size, self.device)
        return self.drawn_from(places)

    def drawn_from(self, places: Sequence[Place]) -> tuple[list[Place], Float[Tensor, "k V"]]:
        """Return the places at which the law that a draft was drawn from is known, and these laws."""
        if self.again and places:
            return list(places), torch.stack([self._law(one) for one in places])
        known = [] if self.laws is None else [one for one in places if one.position < len(self.laws)]
        if self.laws is None or not known:
            return [], torch.empty(0)
        return known, self.laws[[one.position for one in known]]

    def scores_of(self, places: Sequence[Place]) -> dict[int, Float[Tensor, "V"]]:
        """Return by position the logits, after temperature and filters, that drafts were drawn from, where they are known.

        A point mass has infinite ones.
        """
        if self.as_points or self.again:
            return {one.position: self._scores(one) for one in places}
        if self.logits is None:
            return {}
        known = [one.position for one in places if one.position < len(self.logits)]
        return dict(zip(known, scores_of(self.logits[known], self.sampling), strict=True))

    def _scores(self, one: Place) -> Float[Tensor, "V"]:
        proposal = None if self.as_points else self.again[one.start]
        if proposal is None or proposal.logits is None:
            return torch.where(_point_masses([one.token], self.vocab_size, self.device)[0] > 0, torch.inf, -torch.inf)
        return scores_of(proposal.logits[0, one.place : one.place + 1], proposal.sampling)[0]

    def left_out(self, places: Sequence[Place]) -> list[Place]:
        """Return the drafts that no number can have drawn, since the filters leave them nothing; of one that is drafted for."""
        if self.widest is None:
            return []
        return [one for one in places if one.position < len(self.widest) and not self.widest[one.position, one.token]]

    def probs(self, places: Sequence[Place]) -> list[float | None]:
        """Return what its law gives each draft; None where it is not known."""
        known, laws = self.laws_of(places)
        found = laws[range(len(known)), [one.token for one in known]].tolist() if known else []
        by_place = dict(zip(map(id, known), found, strict=True))
        return [by_place.get(id(one)) for one in places]

    def _law(self, one: Place) -> Float[Tensor, "V"]:
        proposal = self.again[one.start]
        if one.place >= proposal.lengths[0]:
            return torch.zeros(self.vocab_size, dtype=torch.float64, device=self.device)
        if proposal.logits is not None:
            return proposal.sampling.probs(proposal.logits[0, one.place]).double()
        return _point_masses(proposal.tokens[0, one.place : one.place + 1].tolist(), self.vocab_size, proposal.tokens.device)[0]


def _logits_by_position(drafter: Drafter, inputs: Inputs, pending: int, output: Sampled) -> Float[Tensor, "T V"] | None:
    """Return the logits of a model or of blocks by an output's positions; None of other drafters.

    Of blocks the rows of drafts that were not decided on say nothing; in half precision no bound is known of them.
    """
    if isinstance(drafter, ModelDrafter | HierarchicalDrafter):
        found = list(teacher_logits(drafter.session, inputs, output.tokens)[1])
        return torch.cat(found) if found else None
    places = decided(output.rounds)
    if not isinstance(drafter, BlockDrafter | BlockwiseDrafter) or drafter.stack.dtype in HALF or not places:
        return None
    rows = block_rows(drafter, inputs, pending, output.tokens, places)
    at = torch.tensor([one.position for one in places], device=rows.device)
    return rows.new_zeros(len(output.tokens), rows.shape[-1]).index_copy(0, at, rows)


def block_rows(
    drafter: BlockDrafter | BlockwiseDrafter, inputs: Inputs, pending: int, tokens: Sequence[int], places: Sequence[Place]
) -> Float[Tensor, "places V"]:
    """Return the logits that drafts at some places of their blocks were chosen by."""
    starts = sorted({one.start for one in places})
    blocks = drafter.teacher_blocks(inputs, [pending], tokens, starts)
    return blocks[[starts.index(one.start) for one in places], [one.place for one in places]]


def _point_masses(tokens: Sequence[int], vocab_size: int, device: torch.device | str) -> Float[Tensor, "k V"]:
    return torch.nn.functional.one_hot(torch.tensor(tokens, device=device), vocab_size).double()
