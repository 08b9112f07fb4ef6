"""Part 4: our loops beside transformers' with models of the papers' sizes, and what their costs predict for the papers' alphas.

Weights are random, so drafts are accepted as chance has it; what is measured does not depend on that: a run of the target over
n tokens, one of the draft (over the target's: the paper's c), what a round costs besides, tokens a second of plain loops, the
peak of memory. From these, alpha and gamma as a paper printed them, Theorem 3.8 and the whole account predict a speed-up.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.gpu.place import Item, Measured, Place
from harness.gpu.shapes import PAIRS, Pair, build
from harness.run.instruments import clock_for, num_waits, with_peak
from harness.tables import published
from methods.autoregressive import Autoregressive
from methods.models.base import Stack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import KernelRule
from methods.speculative.schedules import Constant
from methods.speculative.theory import expected_tokens, predicted_speedup, walltime_factor
from methods.steps import Step
from methods.transformers_assisted import lend_model
from methods.transformers_generate import TransformersGenerate
from methods.types import Clock, Generation, Inputs, Method, Stop

DTYPE = {"device": "float16", "whole": "bfloat16", "smallest": "bfloat16"}  # a CPU's fp16 is slow
PASSES, WARM_UP = 12, 3  # of each number of tokens
DRAWN = Sampling(temperature=1.0)
STATIC = {"cache_implementation": "static", "disable_compile": True}
COMPILED = {"cache_implementation": "static"}  # transformers compiles its forward pass for such a cache, on CUDA
PUBLISHED = {"T5-XXL": "table_4", "GPT-like (97M)": "table_3"}  # of Leviathan et al.; the second prints alpha alone
USUAL_GAMMA = 5  # where the paper prints none


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds: of a run of the target over n tokens (by n), of a run of the draft, of what a round costs besides."""

    verify_s: Mapping[int, float]
    draft_s: float
    round_s: float


def items(place: Place) -> Sequence[Item]:
    pairs = PAIRS if place.sizes.real_models else [pair.tiny for pair in (PAIRS if place.scale == "whole" else PAIRS[:1])]
    found = [Item(name=pair.name, seconds=60, measure=partial(measure_pair, place, pair)) for pair in pairs]
    compiled = [
        Item(name=f"{pair.name}, compiled", seconds=90, measure=partial(measure_compiled, place, pair)) for pair in pairs[1:2]
    ]
    return [*found, *compiled]


def measure_pair(place: Place, pair: Pair) -> Measured:
    """Passes, rounds and loops of a target with each of its drafts."""
    target, held = with_peak(place.device, partial(build, pair.target, place.device, DTYPE[place.scale]))
    inputs = inputs_of(place, target)
    verify_s = {n: pass_seconds(place, target, inputs, n) for n in range(1, pair.gamma + 2)}
    facts = _facts(pair.target.name, target, held) | {f"a run over {n} tokens, ms": one * 1e3 for n, one in verify_s.items()}
    rows, predicted = [_plain_row(place, target, inputs, verify_s[1])], list[dict[str, Any]]()
    rows += _generate_rows(place, target, inputs, {"dynamic cache": None, "static cache": STATIC})
    for shape in pair.drafts:
        draft = build(shape, place.device, DTYPE[place.scale], seed=1)
        costs, more = _drafted_rows(place, target, draft, inputs, pair.gamma, verify_s, shape.name)
        rows += more
        facts |= {f"c of {shape.name}": costs.draft_s / verify_s[1], f"a run of {shape.name}, ms": costs.draft_s * 1e3}
        facts[f"a round with {shape.name} besides, ms"] = costs.round_s * 1e3
        predicted += predictions(pair.name, shape.name, costs)
        del draft
        gc.collect()
    return {"facts": facts, "rows": rows, "predicted": predicted, "notes": _notes(place, pair)}


