"""What is decoded of a recording in several windows, by drafts that are drafted for, and along a long text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, OverlapProbe
from harness.core.records import Record
from harness.models.fit import Models
from harness.report.known.inputs import loaded
from harness.report.known.rules import SAMPLINGS
from harness.report.known.values import folded, hashed
from harness.report.pinned import drafted_by, plain_decoding
from harness.run.build import build_drafter, build_method
from harness.run.divergence import margin_at
from harness.run.prompts import make_prompt
from harness.run.record import Arm, forced, generated
from harness.run.replay import Reader, replay_record
from harness.run.replay.reading import in_half_precision
from kernels.inputs import SamplingSpec
from kernels.products.matrix import COMPILED, TORCH, Choice
from methods.beam import BeamSearch, next_log_probs
from methods.models.base import rms_norm
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.drafter import TEACHER_ROWS, BlockDrafter
from methods.speculative.beam import Checker
from methods.static import Room, StaticSession
from methods.types import Inputs, Stop
from tasks import get_task
from tasks.base import Sound
from tasks.sources.read import read_examples

WINDOWS, BUDGET = 6, 20  # as many times the sound of one example; tokens of a window, by which some end and some are cut
NESTED, ROWS = 24, ((5, 6, 7, 5, 6), (8, 9, 8), (5, 6, 5, 6, 5, 6), (11, 12, 13))  # tokens, and prompts with words to copy
WATCHED = ("on_processor_frac",)  # which tests leave out, so that no busy machine has a part in them
FACTS = {"run": "known", "environment": "known"}
COMPILED_PAIRS = (("llama-target", "llama-draft"), ("llama-draft", "llama-draft"), ("t5-target", "t5-draft"))
SOURCE, LONG = (5, 9, 7, 12, 6), TEACHER_ROWS + 8  # a source for blocks, and the length of a text that is read in two passes
SOURCES, BEAMS = 8, 2  # of a search whose rows end one after another: once half have, there are as many beams as sources
FAR = 400  # tokens of a text with positions that bfloat16 has no numbers for


@dataclass(frozen=True)
class _Long:
    """A recording longer than what the model hears at once."""

    samples: np.ndarray

    def sound(self) -> Sound:
        return Sound(self.samples)


def _heard() -> dict[str, float | str]:
    """Return a drafted transcript of several windows, how it ended, and the overlap along it."""
    drafter = drafted_by("whisper-draft")
    experiment, probe = _drafting("librispeech-clean", "whisper-target", drafter, BUDGET), OverlapProbe(drafter=drafter)
    models, task = Models(experiment.device, experiment.dtype), get_task(experiment.task)
    target, example = models.get(experiment.target), next(iter(read_examples(task, "toy", "test", 1, 0)))
    assert example.audio is not None
    long = replace(example, audio=_Long(np.tile(example.audio.sound().samples, WINDOWS)))
    prompt, session = make_prompt(task, long, experiment, target), target.session()
    method, drafters = build_method(experiment.method, target, models), {probe: build_drafter(drafter, target, models)}
    arm = Arm(experiment, method, [prompt], must_equal=False, drafters=drafters, heads={})
    [record] = generated(arm, [prompt], task, target, session, 0, FACTS)
    reader = Reader(target, Sampling.of(experiment.sampling), models)
    replayed = replay_record(record, experiment, method, prompt, reader)
    [overlap] = forced(arm, [probe], prompt, record, target, session, FACTS)[probe.id].overlap
    assert record.tokens is not None
    assert record.steps is not None
    assert record.statistics is not None
    *told, last = record.tokens
    other = [*told, (last + 1) % target.vocab_size]
    wrong = replay_record(replace(record, tokens=other, text=None), experiment, method, prompt, reader).divergence
    off, bound = margin_at(experiment, (record.tokens, other), prompt, 0, models)
    return {
        "scores of windows": folded([record.statistics[name] for name in sorted(record.statistics)]),
        "ends of windows": str(record.steps.stop_reason),
        "a fault of the last window": f"{wrong and wrong.what}, at the end {wrong and wrong.position == len(told)}",
        "how far a token of the last window is off": off,
        "how far rounding may move it": bound,
        f"text of {len(prompt.windows())} windows": hashed((record.tokens, record.text, record.stop_reason)),
        "drafts of windows that stand": hashed(_of_steps(record)),
        "what a record holds": ", ".join(sorted(name for name, value in vars(record).items() if value and name not in WATCHED)),
        "nats of windows": replayed.nats or 0.0,
        "decisions of windows": f"{replayed.replayed} {replayed.divergence}",
        "overlap of windows": folded(overlap.by_lenience["1.0"]),
    }


def _nested() -> dict[str, str]:
    """Return the rounds of rows whose drafts are drafted for in turn, three tokens at a time, and whether each is its own."""
    inner = replace(drafted_by("llama-draft", "hierarchical"), inner=DrafterSpec(kind="copy"), options={"inner_gamma": 3})
    experiment = _drafting("text", "llama-target", inner, NESTED, gamma=6)
    models = Models(experiment.device, experiment.dtype)
    target = models.get(experiment.target)

    def rounds(rows: Sequence[int]) -> list[Any]:
        method = build_method(experiment.method, target, models)
        inputs, uniforms = Inputs(tuple(ROWS[row] for row in rows)), Uniforms(list(rows), NESTED)
        made = method.generate(
            target.session(), inputs, Sampling.of(experiment.sampling), uniforms, Stop(max_new_tokens=NESTED)
        )
        return [[(step.drafted, step.num_accepted) for step in one.steps] for one in made]

    together = rounds(range(len(ROWS)))
    alone = [rounds([row])[0] for row in range(len(ROWS))]
    return {"drafts that are drafted for": hashed(together), "and their rows are their own": str(together == alone)}


def _searched() -> dict[str, str]:
    """Return what beams find in a batch whose rows end one after another, and whether each row's are its own."""
    target = loaded("specdec-verifier")
    prompts = [tuple(5 + (7 * row + 3 * place) % 40 for place in range(3 + row)) for row in range(SOURCES)]
    stop = Stop(max_new_tokens=2 * NESTED, token_ids=frozenset(target.eos_token_ids))

    def found(rows: Sequence[int]) -> list[list[int]]:
        inputs, uniforms = Inputs(tuple(prompts[row] for row in rows)), Uniforms(list(rows), 2 * NESTED)
        made = BeamSearch(BEAMS).generate(target.session(), inputs, Sampling(temperature=0.0), uniforms, stop)
        return [one.tokens for one in made]

    together, alone = found(range(SOURCES)), [found([row])[0] for row in range(SOURCES)]
    return {"beams of a batch": hashed(together), "beams of a batch are their rows' own": str(together == alone)}


