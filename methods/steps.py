"""A round of decoding as it happened, and the rounds of an output as records keep them; read without torch.

A new number of a round is a field of ``Step`` and a column of ``Steps``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

StopReason = Literal["eos", "length"]
Seconds = Any  # a float, or what a device's clock gives until the text is done: ``float`` waits for the device and makes it one
PARTS = ("early_layers", "early_head", "post", "late_layers", "head", "wait", "adopt")  # of a round of the PPD pipeline
PIPELINE_COLUMNS = ("candidates", "matched", "early_layer", "parts", "units")


@dataclass(slots=True)
class Step:
    """One round of one row as it happened.

    ``emitted`` counts what entered the output after EOS and length limit cut the round (drafted and bonus alike), and
    ``num_accepted`` the drafts among it: equal where the round ended with a draft. ``drafted`` and the target's ``choices``
    (one more than drafts; none from rules that do not look at them) are whole, and so are the probabilities, but those of
    kernels may end with the first rejection.
    For beam search ``drafted`` is empty and ``num_accepted`` counts search steps, before any cut.
    Times are of the whole batch's round; NaN where no clock was given.

    A round of the PPD pipeline drafts nothing: ``candidates`` are the tokens that ``early_layer`` predicted for the position it
    emits, ``matched`` whether that token is among them (None: nothing was predicted), ``parts`` its seconds by
    ``PARTS`` and ``units`` the begin and end of every sub-process's work, seconds after the round's begin.
    """

    drafted: list[int]
    num_accepted: int
    emitted: int
    target_probs: list[float] = field(default_factory=list)
    draft_probs: list[float] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None
    draft_s: Seconds = float("nan")
    verify_s: Seconds = float("nan")
    round_s: Seconds = float("nan")
    candidates: list[int] = field(default_factory=list)
    matched: bool | None = None
    early_layer: int | None = None
    parts: list[float] = field(default_factory=list)
    units: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Steps:
    """The rounds of one output, a list for each field of ``Step`` that is kept; times in seconds.

    ``stop_reason`` is there where an output has several ends: one for each window of its recording.
    """

    drafted: list[list[int]] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    target_probs: list[list[float]] = field(default_factory=list)
    draft_probs: list[list[float]] = field(default_factory=list)
    choices: list[list[int]] = field(default_factory=list)
    stop_reason: list[StopReason | None] = field(default_factory=list)
    draft_s: list[float] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)
    candidates: list[list[int]] = field(default_factory=list)
    matched: list[bool | None] = field(default_factory=list)
    early_layer: list[int] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)
    units: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Steps":
        """Keep rounds; times that no clock saw, choices that no rule looked at and what other methods have are left out."""
        found = cls()
        is_pipeline = any(step.early_layer for step in steps)
        for name in (one.name for one in fields(cls)):
            values = [getattr(step, name) for step in steps]
            unseen = any(isinstance(value, float) and math.isnan(value) for value in values)
            foreign = (name in PIPELINE_COLUMNS and not is_pipeline) or (name == "choices" and not any(values))
            foreign |= name == "stop_reason" and not any(values[:-1])  # the last is the record's own
            setattr(found, name, [] if unseen or foreign else [_rounded(value) for value in values])
        return found

    def rounds(self, stop_reason: str | None) -> list[Step]:
        """Return the rounds again; ``stop_reason`` is why the last one was the last."""
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        filled = {name: values for name, values in columns.items() if values}
        steps = [Step(**{name: values[index] for name, values in filled.items()}) for index in range(len(self.drafted))]
        if steps and stop_reason in ("eos", "length"):
            steps[-1].stop_reason = cast(StopReason, stop_reason)
        return steps


def _rounded(value: Any) -> Any:
    """Return a number, or a list of them, with seven digits behind the point where it has any."""
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 7) if isinstance(value, float) else value
