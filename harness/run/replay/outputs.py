"""Replays of outputs and of records: which methods can be replayed, all decisions of one, and the first that is a fault."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers.models.whisper.tokenization_whisper import _find_longest_common_sequence

from harness.core.experiment import Experiment
from harness.core.messages import is_memory
from harness.core.records import Divergence, Record
from harness.models.loading import LoadedModel
from harness.run.decode import outputs_of, parts_of
from harness.run.instruments import ProfiledRule
from harness.run.prompts import Prompt
from harness.run.replay.beams import is_searched_again, searched
from harness.run.replay.blocks import blocks
from harness.run.replay.candidates import candidates
from harness.run.replay.decisions import (
    Decision,
    acceptances,
    asked_of,
    choices,
    drawn_drafts,
    draws,
    first_choices,
    last_tokens,
    miscounted,
    overdrafted,
    passes,
    repeated_drafts,
    written_on,
)
from harness.run.replay.drafts import Drafts, Sampled, asked_again, pending_of, rounds_of
from harness.run.replay.inputs import misread
from harness.run.replay.lossy import is_said_again, tolerated
from harness.run.replay.nested import NestedDrafts
from harness.run.replay.reading import HALF, SAMPLE, Reader, ends_said, law_of, numbers_of, seed_said
from harness.run.replay.sigmoids import sigmoids
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.sampling import Sampling
from methods.specdec.rules import TopBeta, TopOne
from methods.speculative.block_verification import BlockVerification
from methods.speculative.decode import DraftAndVerify
from methods.speculative.engine_rules import PointMass, TargetGreedy, Typical
from methods.speculative.model import HierarchicalDrafter
from methods.speculative.rules import KernelRule, Lenience, SigmoidRule, SpeculativeSampling
from methods.steps import Step
from methods.transformers_generate import TransformersGenerate
from methods.types import Generation, Inputs, Method, VerifyRule

LIMITED_BY_DRAFTER = ("drafter-alone",)  # methods whose output ends where the drafter has no position left
STATE_DRAFTS = (SpeculativeSampling, BlockVerification, KernelRule, Lenience, Typical, TargetGreedy)  # with what drafters gave


@dataclass(frozen=True)
class Replayed:
    """How many decisions of an output were replayed, and the first that the target does not give."""

    decisions: int
    fault: Divergence | None


def replay_record(record: Record, experiment: Experiment, method: Method, prompt: Prompt, reader: Reader) -> Record:
    """Return a record with what the target gives for its text, how many decisions were replayed and the first fault.

    A fault takes the place of a near-tie, and says what is wrong where plain decoding says another text. Windows of a recording
    are read one after another. What does not fit into memory, and a recording with a window that says nothing, is not read;
    that its text is what its tokens say is looked at anyway. Of a prompt that is not the example's nothing else is said.
    """
    outputs = outputs_of(experiment, prompt, record.tokens or [], reader.target)
    rounds = record.steps.rounds(record.stop_reason) if record.steps else []
    decisions, nats, start, fault = list[int](), 0.0, 0, record.divergence
    if record.text is not None and record.text != text_said(outputs, reader.target):
        fault = _divergence(Decision(0, "text", 1.0, 0.0))
    try:
        if what := misread(experiment, prompt, reader.target):
            return dataclasses.replace(record, divergence=_divergence(Decision(0, what, 1.0, 0.0)))
        for window, (inputs, tokens) in enumerate(zip(prompt.windows(), outputs, strict=False)):
            if not tokens:
                return dataclasses.replace(record, divergence=fault)
            made = Generation(tokens, _taken(rounds, len(tokens)), "length")
            if is_searched_again(method, reader.target):
                num_beams, borders = experiment.method.num_beams, _borders(experiment, prompt, reader.target)
                found: Replayed | None = _replayed(searched(reader.target.stack, inputs, tokens, num_beams, *borders))
            else:
                seed = seed_said(experiment.seed, prompt.example.id, record.repeat, window)
                found = replay(method, reader, inputs, made, seed, experiment.max_new_tokens)
            if found is not None:
                decisions.append(found.decisions)
            if found is not None and found.fault is not None:
                own = dataclasses.replace(found.fault, position=start + found.fault.position)
                fault = own if fault is None or fault.kind != "bug" else dataclasses.replace(fault, what=fault.what or own.what)
            nats += reader.read(inputs, tokens).nats(tokens)
            start += len(tokens)
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        return dataclasses.replace(record, divergence=fault)
    return dataclasses.replace(record, replayed=sum(decisions) if decisions else None, nats=nats, divergence=fault)


def text_said(outputs: Sequence[Sequence[int]], target: LoadedModel) -> str:
    """Return the text of an output by transformers alone; what two windows of a recording both say by its pipeline's join."""
    spoken = outputs[0]
    if len(outputs) > 1:
        special = set(target.tokenizer.all_special_ids)
        spoken = _find_longest_common_sequence([[token for token in part if token not in special] for part in outputs])
    return str(target.tokenizer.decode(list(spoken), skip_special_tokens=True))


