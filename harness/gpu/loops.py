"""Part 4: our loops beside transformers' with models of the papers' sizes, and what their costs predict for the papers' alphas.

Weights are random, so drafts are accepted as chance has it; what is measured does not depend on that: a run of the target over
n tokens, a draft with its draw (over a run of the target: c), what a round costs besides, tokens a second of plain loops, the
peak of memory. From these, alpha and gamma as a paper printed them, Theorem 3.8 and the whole account predict a speed-up.
All are measured again with CUDA graphs. Every draft is an item of its own, so that little is lost where the minutes end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.gpu.place import Item, Measured, Place
from harness.gpu.shapes import PAIRS, Pair, Shape, build
from harness.gpu.times import BRIEF_TOKENS, Row, drafted_row, fixed, growing, pass_seconds, plain_row, room_of, timed
from harness.run.instruments import with_peak
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
from methods.speculative.translation import UNSEEN
from methods.static import Room
from methods.transformers_assisted import lend_model
from methods.transformers_generate import TransformersGenerate
from methods.types import Inputs, Stop

DTYPE = {"device": "float16", "whole": "bfloat16", "smallest": "bfloat16"}  # a CPU's fp16 is slow
STATIC = {"cache_implementation": "static", "disable_compile": True}
COMPILED = {"cache_implementation": "static"}  # transformers compiles its forward pass for such a cache, on CUDA
PUBLISHED = {"T5-XXL": "table_4", "GPT-like (97M)": "table_3"}  # of Leviathan et al.; the second prints alpha alone
USUAL_GAMMA = 5  # where the paper prints none
ROWS = 3  # of a batch whose tokens are compared


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds: of a run of the target over n tokens (by n), of a draft, of what a round costs besides."""

    verify_s: Mapping[int, float]
    draft_s: float
    round_s: float


def items(place: Place) -> Sequence[Item]:
    pairs = PAIRS if place.sizes.real_models else [pair.tiny for pair in PAIRS]
    few = 1 if place.scale == "smallest" else len(pairs)
    compiled = pairs[1:2] if few > 1 else []
    chosen: list[tuple[str, float, Callable[[Place], Measured]]] = []
    for pair in pairs[:few]:
        drafted = [(shape, f"{pair.name} with {shape.name}") for shape in pair.drafts]
        chosen.append((pair.name, 20, partial(measure_plain, pair=pair)))
        chosen += [(name, 25, partial(measure_drafted, pair=pair, shape=shape)) for shape, name in drafted]
        chosen.append((f"{pair.name}, graphs", 10, partial(measure_plain_graphs, pair=pair)))
        chosen += [(f"{name}, graphs", 20, partial(measure_drafted_graphs, pair=pair, shape=shape)) for shape, name in drafted]
    chosen += [(f"{pair.name}, compiled", 90, partial(measure_compiled, pair=pair)) for pair in compiled]
    return [Item(name=name, seconds=seconds, measure=partial(measure, place)) for name, seconds, measure in chosen]


def measure_plain(place: Place, pair: Pair) -> Measured:
    """Passes of a target, and plain loops: ours, launched operation by operation, and transformers'."""
    target, held = with_peak(place.device, partial(build, pair.target, place.device, DTYPE[place.scale]))
    inputs, session = inputs_of(place, target), ModelSession(target)
    verify_s = _verify_seconds(place, session, inputs, pair)
    rows = [plain_row(place, Autoregressive(), session, inputs, verify_s[1], "plain, ours")]
    rows += _generate_rows(place, target, inputs, {"dynamic cache": None, "static cache": STATIC})
    facts = _facts(pair.target.name, target, held) | _passes(verify_s)
    return {"facts": facts, "rows": rows, "notes": _notes(place, pair)}


def measure_drafted(place: Place, pair: Pair, shape: Shape) -> Measured:
    """Rounds and loops of a target with one draft, ours and transformers', and what the costs predict."""
    target, draft = (build(one, place.device, DTYPE[place.scale], seed) for seed, one in enumerate((pair.target, shape)))
    inputs, gamma, session = inputs_of(place, target), pair.gamma, ModelSession(target)
    verify_s, name = _verify_seconds(place, session, inputs, pair), f"{shape.name} drafts {gamma}"
    row, costs = _drafted(place, session, ModelSession(draft), inputs, gamma, verify_s, f"{name}, ours")
    theirs = TransformersGenerate(assistance=partial(lend_model, draft=draft, gamma=gamma))
    rows = [row, drafted_row(place, theirs, session, inputs, f"{name}, transformers", 0, brief=True)[0]]
    return _with_predictions(place, pair, shape, rows, costs)


def measure_plain_graphs(place: Place, pair: Pair) -> Measured:
    """Passes of a target and our plain loop with sessions of fixed shapes: a token, pass and draw, is one CUDA graph.

    It is right where both ways give the same tokens, of a tiny pair in fp32: in half precision near-ties part them.
    """
    target, new_session = build(pair.target, place.device, DTYPE[place.scale]), fixed(room_of(place))
    inputs, (session, held) = inputs_of(place, target), with_peak(place.device, partial(new_session, target, pair.gamma + 1))
    verify_s = _verify_seconds(place, session, inputs, pair)
    facts: dict[str, Any] = {"laid out for the target, MB": None if held is None else held / 1e6} | _passes(verify_s)
    rows = [plain_row(place, Autoregressive(), session, inputs, verify_s[1], "plain, ours, graphs")]
    same = gives_same_tokens(place, pair.tiny)
    facts["tokens of a tiny pair in fp32, with graphs and without"] = "the same" if same else "DIFFERENT"
    return {"facts": facts, "rows": rows, "notes": _notes(place, pair, graphs=True), "passed": same}