def measure_compiled(place: Place, pair: Pair) -> Measured:
    """transformers' generation with a static cache and a compiled forward pass, which takes its compiler a while."""
    target = build(pair.target, place.device, DTYPE[place.scale])
    rows = _generate_rows(place, target, inputs_of(place, target), {"static cache, compiled": COMPILED})
    note = ["rehearsed without compiling, which transformers does on CUDA alone"] if place.is_rehearsal else []
    return {"rows": rows, "notes": note}


def inputs_of(place: Place, stack: Stack) -> Inputs:
    """A prompt of random tokens, or a source; for a model that hears random features and the tokens that a text begins with."""
    generator = torch.Generator().manual_seed(0)
    if stack.feature_shape is not None:
        return Inputs(((3, 4, 5, 6),), torch.randn(1, *stack.feature_shape, generator=generator))
    tokens = torch.randint(3, stack.input_vocab_size, (place.sizes.prompt_tokens,), generator=generator)
    return Inputs((tuple(tokens.tolist()),))


def pass_seconds(place: Place, stack: Stack, inputs: Inputs, num_new: int) -> float:
    """Seconds of one forward pass over ``num_new`` tokens behind the prompt: the median of PASSES."""
    session, clock, times = ModelSession(stack), clock_for(place.device), list[float]()
    session.prefill(inputs)
    tokens = torch.full((1, num_new), 3, device=stack.device)
    for number in range(WARM_UP + PASSES):
        start = clock()
        session.extend(tokens)
        if number >= WARM_UP:
            times.append(clock() - start)
        else:
            clock()
        session.rewind([num_new])
    return float(np.median(times))


@dataclass(frozen=True, kw_only=True)
class Timed:
    """``seconds`` of a text, the median; the texts; the peak of memory; and the rounds of one more text, timed part by part."""

    seconds: float
    texts: Sequence[Generation]
    peak: int | None
    steps: Sequence[Step]


def timed(place: Place, method: Method, stack: Stack, inputs: Inputs) -> Timed:
    """Decode ``prompts`` texts after one that warms up. They have no clock inside, at which each part of a round would wait."""
    num_new, clock, session = place.sizes.new_tokens, clock_for(place.device), ModelSession(stack)
    stop, times, texts = Stop(max_new_tokens=num_new), list[float](), list[Generation]()

    def decode(seed: int, inside: Clock | None) -> Generation:
        return method.generate(session, inputs, DRAWN, Uniforms([seed], num_new, place.device), stop, inside)[0]

    _, peak = with_peak(place.device, partial(decode, 0, None))
    for seed in range(1, place.sizes.prompts + 1):
        start = clock()
        texts.append(decode(seed, None))
        times.append(clock() - start)
    return Timed(seconds=float(np.median(times)), texts=texts, peak=peak, steps=decode(1, clock).steps)


def waits_a_round(place: Place, method: Method, stack: Stack, inputs: Inputs) -> float | None:
    """How often the host waits for the device in one text, over its rounds, without a clock; None in a rehearsal."""
    num_new, session, texts = place.sizes.new_tokens, ModelSession(stack), list[Generation]()

    def decode() -> None:
        texts.extend(
            method.generate(session, inputs, DRAWN, Uniforms([0], num_new, place.device), Stop(max_new_tokens=num_new))
        )

    count = num_waits(decode, place.device)
    return None if place.is_rehearsal else count / num_rounds(texts)


def _plain_row(place: Place, target: Stack, inputs: Inputs, pass_s: float) -> dict[str, Any]:
    found = timed(place, Autoregressive(), target, inputs)
    typical = float(np.median([step.round_s for step in found.steps[1:]]))
    return _row("plain, ours", found) | {"a token, ms": typical * 1e3, "of a pass": typical / pass_s}


