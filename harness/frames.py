"""Records as pandas frames; ``harness.records.load`` is the way in and says what the columns are.

Each kind of row is a generator of plain dictionaries. The experiment's settings are joined to them by signature.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UsageError
from harness.experiment import DrafterSpec, EarlySpec, Experiment, MethodSpec, ModelSpec
from harness.pairing import steps_of
from harness.records import Record, distinct, load_experiment, read_records, record_files
from methods.ppd.pipeline import PARTS
from methods.speculative.acceptance import accepted_over_verified

Row = dict[str, Any]
KEY = ("signature", "example", "repeat")
INLINE = ("method", "sampling")  # what they hold are settings of the experiment, under their own names


def frame(paths: Sequence[Path], rows: str, wanted: dict[str, Any]) -> pd.DataFrame:
    """As ``harness.records.load`` says."""
    if rows not in ROWS:
        raise UsageError(f"rows {rows!r}: expected one of {', '.join(ROWS)}")
    files = dict.fromkeys(file for path in paths for file in record_files(path))
    described = {file: {"signature": file.stem} | settings_of(load_experiment(file)) for file in files}
    names = dict.fromkeys(name for known in (_BARE, *described.values()) for name in known)
    if unknown := sorted(set(wanted) - set(names)):
        raise UsageError(f"setting {unknown[0]!r}: no experiment has it; expected some of {', '.join(names)}")
    chosen = {file: known for file, known in described.items() if _fits(known, wanted)}
    columns, make = ROWS[rows]
    found = [
        {"signature": file.stem, "example": record.example, "repeat": record.repeat} | row
        for file in chosen
        for record in distinct(read_records(file))
        for row in make(record)
    ]
    settings = pd.DataFrame(list(chosen.values()), columns=list(names))
    return pd.DataFrame(found, columns=[*KEY, *columns]).merge(settings, on="signature", how="left", suffixes=(None, None))


def settings_of(experiment: Experiment) -> Row:
    """Every field of a description by name: a model is its name, with ``_revision`` and the like beside it, a drafter its
    short name; what is measured besides (``overlap``, ``early``) is the labels of it."""
    return dict(_flat("", experiment))


def _flat(prefix: str, thing: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(thing):
        value, name = getattr(thing, field.name), prefix + field.name
        if field.name in INLINE:
            inner = dict(_flat("", value))
            yield from ({field.name: inner.pop("name")} | inner if "name" in inner else inner).items()
        elif isinstance(value, ModelSpec):
            yield name, value.name
            yield from ((key, one) for key, one in _flat(f"{name}_", value) if key != f"{name}_name")
        elif isinstance(value, DrafterSpec):
            yield name, value.name
            yield from _flat(f"{name}_", value)
        elif isinstance(value, tuple):
            yield name, tuple(one.label if isinstance(one, DrafterSpec | EarlySpec) else one for one in value)
        else:
            yield name, value


_BARE = {"signature": ""} | settings_of(Experiment(task="", target=ModelSpec(name=""), method=MethodSpec(name="")))


def _fits(known: Row, wanted: dict[str, Any]) -> bool:
    """A list or a set holds alternatives; an experiment without a setting (of a drafter, say) has None there."""
    alternatives = {name: value if isinstance(value, list | set) else [value] for name, value in wanted.items()}
    return all(known.get(name) in values for name, values in alternatives.items())


def _examples(record: Record) -> Iterable[Row]:
    steps = steps_of(record)
    same = {name: getattr(record, name) for name in COPIED}
    return [
        same
        | {
            "num_tokens": None if record.tokens is None else len(record.tokens),
            "num_rounds": len(steps) if record.steps is not None else None,
            "num_drafted": sum(len(step.drafted) for step in steps) if record.steps is not None else None,
            "num_accepted": sum(step.num_accepted for step in steps) if record.steps is not None else None,
            "divergence": record.divergence.kind if record.divergence is not None else None,
        }
    ]


def _rounds(record: Record) -> Iterator[Row]:
    calls = record.rule_times.profiled_s if record.rule_times is not None else []
    steps, position = steps_of(record), 0
    for number, step in enumerate(steps):
        yield {
            "round": number,
            "position": position,
            "num_drafted": len(step.drafted),
            "num_accepted": step.num_accepted,
            "emitted": step.emitted,
            "draft_s": step.draft_s,
            "verify_s": step.verify_s,
            "round_s": step.round_s,
            "rule_s": calls[number] if len(calls) == len(steps) else None,
            "drafted_tokens": step.drafted,
            "choices": step.choices,
            "candidate_tokens": step.candidates,
            "matched": step.matched,
            "layer": step.early_layer,
            **dict(zip(PART_COLUMNS, step.parts, strict=False)),
        }
        position += step.emitted


def _drafts(record: Record) -> Iterator[Row]:
    position = 0
    for number, step in enumerate(steps_of(record)):
        num_verified = accepted_over_verified([step])[1]
        for place, token in enumerate(step.drafted):
            yield {
                "round": number,
                "place": place,
                "position": position + place,
                "token": token,
                "verified": place < num_verified,
                "accepted": place < step.num_accepted,
                "target_prob": _at(step.target_probs, place),
                "draft_prob": _at(step.draft_probs, place),
            }
        position += step.emitted


def _at(values: Sequence[float], place: int) -> float | None:
    """Kernels leave out the drafts behind a rejection, which they did not look at."""
    return values[place] if place < len(values) else None


def _overlap(record: Record) -> Iterator[Row]:
    for one in record.overlap:
        for lenience, values in one.by_lenience.items():
            for position, value in enumerate(values):
                at = {"overlap_with": one.drafter, "overlap_lenience": float(lenience), "position": position}
                yield at | {"overlap_frac": value}


def _early(record: Record) -> Iterator[Row]:
    for one in record.early:
        for position, rank in enumerate(one.ranks):
            yield {"head": one.head, "layer": one.layer, "position": position, "rank": rank}


COPIED = (
    "status", "error", "prompt_tokens", "truncated_tokens", "tokens", "text", "stop_reason", "wall_s", "encode_s",
    "draft_encode_s", "peak_bytes", "statistics", "run", "environment",
)  # fmt: skip
PART_COLUMNS = tuple(f"{name}_s" for name in PARTS)
ROWS: dict[str, tuple[tuple[str, ...], Callable[[Record], Iterable[Row]]]] = {
    "examples": ((*COPIED, "num_tokens", "num_rounds", "num_drafted", "num_accepted", "divergence"), _examples),
    "steps": (
        ("round", "position", "num_drafted", "num_accepted", "emitted", "draft_s", "verify_s", "round_s", "rule_s",
         "drafted_tokens", "choices", "candidate_tokens", "matched", "layer", *PART_COLUMNS),
        _rounds,
    ),
    "drafts": (("round", "place", "position", "token", "verified", "accepted", "target_prob", "draft_prob"), _drafts),
    "overlap": (("overlap_with", "overlap_lenience", "position", "overlap_frac"), _overlap),
    "early": (("head", "layer", "position", "rank"), _early),
}  # fmt: skip
