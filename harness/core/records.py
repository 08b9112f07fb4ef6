"""Records: one line of JSON for one example and repeat of an experiment, and one for what each probe measured of it.

Append-only; everything printed is derived from them. ``harness.core.record_files`` says where they lie.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from harness.core.files import check_unchanged, checksum_of, made, parsed, sealed, shallow, taken_out
from methods.steps import PIPELINE_COLUMNS, Steps, StopReason

Unit = tuple[str, str]  # (replica, example)
Key = tuple[str, int]
LONGEST_S = 1e7  # of one example: four months
SHORTEST_S = 1e-9  # a token, shared among a batch: no machine is as fast
MOST_DRAFTS = 2**14  # of a round; with many more, what counts by position takes for ever
MOST_NATS = 700  # a token; minus the logarithm of 1e-300 is less
MOST_SUM = 1e100  # of a statistic: sums of more overflow
MOST_TOKEN = 2**31 - 1  # no vocabulary is larger, and a tokenizer ends a program that asks it for more
CLOCK_S = 1e-6  # by which the seven digits that times of rounds keep may be off
ROUNDING = 0.01  # of probabilities that half precision adds up
MOST_DECISIONS = 16  # that a replay looks at of a token, a draft or a round: of none are there more than 8
FAILED = ("signature", "example", "repeat", "prompt_tokens", "run", "environment")  # what a failure has besides its message
MEASURED = ("overlap", "early", "peak_bytes", "rule_times")  # fields that probes fill


@dataclass(kw_only=True)
class EarlyRanks:
    """Per output position the rank of the emitted token among what a head read after an early layer; 0 is its first choice."""

    head: str
    layer: int
    ranks: list[int]


@dataclass(kw_only=True)
class Overlap:
    """Per output position sum_x min(p(x)/l, q(x)) of a drafter with the target, one list per lenience l (1.0 is alpha's)."""

    drafter: str
    by_lenience: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The place where an output departs from the plain arm's that it should equal, and the cause; see harness.run.divergence.

    ``margin`` is between the two largest logits there, ``bound`` what rounding can move; None between beams. ``what`` is the
    decision that the target's laws and the random numbers do not give, where a replay found one (harness.run.replay); then
    ``margin`` is how far it is from its border. "unresolved": what would tell could not be run, for want of memory.
    """

    position: int
    margin: float | None
    bound: float | None
    replays_agree: bool
    kind: Literal["near-tie", "bug", "unresolved"]
    what: str = ""


def kind_of(agree: bool, margin: float | None, bound: float | None) -> Literal["near-tie", "bug"]:
    """Return what parts two outputs: rounding, if replays in fp64 ``agree`` and it can move the margin; else a bug."""
    return "near-tie" if agree and (margin is None or bound is None or margin < bound) else "bug"


@dataclass(kw_only=True)
class RuleTimes:
    """Seconds of every call of a verify rule, in the order of the rounds (harness.run.instruments).

    ``profiled_s`` is CPU time on a CPU, the sum of device events on CUDA; ``wall_s`` is the clock's, ``event_s`` what passed
    between two CUDA events (none on a CPU). ``run`` is the process that timed them: they are compared only within one.
    """

    profiled_s: list[float]
    wall_s: list[float]
    event_s: list[float] = field(default_factory=list)
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """The finding of a probe on one example and repeat, or why it has none.

    ``text`` is the hash of the tokens that were measured: a probe's record belongs to that text and to no other.
    """

    example: str
    repeat: int
    text: str
    error: str | None = None
    overlap: list[Overlap] = field(default_factory=list)
    early: list[EarlyRanks] = field(default_factory=list)
    peak_bytes: int | None = None
    rule_times: RuleTimes | None = None
    run: str = ""
    environment: str = ""

    @property
    def key(self) -> Key:
        return self.example, self.repeat

    def to_line(self) -> str:
        return sealed({name: value for name, value in shallow(self).items() if value not in (None, [])})

    @classmethod
    def from_line(cls, line: str | bytes) -> "ProbeRecord":
        """ValueError for what is no record of a probe: other fields or types, impossible numbers."""
        values = parsed(line)
        checksum = taken_out(values)
        found = made(cls, values)
        _check_found(found)
        check_unchanged(line, checksum)
        return found


@dataclass(kw_only=True)
class Record:
    """The result of one example. A failure has its message and no numbers, and is counted in denominators.

    ``run`` is the process that made it: times are compared only within one. ``num_rows`` examples were decoded together;
    ``wall_s`` is their time over their number, and so are, for draft-and-verify methods, ``encode_s`` (the target's prefill:
    its encoder, or the prompt) and ``draft_encode_s`` (the drafter's begin). ``on_processor_frac`` is the share of the time in
    which the thread that decodes had a processor (None: it rests for others, as on a GPU or in a pipeline). ``divergence`` is
    None where the output equals the plain arm's or need not, and no replay found a fault; ``replayed`` are the decisions that
    were replayed, None without one; ``nats`` is minus the text's log-probability under the target at temperature 1, None where
    it was not read for a replay. The fields of MEASURED are what probes found; ``peak_bytes`` is the whole batch's, above what
    was held before it. They lie in files of their own: ``probes`` has them by the probe's id while a record is on its way
    there.
    """

    signature: str
    example: str
    repeat: int
    status: Literal["ok", "failed"]
    error: str | None = None
    prompt_tokens: int | None = None
    truncated_tokens: int | None = None
    tokens: list[int] | None = None
    text: str | None = None
    stop_reason: StopReason | None = None
    num_rows: int | None = None
    wall_s: float | None = None
    encode_s: float | None = None
    draft_encode_s: float | None = None
    on_processor_frac: float | None = None
    peak_bytes: int | None = None
    steps: Steps | None = None
    statistics: dict[str, float | list[float]] | None = None
    overlap: list[Overlap] = field(default_factory=list)
    early: list[EarlyRanks] = field(default_factory=list)
    divergence: Divergence | None = None
    replayed: int | None = None
    nats: float | None = None
    rule_times: RuleTimes | None = None
    run: str = ""
    environment: str = ""
    probes: dict[str, ProbeRecord] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.example, self.repeat

    @property
    def unit(self) -> Unit:
        """What an interval resamples: the example, in the replica that decoded it, which has a signature of its own."""
        return self.signature, self.example

    def to_line(self) -> str:
        """Return what was generated, without what probes found."""
        return sealed({name: value for name, value in shallow(self).items() if name not in (*MEASURED, "probes")})

    @classmethod
    def from_line(cls, line: str | bytes) -> "Record":
        """ValueError for what is no record: other fields or types, rounds that do not fit the tokens, impossible numbers."""
        values = parsed(line)
        checksum = taken_out(values)
        record = cls.from_dict(values)
        check_unchanged(line, checksum)
        return record

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Record":
        record = made(cls, values)
        _check_numbers(record)
        _check_rounds(record)
        check_times(record, ROUNDING)
        return record

    def with_probes(self, found: list[ProbeRecord]) -> "Record":
        """Return the record with what probes found in its fields. One that failed makes it a failure, which has no numbers."""
        if failed := next((one for one in found if one.error is not None), None):
            return Record(status="failed", error=failed.error, **{name: getattr(self, name) for name in FAILED})
        return replace(
            self,
            overlap=[one for each in found for one in each.overlap],
            early=[one for each in found for one in each.early],
            peak_bytes=next((one.peak_bytes for one in found if one.peak_bytes is not None), None),
            rule_times=next((one.rule_times for one in found if one.rule_times is not None), None),
            probes={},
        )


def text_hash(tokens: list[int] | None) -> str:
    """Return what a probe's record remembers of the tokens that it measured."""
    return checksum_of(tokens)


def by_key(records: Iterable[Record]) -> dict[Key, Record]:
    """Return the records by their keys: of an example and repeat the first counts."""
    found: dict[Key, Record] = {}
    for record in records:
        found.setdefault(record.key, record)
    return found


def _check_numbers(record: Record) -> None:
    """No run writes a negative count or time, a failure without a message, or a success with one."""
    _check_range("repeat", [record.repeat])
    if record.status == "failed" and record.error is None:
        raise ValueError("error: null, of an example that failed; expected its message")
    if record.status == "failed":
        kept = [name for name, value in shallow(record).items() if value not in (None, [], {})]
        if odd := [name for name in kept if name not in (*FAILED, "status", "error")]:
            raise ValueError(f"{odd[0]}: of an example that failed; expected null")
    if record.status == "ok" and record.error is not None:
        raise ValueError(f"status 'ok', but error {record.error!r}")
    for name in ("prompt_tokens", "truncated_tokens"):
        _check_range(name, [getattr(record, name)])
    steps = Steps() if record.steps is None else record.steps
    decided = len(record.tokens or ()) + len(steps.drafted) + sum(map(len, steps.drafted))
    _check_range("replayed", [record.replayed], most=MOST_DECISIONS * decided)
    _check_range("on_processor_frac", [record.on_processor_frac], most=1)
    _check_range("nats", [record.nats], most=MOST_NATS * len(record.tokens or ()))
    for name, value in (record.statistics or {}).items():
        _check_range(f"statistics.{name}", value if isinstance(value, list) else [value], -MOST_SUM, MOST_SUM)
    for name in ("wall_s", "encode_s", "draft_encode_s"):
        _check_range(name, [getattr(record, name)], most=LONGEST_S)
    if record.wall_s is not None and record.wall_s < SHORTEST_S * len(record.tokens or ()):
        raise ValueError(f"wall_s: {record.wall_s:.3g}, of {len(record.tokens or ())} tokens; expected what they took")
    _check_range("num_rows", [record.num_rows], least=1)
    _check_range("tokens", record.tokens or [], most=MOST_TOKEN)
    if record.divergence is not None:
        _check_range("divergence.position", [record.divergence.position], most=len(record.tokens or ()))
        _check_kind(record.divergence)
    _check_found(record)


def _check_kind(found: Divergence) -> None:
    """ValueError for a cause that a divergence's own numbers do not give; of one that is unresolved there are none."""
    for name in ("margin", "bound"):
        _check_range(f"divergence.{name}", [getattr(found, name)])
    numbers = (found.replays_agree, found.margin, found.bound)
    if found.kind != kind_of(*numbers) and (found.kind, *numbers) != ("unresolved", False, None, None):
        agree = "replays that agree" if found.replays_agree else "replays that do not agree"
        raise ValueError(
            f"divergence.kind: {found.kind!r}, of margin {found.margin}, bound {found.bound} and {agree}; "
            f"expected {kind_of(*numbers)!r}"
        )


def _check_found(record: "Record | ProbeRecord") -> None:
    """Check what probes find; seconds and ranks are not negative, overlaps are probabilities."""
    for overlap in record.overlap:
        if len(lengths := {len(values) for values in overlap.by_lenience.values()}) > 1:
            raise ValueError(f"overlap.by_lenience: {sorted(lengths)} positions; expected as many of each")
        for lenience, values in overlap.by_lenience.items():
            _check_range("overlap.by_lenience", [float(lenience)])
            _check_range("overlap", values, most=1 + ROUNDING)
    for early in record.early:
        _check_range("early.ranks", early.ranks)
    _check_range("peak_bytes", [record.peak_bytes])
    if (times := record.rule_times) is not None:
        for name in ("profiled_s", "wall_s", "event_s"):
            _check_range(f"rule_times.{name}", getattr(times, name))


def _check_range(name: str, values: Iterable[float | None], least: float = 0, most: float = math.inf) -> None:
    """ValueError for a number that is not within two others; None is unknown."""
    if odd := [value for value in values if value is not None and not least <= value <= most]:
        raise ValueError(f"{name}: {odd[0]}; expected {f'{least} or more' if most == math.inf else f'{least} to {most:g}'}")


def check_times(record: Record, share: float = 0.0) -> None:
    """ValueError for a round that is shorter than its parts, or a batch shorter than its rounds and what came before them.

    Times may be off by ``share`` of themselves: those that tables are made of are kept with few digits.
    """
    steps, rows = record.steps, record.num_rows or 1
    if steps is None or record.wall_s is None:
        return
    for draft_s, verify_s, round_s in zip(steps.draft_s, steps.verify_s, steps.round_s, strict=False):
        if draft_s + verify_s > round_s * (1 + share) + CLOCK_S:
            raise ValueError(f"clock: a round took {round_s:.3g} s, its drafts {draft_s:.3g} s, verification {verify_s:.3g} s")
    parts_s = sum(steps.round_s) + rows * ((record.encode_s or 0.0) + (record.draft_encode_s or 0.0))
    if parts_s > rows * record.wall_s * (1 + share) + CLOCK_S * (1 + len(steps.round_s)):
        raise ValueError(f"clock: a batch took {rows * record.wall_s:.3g} s, its rounds and encoding {parts_s:.3g} s")


def _differ(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    return len(ours) != len(theirs)


def _check_rounds(record: Record) -> None:
    """Columns are whole or, where a method has none, empty; together the rounds emit the record's tokens."""
    steps = record.steps
    if steps is None:
        return
    lengths = {name: len(column) for name, column in vars(steps).items()}
    rounds = lengths["drafted"]
    if lengths["num_accepted"] != rounds or lengths["emitted"] != rounds or not {0, rounds}.issuperset(lengths.values()):
        raise ValueError("steps: columns of different lengths")
    if lengths["target_probs"] != lengths["draft_probs"] or any(map(_differ, steps.target_probs, steps.draft_probs)):
        raise ValueError("steps: target_probs and draft_probs of different lengths")
    if len({lengths[name] for name in PIPELINE_COLUMNS}) > 1:
        raise ValueError(f"steps: some of {', '.join(PIPELINE_COLUMNS)} are missing; expected all of a pipeline's, or none")
    if sum(steps.emitted) != len(record.tokens or ()) or min((*steps.emitted, *steps.num_accepted), default=0) < 0:
        raise ValueError(f"steps: {sum(steps.emitted)} tokens emitted, {len(record.tokens or ())} recorded")
    for name in ("draft_s", "verify_s", "round_s"):
        _check_range(f"steps.{name}", getattr(steps, name))
    for name in ("target_probs", "draft_probs"):
        _check_range(f"steps.{name}", chain.from_iterable(getattr(steps, name)), most=1 + ROUNDING)
    for name in ("drafted", "choices", "candidates"):
        _check_range(f"steps.{name}", chain.from_iterable(getattr(steps, name)), most=MOST_TOKEN)
    _check_range("steps.drafted, in a round", map(len, steps.drafted), most=MOST_DRAFTS)
    if any(len(drafted) < len(probs) for drafted, probs in zip(steps.drafted, steps.target_probs, strict=False)):
        raise ValueError("steps: a round has more target_probs than drafts")
    for token, candidates, matched in zip(record.tokens or (), steps.candidates, steps.matched, strict=False):
        if matched is not ((token in candidates) if candidates else None):
            raise ValueError(f"steps.matched: {matched} of token {token} and candidates {candidates}")
    for drafted, accepted, emitted in zip(steps.drafted, steps.num_accepted, steps.emitted, strict=True):
        if drafted and not (accepted <= len(drafted) and emitted <= accepted + 1):
            raise ValueError(
                f"steps: a round drafted {len(drafted)}, accepted {accepted} and emitted {emitted} tokens; expected at most "
                "what was drafted, and one more"
            )