def _in_half_precision() -> dict[str, float]:
    """Return laws of logits in bfloat16, log-probabilities of beams and a norm, of which all sums are made in fp32."""
    logits = torch.sin(torch.arange(40.0)).mul(6).bfloat16()
    drawn = {label: one for label, one in SAMPLINGS.items() if not one.greedy}
    session = ModelSession(loaded("llama-draft").stack)
    vars(session)["extend"] = lambda tokens: logits[None, None]  # whatever the tokens are
    vars(session).update(select=lambda rows: None, rewind=lambda counts: None)
    [checked] = Checker(session, [5], torch.device("cpu")).check([()], []).values()
    return {
        "beams that are checked in half precision": folded(checked.tolist()),
        **{f"a law in half precision, {label}": folded(one.probs(logits).tolist()) for label, one in drawn.items()},
        "beams in half precision": folded(next_log_probs(session, [5], torch.device("cpu")).tolist()),
        **{f"bounds of half precision, {label}": folded(_bounds(logits, one)) for label, one in SAMPLINGS.items()},
        "a norm in half precision": folded(rms_norm(logits.cos(), 1e-5)(logits[None])[0].tolist()),
    }


def _far_in_half_precision() -> dict[str, str]:
    """Return whether our passes round no more than transformers' along a long text: half precision cannot count to its end."""
    found = {}
    for name, dtype in product(("llama-target", "t5-target"), ("bfloat16", "float16")):
        experiment = plain_decoding(0, 1, 1, "text", name).replace(dtype=dtype)
        models = Models(experiment.device, experiment.dtype)
        reader = Reader(models.get(experiment.target), Sampling(temperature=0.0), models)
        passes = reader.read(Inputs((SOURCE,)), [3 + 5 * place % 90 for place in range(FAR)]).passes
        found[f"passes of {name} in {dtype}"] = "unknown" if passes is None else str(bool((passes[0] <= passes[1]).all()))
    return found


