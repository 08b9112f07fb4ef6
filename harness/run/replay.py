"""Replays an output: its text is read by another path, and every decision of it must be what that gives.

The text is read at once by transformers' own forward pass, which shares nothing with our sessions but the weights, and its
logits become laws by transformers' own processors. Greedy: every token must be the target's first choice behind the text
before it, and every draft of a model that model's. Sampled: the recorded probabilities of drafts, every acceptance and every
drawn token must be what the laws and the random numbers of the output's seed give. What is farther from its border than
rounding can move it is a fault. No other arm is needed, so what all arms have wrong alike is found too.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from harness.core.experiment import Experiment
from harness.core.records import Divergence, Record
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.block_intervals import carried, stands
from harness.run.decode import outputs_of
from harness.run.instruments import ProfiledRule
from harness.run.prompts import Prompt, seed_of
from methods.models.base import Stack
from methods.sampling import Sampling
from methods.speculative.block_verification import BlockVerification
from methods.speculative.decode import DraftAndVerify
from methods.speculative.engine_rules import PointMass
from methods.speculative.model import HierarchicalDrafter, ModelDrafter
from methods.speculative.overlap import teacher_logits
from methods.speculative.per_row import PerRow, opening
from methods.speculative.rules import KernelRule, SpeculativeSampling
from methods.steps import Step
from methods.transformers_generate import TransformersGenerate
from methods.types import Drafter, Generation, Inputs, Method, VerifyRule

NEAR_TIE_FLOAT32 = 1e-4  # a difference of two logits, or of two probabilities, that rounding may make in fp32
WITHIN = 4  # in half precision: typical errors of a law, measured on the same text, that a border may have moved
MEMORY = (torch.OutOfMemoryError, MemoryError)
LEAST = -690.0  # log of 1e-300
DRAFT, ACCEPT, SAMPLE = range(3)  # streams of ``Uniforms``, said again: what confuses them there is found here
ROWS = 64  # laws that are summed up at a time
KEPT_BYTES = 2**28  # of readings that are kept for other arms' equal texts; the last one always is


class Decision(NamedTuple):
    """A decision at a position of an output: how far it is beyond its border (0: right), and what rounding may move."""

    position: int
    what: str
    off: float
    bound: float


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


@dataclass(frozen=True)
class Replayed:
    """How many decisions of an output were replayed, and the first that the target does not give."""

    decisions: int
    fault: Divergence | None


@dataclass(frozen=True)
class Reading:
    """A text as it was read: logits before each of its tokens, and by how much rounding may move a margin and a law there."""

    logits: Float[Tensor, "T V"]
    margin_bound: Float[Tensor, "T"]
    law_bound: Float[Tensor, "T"]

    def nats(self, tokens: Sequence[int]) -> float:
        """Return minus the log-probability of the text, at temperature 1; of a token that cannot be, what JSON can hold."""
        own = torch.tensor(tokens, device=self.logits.device).unsqueeze(-1)
        logits = self.logits if self.logits.dtype == torch.float64 else self.logits.float()
        return -float(logits.log_softmax(-1).gather(-1, own).double().clamp(min=LEAST).sum())


@dataclass
class Reader:
    """Reads texts through a target by transformers' own forward pass, each distinct one once: exact greedy arms share one."""

    target: LoadedModel
    sampling: Sampling
    models: Models
    known: dict[tuple[Any, ...], Reading] = field(default_factory=dict)

    def read(self, inputs: Inputs, tokens: Sequence[int]) -> Reading:
        """Return one row's output as it was read, now or before. Raises RuntimeError where memory does not suffice."""
        heard = None if inputs.features is None else inputs.features.cpu().numpy().tobytes()
        key = (inputs.prompts, heard, tuple(tokens))
        self.known[key] = found = self.known.pop(key, None) or _read_within(self, inputs, tokens)
        while len(self.known) > 1 and sum(one.logits.nbytes for one in self.known.values()) > KEPT_BYTES:
            del self.known[next(iter(self.known))]  # the one that was asked for longest ago
        return found


