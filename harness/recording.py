"""One batch of prompts decoded as an arm says: its records, failures among them."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from harness.decode import generate, outputs_of, text_of
from harness.experiment import Experiment
from harness.memory import with_peak
from harness.models import LoadedModel
from harness.profiled import ProfiledRule
from harness.prompts import Prompt
from harness.records import EarlyRanks, Overlap, Record, RuleTimes, Steps
from harness.scoring import score_reference
from methods.errors import InputError, NotFiniteError
from methods.ppd.heads import EarlyHead
from methods.ppd.match_rate import early_ranks
from methods.speculative.overlap import overlap
from methods.types import Drafter, Generation, Inputs, Method, Session, Step
from tasks.base import ReferenceScore, Task
from tasks.errors import DataError

WARM_UP = 1
FAILURES = (InputError, RuntimeError, ValueError, IndexError)  # of one example: recorded, and the others go on
PIPELINE_COLUMNS = ("candidates", "matched", "early_layer", "parts", "units")


@dataclass
class Arm:
    """One experiment made ready: its method, what is measured over its output, its prompts."""

    experiment: Experiment
    method: Method
    overlap: list[tuple[str, Drafter]]
    early: list[EarlyHead]
    prompts: list[Prompt]
    checked: bool


def warm_up(arm: Arm, target: LoadedModel, session: Session) -> None:
    """What goes wrong here goes wrong again where it counts, and is recorded then."""
    if prompts := heard_of(arm.prompts)[0][:WARM_UP]:
        with suppress(RuntimeError, IndexError, NotFiniteError):
            generate(arm.experiment, arm.method, prompts, target, session, repeat=0)


def heard_of(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
    """Those whose recording can be read, if they have one, and the others with what is wrong with them."""
    heard, unheard = [], []
    for prompt in prompts:
        try:
            prompt.windows()
        except DataError as error:
            unheard.append((prompt, f"{type(error).__name__}: {error}"))
        else:
            heard.append(prompt)
    return heard, unheard


def records_of(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int, facts: dict[str, str]
) -> list[Record]:
    """One record a prompt. A recording that cannot be read fails alone, without the rest of its batch."""
    heard, unheard = heard_of(prompts)
    records = _decoded(arm, heard, task, target, session, repeat, facts) if heard else []
    common: dict[str, Any] = {"signature": arm.experiment.signature, "repeat": repeat, **facts}
    return records + [
        Record(example=prompt.example.id, status="failed", error=message, prompt_tokens=len(prompt.tokens), **common)
        for prompt, message in unheard
    ]


def _decoded(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int, facts: dict[str, str]
) -> list[Record]:
    """One record a prompt. What goes wrong while decoding or scoring makes records of failure, with no numbers."""
    common: dict[str, Any] = {"signature": arm.experiment.signature, "repeat": repeat, **facts}
    try:
        generations, wall_s, peak_bytes, rule_times = _generate(arm, prompts, target, session, repeat)
        records = [
            Record(
                example=prompt.example.id,
                status="ok",
                prompt_tokens=len(prompt.tokens),
                truncated_tokens=prompt.truncated_tokens,
                tokens=generation.tokens,
                text=text_of(arm.experiment, prompt, generation.tokens, target),
                stop_reason=generation.stop_reason,
                wall_s=wall_s / len(prompts),
                encode_s=_share(generation.encode_s, len(prompts)),
                draft_encode_s=_share(generation.draft_encode_s, len(prompts)),
                peak_bytes=peak_bytes,
                steps=columns(generation.steps),
                statistics=_statistics(arm.experiment, task, prompt, generation, target, session),
                overlap=_overlap(arm, prompt, generation, target, session),
                early=_early(arm, prompt, generation, session),
                rule_times=rule_times,
                **common,
            )
            for prompt, generation in zip(prompts, generations, strict=True)
        ]
        for record in records:
            record.to_line()  # a number that JSON cannot hold (NaN) is a failure, found here
    except FAILURES as error:
        message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if isinstance(error, IndexError) or "out of bounds" in message:
            message += " (a token outside the vocabulary: are there NaN in the weights of a model?)"
        return [
            Record(example=prompt.example.id, status="failed", error=message, prompt_tokens=len(prompt.tokens), **common)
            for prompt in prompts
        ]
    return records


def _generate(
    arm: Arm, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[list[Generation], float, int | None, RuleTimes | None]:
    """A batch's generations, its seconds, its peak of memory where that is asked for and can be known, and its rule's times."""

    def made() -> tuple[list[Generation], float]:
        return generate(arm.experiment, arm.method, prompts, target, session, repeat)

    rule = getattr(arm.method, "rule", None)
    if isinstance(rule, ProfiledRule):
        (generations, wall_s), rule_times = rule.profile(made)
        return generations, wall_s, None, rule_times
    if not arm.experiment.memory:
        return *made(), None, None
    value, peak_bytes = with_peak(arm.experiment.device, made)
    return *value, peak_bytes, None


def _share(seconds: float, num_rows: int) -> float | None:
    """A row's share of a batch's seconds; None where no clock saw them."""
    return None if math.isnan(seconds) else seconds / num_rows


def _statistics(
    experiment: Experiment, task: Task, prompt: Prompt, generation: Generation, target: LoadedModel, session: Session
) -> dict:
    score: ReferenceScore | None = None
    if task.scores_reference:
        text = prompt.example.references[0]
        score = score_reference(session, prompt.tokens, target.encode_continuation(text), text)
    return dict(task.statistics(prompt.example, text_of(experiment, prompt, generation.tokens, target), score))


def _overlap(arm: Arm, prompt: Prompt, generation: Generation, target: LoadedModel, session: Session) -> list[Overlap]:
    """Windows of a recording one behind the other, as their outputs."""
    if not arm.overlap:
        return []
    experiment, drafters = arm.experiment, [drafter for _, drafter in arm.overlap]
    outputs = outputs_of(experiment, prompt, generation.tokens, target)
    measured = [
        overlap(session, drafters, inputs, output, experiment.sampling, experiment.leniences)
        for inputs, output in zip(prompt.windows(), outputs, strict=False)
    ]
    return [
        Overlap(
            drafter=label,
            by_lenience={
                repr(float(key)): [round(v, 7) for window in measured for v in window[index][key].tolist()]
                for key in experiment.leniences
            },
        )
        for index, (label, _) in enumerate(arm.overlap)
    ]


def _early(arm: Arm, prompt: Prompt, generation: Generation, session: Session) -> list[EarlyRanks]:
    """Heads that read the same layers share one pass over the text."""
    measured, inputs = [], Inputs((prompt.tokens,))
    for layers in dict.fromkeys(spec.layers for spec in arm.experiment.early):
        readers = [pair for pair in zip(arm.experiment.early, arm.early, strict=True) if pair[0].layers == layers]
        ranks = early_ranks(session, inputs, generation.tokens, layers, [head for _, head in readers]).tolist()
        measured += [
            EarlyRanks(head=spec.label, layer=layer, ranks=row)
            for (spec, _), rows in zip(readers, ranks, strict=True)
            for layer, row in zip(layers, rows, strict=True)
        ]
    return measured


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 7) for value in values]


def columns(steps: Sequence[Step]) -> Steps:
    """Rounds as columns; times of rounds that no clock saw, and what no round of this method has, are left out."""
    out = Steps()
    for name in (field.name for field in fields(Steps)):
        values = [getattr(step, name) for step in steps]
        if name.endswith("_s"):
            values = [] if any(math.isnan(v) for v in values) else _rounded(values)
        elif name.endswith("_probs") or name in ("parts", "units"):
            values = [_rounded(row) for row in values]
        if name in PIPELINE_COLUMNS and not any(step.early_layer for step in steps):
            values = []
        if name == "choices" and not any(values):
            values = []
        setattr(out, name, values)
    return out
