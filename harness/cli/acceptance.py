"""``foretoken acceptance``: every definition of acceptance from record files, and from logs that other engines wrote.

Beside the definitions stand the numbers that an engine's own tools derive from its log, under their names. A log can be
written as a ``speculation_profile.json``.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.record_files import check_output, files_of, load_experiment, load_records
from harness.core.records import Record
from harness.core.text import interval_text, text_table
from harness.engines import formats
from harness.engines.profile import profile_of
from harness.measures.counts import START, Counted, Told
from harness.measures.definitions import Definition, definitions_of
from harness.measures.logs import AnyLog, Log
from harness.measures.pairing import num_failed, overlap_of
from harness.measures.statistics import DESCRIPTIVE, ENOUGH, Estimate
from harness.tables.files import write_whole
from harness.tables.layout import APPROXIMATE

NAMED = 3  # places of lines that were passed over
OURS = b'{"signature":'  # how a line of our records begins


def execute(args: argparse.Namespace) -> int:
    read = [one for path in args.records for one in (files_of(path) if _is_ours(path) else [path])]
    for output in (args.json, args.profile_out):
        check_output(output, read if args.before is None else [*read, args.before])
    found = _between(args.before, args.records) if args.before is not None else _logs(args.records)
    if not found:
        raise UsageError(
            f"records {args.records[0]}: nothing was drafted in them; expected those of a method that drafts and verifies"
        )
    for path in args.records:
        if path not in found:
            print(f"foretoken: records {path}: no drafts in them; left out", file=sys.stderr)
    paths, logs = list(found), list(found.values())
    profile = None if args.profile_out is None else _profile(paths, logs)
    definitions = definitions_of(logs)
    rows = [_row(definition, logs) for definition in definitions]
    for number, (path, log) in enumerate(zip(paths, logs, strict=True), start=1):
        print(f"[{number}] {path}: {_described(log)}")
    print("\n" + "\n".join(_lines(definitions, rows)))
    print("\n" + "\n".join([*_told(logs), *_remarks(logs)]))
    if args.json is not None:
        document = {"records": [_facts(*pair) for pair in zip(paths, logs, strict=True)], "definitions": rows}
        write_whole(args.json, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    if profile is not None:
        print(f"\nwrote {write_whole(args.profile_out, json.dumps(profile, indent=2) + chr(10))}")
    return 0


def _logs(paths: Sequence[Path]) -> dict[Path, AnyLog]:
    return {path: log for path in paths if (log := _log(path)) is not None}


def _between(before: Path, paths: Sequence[Path]) -> dict[Path, AnyLog]:
    """Read what a server counted since an earlier dump."""
    if len(paths) > 1:
        raise UsageError(f"--before {before}: {len(paths)} logs; expected one, the later dump of the same server")
    if _is_ours(paths[0]):
        raise UsageError(f"--before {before}: {paths[0]} is no engine's log; expected the later dump of the same server")
    return {paths[0]: formats.read_between(before, paths[0])}


def _log(path: Path) -> AnyLog | None:
    """Read a record file, or what another engine wrote; None for records in which nothing was drafted."""
    if not _is_ours(path):
        return formats.read(path)
    experiment, records = load_experiment(path), load_records(path)
    log = Log(experiment, records)
    return replace(log, plain=_plain(path, experiment)) if log.longest else None


def _is_ours(path: Path) -> bool:
    """Say whether a file is to be read as records: also what is no file, so that it is named as one that records lack."""
    if not path.is_file():
        return True
    if path.suffix != ".jsonl" or not path.with_suffix(".json").exists():
        return False
    with path.open("rb") as file:
        if file.read(len(OURS)) == OURS:
            return True
    with suppress(UsageError):
        return formats.recognised(path) is None
    return True


def _plain(path: Path, experiment: Experiment) -> list[Record]:
    """Find records in the same folder in which this drafter's overlap was measured, on the same prompts."""
    if experiment.method.drafter is None:
        return []
    same: dict[str, Any] = {"method": experiment.method, "plugins": (), "num_threads": None, "comparison": ""}
    wanted, label = experiment.replace(**same).signature, experiment.method.drafter.label
    for file in sorted(path.parent.glob("*.jsonl")):
        if file == path or not file.with_suffix(".json").exists():
            continue
        if load_experiment(file).replace(**same).signature == wanted:
            records = load_records(file)
            if any(overlap_of(record, label) is not None for record in records):
                return records
    return []


