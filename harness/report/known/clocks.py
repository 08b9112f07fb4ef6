"""What each method's times are, by a clock of which every reading is a second later than the one before.

Reading a prompt puts it forward by a million seconds, a draft's own beginning by a hundred thousand, a verdict by ten thousand
and drafting by a hundred: so it shows in which of a text's times each of them is.
"""

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from harness.core.experiment import DrafterSpec, MethodSpec
from harness.models.fit import Models
from harness.report.known.inputs import loaded
from harness.report.known.rules import SAMPLINGS, rounds
from harness.report.known.values import folded
from harness.report.pinned import drafted_by, plain_decoding
from harness.run.build import build_method
from harness.run.instruments import ProfiledRule, RuleTimes
from methods.ppd.units import Simulated
from methods.sampling import Sampling, Uniforms
from methods.speculative.rules import SpeculativeSampling
from methods.steps import Step
from methods.types import Inputs, Stop

PROMPTS, NUM_TOKENS = ((5, 6, 7), (8, 9)), 12
SPANS = ("round_s", "draft_s", "verify_s")
TAKES = {"propose": 100.0, "verify": 10_000.0, "begin": 100_000.0, "prefill": 1_000_000.0}


def _clocked() -> dict[str, float | str]:
    """Return the times of rounds, of prompts and of a draft's beginning, as sums that weigh each by its place."""
    block = DrafterSpec(kind="block", model=drafted_by("specdec-drafter").model)
    cases = {
        "drafts": ("text", "llama-target", MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), gamma=3), 1.0),
        "plain decoding": ("text", "llama-target", MethodSpec(name="autoregressive"), 1.0),
        "beams": ("text", "llama-target", MethodSpec.of("beam", num_beams=2), 0.0),
        "drafted beams": (
            "text", "llama-target", MethodSpec.of("speculative-beam", drafter=drafted_by("llama-draft"), num_beams=2), 0.0,
        ),
        "blocks alone": ("wmt-en-de", "specdec-verifier", MethodSpec.of("drafter-alone", drafter=block), 0.0),
        "a pipeline": ("text", "llama-target", MethodSpec.of("ppd", early_layer=4, execution="batched"), 0.0),
    }  # fmt: skip
    found: dict[str, float | str] = {}
    for name, case in cases.items():
        found |= {f"{span} by a clock, {name}": value for span, value in _times(*case).items()}
    return found


def _simulated() -> dict[str, float]:
    """Return a simulated pipeline's clock: three candidates take 10, 20 and 30 s, side by side; the main process takes 15.

    By hand: it reads 0 behind what it posted, and 15 when it waits for the second, which ends at 20; nothing for the first.
    """
    stack, now = loaded("llama-target").stack, [0.0]
    units = Simulated(stack, 32, 3, lambda: now[0])
    hidden = torch.zeros(1, stack.head_weight.shape[0], dtype=stack.dtype)

    def passing(seconds: float) -> Tensor:
        now[0] += seconds
        return hidden

    for slot, one in enumerate(units._units):
        vars(one)["run"] = lambda *given, takes=10.0 * (slot + 1): passing(takes)
    units.open()
    found = list[float]()
    for waited, works in ((1, 15.0), (0, 40.0), (2, 5.0)):
        units.post([5, 6, 7], 4, 2)
        found += [units.now(lambda: now[0]), *units.times()]
        passing(works)
        units.wait(waited)
        found.append(units.now(lambda: now[0]))
    return {"a simulated pipeline's clock": folded(found)}


def _profiled() -> dict[str, str]:
    """Return of how many calls the times of two texts are, decided one after another by one rule."""
    rule = ProfiledRule(SpeculativeSampling(), "cpu")
    given, found = rounds(SAMPLINGS["T 1"])[0], list[RuleTimes]()
    for count in (3, 2):

        def decide(calls: int = count) -> None:
            for _ in range(calls):
                rule.verify(*given)

        found.append(rule.profile(decide)[1])
    return {"calls that are timed, text by text": str([(len(one.profiled_s), len(one.wall_s)) for one in found])}


def _times(task: str, target_name: str, spec: MethodSpec, temperature: float) -> dict[str, float]:
    experiment = plain_decoding(0, 1, 1, task, target_name, temperature, method=spec, max_new_tokens=NUM_TOKENS)
    models, now = Models(experiment.device, experiment.dtype), [0.0]
    target = models.get(experiment.target)
    method: Any = build_method(experiment.method, target, models)
    session = target.session()

    def read(passed: float = 1.0) -> float:
        now[0] += passed
        return now[0]

    for part in (getattr(method, "drafter", None), getattr(method, "rule", None), session):
        for name, takes in TAKES.items():
            if (whole := getattr(part, name, None)) is not None:
                vars(part)[name] = _slowed(whole, takes, read)
    uniforms, stop = Uniforms([1, 2], NUM_TOKENS), Stop(max_new_tokens=NUM_TOKENS)
    made = method.generate(session, Inputs(PROMPTS), Sampling.of(experiment.sampling), uniforms, stop, read)
    steps: list[Step] = [step for one in made for step in one.steps]
    found = {span: folded([getattr(step, span) for step in steps]) for span in SPANS}
    found |= {"parts": folded([part for step in steps for part in step.parts])}
    found |= {name: folded([getattr(one, name) for one in made]) for name in ("encode_s", "draft_encode_s")}
    return {name: value for name, value in found.items() if isfinite(value)}


def _slowed(whole: Any, takes: float, read: Any) -> Any:
    return lambda *given: (read(takes), whole(*given))[1]


GROUPS = (_clocked, _simulated, _profiled)