def _bounds(logits: torch.Tensor, sampling: Sampling) -> list[list[float]]:
    """Return by how much rounding may move margins and laws of a text whose logits are off by a known part."""
    found = in_half_precision(logits.view(4, 10), logits.float().view(4, 10) * 1.01, sampling)
    return [found.margin_bound.tolist(), found.law_bound.tolist(), found.border.tolist()]


def _behind_a_long_text() -> dict[str, float]:
    """Return the law of a block's first token before each token of a text that takes two passes to read."""
    experiment = _drafting("wmt-en-de", "specdec-verifier", drafted_by("specdec-drafter", "block"), LONG)
    models = Models(experiment.device, experiment.dtype)
    assert experiment.method.drafter is not None
    drafter = build_drafter(experiment.method.drafter, models.get(experiment.target), models)
    assert isinstance(drafter, BlockDrafter)
    text = [3 + 5 * place % 50 for place in range(LONG)]
    laws = torch.cat(list(drafter.teacher_probs(Inputs((SOURCE,)), [0], text, Sampling(temperature=1.0))))
    return {"laws of blocks along a long text": folded(laws[:, :50].flatten().tolist())}


def _laid_out() -> dict[str, str]:
    """Return whether a session of fixed shapes gives what a growing one does: rows of several lengths, of which one goes."""
    found = {}
    for name in ("llama-target", "t5-target"):
        stack = loaded(name).stack
        growing, fixed = ModelSession(stack), StaticSession(stack, Room(len(ROWS), max(map(len, ROWS)), NESTED), 3)
        pairs = zip(_passes(growing), _passes(fixed), strict=True)
        found[f"fixed shapes of {name}"] = str(all(torch.allclose(first, second, atol=1e-6) for first, second in pairs))
    return found


def _compiled() -> dict[str, str]:
    """Return whether compiled passes and draws give the rounds that torch's operations give, of drafts that all stand, too."""
    found = {}
    for target, draft in COMPILED_PAIRS:
        for temperature in (0.0, 1.0):
            rounds = [_rounds(target, draft, temperature, choice) for choice in (TORCH, COMPILED)]
            found[f"compiled rounds of {draft} for {target}, T {temperature:g}"] = str(rounds[0] == rounds[1])
    return found


def _rounds(target: str, draft: str, temperature: float, choice: Choice) -> list[Any]:
    """Return the rounds of texts that are decoded one by one, the probabilities of their drafts to six digits."""
    sampling = SamplingSpec(temperature=temperature)
    experiment = _drafting("text", target, drafted_by(draft), NESTED).replace(sampling=sampling)
    models, found = Models(experiment.device, experiment.dtype), []
    method = build_method(experiment.method, models.get(experiment.target), models)
    for spec in (experiment.target, *experiment.draft_models):
        stack = models.get(spec).stack
        stack.choice = choice
        stack.compile()
    for number, row in enumerate(ROWS):
        uniforms, stop = Uniforms([number], NESTED), Stop(max_new_tokens=NESTED)
        session = models.get(experiment.target).session()
        [made] = method.generate(session, Inputs((row,)), Sampling.of(sampling), uniforms, stop)
        probs = [[round(one, 6) for one in step.draft_probs] for step in made.steps]
        found.append((made.tokens, probs, [(step.drafted, step.num_accepted) for step in made.steps]))
    return found


def _passes(session: ModelSession) -> list[torch.Tensor]:
    """Return the logits of a pass of one token, of one of three, and behind a text that was cut and lost a row."""
    pending = torch.tensor(session.prefill(Inputs(ROWS)))[:, None]
    found = [session.extend(pending), session.extend(torch.tensor([[5, 6, 7]] * len(ROWS)))]
    session.rewind([1, 0, 2, 1])
    session.select([3, 0, 2])
    return [*found, session.extend(torch.tensor([[5, 6], [7, 8], [9, 10]]))]


def _drafting(task: str, target: str, drafter: DrafterSpec, length: int, gamma: int = 3) -> Experiment:
    method = MethodSpec.of("speculative", drafter=drafter, gamma=gamma)
    return plain_decoding(0, 1, 1, task, target, 1.0, method=method, max_new_tokens=length)


def _of_steps(record: Record) -> list[list[int]]:
    assert record.steps is not None
    return [list(record.steps.num_accepted), list(record.steps.emitted)]


GROUPS = (_heard, _nested, _searched, _in_half_precision, _far_in_half_precision, _behind_a_long_text, _laid_out, _compiled)
