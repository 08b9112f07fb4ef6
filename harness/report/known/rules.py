"""What rules decide, beams find and drafts overlap of the same drawn rounds.

Toy models meet few of these: filters before a sigmoid, laws of several tiles, a text with three ends.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from harness.core.plugins import find
from harness.report.known.values import hashed
from kernels.inputs import InputError
from methods.beam import BeamState
from methods.options import options_class
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES
from methods.sampling import Sampling
from methods.specdec.options import CAPS
from methods.speculative.overlap import acceptance
from methods.speculative.per_row import CopyDrafter, SuffixDrafter
from methods.speculative.rules import KernelRule, ways_of
from methods.speculative.schedules import Constant, Heuristic, Optimal, Sweep
from methods.types import Proposal, Schedule, Stop, Verdict, VerifyRule

DRAFTS, SHAPES = 3, ((24, 40), (2, 5000))  # rows and tokens of a round: the compiled loop goes over 5000 in three tiles
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "T 1": Sampling(temperature=1.0),
    "T 0.5": Sampling(temperature=0.5),
    "top-k 3": Sampling(temperature=1.0, top_k=3),
    "T 1.3, top-k 20, top-p 0.9": Sampling(temperature=1.3, top_k=20, top_p=0.9),
    "top-p 0.9": Sampling(temperature=1.0, top_p=0.9),
}
TAUS = {"verifier": 1.0, "as_described": 0.1}  # by scores: of the rounds here some drafts stand and some do not
RULE_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {  # of those that take any
    "fused": ({}, {"backend": "torch"}),  # by which it decides where no loop was compiled
    "sigmoid": ({"scale": 10.0}, {"scale": 10.0, "half_logits": True}),
    "sigmoid-released": ({"scale": 10.0},),
    "lenience": ({"lenience": 0.3}, {"lenience": 0.3, "as_described": True}),
    "typical": ({}, {"epsilon": 0.3, "delta": 1.0}),
    "top-1": tuple({"cap": cap} for cap in CAPS),
    "top-beta": (
        *({"beta": 2, "tau": tau, "score": score, "cap": cap} for score, tau in TAUS.items() for cap in CAPS),
        {"beta": 1, "tau": 3.0, "score": "as_described"},  # of which Eq. 6 decides
    ),
}
ENDS = (1, 30, 45)  # of a text
LENIENCES = (1.0, 0.3)


def decided(names: Iterable[str] = ()) -> dict[str, float | str]:
    """Return what rules decide on the same rounds, by all that may decide for them, and the probabilities that they state.

    By default of all but those of plug-ins. Not where a rule is not defined: SpecDec's are greedy.
    """
    found: dict[str, float | str] = {}
    for name in names or [one for one in RULES if find("rule", one) is None]:
        for options in RULE_OPTIONS.get(name, ({},)):
            told = ", ".join(f"{key} {value}" for key, value in options.items())
            for label, sampling in SAMPLINGS.items():
                case = f"{name}{f' ({told})' if told else ''}, {label}"
                decisions, probs = _decided(RULES[name](**options), sampling)
                found |= {case: decisions, f"{case}, probabilities": probs} if decisions else {}
    return found


def in_half() -> dict[str, str]:
    """Return how many drafts stand by the drafter's own score, of rounds in half precision, from bound to bound of Eq. 7."""
    counts = []
    for proposal, target, *given in rounds(SAMPLINGS["greedy"]):
        if proposal.logits is not None:
            half = replace(proposal, logits=proposal.logits.bfloat16()), target.bfloat16(), *given
            rules = (RULES["top-beta"](beta=5, tau=step / 100, score="as_described") for step in range(100))
            counts.append([int(rule.verify(*half).num_accepted.sum()) for rule in rules])
    return {"top-beta by the drafter's score, in half precision": hashed(counts)}


def _decided(rule: VerifyRule, sampling: Sampling) -> tuple[str, float]:
    """Return how many drafts stand with a hash of all decisions, and the sum of stated probabilities.

    A kernel need not state those behind the first rejection. Rounds that a rule is not defined for, it refuses: nothing of a
    rule that refuses all.
    """
    stated, accepted, decisions = 0.0, 0, list[Any]()
    for given in rounds(sampling):
        try:
            one, *others = (way.verify(*given) for way in ways_of(rule, torch.device("cpu")))
        except InputError:
            decisions.append("refused")
            continue
        if any(_decisions(other) != _decisions(one) for other in others):
            return "its ways differ", 0.0
        decisions.append(_decisions(one))
        accepted += int(one.num_accepted.sum())
        places, counts = torch.arange(DRAFTS), torch.tensor(given[0].lengths)[:, None]
        seen = (places < counts) & (places <= (one.num_accepted[:, None] if isinstance(rule, KernelRule) else counts))
        stated += sum(float(probs.double()[seen].sum()) for probs in (one.target_probs, one.draft_probs) if probs.numel())
    told = f"{accepted} accepted, {hashed(decisions)}"
    return ("" if all(one == "refused" for one in decisions) else told), stated


def _decisions(verdict: Verdict) -> tuple[list[int], list[int]]:
    return verdict.num_accepted.tolist(), verdict.next_token.tolist()