def replay_record(record: Record, experiment: Experiment, method: Method, prompt: Prompt, reader: Reader) -> Record:
    """Return a record with what the target gives for its text, how many decisions were replayed and the first fault.

    A fault takes the place of a near-tie. Windows of a recording are read one after another. What does not fit into memory,
    and a recording with a window that says nothing, is not read.
    """
    outputs, rounds = outputs_of(experiment, prompt, record.tokens or [], reader.target), _rounds(record)
    decisions, nats, start, fault = list[int](), 0.0, 0, record.divergence
    try:
        for window, (inputs, tokens) in enumerate(zip(prompt.windows(), outputs, strict=False)):
            if not tokens:
                return record
            made = Generation(tokens, _taken(rounds, len(tokens)), "length")
            seed = seed_of(experiment, prompt.example.id, record.repeat, window)
            found = replay(method, reader, inputs, made, seed, experiment.max_new_tokens)
            if found is not None:
                decisions.append(found.decisions)
            if found is not None and found.fault is not None and (fault is None or fault.kind != "bug"):
                fault = dataclasses.replace(found.fault, position=start + found.fault.position)
            nats += reader.read(inputs, tokens).nats(tokens)
            start += len(tokens)
    except MEMORY:
        return record
    return dataclasses.replace(record, replayed=sum(decisions) if decisions else None, nats=nats, divergence=fault)


def _rounds(record: Record) -> list[Step]:
    return record.steps.rounds(record.stop_reason) if record.steps else []


def _taken(rounds: list[Step], count: int) -> list[Step]:
    """Take the rounds that emitted the next ``count`` tokens."""
    taken = []
    while count > 0 and rounds:
        taken.append(rounds.pop(0))
        count -= taken[-1].emitted
    return taken


@torch.inference_mode()
def replay(method: Method, reader: Reader, inputs: Inputs, made: Generation, seed: int, length: int) -> Replayed | None:
    """Replay one row's output; None for a method whose tokens are not the target's own choices or draws.

    ``seed`` and ``length`` are those of its ``Uniforms``. Raises RuntimeError where memory does not suffice.
    """
    if not is_replayed(method, reader.sampling) or not made.tokens:
        return None
    found = sorted(_decisions(method, reader, inputs, made, seed, length), key=lambda one: one.position)
    fault = next((one for one in found if not one.off <= one.bound), None)
    return Replayed(len(found), None if fault is None else _divergence(fault))


def is_replayed(method: Method, sampling: Sampling) -> bool:
    """Say whether a method's tokens are the target's first choices, or draws with numbers that can be had again."""
    if method.guarantee == "lossy" or getattr(method, "num_beams", 1) > 1:
        return False
    return sampling.greedy or not isinstance(method, TransformersGenerate)


def _divergence(fault: Decision) -> Divergence:
    margin = min(fault.off, 1e30)  # what JSON can hold
    return Divergence(
        position=fault.position, margin=margin, bound=fault.bound, replays_agree=False, kind="bug", what=fault.what
    )


def read_text(stack: Stack, model: Any, inputs: Inputs, tokens: Sequence[int]) -> Float[Tensor, "T V"]:
    """Return the logits before each token of one row's output, by one pass of a transformers model and without a cache."""
    (prompt,), before, device = inputs.prompts, list(tokens[:-1]), stack.device
    if stack.encodes_prompts:
        source = torch.tensor([prompt], device=device)
        text = torch.tensor([[stack.start_token, *before]], device=device)
        given: dict[str, Tensor] = {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": text,
        }
    elif inputs.features is not None:
        features = inputs.features.to(device, next(model.parameters()).dtype)
        given = {"input_features": features, "decoder_input_ids": torch.tensor([[*prompt, *before]], device=device)}
    else:
        given = {"input_ids": torch.tensor([[*prompt, *before]], device=device)}
    logits = model(**given, use_cache=False, return_dict=True).logits[0, -len(tokens) :].clone()
    never = () if inputs.features is None else model.generation_config.suppress_tokens or ()
    logits[:, list(never)] = float("-inf")
    logits[:1, list(stack.begin_suppressed)] = float("-inf")
    return logits


