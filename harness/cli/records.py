"""The commands that read record files.

``foretoken show`` prints one generation, coloured by what was drafted, accepted and corrected, or writes rounds as a trace.
``foretoken compare`` holds two files of the same examples against each other, paired, with intervals.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec, Probe
from harness.core.record_files import check_output, files_of, load_experiment, load_records
from harness.core.records import Record
from harness.measures.of_run import all_metrics, speedup
from harness.measures.pairing import succeeded
from harness.measures.statistics import Estimate, Missing, Refused, as_told
from harness.measures.verdicts import label_of, shown_sampling
from harness.tables.coloured import to_html, to_terminal
from harness.tables.evidence import stored_decoder
from harness.tables.files import write_whole
from harness.tables.trace import trace
from kernels.inputs import SamplingSpec
from tasks import get_task


def execute_show(args: argparse.Namespace) -> int:
    path, chosen = _address(args.record)
    for output in (args.trace, args.html):
        check_output(output, files_of(path))
    experiment, records, number = load_experiment(path), load_records(path), 1 if chosen is None else chosen
    if not records:
        raise UsageError(f"record {args.record!r}: its file holds none; expected one of a run that has recorded something")
    if not 1 <= number <= len(records):
        raise UsageError(f"record {args.record!r}: expected a number from 1 to {len(records)} after the colon")
    if args.trace is not None:
        document = trace(experiment, records if chosen is None else [records[number - 1]])
        print(write_whole(args.trace, json.dumps(document, ensure_ascii=False) + "\n"))
        return 0
    record = records[number - 1]
    if record.status != "ok":
        raise UsageError(f"record {args.record!r}: this example failed ({record.error}); choose another")
    decode = stored_decoder(path.parent, experiment.target)
    if args.html is not None:
        print(write_whole(args.html, to_html(record, decode, record.example)))
        return 0
    print(to_terminal(record, decode, sys.stdout.isatty()))
    return 0


def _address(text: str) -> tuple[Path, int | None]:
    name, colon, number = text.rpartition(":")
    if colon and number.isdecimal() and len(number) < 20:
        return Path(name), int(number)
    return Path(text), None


def execute_compare(args: argparse.Namespace) -> int:
    paths = (args.baseline, args.method)
    found = _difference([load_experiment(path) for path in paths], [load_records(path) for path in paths])
    print(json.dumps(found, default=as_told, ensure_ascii=False) if args.json else _difference_text(found))
    return 0


def _difference(experiments: Sequence[Experiment], records: Sequence[list[Record]]) -> dict[str, Any]:
    """Return every metric of both sides, the paired speed-up, and what else differs between them.

    Raises:
        UsageError: the two share no example that succeeded, so that nothing can be paired.
    """
    first, second = ({record.key: record for record in succeeded(side)} for side in records)
    shared = [key for key in first if key in second]
    if not shared:
        raise UsageError("compare: A and B share no example that succeeded; expected two runs of the same task, data and seed")
    speed = _speed(experiments, records)
    metrics = [all_metrics(get_task(one.task), side) for one, side in zip(experiments, records, strict=True)]
    values = {field.name: [getattr(one, field.name) for one in experiments] for field in fields(Experiment)}
    return {
        "names": [one.signature for one in experiments],
        "fields": {name: pair for name, pair in values.items() if pair[0] != pair[1]},
        "shared": len(shared),
        "same_tokens": sum(first[key].tokens == second[key].tokens for key in shared),
        "speedup": speed if isinstance(speed, Estimate) else None,
        "refused": speed.why if isinstance(speed, Missing) else None,
        "metrics": {name: [side.get(name) for side in metrics] for name in metrics[0] | metrics[1]},
    }


def _speed(experiments: Sequence[Experiment], records: Sequence[list[Record]]) -> Estimate | Missing | None:
    """Return the paired speed-up. Refused for a remainder: one of two runs of the same examples lost some of its records."""
    asked = {(one.limit, one.repeats) for one in experiments}
    if len(asked) == 1 and len({frozenset(record.key for record in side) for side in records}) > 1:
        counts = " and ".join(f"{name} {len(side)}" for name, side in zip("AB", records, strict=True))
        return Refused(f"refused: the same examples were asked for, and there are records of {counts}; run both again")
    speed = speedup(records[0], records[1])
    if isinstance(speed, Missing):  # what the run itself would be told does not help with two files
        return Refused(
            speed.why.partition("; run again")[0] + "; only what one `foretoken run` or table timed in turns is compared"
        )
    return speed


def _difference_text(found: Mapping[str, Any]) -> str:
    speed = _estimate_text(found["speedup"]) if found["speedup"] else found["refused"] or "unknown"
    return "\n".join(
        [
            *(f"{side} {name}" for side, name in zip("AB", found["names"], strict=True)),
            *(f"  {name}: {' | '.join(_in_words(pair))}" for name, pair in found["fields"].items()),
            f"{found['shared']} shared runs, {found['same_tokens']} with the same tokens",
            f"{'speed of B over A':28s} {speed}",
            *(f"{name:28s} A {_estimate_text(a):32s} B {_estimate_text(b)}" for name, (a, b) in found["metrics"].items()),
        ]
    )


def _in_words(pair: Sequence[Any]) -> list[str]:
    """Say what two experiments have in the place of each other."""
    if isinstance(pair[0], MethodSpec):
        return _methods_in_words(pair)
    if isinstance(pair[0], ModelSpec):
        same_name = len({one.name for one in pair}) == 1
        return [f"{one.name}, revision {one.revision}" if same_name else one.name for one in pair]
    if isinstance(pair[0], SamplingSpec):
        return [shown_sampling(one) for one in pair]
    if isinstance(pair[0], tuple):
        return [", ".join(one.id if isinstance(one, Probe) else str(one) for one in side) or "none" for side in pair]
    return ["none" if one in (None, "") else str(one) for one in pair]


def _methods_in_words(methods: Sequence[MethodSpec]) -> list[str]:
    """Name methods as tables and audits do, each with the models and options in which it differs from the other."""
    named = ("method", "drafter", "rule", "schedule")
    told: list[dict[str, Any]] = []
    for method in methods:
        drafters = {"draft": method.drafter, "inner draft": method.drafter and method.drafter.inner}
        models = {part: one.name for part, one in drafters.items() if one is not None and one.model is not None}
        models |= {"heads": method.heads.short} if method.heads is not None else {}
        told.append(models | {name: value for name, value in method.values.items() if name not in named})
    first, second = told
    return [
        ", ".join([label_of(method), *(f"{name} {own[name]}" for name in own if own[name] != other.get(name))])
        for method, own, other in ((methods[0], first, second), (methods[1], second, first))
    ]


def _estimate_text(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else f"{estimate.as_text('.4g')} {estimate.unit}".rstrip()
