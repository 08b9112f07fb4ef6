"""Every decision of an output, each with its distance from what the readings give: choices, acceptances, draws."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.run.replay.drafts import Drafts, Place, Sampled, block_rows, decided, ends_of, rounds_of
from harness.run.replay.reading import ACCEPT, DRAFT, HALF, NEAR_TIE_FLOAT32, SAMPLE, Reading
from methods.models.base import Stack
from methods.specdec.blockwise import BlockwiseDrafter
from methods.specdec.drafter import BlockDrafter
from methods.speculative.model import HierarchicalDrafter, ModelDrafter
from methods.speculative.overlap import teacher_logits
from methods.speculative.per_row import PerRow, opening
from methods.speculative.translation import TextDrafter
from methods.steps import Step
from methods.types import Drafter, Generation, Inputs, Proposal, Schedule

STATED, WRITTEN = 1e-4, 1e-7  # of a probability that a rule states: how far its own may be; a record has seven digits of both
ROWS = 64  # laws that are summed up at a time
WRITTEN_ROUNDS = 6  # of an output, for which a draft model reads the text anew


class Decision(NamedTuple):
    """A decision at a position of an output: how far it is beyond its border (0: right), and what rounding may move."""

    position: int
    what: str
    off: float
    bound: float

    @property
    def is_fault(self) -> bool:
        """Whether rounding does not explain it. NaN explains nothing."""
        return not self.off <= self.bound


def overdrafted(steps: Sequence[Step], asked: Sequence[int]) -> Iterator[Decision]:
    """Yield a fault for a round of more drafts than were ``asked`` for. A drafter may give fewer."""
    for one, count in zip(rounds_of(steps), asked, strict=True):
        if len(one.step.drafted) > count:
            yield Decision(one.start, "number of drafts", float(len(one.step.drafted) - count), 0.0)


def asked_of(steps: Sequence[Step], schedule: Schedule, length: int) -> list[int]:
    """Return how many drafts a schedule of the row's own asks for in each round, by what the rounds before it told.

    ``length`` is how many tokens the output may have: the target adds the last one itself.
    """
    emitted, found = 0, []
    for step in steps:
        found.append(min(schedule.next(), length - emitted - 1))
        schedule.observe(len(step.drafted), step.num_accepted)
        emitted += step.emitted
    return found


def miscounted(steps: Sequence[Step]) -> Iterator[Decision]:
    """Yield a fault for a round that emitted less than the drafts that it says stood, or more than one token behind them."""
    start = 0
    for step in steps:
        if not step.num_accepted <= step.emitted <= step.num_accepted + 1:
            yield Decision(start, "number of accepted drafts", 1.0, 0.0)
        start += step.emitted


def choices(made: Generation, reading: Reading, exact: bool, keeps_last: bool = False) -> Iterator[Decision]:
    """Yield how much worse each token is than the target's first choice, and how much better a draft is that was rejected.

    ``exact``: only the target's first choices stand; ``keeps_last``: where all of a round's drafts do, the last one counts as
    the target's own.
    """
    logits, bounds = reading.logits.double(), reading.margin_bound.tolist()
    best = logits.topk(min(2, logits.shape[-1])).values
    tokens = torch.tensor(made.tokens, device=logits.device)
    worse = (best[:, 0] - logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)).tolist()
    yield from (Decision(place, "choice", off, bounds[place]) for place, off in enumerate(worse))
    for start, _, _, step in rounds_of(made.steps) if exact else ():
        kept, end = step.num_accepted, start + step.num_accepted
        if any(made.tokens[start + place] != step.drafted[place] for place in range(min(kept, step.emitted))):
            yield Decision(start, "accepted draft that was not emitted", 1.0, 0.0)
        if kept < min(len(step.drafted) - keeps_last, step.emitted):
            own = float(logits[end, step.drafted[kept]])
            yield Decision(end, "rejection", own - float(best[end, -1]) if own == float(best[end, 0]) else 0.0, bounds[end])


def passes(reading: Reading) -> Iterator[Decision]:
    """Yield how far our own pass is from fp32's before each token, in half precision."""
    if reading.passes is not None:
        offs, bounds = (one.tolist() for one in reading.passes)
        yield from (Decision(place, "logits", off, bound) for place, (off, bound) in enumerate(zip(offs, bounds, strict=True)))


