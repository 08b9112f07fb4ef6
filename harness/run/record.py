"""One batch of examples: decoded into records, failures among them, and measured by what probes ask for."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.core.experiment import EarlyProbe, Experiment, MemoryProbe, OverlapProbe, Probe, RuleTimesProbe
from harness.core.records import EarlyRanks, Key, Overlap, ProbeRecord, Record, RuleTimes, check_times, text_hash
from harness.models.loading import LoadedModel
from harness.run.decode import generate, outputs_of, text_of
from harness.run.instruments import ProfiledRule, with_peak
from harness.run.prompts import Prompt
from methods.errors import InputError, NotFiniteError
from methods.ppd.heads import EarlyHead, early_ranks
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from methods.speculative.overlap import log_prob, overlap
from methods.steps import Steps
from methods.types import Drafter, Generation, Inputs, Method, Session
from tasks.base import DataError, ReferenceScore, Task

FAILURES = (InputError, RuntimeError, ValueError, IndexError)  # of one example: recorded, and the others go on
Facts = dict[str, Any]  # a record's ``run`` and ``environment``


@dataclass
class Arm:
    """One experiment made ready: its method, its prompts, and what its probes read with."""

    experiment: Experiment
    method: Method
    prompts: list[Prompt]
    must_equal: bool  # the outputs of the comparison's first arm
    drafters: dict[OverlapProbe, Drafter]
    heads: dict[EarlyProbe, EarlyHead]


def warm_up(arm: Arm, target: LoadedModel, session: Session) -> None:
    """Decode the first batch of prompts that can be read; on CUDA also one token of each, in a round without drafts.

    Kernels are compiled for what they see first: many rows, rounds with drafts and without. Errors are ignored: the measured
    run raises and records them again.
    """
    experiment = arm.experiment
    lengths = (experiment.max_new_tokens, 1) if experiment.device.startswith("cuda") else (experiment.max_new_tokens,)
    if prompts := with_readable_audio(arm.prompts)[0][: experiment.batch_size]:
        for length in lengths:
            with suppress(RuntimeError, IndexError, NotFiniteError):
                generate(experiment.replace(max_new_tokens=length), arm.method, prompts, target, session, repeat=0)


def with_readable_audio(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
    """Return the prompts whose recording, if they have one, can be read; and the others, each with its error."""
    found, broken = [], []
    for prompt in prompts:
        try:
            prompt.windows()
        except DataError as error:
            broken.append((prompt, f"{type(error).__name__}: {error}"))
        else:
            found.append(prompt)
    return found, broken


def generated(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int, facts: Facts
) -> list[Record]:
    """Decode a batch: one record a prompt. A recording that cannot be read fails alone, without the rest of its batch."""
    found, broken = with_readable_audio(prompts)
    records = _decoded(arm, found, task, target, session, repeat, facts) if found else []
    made = {one.example: one for one in records}
    made |= {prompt.example.id: _failure(arm, prompt, message, repeat, facts) for prompt, message in broken}
    return [made[prompt.example.id] for prompt in prompts]


def _decoded(
    arm: Arm, prompts: Sequence[Prompt], task: Task, target: LoadedModel, session: Session, repeat: int, facts: Facts
) -> list[Record]:
    """One record a prompt. An error while decoding or scoring makes every record of the batch a failure, without numbers."""
    try:
        began = time.thread_time(), time.perf_counter()
        (generations, wall_s), rule_times = _timed(arm, prompts, target, session, repeat)
        watched = on_processor(arm, time.thread_time() - began[0], time.perf_counter() - began[1])
        records = [
            Record(
                signature=arm.experiment.signature,
                example=prompt.example.id,
                repeat=repeat,
                status="ok",
                prompt_tokens=len(prompt.tokens),
                truncated_tokens=prompt.truncated_tokens,
                tokens=generation.tokens,
                text=text_of(arm.experiment, prompt, generation.tokens, target),
                stop_reason=generation.stop_reason,
                num_rows=len(prompts),
                wall_s=wall_s / len(prompts),
                encode_s=_share(generation.encode_s, len(prompts)),
                draft_encode_s=_share(generation.draft_encode_s, len(prompts)),
                on_processor_frac=watched,
                steps=Steps.of(generation.steps),
                statistics=_statistics(arm.experiment, task, prompt, generation, target),
                **facts,
            )
            for prompt, generation in zip(prompts, generations, strict=True)
        ]
        for record, prompt in zip(records, prompts, strict=True):
            count, most = len(record.tokens or ()), arm.experiment.max_new_tokens
            if count > most and prompt.listener is None:  # of a recording they are a window's
                raise RuntimeError(f"{count} tokens were emitted, max_new_tokens is {most}")
            check_times(record)
            Record.from_line(record.to_line())  # what no record can hold (NaN, more accepted than drafted) is a failure
    except FAILURES as error:
        return [_failure(arm, prompt, message_of(error), repeat, facts) for prompt in prompts]
    if rule_times is not None:
        for record in records:
            record.probes[RuleTimesProbe().id] = _found(record, facts, rule_times=_of_run(rule_times, facts))
    return records


def on_processor(arm: Arm, thread_s: float, wall_s: float) -> float | None:
    """Return the share of the time in which this thread had a processor; None where it rests while others decode."""
    rests = arm.experiment.device != "cpu" or arm.experiment.method.is_pipeline
    return None if rests or wall_s <= 0 else min(1.0, thread_s / wall_s)


def _failure(arm: Arm, prompt: Prompt, message: str, repeat: int, facts: Facts) -> Record:
    common: dict[str, Any] = {"signature": arm.experiment.signature, "repeat": repeat, "prompt_tokens": len(prompt.tokens)}
    return Record(example=prompt.example.id, status="failed", error=message, **common, **facts)


def message_of(error: Exception) -> str:
    message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    if isinstance(error, IndexError) or "out of bounds" in message:
        message += " (a token outside the vocabulary: are there NaN in the weights of a model?)"
    return message


def _timed(
    arm: Arm, prompts: Sequence[Prompt], target: LoadedModel, session: Session, repeat: int
) -> tuple[tuple[list[Generation], float], RuleTimes | None]:
    """Return a batch's generations and seconds, and the times of its verify rule's calls where the rule is profiled."""

    def decode() -> tuple[list[Generation], float]:
        return generate(arm.experiment, arm.method, prompts, target, session, repeat)

    rule = getattr(arm.method, "rule", None)
    return rule.profile(decode) if isinstance(rule, ProfiledRule) else (decode(), None)


def profile_rule(arm: Arm) -> None:
    """Let the calls of a method's verify rule be timed from now on; a method without a rule is left as it is."""
    if isinstance(arm.method, DraftAndVerify):
        arm.method.rule = ProfiledRule(arm.method.rule, arm.experiment.device)