def _generate_rows(
    place: Place, target: Stack, inputs: Inputs, caches: Mapping[str, Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    return [
        _row(f"plain, transformers, {name}", timed(place, TransformersGenerate(cache=cache), target, inputs))
        for name, cache in caches.items()
    ]


def _drafted_rows(
    place: Place, target: Stack, draft: Stack, inputs: Inputs, gamma: int, verify_s: Mapping[int, float], name: str
) -> tuple[Costs, list[dict[str, Any]]]:
    """Rounds of ours and of transformers' assisted generation with one draft, and the costs of ours."""
    drafter = ModelDrafter(ModelSession(draft))
    ours = DraftAndVerify(drafter, KernelRule("fused"), partial(Constant, gamma))
    theirs = TransformersGenerate(assistance=partial(lend_model, draft=draft, gamma=gamma))
    rows, steps = list[dict[str, Any]](), list[Step]()
    for label, method in (("ours", ours), ("transformers", theirs)):
        found = timed(place, method, target, inputs)
        round_s = found.seconds * len(found.texts) / num_rounds(found.texts)
        waits = waits_a_round(place, method, target, inputs)
        row = _row(f"{name} drafts {gamma}, {label}", found)
        rows.append(row | {"a round, ms": round_s * 1e3, "waits a round": waits})
        steps = steps or [step for step in found.steps if len(step.drafted) == gamma]
    draft_s = pass_seconds(place, draft, inputs, 1)
    whole = float(np.median([step.round_s for step in steps])) if steps else float("nan")
    costs = Costs(verify_s=verify_s, draft_s=draft_s, round_s=max(0.0, whole - gamma * draft_s - verify_s[gamma + 1]))
    return costs, rows


def num_rounds(texts: Sequence[Generation]) -> int:
    return max(1, sum(len(text.steps) for text in texts))


def _row(name: str, found: Timed) -> dict[str, Any]:
    tokens = sum(len(text.tokens) for text in found.texts)
    return {
        "loop": name,
        "tokens a second": tokens / len(found.texts) / found.seconds,
        "tokens a round": tokens / num_rounds(found.texts),
        "peak, MB": None if found.peak is None else found.peak / 1e6,
    }


def predictions(pair: str, draft: str, costs: Costs) -> list[dict[str, Any]]:
    """What Theorem 3.8 and the whole account make of a paper's alpha and our costs, beside what the paper prints.

    ``c here`` is of this device and of our loops; the account takes the measured pass over gamma + 1 tokens, and what a round
    costs besides. Both assume that drafts are accepted independently, as the paper does.
    """
    lines = published.read("leviathan", PUBLISHED[pair]) if pair in PUBLISHED else ()
    rows = []
    for line in lines:
        if line["draft"] != draft or line.get("target", pair) != pair:
            continue
        alpha, gamma = float(line["alpha"]), int(line.get("gamma", USUAL_GAMMA))
        ar_s, verify_s = costs.verify_s[1], costs.verify_s[gamma + 1]
        account = predicted_speedup(expected_tokens(alpha, gamma), ar_s, costs.draft_s, verify_s, costs.round_s, gamma)
        rows.append(
            {
                "task": line.get("task"),
                "draft": draft,
                "T": float(line["temp"]),
                "alpha": alpha,
                "gamma": gamma,
                "c (paper)": _number(line, "c"),
                "c here": costs.draft_s / ar_s,
                "Theorem 3.8 (paper)": _number(line, "exp_x"),
                "measured (paper)": _number(line, "emp_x"),
                "Theorem 3.8, c here": float(walltime_factor(alpha, gamma, costs.draft_s / ar_s)),
                "all costs here": float(account),
            }
        )
    return rows


def _number(line: Mapping[str, str], name: str) -> float | None:
    return float(line[name]) if line.get(name) else None


def _facts(name: str, stack: Stack, held: int | None) -> dict[str, Any]:
    weights = sum(one.numel() * one.element_size() for one in stack.model.parameters())
    return {"target": name, "weights, MB": weights / 1e6, "peak of loading, MB": None if held is None else held / 1e6}


def _notes(place: Place, pair: Pair) -> list[str]:
    notes = ["weights are random: tokens a round mean nothing, times do"]
    if place.is_rehearsal:
        notes.append(f"rehearsed with {pair.target.num_layers} layers of width {pair.target.width}: no number here is a result")
    return notes