@cache
def rounds(sampling: Sampling) -> list[tuple[Proposal, torch.Tensor, Sampling, torch.Tensor]]:
    """Return what a rule's ``verify`` takes: drawn drafts with their logits, and the same for point masses; ragged rows."""
    found = []
    for rows, vocab_size in SHAPES:
        numbers = np.random.default_rng(vocab_size)
        target = torch.from_numpy(2 * numbers.standard_normal((rows, DRAFTS + 1, vocab_size)))
        draft = target[:, :-1] + torch.from_numpy(numbers.standard_normal((rows, DRAFTS, vocab_size)))
        drawn, uniforms = (torch.from_numpy(numbers.random((rows, DRAFTS + more))) for more in (0, 1))
        tokens = sampling.draw(draft.flatten(0, 1), drawn.flatten()).view(rows, DRAFTS)
        lengths = tuple(DRAFTS - row % 2 for row in range(rows))
        found += [(Proposal(tokens, lengths, logits, sampling), target, sampling, uniforms) for logits in (draft, None)]
    return found


def overlapping() -> dict[str, float]:
    """Return the chance that drafts of the rounds stand, summed: alpha as it is measured, at each lenience."""
    found = {}
    for label, sampling in SAMPLINGS.items():
        drawn, _ = rounds(sampling)[:2]
        proposal, target = drawn[:2]
        assert proposal.logits is not None
        laws = sampling.probs(proposal.logits).flatten(0, 1), target[:, :-1].flatten(0, 1)
        for lenience in LENIENCES:
            found[f"overlap at lenience {lenience}, {label}"] = float(acceptance(laws[1], laws[0], sampling, lenience).sum())
    return found


def defaults() -> dict[str, str]:
    """Return what every method, rule, schedule and drafter takes where nothing is asked of it."""
    parts = {"method": METHODS, "rule": RULES, "schedule": SCHEDULES, "drafter": DRAFTERS}
    return {
        f"defaults of {kind} {name}": ", ".join(f"{one.name} {one.default}" for one in fields(options_class(part)))
        for kind, registry in parts.items()
        for name, part in registry.items()
        if find(kind, name) is None and fields(options_class(part))
    }


def scheduled() -> dict[str, str]:
    """Return how many drafts each schedule asks for, round after round, of which now and then all stand, or none was made."""
    made: dict[str, Schedule] = {
        "constant": Constant(4),
        "heuristic": Heuristic(5),
        "sweep": Sweep(13),
        "optimal": Optimal(0.8, 0.1),
    }
    found = {}
    for name, one in made.items():
        asked = []
        for turn in range(30):
            asked.append(one.next())
            drafted = 0 if turn % 7 == 5 else one.next()
            one.observe(drafted, drafted if turn % 3 else drafted // 2)
        found[f"drafts that schedule {name} asks for"] = hashed(asked)
    return found


def searched() -> dict[str, str]:
    """Return what beams find where a text has several ends, all of them likely."""
    state = BeamState(4, Stop(max_new_tokens=8, token_ids=frozenset(ENDS)))
    numbers, seen = np.random.default_rng(8), list[Any]()
    while not state.finished():
        logits = numbers.standard_normal((len(state.beams), 60))
        logits[:, list(ENDS)] += 4
        seen.append(state.advance(torch.from_numpy(logits).log_softmax(-1)))
    ended = []
    for _ in range(20):
        pair = BeamState(2, Stop(max_new_tokens=6, token_ids=frozenset(ENDS)))
        while not pair.finished():
            logits = numbers.standard_normal((len(pair.beams), 60))
            logits[:, ENDS[0]] += 2
            pair.advance(torch.from_numpy(logits).log_softmax(-1))
            ended.append([tokens for _, tokens in pair.finalized])
    return {"beams with three ends": hashed((seen, state.best())), "ends of two beams": hashed(ended), **_continued()}


def _continued() -> dict[str, str]:
    """Return how texts of three words are gone on with by the ends that occurred before in them."""
    numbers, drafter = np.random.default_rng(9), SuffixDrafter(8, match_factor=2.0, min_share=0.2)
    texts = [numbers.integers(5, 8, 30).tolist() for _ in range(40)]
    found = [drafter.propose(text, 6, torch.zeros(6, dtype=torch.float64), Sampling()).tokens.tolist() for text in texts]
    long = [numbers.integers(5, 99, 40).tolist() for _ in range(3)]
    places = [(start, length) for start in (0, 9) for length in range(1, 40)]
    repeated = [[*long[0], *long[1], *long[0][start : start + length]] for start, length in places]
    drafters: dict[str, Any] = {"suffix": SuffixDrafter(99), "copy": CopyDrafter(99)}
    drafted = {
        name: [one.propose(text, 40, torch.zeros(40, dtype=torch.float64), Sampling()).tokens.tolist() for text in repeated]
        for name, one in drafters.items()
    }
    latest = [[*long[2][:length], 1, *long[0][:3], *long[2][1:length], 2, *long[2][:length]] for length in range(2, 14)]
    copied = [CopyDrafter(99).propose(text, 1, torch.zeros(1), Sampling()).tokens.tolist() for text in latest]
    return {
        "texts that are gone on with": hashed(found), "the latest of equal ends": hashed(copied),
        **{f"ends of up to 39 tokens, {name}": hashed(one) for name, one in drafted.items()},
    }  # fmt: skip


GROUPS = (decided, in_half, defaults, scheduled, searched, overlapping)