def decoded_again(
    arm: Arm,
    records: Sequence[Record],
    prompts: Sequence[Prompt],
    probe: Probe,
    target: LoadedModel,
    session: Session,
    facts: Facts,
) -> dict[Key, ProbeRecord]:
    """Decode a recorded batch once more under a probe that times or holds what decoding does; refused for another text."""
    repeat = records[0].repeat
    by_example = {record.example: record for record in records}
    prompts = with_readable_audio(prompts)[0]

    def decode() -> tuple[tuple[list[Generation], float], RuleTimes | None]:
        return _timed(arm, prompts, target, session, repeat)

    try:
        is_memory = isinstance(probe, MemoryProbe)
        ((generations, _), times), peak = with_peak(arm.experiment.device, decode) if is_memory else (decode(), None)
        errors = [_other_text(by_example[prompt.example.id], one) for prompt, one in zip(prompts, generations, strict=True)]
    except FAILURES as failure:
        peak, times, errors = None, None, [message_of(failure)] * len(prompts)
    found = {}
    for prompt, error in zip(prompts, errors, strict=True):
        record = by_example[prompt.example.id]
        values: dict[str, Any] = (
            {"error": error} if error else {"peak_bytes": peak, "rule_times": times and _of_run(times, facts)}
        )
        found[record.key] = _found(record, facts, **values)
    return found


def _other_text(record: Record, generation: Generation) -> str | None:
    if record.tokens == generation.tokens:
        return None
    return "decoded again for a probe, other tokens came out than were recorded"