def first_choices(
    drafter: Drafter, inputs: Inputs, pending: int, made: Generation, rounds: Sequence[Place]
) -> Iterator[Decision]:
    """Yield how much worse each draft of a model or a block is than its first choice; in half precision no bound is known."""
    places = decided(rounds)
    if isinstance(drafter, BlockDrafter | BlockwiseDrafter):
        if not places or drafter.stack.dtype in HALF:
            return
        rows = block_rows(drafter, inputs, pending, made.tokens, places).double()
    elif isinstance(drafter, ModelDrafter | HierarchicalDrafter):
        logits = torch.cat(list(teacher_logits(drafter.session, inputs, made.tokens)[1]))
        places = [one for one in places if one.position < len(logits)]
        if not places or logits.dtype in HALF:
            return
        rows = logits[[one.position for one in places]].double()
    else:
        return
    worse = rows.amax(-1) - rows[range(len(places)), [one.token for one in places]]
    for one, off in zip(places, worse.tolist(), strict=True):
        yield Decision(one.position, "draft", off, NEAR_TIE_FLOAT32)


def acceptances(output: Sampled, drafts: Drafts, lenience: float | None, states_drafts: bool) -> Iterator[Decision]:
    """Yield what was decided of drafts, and how far stated probabilities are from what the laws say.

    Without a ``lenience`` the decisions are a rule's own, and are not looked at. ``states_drafts``: what the rule states of a
    draft is what the drafter's law gives it; another's rule may have taken it for something else.
    """
    if not (places := decided(output.rounds)):
        return
    probs = output.laws[[one.position for one in places], [one.token for one in places]].tolist()
    accepts = output.numbers[ACCEPT].tolist()
    for one, prob, law in zip(places, probs, drafts.probs(places), strict=True):
        step, position, bound = one.step, one.position, drafts.bound(one.position)
        if one.stands and output.tokens[position] != one.token:
            yield Decision(position, "accepted draft that was not emitted", 1.0, 0.0)
        if one.place < len(step.target_probs):
            yield Decision(position, "target's probability of a draft", abs(step.target_probs[one.place] - prob), bound)
        if one.place < len(step.draft_probs):
            stated = step.draft_probs[one.place]
            if lenience is not None:
                what, sign = ("acceptance", 1) if one.stands else ("rejection", -1)
                asked = lenience * accepts[one.number] * stated  # at most the target's probability where the draft stands
                yield Decision(position, what, sign * (asked - prob), bound)
                if one.place < len(step.target_probs):  # by what the rule itself says: rounding alone, however small both are
                    own = step.target_probs[one.place]
                    yield Decision(position, what, sign * (asked - own), STATED * max(asked, own) + WRITTEN)
            if law is not None and states_drafts:
                yield Decision(position, "draft's probability", abs(stated - law), bound)


def repeated_drafts(rounds: Sequence[Place], again: Mapping[int, Proposal]) -> Iterator[Decision]:
    """Yield for every draft that was decided on whether its drafter, asked ``again``, proposes another token."""
    for one in decided(rounds) if again else ():
        token = again[one.start].tokens[0, one.place : one.place + 1].tolist()
        yield Decision(one.position, "draft", float(token != [one.token]), 0.0)


