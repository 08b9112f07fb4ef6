"""Replays an output: its text is read by another path, and every decision of it must be what that gives.

The text is read at once by transformers' own forward pass, which shares nothing with our sessions but the weights. Greedy:
every token must be the target's first choice behind the text before it. Sampled: the recorded probabilities of drafts, every
acceptance and every drawn token must be what the laws and the random numbers of the output's seed give. What is farther from
its border than rounding can move it is a fault. No other arm is needed, so what all arms have wrong alike is found too.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.experiment import Experiment
from harness.core.records import Divergence, Record
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.decode import outputs_of
from harness.run.instruments import ProfiledRule
from harness.run.prompts import Prompt, seed_of
from methods.models.base import Stack
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import HierarchicalDrafter, ModelDrafter
from methods.speculative.overlap import teacher_logits
from methods.speculative.per_row import PerRow, opening
from methods.speculative.rules import KernelRule, SpeculativeSampling
from methods.steps import Step
from methods.transformers_generate import TransformersGenerate
from methods.types import Drafter, Generation, Inputs, Method

NEAR_TIE_FLOAT32 = 1e-4  # a difference of two logits, or of two probabilities, that rounding may make in fp32
WITHIN = 4  # in half precision: typical errors of a law, measured on the same text, that a border may have moved
MEMORY = (torch.OutOfMemoryError, MemoryError)
DRAFT, ACCEPT, SAMPLE = range(3)  # streams of ``Uniforms``, said again: what confuses them there is found here
ROWS = 64  # laws that are summed up at a time


class Decision(NamedTuple):
    """A decision at a position of an output: how far it is beyond its border (0: right), and what rounding may move."""

    position: int
    what: str
    off: float
    bound: float


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


def replay_record(
    record: Record, experiment: Experiment, method: Method, prompt: Prompt, target: LoadedModel, models: Models
) -> Record:
    """Return a record with the number of its decisions that were replayed and, instead of a near-tie, the first fault.

    Windows of a recording are replayed one after another. What does not fit into memory is not replayed.
    """
    outputs, rounds = outputs_of(experiment, prompt, record.tokens or [], target), _rounds(record)
    decisions, start, fault = 0, 0, record.divergence
    try:
        for window, (inputs, tokens) in enumerate(zip(prompt.windows(), outputs, strict=False)):
            made = Generation(tokens, _taken(rounds, len(tokens)), "length")
            seed = seed_of(experiment, prompt.example.id, record.repeat, window)
            sampling = Sampling.of(experiment.sampling)
            found = replay(method, target, inputs, made, sampling, seed, experiment.max_new_tokens, models)
            if found is None:
                return record
            decisions += found.decisions
            if found.fault is not None and (fault is None or fault.kind != "bug"):
                fault = dataclasses.replace(found.fault, position=start + found.fault.position)
            start += len(tokens)
    except MEMORY:
        return record
    return dataclasses.replace(record, replayed=decisions, divergence=fault)


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
def replay(
    method: Method,
    target: LoadedModel,
    inputs: Inputs,
    made: Generation,
    sampling: Sampling,
    seed: int,
    length: int,
    models: Models,
) -> Replayed | None:
    """Replay one row's output; None for a method whose tokens are not the target's own choices or draws.

    ``seed`` and ``length`` are those of its ``Uniforms``. Raises RuntimeError where memory does not suffice.
    """
    if not is_replayed(method, sampling) or not made.tokens:
        return None
    reading = read_within(target, inputs, made.tokens, sampling, models)
    found = sorted(_decisions(method, target, inputs, made, sampling, seed, length, reading), key=lambda one: one.position)
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


def numbers_of(seed: int, length: int) -> Float[Tensor, "3 length"]:
    """Return the numbers that belong to a seed, made anew: nothing of ``Uniforms`` is used."""
    return torch.rand(3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def read_within(target: LoadedModel, inputs: Inputs, tokens: Sequence[int], sampling: Sampling, models: Models) -> Reading:
    """Read a text. In half precision it is read in fp32 too, with the same weights: how far the two part bounds rounding."""
    stack = target.stack
    if stack.parts:
        logits = torch.cat(list(teacher_logits(target.session(), inputs, tokens)[1]))
    else:
        logits = read_text(stack, stack.model, inputs, tokens)
    if logits.dtype not in (torch.float16, torch.bfloat16) or stack.parts:
        bound = torch.full((len(logits),), NEAR_TIE_FLOAT32, device=logits.device)
        return Reading(logits, bound, bound)
    wide = read_text(stack, models.widened(target), inputs, tokens)
    margin = 2 * (logits.float() - wide).nan_to_num().abs().amax(-1)
    if sampling.greedy:
        return Reading(wide, margin, margin)
    apart = (sampling.probs(logits) - sampling.probs(wide)).abs().sum(-1) / 2
    return Reading(wide, margin, WITHIN * (apart + apart.square().mean().sqrt()))


def _decisions(
    method: Method,
    target: LoadedModel,
    inputs: Inputs,
    made: Generation,
    sampling: Sampling,
    seed: int,
    length: int,
    reading: Reading,
) -> Iterator[Decision]:
    if sampling.greedy:
        yield from _choices(made, reading, _draws_residuals(method))
        return
    numbers, laws = numbers_of(seed, length), sampling.probs(reading.logits).double()
    if not isinstance(method, DraftAndVerify):
        yield from _draws("drawn token", range(len(laws)), made.tokens, laws, numbers[SAMPLE], reading.law_bound)
        return
    bounds = (2 * reading.law_bound).tolist()  # both laws are rounded
    drafts = _Drafts(method.drafter, target, inputs, made, sampling, numbers)
    exact = _draws_residuals(method)
    last: list[tuple[int, int, Tensor]] = []  # a round's first position, its last token's, and that token's weights
    start = 0
    for step in made.steps:
        kept, own = step.num_accepted, laws[start : start + step.emitted]
        yield from _accepted(step, start, made.tokens, own, numbers, bounds, exact, drafts)
        if exact and step.emitted == kept + 1:
            end = start + kept
            if kept == len(step.drafted):
                last.append((start, end, laws[end]))
            elif (law := drafts.law(start, kept, step)) is not None:
                last.append((start, end, (laws[end] - law).clamp(min=0)))
        start += step.emitted
    yield from drafts.draws(2 * reading.law_bound)
    if last:
        starts, ends, weights = zip(*last, strict=True)
        tokens, at = [made.tokens[end] for end in ends], numbers[SAMPLE][list(starts)]
        bound = torch.tensor([bounds[end] for end in ends])
        yield from _draws("drawn token", ends, tokens, torch.stack(weights), at, bound)


def _accepted(
    step: Step,
    start: int,
    tokens: Sequence[int],
    laws: Float[Tensor, "e V"],
    numbers: Float[Tensor, "3 length"],
    bounds: Sequence[float],
    exact: bool,
    drafts: "_Drafts",
) -> Iterator[Decision]:
    """Yield what was decided of a round's drafts, up to the first that was rejected: behind it no law is known."""
    kept, rejects = step.num_accepted, step.num_accepted < min(len(step.drafted), step.emitted)
    for place in range(kept + rejects):
        position, token = start + place, step.drafted[place]
        bound, number = bounds[position], float(numbers[ACCEPT, position])
        prob = float(laws[place, token])
        if place < kept and tokens[position] != token:
            yield Decision(position, "accepted draft that was not emitted", 1.0, 0.0)
        if place < len(step.target_probs):
            yield Decision(position, "target's probability of a draft", abs(step.target_probs[place] - prob), bound)
        if place < len(step.draft_probs):
            stated = step.draft_probs[place]
            over = number * stated - prob  # at most 0 where the draft stands
            if exact:
                yield Decision(position, "acceptance" if place < kept else "rejection", over if place < kept else -over, bound)
            if (law := drafts.law(start, place, step)) is not None:
                yield Decision(position, "draft's probability", abs(stated - float(law[token])), bound)


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