def forced(
    arm: Arm, probes: Sequence[Probe], prompt: Prompt, record: Record, target: LoadedModel, session: Session, facts: Facts
) -> dict[str, ProbeRecord]:
    """Run teacher-forced probes over a recorded text; return findings by probe id. Probes that read the same share a pass."""
    found: dict[str, ProbeRecord] = {}
    for group in _groups(probes):
        try:
            measure = _overlaps if isinstance(group[0], OverlapProbe) else _early
            values = measure(arm, group, prompt, record, target, session)
            made = [_found(record, facts, **value) for value in values]
            for one in made:
                one.to_line()  # a number that JSON cannot hold is a failure, found here
        except FAILURES as error:
            what = "a draft's overlap" if isinstance(group[0], OverlapProbe) else "early layers"
            made = [_found(record, facts, error=f"{message_of(error)} (reading {what} along the text)") for _ in group]
        found |= {probe.id: one for probe, one in zip(group, made, strict=True)}
    return found


def _groups(probes: Sequence[Probe]) -> list[list[Probe]]:
    groups: dict[Any, list[Probe]] = {}
    for probe in probes:
        alike = probe.leniences if isinstance(probe, OverlapProbe) else getattr(probe, "layers", None)
        groups.setdefault((type(probe), alike), []).append(probe)
    return list(groups.values())


def _found(record: Record, facts: Facts, **values: Any) -> ProbeRecord:
    return ProbeRecord(example=record.example, repeat=record.repeat, text=text_hash(record.tokens), **facts, **values)


def _of_run(times: RuleTimes, facts: Facts) -> RuleTimes:
    return RuleTimes(profiled_s=times.profiled_s, wall_s=times.wall_s, event_s=times.event_s, run=facts["run"])


def _overlaps(
    arm: Arm, probes: Sequence[Any], prompt: Prompt, record: Record, target: LoadedModel, session: Session
) -> list[dict[str, Any]]:
    """Return what each probe found of an output; of a recording that is heard in windows, one window behind the other."""
    experiment, drafters = arm.experiment, [arm.drafters[probe] for probe in probes]
    outputs, leniences = outputs_of(experiment, prompt, record.tokens or [], target), probes[0].leniences
    measured = [
        overlap(session, drafters, inputs, output, Sampling.of(experiment.sampling), leniences)
        for inputs, output in zip(prompt.windows(), outputs, strict=False)
    ]
    return [
        {
            "overlap": [
                Overlap(
                    drafter=probe.drafter.label,
                    by_lenience={
                        repr(float(key)): [round(v, 7) for window in measured for v in window[index][key].tolist()]
                        for key in leniences
                    },
                )
            ]
        }
        for index, probe in enumerate(probes)
    ]


def _early(
    arm: Arm, probes: Sequence[Any], prompt: Prompt, record: Record, target: LoadedModel, session: Session
) -> list[dict[str, Any]]:
    """Return the ranks of the emitted tokens among what each head reads after each layer."""
    layers, heads = probes[0].layers, [arm.heads[probe] for probe in probes]
    ranks = early_ranks(session, Inputs((prompt.tokens,)), record.tokens or [], layers, heads).tolist()
    return [
        {"early": [EarlyRanks(head=probe.label, layer=layer, ranks=row) for layer, row in zip(layers, rows, strict=True)]}
        for probe, rows in zip(probes, ranks, strict=True)
    ]


def _share(seconds: float, num_rows: int) -> float | None:
    """Return a row's share of a batch's seconds; None where no clock saw them."""
    return None if math.isnan(seconds) else seconds / num_rows


def _statistics(experiment: Experiment, task: Task, prompt: Prompt, generation: Generation, target: LoadedModel) -> dict | None:
    """Return the task's numbers of an output; None where they are of a reference that the example lacks."""
    score: ReferenceScore | None = None
    if task.scores_reference and not prompt.example.references:
        return None
    if task.scores_reference:
        text = prompt.example.references[0]
        score = score_reference(target.session(), prompt.tokens, target.encode_continuation(text), text)
    return dict(task.statistics(prompt.example, text_of(experiment, prompt, generation.tokens, target), score))


def score_reference(session: Session, prompt: tuple[int, ...], reference: tuple[int, ...], text: str) -> ReferenceScore:
    """Score how likely ``reference`` is after ``prompt``; ``num_bytes`` is of the part of ``text`` that the reference holds."""
    total, scored = log_prob(session, Inputs((prompt,)), reference)
    share = scored / len(reference) if reference else 0.0
    return ReferenceScore(total, scored, round(len(text.encode()) * share))