def numbers_of(seed: int, length: int, count: int = 0) -> Float[Tensor, "3 at_least_count"]:
    """Return the numbers that belong to a seed, made anew: nothing of ``Uniforms`` is used.

    They come in blocks of ``length``; so many are made that there are ``count``, or one.
    """
    key, found = np.array([seed, 0], dtype=np.uint64), []
    for block in range(max(1, -(-count // length))):
        counter = np.array([0, block, 0, 0], dtype=np.uint64)
        found.append(torch.from_numpy(np.random.Generator(np.random.Philox(key=key, counter=counter)).random((3, length))))
    return torch.cat(found, 1)


@torch.inference_mode()
def _read_within(reader: Reader, inputs: Inputs, tokens: Sequence[int]) -> Reading:
    """Read a text. In half precision it is read in fp32 too, with the same weights: how far the two part bounds rounding."""
    target, sampling, stack = reader.target, reader.sampling, reader.target.stack
    if stack.parts:
        logits = torch.cat(list(teacher_logits(target.session(), inputs, tokens)[1]))
    else:
        logits = read_text(stack, stack.model, inputs, tokens)
    if logits.dtype not in (torch.float16, torch.bfloat16) or stack.parts:
        bound = torch.full((len(logits),), NEAR_TIE_FLOAT32, device=logits.device)
        return Reading(logits, bound, bound)
    wide = read_text(stack, reader.models.widened(target), inputs, tokens)
    margin = 2 * (logits.float() - wide).nan_to_num().abs().amax(-1)
    if sampling.greedy:
        return Reading(wide, margin, margin)
    apart = (sampling.probs(logits) - sampling.probs(wide)).abs().sum(-1) / 2
    return Reading(wide, margin, WITHIN * (apart + apart.square().mean().sqrt()))


def _decisions(method: Method, reader: Reader, inputs: Inputs, made: Generation, seed: int, length: int) -> Iterator[Decision]:
    sampling, reading = reader.sampling, reader.read(inputs, made.tokens)
    if sampling.greedy:
        yield from _choices(made, reading, _draws_residuals(method))
        if isinstance(method, DraftAndVerify):
            yield from _first_choices(method.drafter, inputs, made)
        return
    laws = law_of(reading.logits, sampling).double()
    if not isinstance(method, DraftAndVerify):
        drawn = numbers_of(seed, length)[SAMPLE]
        yield from _draws("drawn token", range(len(laws)), made.tokens, laws, drawn, reading.law_bound)
        return
    bounds, rule = 2 * reading.law_bound, _rule_of(method)  # both laws are rounded
    exact, blocks = _draws_residuals(method), isinstance(rule, BlockVerification)
    rounds = list(_begun(made.steps, blocks or method.looks_ahead))
    numbers = numbers_of(seed, length, max(one.first + len(one.step.drafted) + 1 for one in rounds))
    drafts = _Drafts(method.drafter, reader, inputs, made, numbers, rounds, isinstance(rule, PointMass))
    yield from _accepted(made, laws, numbers, bounds.tolist(), exact and not blocks, drafts)
    yield from drafts.draws(bounds)
    if blocks:
        shares = 4 * reading.margin_bound / sampling.temperature  # of a probability: its logit's rounding and the sum's, twice
        yield from _blocks(made, laws, numbers, bounds.tolist(), shares.tolist(), drafts)
    elif exact:
        yield from _last_tokens(made, laws, numbers, bounds, drafts)


def _begun(steps: Sequence[Step], looks_ahead: bool) -> Iterator[Place]:
    """Yield the first place of every round. A rule that looks ahead looks at each random number in one round only."""
    start, first = 0, 0
    for step in steps:
        yield Place(start, first, 0, step)
        start += step.emitted
        first = first + len(step.drafted) + 1 if looks_ahead else start


def _decided(rounds: Sequence[Place]) -> Iterator[Place]:
    """Yield the drafts that were decided on, each round's up to the first that was rejected: behind it no law is known."""
    for one in rounds:
        kept = one.step.num_accepted
        reached = kept + (kept < min(len(one.step.drafted), one.step.emitted))
        yield from (one._replace(place=place) for place in range(reached))


def _blocks(
    made: Generation,
    laws: Float[Tensor, "T V"],
    numbers: Float[Tensor, "3 length"],
    bounds: Sequence[float],
    shares: Sequence[float],
    drafts: "_Drafts",
) -> Iterator[Decision]:
    """Yield, of each round of block verification, why so many drafts stand, and how its last token was drawn.

    Behind the first draft that does not stand the text says nothing of the laws, so only its last draft is looked at there.
    A round that a stop has cut may have accepted more than it emitted and is left out.
    """
    for one in drafts.rounds:
        step, kept, length = one.step, one.step.num_accepted, len(one.step.drafted)
        if step.emitted != kept + 1:
            continue
        places = [one._replace(place=place) for place in range(min(kept + 1, length))]
        known, known_laws = drafts.laws_of(places)
        rows = dict(zip((at.place for at in known), known_laws, strict=True))
        own = [float(laws[at.position, at.token]) for at in places]
        theirs = [float(rows[at.place][at.token]) if at.place in rows else step.draft_probs[at.place] for at in places]
        reached = carried(own, theirs, *([part[at.position] for at in places] for part in (bounds, shares)))
        end, accepts = one.start + kept, numbers[ACCEPT]
        if kept and (kept == length or kept in rows):
            ours, taken = (None, None) if kept == length else (laws[end], rows[kept])
            chance = stands(reached[kept], ours, taken, bounds[end])
            yield Decision(end - 1, "acceptance", float(accepts[one.first + kept - 1]) - chance.high, 0.0)
        if kept == length - 1:
            yield Decision(end, "rejection", reached[length].low - float(accepts[one.first + kept]), 0.0)
        if kept == length or kept in rows:
            p = reached[kept]
            weights = laws[end] if kept == length else ((p.low + p.high) / 2 * laws[end] - rows[kept]).clamp(min=0)
            off = float(draw_off(weights[None], torch.tensor([made.tokens[end]]), numbers[SAMPLE][[one.first]]))
            yield Decision(end, "drawn token", off, bounds[end] + (p.width if kept < length else 0.0))


def _accepted(
    made: Generation,
    laws: Float[Tensor, "T V"],
    numbers: Float[Tensor, "3 length"],
    bounds: Sequence[float],
    exact: bool,
    drafts: "_Drafts",
) -> Iterator[Decision]:
    """Yield what was decided of drafts, and how far stated probabilities are from what the laws say."""
    if not (places := list(_decided(drafts.rounds))):
        return
    probs = laws[[one.position for one in places], [one.token for one in places]].tolist()
    accepts = numbers[ACCEPT].tolist()
    for one, prob, law in zip(places, probs, drafts.probs(places), strict=True):
        step, position, bound, stands = one.step, one.position, bounds[one.position], one.place < one.step.num_accepted
        if stands and made.tokens[position] != one.token:
            yield Decision(position, "accepted draft that was not emitted", 1.0, 0.0)
        if one.place < len(step.target_probs):
            yield Decision(position, "target's probability of a draft", abs(step.target_probs[one.place] - prob), bound)
        if one.place < len(step.draft_probs):
            stated = step.draft_probs[one.place]
            over = accepts[one.number] * stated - prob  # at most 0 where the draft stands
            if exact:
                yield Decision(position, "acceptance" if stands else "rejection", over if stands else -over, bound)
            if law is not None:
                yield Decision(position, "draft's probability", abs(stated - law), bound)


def _last_tokens(
    made: Generation,
    laws: Float[Tensor, "T V"],
    numbers: Float[Tensor, "3 length"],
    bounds: Float[Tensor, "T"],
    drafts: "_Drafts",
) -> Iterator[Decision]:
    """Yield how far the number behind every round's drafts is from what it drew: of the target's law, or of a residual."""
    ends = [one._replace(place=one.step.num_accepted) for one in drafts.rounds if one.step.emitted == one.step.num_accepted + 1]
    whole = [one for one in ends if one.place == len(one.step.drafted)]
    rejected = [one for one in ends if one.place < len(one.step.drafted)]
    rejected, taken = drafts.laws_of(rejected)
    for rounds in (whole, rejected):
        if rounds:
            at = [one.position for one in rounds]
            weights = laws[at] if rounds is whole else (laws[at] - taken).clamp(min=0)
            drawn = numbers[SAMPLE][[one.first for one in rounds]]
            yield from _draws("drawn token", at, [made.tokens[end] for end in at], weights, drawn, bounds[at])


def _choices(made: Generation, reading: Reading, exact: bool) -> Iterator[Decision]:
    """Yield how much worse each token is than the target's first choice, and how much better a draft is that was rejected."""
    logits, bounds = reading.logits.double(), reading.margin_bound.tolist()
    best = logits.topk(min(2, logits.shape[-1])).values
    tokens = torch.tensor(made.tokens, device=logits.device)
    worse = (best[:, 0] - logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)).tolist()
    yield from (Decision(place, "choice", off, bounds[place]) for place, off in enumerate(worse))
    start = 0
    for step in made.steps if exact else ():
        kept, end = step.num_accepted, start + step.num_accepted
        if any(made.tokens[start + place] != step.drafted[place] for place in range(min(kept, step.emitted))):
            yield Decision(start, "accepted draft that was not emitted", 1.0, 0.0)
        if kept < min(len(step.drafted), step.emitted):
            own = float(logits[end, step.drafted[kept]])
            yield Decision(end, "rejection", own - float(best[end, -1]) if own == float(best[end, 0]) else 0.0, bounds[end])
        start += step.emitted


def _first_choices(drafter: Drafter, inputs: Inputs, made: Generation) -> Iterator[Decision]:
    """Yield how much worse each draft of a model is than that model's first choice; in half precision no bound is known."""
    if not isinstance(drafter, ModelDrafter | HierarchicalDrafter):
        return
    logits = torch.cat(list(teacher_logits(drafter.session, inputs, made.tokens)[1]))
    places = [one for one in _decided(list(_begun(made.steps, False))) if one.position < len(logits)]
    if not places or logits.dtype in (torch.float16, torch.bfloat16):
        return
    rows = logits[[one.position for one in places]].double()
    worse = rows.amax(-1) - rows[range(len(places)), [one.token for one in places]]
    for one, off in zip(places, worse.tolist(), strict=True):
        yield Decision(one.position, "draft", off, NEAR_TIE_FLOAT32)


def law_of(logits: Float[Tensor, "T V"], sampling: Sampling) -> Float[Tensor, "T V"]:
    """Return the laws that logits become by transformers' own processors: nothing of ``Sampling.probs`` is used."""
    kinds: list[Any] = [TemperatureLogitsWarper(float(sampling.temperature))]
    kinds += [] if sampling.top_k is None else [TopKLogitsWarper(sampling.top_k)]
    kinds += [] if sampling.top_p is None else [TopPLogitsWarper(sampling.top_p)]
    scores = logits if logits.dtype == torch.float64 else logits.float()
    for kind in kinds:
        scores = kind(None, scores)
    return scores.softmax(-1)


def _draws(
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


def _rule_of(method: DraftAndVerify) -> VerifyRule:
    return method.rule.rule if isinstance(method.rule, ProfiledRule) else method.rule


def _draws_residuals(method: Method) -> bool:
    """Say whether a method decides by Algorithm 1 of Leviathan et al. or by block verification, which can be replayed."""
    if not isinstance(method, DraftAndVerify):
        return False
    rule = _rule_of(method)
    exact_kernel = isinstance(rule, KernelRule) and rule.guarantee == "same_distribution"
    return exact_kernel or isinstance(rule, SpeculativeSampling | BlockVerification)


class _Drafts:
    """What a drafter's laws were, where its text alone says so: a model's everywhere, a row drafter's by asking it again.

    With ``as_points`` the rule took every draft for a point mass, whatever it was drawn from.
    """

    def __init__(
        self,
        drafter: Drafter,
        reader: Reader,
        inputs: Inputs,
        made: Generation,
        numbers: Float[Tensor, "3 length"],
        rounds: Sequence[Place],
        as_points: bool,
    ) -> None:
        sampling, stack, prompt = reader.sampling, reader.target.stack, inputs.prompts[0]
        pending = stack.start_token if stack.encodes_prompts else prompt[-1]
        assert pending is not None
        self.drafter, self.sampling, self.numbers = drafter, sampling, numbers
        self.text, self.rounds, self.opening = made.tokens, rounds, opening(prompt, pending)
        self.as_points, self.vocab_size, self.device = as_points, reader.target.vocab_size, stack.device
        self.laws: Tensor | None = None
        self.again: dict[int, Any] = {}
        if isinstance(drafter, ModelDrafter | HierarchicalDrafter):
            found = list(drafter.teacher_probs(inputs, [pending], made.tokens, sampling))
            self.laws = torch.cat(found).double() if found else None

    def laws_of(self, places: Sequence[Place]) -> tuple[list[Place], Float[Tensor, "k V"]]:
        """Return the places at which the law that the rule took for a draft's is known, behind drafts that stood; and these."""
        if self.as_points and places:
            tokens = torch.tensor([one.token for one in places], device=self.device)
            return list(places), torch.nn.functional.one_hot(tokens, self.vocab_size).double()
        return self._drawn_from(places)

    def _drawn_from(self, places: Sequence[Place]) -> tuple[list[Place], Float[Tensor, "k V"]]:
        """Return the places at which the law that a draft was drawn from is known, and these laws."""
        reach = 0 if self.laws is None else len(self.laws)
        known = list(places) if isinstance(self.drafter, PerRow) else [one for one in places if one.position < reach]
        if not known:
            return [], torch.empty(0)
        if self.laws is not None:
            return known, self.laws[[one.position for one in known]]
        assert isinstance(self.drafter, PerRow)
        return known, torch.stack([self._law(self.drafter, one) for one in places])

    def probs(self, places: Sequence[Place]) -> list[float | None]:
        """Return what its law gives each draft; None where it is not known."""
        known, laws = self.laws_of(places)
        found = laws[range(len(known)), [one.token for one in known]].tolist() if known else []
        by_place = dict(zip(map(id, known), found, strict=True))
        return [by_place.get(id(one)) for one in places]

    def draws(self, bounds: Float[Tensor, "T"]) -> Iterator[Decision]:
        """Yield how far every draft that was decided on is from what its law and random number give."""
        places = list(_decided(self.rounds))
        if isinstance(self.drafter, PerRow):
            for one in places:
                again = self._again(self.drafter, one).tokens[0, one.place : one.place + 1].tolist()
                yield Decision(one.position, "draft", float(again != [one.token]), 0.0)
        known, laws = self._drawn_from(places) if isinstance(self.drafter, ModelDrafter) else ([], torch.empty(0))
        if known:
            at, numbers = [one.position for one in known], self.numbers[DRAFT][[one.number for one in known]]
            yield from _draws("draft", at, [one.token for one in known], laws, numbers, bounds[at])

    def _law(self, drafter: PerRow, one: Place) -> Float[Tensor, "V"]:
        proposal = self._again(drafter, one)
        if one.place >= proposal.lengths[0]:
            return torch.zeros(drafter.row_drafter.vocab_size, dtype=torch.float64)
        if proposal.logits is not None:
            return proposal.sampling.probs(proposal.logits[0, one.place]).double()
        return torch.nn.functional.one_hot(proposal.tokens[0, one.place], drafter.row_drafter.vocab_size).double()

    def _again(self, drafter: PerRow, one: Place) -> Any:
        if one.start not in self.again:
            count = len(one.step.drafted)
            numbers = self.numbers[DRAFT, one.first : one.first + count]
            text = [*self.opening, *self.text[: one.start]]
            self.again[one.start] = drafter.row_drafter.propose(text, count, numbers, self.sampling)
        return self.again[one.start]
