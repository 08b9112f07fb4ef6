"""Records as pandas frames: ``load`` is the way in and says what the columns are.

Each kind of row is a generator of plain dictionaries. The experiment's settings are joined to them by signature.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec, RuleSpec, ScheduleSpec
from harness.core.record_files import load_experiment, load_records, record_files
from harness.core.records import Record
from harness.measures.pairing import steps_of
from methods.options import options_class
from methods.parts import METHODS, RULES, SCHEDULES
from methods.speculative.acceptance import accepted_over_verified
from methods.steps import PARTS

Row = dict[str, Any]
KEY = ("signature", "example", "repeat")
INLINE = ("method", "sampling", "options")  # what they hold are settings of the experiment, under their own names


def load(*paths: str | Path, rows: str = "examples", **settings: Any) -> "pd.DataFrame":
    """Records as a tidy pandas frame: of files, of folders of them, or of what ``settings`` picks in these.

        load("results/records", profile="toy", rule=["top-1", "top-beta"])
        load("results/records", rows="steps", signature="00e515633fa34a47")

    Every frame has ``signature``, ``example``, ``repeat``, what its rows hold, and the experiment's settings, one column each
    (``task``, ``target``, ``method``, ``drafter``, ``rule``, ``gamma``, ``temperature``, ...). A setting picks experiments: a
    value, or a list of values of which one must fit. What is unknown or was not measured is None or NaN. The first record of
    an example and repeat counts, a torn last line is left out, and a description must lie beside its records.

    Rows, and their columns (seconds are named ``_s``; positions count from 0 in the output):
        "examples": one a generation. ``status`` and ``error``; ``num_tokens`` emitted, ``num_rounds``, ``num_drafted``,
            ``num_accepted``; ``wall_s``, ``encode_s``, ``draft_encode_s``, ``on_processor_frac``; ``peak_bytes``;
            ``divergence`` ("near-tie", "bug");
            ``tokens``, ``text``, the task's ``statistics`` and the rest of ``Record``.
        "steps": one a round, ``position`` being its first token's. ``num_drafted``, ``num_accepted``, ``emitted``; ``draft_s``,
            ``verify_s``, ``round_s`` and, profiled, ``rule_s``; ``drafted_tokens`` and ``choices``. Of PPD: the
            ``candidate_tokens`` read after ``layer``, ``matched``, and the parts of a round (methods.ppd.pipeline.PARTS).
        "drafts": one a drafted token, ``place`` counting from 0 in its round. ``accepted``, ``verified`` (accepted or the
            round's first rejection), ``target_prob`` and ``draft_prob`` after temperature and filters.
        "overlap": one an output position, drafter (``overlap_with``) and ``overlap_lenience`` l. ``overlap_frac`` is
            sum min(p / l, q), whose mean at l = 1 is alpha (Leviathan, Corollary 3.6).
        "early": one an output position, early ``layer`` and ``head`` (N the model's own, Y trained). ``rank`` 0 is the head's
            first choice; ``rank < k`` is PPD's match (Section 4.3).
    """
    return frame([Path(path) for path in paths], rows, settings)


def frame(paths: Sequence[Path], rows: str, wanted: dict[str, Any]) -> pd.DataFrame:
    """Make the frame that ``load`` describes."""
    if rows not in ROWS:
        raise UsageError(f"rows {rows!r}: expected one of {', '.join(ROWS)}")
    files = dict.fromkeys(file for path in paths for file in record_files(path))
    described = {file: {"signature": file.stem} | settings_of(load_experiment(file)) for file in files}
    names = dict.fromkeys(name for known in (_known_settings(), *described.values()) for name in known)
    if unknown := sorted(set(wanted) - set(names)):
        raise UsageError(f"setting {unknown[0]!r}: no experiment has it; expected some of {', '.join(names)}")
    chosen = {file: known for file, known in described.items() if _fits(known, wanted)}
    columns, make = ROWS[rows]
    found = [
        {"signature": file.stem, "example": record.example, "repeat": record.repeat} | row
        for file in chosen
        for record in load_records(file)
        for row in make(record)
    ]
    settings = pd.DataFrame(list(chosen.values()), columns=list(names))
    return pd.DataFrame(found, columns=[*KEY, *columns]).merge(settings, on="signature", how="left", suffixes=(None, None))


def settings_of(experiment: Experiment) -> Row:
    """Every field of a description by name: a model is its name, with ``_revision`` and the like beside it, a drafter its
    short name. Probes are not among them: their records say what was measured."""
    return dict(_flat("", experiment))


def _flat(prefix: str, thing: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(thing):
        value, name = getattr(thing, field.name), prefix + field.name
        if field.name == "probes":  # records name theirs
            continue
        if field.name in INLINE:
            inner = dict(_flat(prefix, value))
            yield from ({field.name: inner.pop("name")} | inner if "name" in inner else inner).items()
        elif isinstance(value, RuleSpec | ScheduleSpec):
            yield name, value.name
            yield from _flat("", value.options)
        elif isinstance(value, ModelSpec):
            yield name, value.name
            yield from ((key, one) for key, one in _flat(f"{name}_", value) if key != f"{name}_name")
        elif isinstance(value, DrafterSpec):
            yield name, value.name
            yield from _flat(f"{name}_", value)
        else:
            yield name, value


def _known_settings() -> Iterator[str]:
    """Return the names that every frame has: an experiment's own, and the options of every part."""
    yield "signature"
    yield from settings_of(Experiment(task="", target=ModelSpec(name=""), method=MethodSpec(name="autoregressive")))
    for registry in (METHODS, SCHEDULES, RULES):
        yield from (one.name for entry in registry.values() for one in fields(options_class(entry)))


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
    "draft_encode_s", "on_processor_frac", "peak_bytes", "statistics", "run", "environment",
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
