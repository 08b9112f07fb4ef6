"""Known answers: what rules decide, what a run reads and what its records amount to, of cases made here.

Toy models meet few of these: filters before a sigmoid, laws of several tiles, a text with two ends, a chat template, sound of
two channels, a clock that reads the same everywhere. Rounds are drawn from a seed in fp64, records are written by hand.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from harness.core.files import short_hash
from harness.core.records import Record
from harness.measures.of_run import decode_speedup, ms_per_token, speedup, tokens_per_s
from harness.measures.statistics import Estimate
from harness.models.loading import LoadedModel, eos_ids, load_model
from harness.models.names import pin_model
from harness.models.translation import fewer, translation_of
from harness.report.pinned import model, plain_decoding
from harness.run.prompts import seed_of
from kernels.inputs import InputError
from methods.beam import BeamState
from methods.parts import RULES
from methods.sampling import EndlessUniforms, Sampling, Uniforms
from methods.specdec.options import CAPS
from methods.speculative import acceptance
from methods.speculative.rules import KernelRule, ways_of
from methods.steps import Step, Steps
from methods.types import Proposal, Stop, Verdict, VerifyRule
from tasks.sound import to_mono

Answer = float | str
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
    "sigmoid": ({"scale": 10.0}, {"scale": 10.0, "half_logits": True}),
    "sigmoid-released": ({"scale": 10.0},),
    "lenience": ({"lenience": 0.3}, {"lenience": 0.3, "as_described": True}),
    "typical": ({}, {"epsilon": 0.3, "delta": 1.0}),
    "top-1": tuple({"cap": cap} for cap in CAPS),
    "top-beta": tuple({"beta": 2, "tau": tau, "score": score, "cap": cap} for score, tau in TAUS.items() for cap in CAPS),
}
TEMPLATE = "{{ bos_token }}{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}assistant:"
ENDS = [1, 30, 45]  # of a text


def answers() -> dict[str, Answer]:
    """Return every known answer by its name: numbers, and hashes of what is no number."""
    return {**decided(), **read(), **searched(), **counted()}


def decided(names: Iterable[str] = RULES) -> dict[str, Answer]:
    """Return what rules decide on the same rounds, by all that may decide for them, and the probabilities that they state.

    Not where a rule is not defined: SpecDec's are greedy.
    """
    found: dict[str, Answer] = {}
    for name in names:
        for options in RULE_OPTIONS.get(name, ({},)):
            told = ", ".join(f"{key} {value}" for key, value in options.items())
            for label, sampling in SAMPLINGS.items():
                case = f"{name}{f' ({told})' if told else ''}, {label}"
                decisions, probs = _decided(RULES[name](**options), sampling)
                found |= {case: decisions, f"{case}, probabilities": probs} if decisions else {}
    return found


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
    told = f"{accepted} accepted, {short_hash(repr(decisions), 8)}"
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


def read() -> dict[str, Answer]:
    """Return what a run is given: prompts, ends, sound, random numbers, and a draft's words for its target's."""
    llama, t5 = _loaded("llama-target"), _loaded("t5-draft")
    llama.tokenizer.chat_template = TEMPLATE
    shared = translation_of(llama, t5)
    stereo = np.stack([np.linspace(0, 1, 800, dtype=np.float32), np.full(800, 0.5, np.float32)], axis=1)
    experiment = plain_decoding(0, 1, 1, "text", "llama-target")
    found: dict[str, Answer] = {
        "a chat's tokens": _hash(llama.encode_chat("Two dogs ran.")),
        "a prompt's tokens": _hash((llama.encode("Two dogs ran."), t5.encode("Two dogs ran."))),
        "ends of a text": _hash(eos_ids(GenerationConfig(eos_token_id=ENDS))),
        "tokens of another vocabulary": _hash((shared.pieces, shared.target_ids.tolist(), shared.draft_ids.tolist())),
        "tokens of a part of another": _hash(fewer(shared, 50, llama.eos_token_ids).target_ids.tolist()),
        "a prompt in another's tokens": _hash(shared.prompt(llama.encode("Two dogs ran."))),
        "a continuation in one's own": _hash(shared.back(t5.encode("Two dogs ran."))),
    }
    for rate in (16000, 8000):
        found[f"two channels at {rate} Hz"] = float(to_mono(stereo, rate).samples.astype(np.float64).sum())
    for repeat, window in ((0, 0), (1, 0), (0, 1), (0, 2)):
        found[f"seed of repeat {repeat}, window {window}"] = _hash(seed_of(experiment, "an example", repeat, window))
    for kind in (Uniforms, EndlessUniforms):
        for level, own in enumerate((kind([5, 6], 4), kind([5, 6], 4).nested())):
            drawn = own.draft([0, 2], 2), own.verify([1, 0], 2)
            found[f"{kind.__name__}, level {level}"] = _hash([one.mul(2**20).long().tolist() for one in drawn])
    return found


def searched() -> dict[str, Answer]:
    """Return what beams find where a text has several ends, all of them likely."""
    state = BeamState(4, Stop(max_new_tokens=8, token_ids=frozenset(ENDS)))
    numbers, seen = np.random.default_rng(8), list[Any]()
    while not state.finished():
        logits = numbers.standard_normal((len(state.beams), 60))
        logits[:, ENDS] += 4
        seen.append(state.advance(torch.from_numpy(logits).log_softmax(-1)))
    return {"beams with three ends": _hash((seen, state.best()))}


STEPS = (  # drafts, those that stand, tokens that are emitted
    ((7, 8, 9), 3, 4),
    ((7, 8, 9), 1, 2),
    ((5, 6), 0, 1),
    ((), 0, 1),
    ((4, 3, 2), 2, 2),  # the last of them ends the text
)
DEFINITIONS: dict[str, Callable[[list[Step]], acceptance.Statistic]] = {
    one.__name__: one
    for one in (
        acceptance.alpha_ratio, acceptance.alpha_point_mass, acceptance.accepted_over_verified,
        acceptance.accepted_over_drafted, acceptance.accepted_per_step, acceptance.tokens_per_step,
        acceptance.expected_token_wise, acceptance.expected_blocks, acceptance.accepted_over_all_drafted,
        acceptance.accepted_per_drafting_step, acceptance.matches_per_step,
    )
} | {
    f"{one.__name__}({place})": one(place)
    for one in (acceptance.position_joint, acceptance.position_conditional)
    for place in (1, 2, 3)
}  # fmt: skip


def counted() -> dict[str, Answer]:
    """Return what records written by hand amount to: every definition of acceptance, and of speed."""
    steps = [
        Step(
            list(drafted), stand, emitted, [0.5, 0.2, 0.9][: len(drafted)], [0.4, 0.8, 0.9][: len(drafted)],
            stop_reason="eos" if emitted == stand else None,
        )
        for drafted, stand, emitted in STEPS
    ]  # fmt: skip
    found: dict[str, Answer] = {name: top / below for name, one in DEFINITIONS.items() for top, below in [one(steps)]}
    plain = [_timed(f"{number}", [Step([], 0, 1, round_s=0.1) for _ in range(10)], 0.3 + 0.1 * number) for number in range(4)]
    drafted = [Step([*one.drafted], one.num_accepted, one.emitted, round_s=0.15) for one in steps]
    drafting = [_timed(f"{number}", drafted, 0.5) for number in range(4)]
    times = {
        "speedup": speedup(plain, drafting), "decode_speedup": decode_speedup(plain, drafting),
        "tokens_per_s": tokens_per_s(drafting), "ms_per_token": ms_per_token(drafting),
        "tokens_per_s of two rows": tokens_per_s(_together(drafting)),
    }  # fmt: skip
    return found | {name: one.value if isinstance(one, Estimate) else str(one) for name, one in times.items()}


def _timed(example: str, steps: list[Step], encode_s: float) -> Record:
    """Make a record whose rounds and prompt take all of its time but a twentieth of a second."""
    rounds_s = sum(float(step.round_s) for step in steps)
    return Record(
        signature="known",
        example=example,
        repeat=0,
        status="ok",
        tokens=[1] * sum(step.emitted for step in steps),
        stop_reason="length",
        num_rows=1,
        encode_s=encode_s,
        wall_s=rounds_s + encode_s + 0.05,
        steps=Steps.of(steps),
        run="one",
    )


def _together(records: list[Record]) -> list[Record]:
    """Make the same records rows of batches of two."""
    return [Record(**(vars(record) | {"num_rows": 2, "wall_s": (record.wall_s or 0.0) / 2})) for record in records]


def _loaded(name: str) -> LoadedModel:
    return load_model(pin_model(model(name), "test", "toy"), dtype="float64")


def _hash(value: Any) -> str:
    return short_hash(repr(value), 8)
