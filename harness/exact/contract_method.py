"""The contract of a method (methods/types.py), on a tiny model of random weights: its outputs, and its guarantee."""

from collections.abc import Callable, Iterator

import torch

from harness.core.experiment import DrafterSpec, MethodSpec
from harness.exact.finding import Finding, attempt, expect, expect_guarantee
from harness.exact.toy import Toy, greedy_output, random_llama
from harness.models.loading import LoadedModel
from harness.run.build import Models
from methods.options import options_class
from methods.parts import METHODS
from methods.sampling import Sampling
from methods.types import Method, Stop

VOCAB, LENGTH, NUM_SAMPLES = 12, 12, 300
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0))
Factory = Callable[[MethodSpec, LoadedModel, Models], Method]


def check_method(name: str, make: Factory) -> Iterator[Finding]:
    target = random_llama(VOCAB)
    toy = Toy(target.session, PROMPTS, Stop(max_new_tokens=LENGTH))
    takes = getattr(options_class(METHODS[name]), "takes", ("drafter",)) if name in METHODS else ("drafter",)
    spec = MethodSpec(name=name, drafter=DrafterSpec(kind="copy") if "drafter" in takes else None)

    def made() -> Method:
        return make(spec, target, Models())

    signature = "generate(target, inputs, sampling, uniforms, stop, clock)"
    found = attempt(
        "is made of an experiment's method and declares its guarantee", lambda: expect_guarantee(made(), Method, signature)
    )
    yield found
    if not found.passed:
        return
    guarantee = made().guarantee
    yield attempt("emits what was asked for", lambda: _check_stops(made(), toy))
    if guarantee != "lossy":
        yield attempt("greedy output is plain decoding's", lambda: toy.check_greedy(made()))
    yield attempt("draws from the numbers that it is given", lambda: _check_repeats(made(), toy))
    if guarantee != "lossy":
        yield attempt("sampled output has the target's law", lambda: toy.check_samples(made(), NUM_SAMPLES, 0))


def _check_stops(method: Method, toy: Toy) -> str:
    ends = frozenset({greedy_output(toy.new_session(), PROMPTS[0], LENGTH, frozenset())[LENGTH // 2]})
    for stopping in (frozenset(), ends):
        rows = toy.decode(method, Sampling(), stop=Stop(max_new_tokens=LENGTH, token_ids=stopping))
        expect(len(rows) == len(PROMPTS), f"{len(rows)} rows for {len(PROMPTS)} prompts")
        for row in rows:
            ended = bool(row.tokens) and row.tokens[-1] in stopping
            expect(ended or len(row.tokens) == LENGTH, f"stops after {len(row.tokens)} of {LENGTH} tokens")
            expect(row.stop_reason == ("eos" if ended else "length"), f"stop_reason {row.stop_reason!r} after {row.tokens}")
            expect(not set(row.tokens[:-1]) & stopping, f"goes on behind a stopping token: {row.tokens}")
            emitted = sum(step.emitted for step in row.steps)
            expect(emitted == len(row.tokens), f"its steps say {emitted} tokens, its output has {len(row.tokens)}")
    return f"{2 * len(PROMPTS)} outputs"


def _check_repeats(method: Method, toy: Toy) -> None:
    outputs = []
    for seed in range(2):
        torch.manual_seed(seed)
        outputs.append([row.tokens for row in toy.decode(method, Sampling(temperature=1.0))])
    expect(outputs[0] == outputs[1], "other tokens from the same seeds: it draws random numbers of its own")