def with_end(record: Record, experiment: Experiment, prompt: Prompt, target: LoadedModel) -> Record:
    """Return a record, with a fault where its text does not end where a stopping token or the limit ends it.

    So it is of any method. Such a text need not fit its rounds, and is not to be replayed.
    """
    found = misended(experiment, prompt, record.tokens or [], target)
    if found is None:
        return record
    position, what = found
    return dataclasses.replace(record, divergence=_divergence(Decision(position, what, 1.0, 0.0)))


def misended(experiment: Experiment, prompt: Prompt, tokens: Sequence[int], target: LoadedModel) -> tuple[int, str] | None:
    """Return where an output goes on behind its end, or ends before a stopping token and its limit, in words; None: neither.

    Every window of a recording ends so; those that say nothing are left out. Stopping tokens are read from the model's settings
    anew: nothing of ``LoadedModel.eos_token_ids`` is used.
    """
    ends, budget = _borders(experiment, prompt, target)
    windows, parts = len(prompt.windows()), parts_of(tokens, ends, budget)
    if len(parts) > windows:
        return sum(map(len, parts[:windows])), "token behind the end of the text"
    if experiment.method.name in LIMITED_BY_DRAFTER:
        return None
    if windows == 1 and len(parts[0]) < budget and not ends.intersection(parts[0][-1:]):
        return len(parts[0]), "end before a stopping token and the limit"
    return None


def _borders(experiment: Experiment, prompt: Prompt, target: LoadedModel) -> tuple[frozenset[int], int]:
    """Return the tokens that end an output, and how many it may have."""
    ends, limit = frozenset[int]() if experiment.ignore_eos else ends_said(target.stack.model), target.stack.position_limit
    cached = 0 if target.stack.encodes_prompts else len(prompt.tokens) - 1
    return ends, experiment.max_new_tokens if limit is None else min(experiment.max_new_tokens, limit - cached)


def _taken(rounds: list[Step], count: int) -> list[Step]:
    """Take the rounds that emitted the next ``count`` tokens."""
    taken = []
    while count > 0 and rounds:
        taken.append(rounds.pop(0))
        count -= taken[-1].emitted
    return taken


@torch.inference_mode()
def replay(method: Method, reader: Reader, inputs: Inputs, made: Generation, seed: int, length: int) -> Replayed | None:
    """Replay one row's output; None for a method of which nothing can be replayed.

    ``seed`` and ``length`` are those of its ``Uniforms``. Raises RuntimeError where memory does not suffice.
    """
    if not is_replayed(method, reader.sampling) or not made.tokens or _is_rounded_as_its_logits(method, reader):
        return None
    found = list(_decisions(method, reader, inputs, made, seed, length))
    if not isinstance(method, DraftAndVerify):
        found += _unseen(found, len(made.tokens))
    return _replayed(found)


def _replayed(decisions: Iterable[Decision]) -> Replayed:
    found = sorted(decisions, key=lambda one: one.position)
    fault = next((one for one in found if one.is_fault), None)
    return Replayed(len(found), None if fault is None else _divergence(fault))


def _unseen(found: Sequence[Decision], count: int) -> list[Decision]:
    """Return a fault for the first token that no decision is of, where each is a decision of its own: the replay's own."""
    seen = {one.position for one in found}
    return [Decision(place, "token that the replay leaves out", 1.0, 0.0) for place in range(count) if place not in seen][:1]


def is_replayed(method: Method, sampling: Sampling) -> bool:
    """Say whether a method's tokens are the target's first choices, or draws with numbers that can be had again.

    So it is of lossy rules whose decisions are said again (``lossy``, ``sigmoids``). Of another's method that keeps no more
    than the target's law, nobody knows which number drew what.
    """
    if getattr(method, "num_beams", 1) > 1:
        return False
    if method.guarantee == "lossy":
        return isinstance(method, DraftAndVerify) and is_said_again(_rule_of(method), sampling)
    return sampling.greedy or method.guarantee == "identical" or isinstance(method, DraftAndVerify)