def _draws(
    what: str,
    positions: Sequence[int],
    tokens: Sequence[int],
    weights: Float[Tensor, "T V"],
    numbers: Float[Tensor, "length"],
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


def _draws_residuals(method: Method) -> bool:
    """Say whether a method decides by Algorithm 1 of Leviathan et al., whose every decision can be replayed."""
    if not isinstance(method, DraftAndVerify):
        return False
    rule = method.rule.rule if isinstance(method.rule, ProfiledRule) else method.rule
    return isinstance(rule, SpeculativeSampling) or (isinstance(rule, KernelRule) and rule.guarantee == "same_distribution")


class _Drafts:
    """What a drafter's laws were, where its text alone says so: a model's everywhere, a row drafter's by asking it again."""

    def __init__(
        self,
        drafter: Drafter,
        target: LoadedModel,
        inputs: Inputs,
        made: Generation,
        sampling: Sampling,
        numbers: Float[Tensor, "3 length"],
    ) -> None:
        stack, prompt = target.stack, inputs.prompts[0]
        pending = stack.start_token if stack.encodes_prompts else prompt[-1]
        assert pending is not None
        self.drafter, self.sampling, self.numbers = drafter, sampling, numbers
        self.text, self.steps, self.opening = made.tokens, made.steps, opening(prompt, pending)
        self.laws: Tensor | None = None
        self.again: dict[int, Any] = {}
        if isinstance(drafter, ModelDrafter | HierarchicalDrafter):
            found = list(drafter.teacher_probs(inputs, [pending], made.tokens, sampling))
            self.laws = torch.cat(found).double() if found else None

    def law(self, start: int, place: int, step: Step) -> Float[Tensor, "V"] | None:
        """Return the law of a draft behind drafts that stood; None where it is not known."""
        if self.laws is not None:
            return self.laws[start + place] if start + place < len(self.laws) else None
        if not isinstance(self.drafter, PerRow):
            return None
        proposal = self._again(self.drafter, start, step)
        if proposal.logits is not None:
            return proposal.sampling.probs(proposal.logits[0, place]).double()
        one = proposal.tokens[0, place]
        return torch.nn.functional.one_hot(one, self.drafter.row_drafter.vocab_size).double()

    def draws(self, bounds: Float[Tensor, "T"]) -> Iterator[Decision]:
        """Yield how far every draft, up to a round's first rejection, is from what its law and random number give."""
        start, places = 0, list[tuple[int, int]]()
        for step in self.steps:
            decided = step.num_accepted + (step.num_accepted < min(len(step.drafted), step.emitted))
            if isinstance(self.drafter, PerRow) and decided:
                same = self._again(self.drafter, start, step).tokens[0].tolist()[:decided] == step.drafted[:decided]
                yield Decision(start, "draft", float(not same), 0.0)
            places += [(start + place, step.drafted[place]) for place in range(decided)]
            start += step.emitted
        if isinstance(self.drafter, ModelDrafter) and self.laws is not None and places:
            known = [(position, token) for position, token in places if position < len(self.laws)]
            positions, tokens = zip(*known, strict=True)
            at = list(positions)
            yield from _draws("draft", at, tokens, self.laws[at], self.numbers[DRAFT][at], bounds[at])

    def _again(self, drafter: PerRow, start: int, step: Step) -> Any:
        if start not in self.again:
            count = len(step.drafted)
            numbers = self.numbers[DRAFT, start : start + count]
            text = [*self.opening, *self.text[:start]]
            self.again[start] = drafter.row_drafter.propose(text, count, numbers, self.sampling)
        return self.again[start]