def _facts(path: Path, log: AnyLog) -> dict[str, Any]:
    if isinstance(log, Counted):
        return {
            "file": path.name,
            "format": log.format,
            "source": log.source,
            "gamma": log.gamma,
            "drafts": log.shape,
            "num_requests": None if log.is_total else len(log.requests),
            "num_left_out": log.num_left_out,
            "since": log.since or None,
            "passed_over": list(log.passed_over),
            "told": [asdict(one) for one in log.told],
        }
    method = log.experiment.method
    return {
        "file": path.name,
        "signature": log.experiment.signature,
        "task": log.experiment.task,
        "target": log.experiment.target.name,
        "drafter": log.drafter,
        "rule": method.rule and method.rule.name,
        "gamma": method.gamma,
        "schedule": method.schedule and method.schedule.name,
        "temperature": log.experiment.sampling.temperature,
        "num_records": len(log.records),
        "num_failed": num_failed(log.records),
    }


def _described(log: AnyLog) -> str:
    facts = _facts(Path(), log)
    if isinstance(log, Counted):
        gamma = "" if log.gamma is None else f", gamma {log.gamma}"
        since = f" since {log.since}" if log.since else ""
        requests = f"a total{since}" if log.is_total else f"{facts['num_requests']} requests, {facts['num_left_out']} left out"
        drafts = {"tree": ", drafts a tree", "unknown": ", drafts a chain or a tree, unknown which"}.get(log.shape or "", "")
        return f"{log.format}{gamma}{drafts}; {requests}"
    schedule = "" if log.experiment.method.has_constant_gamma else f" ({facts['schedule']})"
    return (
        f"{facts['task']}, {facts['target']} with {facts['drafter']}, {facts['rule']}, gamma {facts['gamma']}{schedule}, "
        f"temperature {facts['temperature']:g}; {facts['num_records']} records, {facts['num_failed']} failed"
    )


def _row(definition: Definition, logs: Sequence[AnyLog]) -> dict[str, Any]:
    found = [(log, definition.estimate(log)) for log in logs]
    columns = [{"status": definition.reason(log)} if one is None else _column(one) for log, one in found]
    fields = ("name", "group", "meaning", "source")
    return {name: getattr(definition, name) for name in fields} | {"columns": columns}


def _column(found: Estimate) -> dict[str, Any]:
    """Return a number as it is shown: of few examples without an interval, of not so few with a mark."""
    shown = found.shown
    return {"status": "measured", **shown.as_dict(), "approximate": shown.low is not None and shown.is_approximate}


def _lines(definitions: Sequence[Definition], rows: list[dict[str, Any]]) -> list[str]:
    """A block a group; what words a value lacks stand below the table, numbered."""
    reasons: list[str] = []
    heads = ["", *(f"[{number}]" for number in range(1, len(rows[0]["columns"]) + 1)), "what it is", "whose"]
    cells: list[list[str]] = [heads]
    for row in rows:
        shown = [_shown(column, reasons) for column in row["columns"]]
        cells.append([row["name"], *shown, row["meaning"], row["source"]])
    head, *aligned = text_table(cells)
    lines, group = [head], ""
    for definition, line in zip(definitions, aligned, strict=True):
        if definition.group != group:
            group = definition.group
            lines += ["", group]
        lines.append(line)
    return [*lines, *([""] if reasons else []), *(f"({number}) {text}" for number, text in enumerate(reasons, start=1))]


def _shown(column: dict[str, Any], reasons: list[str]) -> str:
    if column["status"] != "measured":
        if column["status"] not in reasons:
            reasons.append(column["status"])
        return f"unknown ({reasons.index(column['status']) + 1})"
    spread = interval_text(column["low"], column["high"], ".3f")
    return f"{column['value']:.3f}{spread}{APPROXIMATE if column['approximate'] else ''}"


def _told(logs: Sequence[AnyLog]) -> list[str]:
    """A block an engine's log: the numbers that its own tools derive from it, in full, and what they are here."""
    lines: list[str] = []
    for number, log in enumerate(logs, start=1):
        if isinstance(log, Counted):
            cells = [["    " + one.name, _value(one), one.relation] for one in log.told]
            lines += [f"[{number}] in its own words ({log.source})", *text_table(cells), ""]
    return lines


