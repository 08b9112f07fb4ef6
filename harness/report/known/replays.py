"""What replays and integrated laws say of outputs that are wrong by hand, each just beyond what is right."""

from collections.abc import Iterable
from math import nan
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.experiment import MethodSpec
from harness.core.records import Record
from harness.exact.checks import check_law, check_ways, is_alarming
from harness.exact.controls import CAUGHT, CONTROLS
from harness.exact.fit import stream_fits
from harness.models.fit import Models
from harness.report.known.values import hashed
from harness.report.pinned import plain_decoding
from harness.run.build import build_method
from harness.run.comparison import Chunk, Prepared
from harness.run.replay.blocks import blocks
from harness.run.replay.candidates import candidates, early_logits
from harness.run.replay.decisions import Decision, acceptances, asked_of, choices, draws, miscounted, overdrafted
from harness.run.replay.drafts import Sampled, rounds_of
from harness.run.replay.outputs import misended
from harness.run.replay.reading import Reading
from methods.sampling import Sampling, Uniforms
from methods.session import MIN_CAPACITY
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.steps import Step
from methods.types import Generation, Inputs

ROUNDS = ((1, 1), (1, 2), (1, 3), (2, 1))  # how many drafts stood, and tokens came of it
TEXT, LAYER, LONG = [7, 8, 9, 10], 4, 70


def _faults(found: Iterable[Decision]) -> str:
    return ", ".join(one.what for one in found if one.is_fault) or "none"


def _of_rounds() -> dict[str, str]:
    """Return faults of how many drafts, tokens and outputs there are, and of distances that are unknown."""
    drafted = [[Step([5] * count, 0, 1)] for count in (2, 3)]
    asked = [list(overdrafted(steps, asked_of(steps, Constant(2), 9))) for steps in drafted]
    counted = [list(miscounted([Step([5, 6, 7], *own)])) for own in ROUNDS]
    experiment: Any = SimpleNamespace(method=SimpleNamespace(name="autoregressive"), max_new_tokens=48, ignore_eos=True)
    target: Any = SimpleNamespace(stack=SimpleNamespace(position_limit=64, encodes_prompts=True, model=None))
    prompt: Any = SimpleNamespace(windows=lambda: [0], tokens=(5, 6))
    ends = [misended(experiment, prompt, [7] * count, target) for count in (48, 47)]
    return {
        "faults of two and of three drafts where two are asked for": "; ".join(map(_faults, asked)),
        "faults of rounds by what stood and was emitted": "; ".join(map(_faults, counted)),
        "ends at the limit and a token before it": str([None if end is None else end[0] for end in ends]),
        "faults that are unknown": _faults([Decision(0, "nan", nan, 1.0), Decision(0, "at its bound", 1.0, 1.0)]),
    }


def _of_tokens() -> dict[str, str]:
    """Return faults of a first choice that is refused, and of unlikely drafts that stand at numbers near a fifth."""
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 1.0, 4.0]], dtype=torch.float64)
    ones = torch.full((2,), 1e-4, dtype=torch.float64)
    reading, step = Reading(logits, ones, ones, 0 * ones, ones), Step([1, 2], 0, 1)
    refused = [choices(Generation([1], [own], "length"), _first(reading), exact=True) for own in (step, Step([2, 1], 0, 1))]
    own, drafted, stood = 2e-5, 1e-4, list[str]()
    laws = torch.tensor([[own, 1 - own], [0.5, 0.5]], dtype=torch.float64)
    drafts: Any = SimpleNamespace(probs=lambda places: [drafted], bound=lambda position: 2e-4)
    for number in (0.19, 0.21):
        numbers = torch.full((3, 2), number, dtype=torch.float64)
        rounds = rounds_of([Step([0], 1, 2, target_probs=[own], draft_probs=[drafted])])
        stood.append(_faults(acceptances(Sampled([0, 0], laws, 2 * ones, ones, numbers, rounds), drafts, 1.0, True)))
    return {
        "faults of refused first choices, and of a second": "; ".join(map(_faults, refused)),
        "faults of unlikely drafts that stand at 0.19 and 0.21": "; ".join(stood),
    }


def _of_blocks() -> dict[str, str]:
    """Return faults of a long text's last draw, and of what a block of one refused draft is followed by."""
    halves = torch.full((LONG, 2), 0.5, dtype=torch.float64)
    quarters, tight = torch.full((LONG,), 0.25, dtype=torch.float64), torch.full((LONG,), 1e-4, dtype=torch.float64)
    last = [0] * (LONG - 1)
    drawn = [_faults(draws("drawn", range(LONG), [*last, end], halves, quarters, tight)) for end in (0, 1)]
    law, theirs = (torch.tensor([own], dtype=torch.float64) for own in ([0.2, 0.5, 0.3], [0.7, 0.2, 0.1]))
    numbers = torch.tensor([[0.5], [0.9], [0.5]], dtype=torch.float64)  # of the draft, of what refuses it, of what follows
    drafts: Any = SimpleNamespace(laws_of=lambda places: (places, theirs), bound=lambda position: 1e-4)
    rounds, ones = rounds_of([Step([0], 0, 1)]), torch.full((1,), 1e-4, dtype=torch.float64)
    behind = [_faults(blocks(Sampled([token], law, ones, ones, numbers, rounds), drafts)) for token in range(3)]
    whole: Any = SimpleNamespace(laws_of=lambda places: ([], theirs[:0]), bound=lambda position: 1e-4)
    stated = [Step([0, 0], 0, 1, target_probs=[own, own], draft_probs=[0.5, 0.5]) for own in (0.5, 0.1)]
    numbers = torch.tensor([[0.5] * 2, [0.9] * 2, [0.5] * 2], dtype=torch.float64)
    refused = [_faults(blocks(Sampled([0], law, ones, ones, numbers, rounds_of([one])), whole)) for one in stated]
    return {
        "faults of likely and unlikely blocks of two that are refused": "; ".join(refused),
        "faults of a text's last draw, and of another": "; ".join(drawn),
        "faults of what follows a refused block": "; ".join(behind),
    }


