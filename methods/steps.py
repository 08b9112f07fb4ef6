"""A round of decoding as it happened: a description that records and measures read without torch."""

from dataclasses import dataclass, field
from typing import Literal

StopReason = Literal["eos", "length"]
PARTS = ("early_layers", "early_head", "post", "late_layers", "head", "wait", "adopt")  # of a round of the PPD pipeline


@dataclass(slots=True)
class Step:
    """One round of one row as it happened.

    ``emitted`` counts what entered the output after EOS and length limit cut the round (drafted and bonus alike), and
    ``num_accepted`` the drafts among it: equal where the round ended with a draft. ``drafted`` and the target's ``choices``
    (one more than drafts; none from rules that do not look at them) are whole, and so are the probabilities, but those of
    kernels may end with the first rejection.
    For beam search ``drafted`` is empty and ``num_accepted`` counts search steps, before any cut.
    Times are seconds of the whole batch's round; NaN where no clock was given.

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
    draft_s: float = float("nan")
    verify_s: float = float("nan")
    round_s: float = float("nan")
    candidates: list[int] = field(default_factory=list)
    matched: bool | None = None
    early_layer: int | None = None
    parts: list[float] = field(default_factory=list)
    units: list[float] = field(default_factory=list)