def measure_drafted_graphs(place: Place, pair: Pair, shape: Shape) -> Measured:
    """Our loop with one draft with sessions of fixed shapes, and what its costs predict."""
    new_session, gamma = fixed(room_of(place)), pair.gamma
    target = new_session(build(pair.target, place.device, DTYPE[place.scale]), gamma + 1)
    draft = new_session(build(shape, place.device, DTYPE[place.scale], seed=1), UNSEEN)
    inputs, name = inputs_of(place, target.stack), f"{shape.name} drafts {gamma}, ours, graphs"
    row, costs = _drafted(place, target, draft, inputs, gamma, _verify_seconds(place, target, inputs, pair), name)
    return _with_predictions(place, pair, shape, [row], costs, graphs=True)


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


def gives_same_tokens(place: Place, pair: Pair) -> bool:
    """Say whether ordinary sessions and those of fixed shapes draw the same tokens in fp32: plain and drafted, at temperature 1
    and greedy, rows of different lengths, of which some draft less near their end."""
    target, draft = (build(shape, place.device, "float32", seed) for seed, shape in enumerate((pair.target, pair.drafts[0])))
    inputs, num_new = rows_of(inputs_of(place, target)), min(BRIEF_TOKENS, place.sizes.new_tokens)
    stop, room, texts = Stop(max_new_tokens=num_new), Room(ROWS, place.sizes.prompt_tokens, num_new), list[list[list[int]]]()
    for new_session in (growing, fixed(room)):
        session = new_session(target, pair.gamma + 1)
        for method in (Autoregressive(), _ours(new_session(draft, UNSEEN), pair.gamma)):
            for temperature in (1.0, 0.0):
                numbers = Uniforms(range(ROWS), num_new, place.device)
                made = method.generate(session, inputs, Sampling(temperature=temperature), numbers, stop)
                texts.append([one.tokens for one in made])
    return texts[:4] == texts[4:]


def rows_of(inputs: Inputs) -> Inputs:
    """Make several rows of one; prompts lose some of their last tokens, but what a text begins with stays."""
    [prompt], features = inputs.prompts, inputs.features
    if features is not None:
        return Inputs((prompt,) * ROWS, features * torch.linspace(0.5, 1, ROWS).view(-1, 1, 1))
    return Inputs(tuple(prompt[: len(prompt) - row] for row in range(ROWS)))


def _ours(session: ModelSession, gamma: int) -> DraftAndVerify:
    return DraftAndVerify(ModelDrafter(session), KernelRule("fused"), partial(Constant, gamma))


def _drafted(
    place: Place,
    target: ModelSession,
    draft: ModelSession,
    inputs: Inputs,
    gamma: int,
    verify_s: Mapping[int, float],
    name: str,
) -> tuple[Row, Costs]:
    """Rounds of our loop with one draft, and their costs: a draft as rounds take it, with its draw.

    A pass of the target is timed alone, with a wait: where a round hides its launches behind the device's work, what it costs
    besides may be below 0.
    """
    row, steps = drafted_row(place, _ours(draft, gamma), target, inputs, name, gamma)
    whole = [step for step in steps if len(step.drafted) == gamma]
    draft_s = float(np.median([step.draft_s for step in whole])) / gamma if whole else float("nan")
    round_s = float(np.median([step.round_s for step in whole])) if whole else float("nan")
    return row, Costs(verify_s=verify_s, draft_s=draft_s, round_s=round_s - gamma * draft_s - verify_s[gamma + 1])


def _verify_seconds(place: Place, session: ModelSession, inputs: Inputs, pair: Pair) -> dict[int, float]:
    """Seconds of the target's runs over 1 to gamma + 1 tokens."""
    return {n: pass_seconds(place, session, inputs, n) for n in range(1, pair.gamma + 2)}


def _with_predictions(
    place: Place, pair: Pair, shape: Shape, rows: list[Row], costs: Costs, graphs: bool = False
) -> dict[str, Any]:
    """What an item with a draft tells: its share of the target's time, the loops, and what the costs predict."""
    predicted = predictions(pair.name, shape.name, costs)
    return {"facts": _shares(shape.name, costs), "rows": rows, "predicted": predicted, "notes": _notes(place, pair, graphs)}


def _passes(verify_s: Mapping[int, float]) -> dict[str, Any]:
    return {f"a run over {n} tokens, ms": one * 1e3 for n, one in verify_s.items()}


def _shares(draft: str, costs: Costs) -> dict[str, Any]:
    return {
        f"c of {draft}": costs.draft_s / costs.verify_s[1],
        f"a draft by {draft}, ms": costs.draft_s * 1e3,
        f"a round with {draft} besides, ms": costs.round_s * 1e3,
    }


def _generate_rows(place: Place, target: Stack, inputs: Inputs, caches: Mapping[str, Mapping[str, Any] | None]) -> list[Row]:
    return [
        {"loop": f"plain, transformers, {name}"}
        | timed(place, TransformersGenerate(cache=cache), ModelSession(target), inputs, brief=True).row
        for name, cache in caches.items()
    ]


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


def _notes(place: Place, pair: Pair, graphs: bool = False) -> list[str]:
    notes = ["weights are random: tokens a round mean nothing, times do"]
    if place.is_rehearsal:
        notes.append(f"rehearsed with {pair.target.num_layers} layers of width {pair.target.width}: no number here is a result")
    if place.is_rehearsal and graphs:
        notes.append("rehearsed with fixed shapes, nothing captured")
    return notes