def _is_rounded_as_its_logits(method: Method, reader: Reader) -> bool:
    """Say whether it draws by sigmoids in half precision, of which no bound is known."""
    is_half = reader.target.stack.dtype in HALF and not reader.sampling.greedy
    return is_half and isinstance(method, DraftAndVerify) and isinstance(_rule_of(method), SigmoidRule)


def _divergence(fault: Decision) -> Divergence:
    margin = min(fault.off, 1e30)  # what JSON can hold
    return Divergence(
        position=fault.position, margin=margin, bound=fault.bound, replays_agree=False, kind="bug", what=fault.what
    )


def _decisions(method: Method, reader: Reader, inputs: Inputs, made: Generation, seed: int, length: int) -> Iterator[Decision]:
    reading = reader.read(inputs, made.tokens)
    laws = None if reader.sampling.greedy else law_of(reading.logits, reader.sampling).double()
    if not isinstance(method, TransformersGenerate):  # whose passes are not ours
        yield from passes(reading)
    if not isinstance(method, DraftAndVerify):
        if laws is None:
            yield from choices(made, reading, exact=False)
        else:
            drawn = numbers_of(seed, length)[SAMPLE]
            yield from draws("drawn token", range(len(laws)), made.tokens, laws, drawn, reading.law_bound)
        if isinstance(method, PredictivePipelinedDecoding):
            yield from candidates(method.head, reader.target.stack, inputs, made)
        return
    if odd := list(miscounted(made.steps)):  # rounds that are none are not read further
        yield from odd
        return
    asked = asked_of(made.steps, method.schedule_factory(), length)
    yield from overdrafted(made.steps, asked)
    yield from written_on(method.drafter, inputs, pending_of(reader, inputs), made, asked)
    rule, lenience = _rule_of(method), _lenience_of(method)
    by_block = isinstance(rule, BlockVerification)
    rounds = rounds_of(made.steps, by_block or method.looks_ahead)
    numbers = numbers_of(seed, length, max(one.first + len(one.step.drafted) + 1 for one in rounds))
    if laws is None:
        if rule.guarantee != "lossy":
            cap = rule.cap if isinstance(rule, TopOne | TopBeta) else None
            yield from choices(made, reading, cap is not None or lenience is not None, cap == "printed")
        else:
            yield from tolerated(rule, made.tokens, reading, rounds, None)
        yield from first_choices(method.drafter, inputs, pending_of(reader, inputs), made, rounds)
        yield from repeated_drafts(rounds, asked_again(method.drafter, reader, inputs, made.tokens, numbers, rounds))
        return
    # Of a probability: of its logit and of the sum, twice, and of those that its nucleus leaves out or lets in.
    shares = 4 * reading.margin_bound / reader.sampling.temperature + 2 * reading.border
    output = Sampled(made.tokens, laws, 2 * reading.law_bound, shares, numbers, rounds)
    largest = float(reading.margin_bound.nan_to_num(posinf=0.0).max())  # of a place that overflows no law is known
    off = largest / reader.sampling.temperature, float(reading.nucleus.nan_to_num(posinf=0.0).max())
    drafts = Drafts(method.drafter, reader, inputs, output, isinstance(rule, PointMass), off)
    if not isinstance(rule, SigmoidRule):
        yield from acceptances(output, drafts, None if by_block else lenience, isinstance(rule, STATE_DRAFTS))
    else:
        yield from sigmoids(rule.scaling, output, reading, drafts)
    yield from drawn_drafts(output, drafts)
    if isinstance(method.drafter, HierarchicalDrafter):
        yield from NestedDrafts(drafts, reader, inputs, numbers_of(seed, length, numbers.shape[-1], level=1)).decisions()
    yield from repeated_drafts(rounds, drafts.again)
    if isinstance(rule, Typical | TargetGreedy):
        yield from tolerated(rule, made.tokens, reading, rounds, output)
    elif by_block:
        yield from blocks(output, drafts)
    elif lenience is not None:
        yield from last_tokens(output, drafts)


def _rule_of(method: DraftAndVerify) -> VerifyRule:
    return method.rule.rule if isinstance(method.rule, ProfiledRule) else method.rule


def _lenience_of(method: Method) -> float | None:
    """Return what Algorithm 1 of Leviathan et al. multiplies a draft's probability by (A.5): 1 of a lossless rule.

    So it is of block verification, whose decisions can be replayed too. None of a method that decides otherwise.
    """
    if not isinstance(method, DraftAndVerify):
        return None
    rule = _rule_of(method)
    if isinstance(rule, Lenience):
        return rule.lenience
    exact_kernel = isinstance(rule, KernelRule) and rule.guarantee == "same_distribution"
    return 1.0 if exact_kernel or isinstance(rule, SpeculativeSampling | BlockVerification) else None