def _first(reading: Reading) -> Reading:
    return Reading(*(part[:1] for part in vars(reading).values() if part is not None))


def _of_candidates() -> dict[str, str]:
    """Return faults of an early layer's two likeliest candidates, and of the first with the third."""
    experiment = plain_decoding(
        0, 1, 1, "text", "llama-target", method=MethodSpec.of("ppd", early_layer=LAYER, execution="batched")
    )
    models = Models(experiment.device, experiment.dtype)
    target = models.get(experiment.target)
    method: Any = build_method(experiment.method, target, models)
    inputs, told = Inputs(((5, 6, 7),)), list[str]()
    likeliest = early_logits(target.stack, inputs, TEXT, LAYER, method.head.weight(LAYER))[1].topk(3).indices.tolist()
    for given in (likeliest[:2], [likeliest[0], likeliest[2]]):
        steps = [Step([], 0, 1) for _ in TEXT]
        steps[1] = Step([], 0, 1, candidates=given, matched=TEXT[1] in given, early_layer=LAYER)
        told.append(_faults(candidates(method.head, target.stack, inputs, Generation(TEXT, steps, "length"))))
    return {"faults of the two likeliest candidates, and of the third": "; ".join(told)}


def _of_laws() -> dict[str, str]:
    """Return verdicts on a law of a hundred tokens that is right, on one that is off at one token, and on NaN."""
    right = torch.full((4, 100), 0.01, dtype=torch.float64)
    moved = right.clone()
    moved[1, 3] += 2e-6

    def verdict(emitted: Float[Tensor, "4 100"]) -> str:
        window: Any = SimpleNamespace(target_logits=right, laws=lambda rule, sampling: (emitted, right))
        return check_law(SpeculativeSampling(), [("one", window)], Sampling(temperature=1.0)).verdict

    level, fine, low = 1e-3, [0.5] * 38, 0.04
    series: tuple[list[float], ...] = (
        [],
        [*fine, low, low],
        [*fine, low, low, low],
        [*fine, level],
        [*fine, 1.01 * level],
    )
    return {
        "verdicts on a right law, a moved one and none": str([verdict(one) for one in (right, moved, right * nan)]),
        "p-values that alarm": str([is_alarming(one, level) for one in series]),
    }


class _Elsewhere(SpeculativeSampling):
    """A rule that is right, and that something else decides for, elsewhere."""

    def elsewhere(self, device: torch.device) -> list[SpeculativeSampling]:
        return [SpeculativeSampling()]


def _of_controls() -> dict[str, str]:
    """Return what catches a control, where some cannot strike, which numbers are tested together, and who decides."""
    law = torch.full((2, 4), 0.25, dtype=torch.float64)
    moved = torch.tensor([[0.3, 0.2, 0.25, 0.25]] * 2, dtype=torch.float64)
    window: Any = SimpleNamespace(
        target_logits=law, laws=lambda rule, sampling: (law if isinstance(rule, _Elsewhere) else moved, law)
    )
    found = check_ways(_Elsewhere(), [("one", window)], Sampling(temperature=1.0), torch.device("cpu"))
    limits = (None, 2048, MIN_CAPACITY, MIN_CAPACITY // 2)
    strikes = [[name for name, one in CONTROLS.items() if one.can_strike(torch.device("cuda"), limit)] for limit in limits]
    return {
        "verdicts that catch a control": ", ".join(CAUGHT),
        "controls that can strike": ", ".join(f"{len(one)} {hashed(one)}" for one in strikes),
        "numbers that are tested together": hashed(list(stream_fits(Uniforms([1, 2, 3], 5), 1e-3))),
        "verdicts on a rule, and on what decides elsewhere": ", ".join(one.verdict for one in found[:2]),
    }


def _in_turn() -> dict[str, str]:
    """Return in which order three arms decode, chunk after chunk."""
    order = list[int]()
    arms: Any = SimpleNamespace(arms=[0, 1, 2])

    def decode(index: int, chunk: Chunk) -> list[Record]:
        order.append(index)
        return []

    for turn in range(4):
        chunk: Any = SimpleNamespace(turn=turn, repeat=0, lacking=[True] * 3)
        Prepared.in_turn(arms, chunk, decode)
    return {"order of three arms": str(order)}


GROUPS = (_of_rounds, _of_tokens, _of_blocks, _of_candidates, _of_laws, _of_controls, _in_turn)