def _value(told: Told) -> str:
    return "none" if told.value is None else json.dumps(told.value)


def _remarks(logs: Sequence[AnyLog]) -> list[str]:
    """What the intervals are over, and why some columns have none."""
    lines = [
        f"value [low, high]: 95 % over examples or requests; with {APPROXIMATE} of fewer than {ENOUGH}, so approximate.",
        f"A number of fewer than {DESCRIPTIVE} describes these alone; it has no interval, but for shares of whole examples.",
    ]
    if any(isinstance(log, Log) for log in logs):
        lines.append("Drafts accepted behind a stopping EOS, which vLLM and Spec-Bench count, are not in a record; theirs are")
        lines.append("computed without. Failed runs are in no number.")
    totals = [f"[{number}]" for number, log in enumerate(logs, start=1) if isinstance(log, Counted) and log.is_total]
    if totals:
        lines.append(f"{', '.join(totals)}: no interval; a total tells no requests apart, so that nothing can be resampled.")
    for number, log in enumerate(logs, start=1):
        if isinstance(log, Counted) and log.passed_over:
            places = ", ".join([*log.passed_over[:NAMED], *["..."][: len(log.passed_over) > NAMED]])
            lines.append(f"[{number}]: {len(log.passed_over)} passed over that hold no JSON ({places}); all others were read.")
    whole = [f"[{number}]" for number, log in enumerate(logs, start=1) if isinstance(log, Counted) and log.since == START]
    if whole:
        lines.append(f"{', '.join(whole)}: all that the server did; --before with an earlier dump leaves out what came before.")
    return lines


MOST_SHORT = 0.1  # of the rounds, which may have drafted fewer tokens than the others: at the ends of texts they do


def _profile(paths: Sequence[Path], logs: Sequence[AnyLog]) -> dict[str, Any]:
    """Return the profile of the one log.

    Raises:
        UsageError: there are several, nothing was measured, or the log has no histogram.
    """
    if len(logs) > 1:
        raise UsageError(f"--profile-out: {len(logs)} logs; a profile is of one draft and one target, give one log")
    log, facts = logs[0], _facts(paths[0], logs[0])
    if isinstance(log, Counted):
        if log.not_a_chain:
            raise UsageError(f"--profile-out: {log.not_a_chain}; a profile is of a chain")
        _check_drafts(_rounds_by_drafts(log))
        conditions = {name: facts[name] for name in ("file", "format", "source")}
        return profile_of(log.histograms, log.gamma or 0, {}, conditions)
    _check_drafts(log.rounds_by_drafts)
    drafter = log.experiment.method.drafter
    model = None if drafter is None or drafter.model is None else drafter.model.name
    described = {
        "method": log.drafter if model is None else "draft_model",
        "draft_checkpoint": None if model is None else {"name": _published(model)},
        "target_model": {"name": _published(log.experiment.target.name)},
        "accept_length_model": "measured_per_k" if model is None else "chain_analytic",
    }
    names = ("file", "task", "rule", "schedule", "temperature", "num_records", "num_failed")
    return profile_of(log.histograms, log.gamma or log.longest, described, {name: facts[name] for name in names})


def _rounds_by_drafts(log: Counted) -> Counter[int]:
    found = Counter[int]()
    for one in log.requests:
        for num_drafts, row in (one.lengths or {}).items():
            found[num_drafts] += sum(row)
    return found


def _check_drafts(rounds: Counter[int]) -> None:
    """Refuse rounds of different numbers of drafts: rates by position would be those of the schedule, too."""
    short = rounds.total() - rounds[max(rounds, default=0)]
    if short > MOST_SHORT * rounds.total():
        raise UsageError(
            f"--profile-out: {short} of {rounds.total()} rounds drafted fewer tokens than the others, so that rates by "
            "position would be those of the schedule, too; record with one gamma, by a drafter that always drafts so many"
        )


def _published(name: str) -> str:
    """Return a model's name without the folders of this machine: the last two parts of a path, as ``owner/model`` is."""
    return "/".join(name.split("/")[-2:])