def written_on(drafter: Drafter, inputs: Inputs, pending: int, made: Generation, asked: Sequence[int]) -> Iterator[Decision]:
    """Yield for some rounds whether a draft model's first choices behind the text spell other drafts than were proposed (SLEM).

    Each of these rounds is read anew, by passes of transformers' own model on a cache of its own. In half precision, and
    where rounding may choose another token, nobody knows.
    """
    if not isinstance(drafter, PerRow) or not isinstance(drafter.row_drafter, TextDrafter):
        return
    start, translation = opening(inputs.prompts[0], pending), drafter.row_drafter.translation
    session = drafter.row_drafter.new_session()
    stack: Stack | None = getattr(session, "stack", None)
    if stack is None or stack.dtype in HALF:
        return
    rounds = [(one, count) for one, count in zip(rounds_of(made.steps), asked, strict=True) if count > 0]
    for one, count in rounds[:: -(-len(rounds) // WRITTEN_ROUNDS) or 1]:
        own = translation.prompt((*start, *made.tokens[: one.start]))
        room = count if session.position_limit is None else min(count, session.position_limit - len(own))
        new = _first_choices_behind(stack, own, room)
        if new is not None:
            expected = list(translation.back(new))[:count]
            yield Decision(one.start, "draft", float(list(one.step.drafted) != expected), 0.0)


def _first_choices_behind(stack: Stack, text: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return a model's next tokens behind a text; None where two are as likely, but for rounding."""
    new: tuple[int, ...] = ()
    cache = None
    while text and len(new) < count:
        unread = (*text, *new) if cache is None else new[-1:]
        rows = torch.tensor([unread], device=stack.device)
        read = stack.model(input_ids=rows, past_key_values=cache, use_cache=True, return_dict=True)
        best, cache = read.logits[0, -1].topk(2), read.past_key_values
        if float(best.values[0] - best.values[1]) <= NEAR_TIE_FLOAT32:
            return None
        new = (*new, int(best.indices[0]))
    return new


def drawn_drafts(output: Sampled, drafts: Drafts) -> Iterator[Decision]:
    """Yield how far every draft that was decided on is from what its law and random number give.

    Of a draft that is itself drafted for, none drew one that its law leaves out; ``nested`` says which number drew the others.
    """
    for one in drafts.left_out(decided(output.rounds)):
        yield Decision(one.position, "draft", 1.0, 0.0)
    if drafts.again or isinstance(drafts.drafter, ModelDrafter | BlockDrafter | BlockwiseDrafter):
        known, laws = drafts.drawn_from(decided(output.rounds))
        if known:
            at, numbers = [one.position for one in known], output.numbers[DRAFT][[one.number for one in known]]
            bounds = torch.tensor([drafts.bound(position) for position in at])
            yield from draws("draft", at, [one.token for one in known], laws, numbers, bounds)


def last_tokens(output: Sampled, drafts: Drafts) -> Iterator[Decision]:
    """Yield how far the number behind every round's drafts is from what it drew: of the target's law, or of a residual."""
    ends = ends_of(output.rounds)
    whole = [one for one in ends if one.place == len(one.step.drafted)]
    rejected, taken = drafts.laws_of([one for one in ends if one.place < len(one.step.drafted)])
    for rounds in (whole, rejected):
        if rounds:
            at = [one.position for one in rounds]
            weights = output.laws[at] if rounds is whole else (output.laws[at] - taken).clamp(min=0)
            drawn = output.numbers[SAMPLE][[one.first for one in rounds]]
            bounds = torch.tensor([drafts.bound(end) for end in at])
            yield from draws("drawn token", at, [output.tokens[end] for end in at], weights, drawn, bounds)


def draws(
    what: str,
    positions: Sequence[int],
    tokens: Sequence[int],
    weights: Float[Tensor, "T V"],
    numbers: Float[Tensor, " length"],
    bounds: Float[Tensor, "T"],
) -> Iterator[Decision]:
    """Yield how far each number is from its token's share, in weight: so a small residual's rounding is not scaled up."""
    for first in range(0, len(tokens), ROWS):
        some = slice(first, first + ROWS)
        offs = draw_off(weights[some], torch.tensor(tokens[some]), numbers[: len(tokens)][some])
        for position, off, bound in zip(positions[some], offs.tolist(), bounds[some].tolist(), strict=True):
            yield Decision(position, what, off, bound)


def draw_off(weights: Float[Tensor, "T V"], tokens: Tensor, numbers: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
    """Return how far a number is from its token's share of the weights, in weight; 0 inside it."""
    borders = weights.double().cumsum(-1)
    own = tokens.to(borders.device).unsqueeze(-1)
    high = borders.gather(-1, own).squeeze(-1)
    low = high - weights.double().gather(-1, own).squeeze(-1)
    goal = numbers.to(borders.device) * borders[:, -1]
    return torch.maximum(low - goal, goal - high).clamp(min=0)
