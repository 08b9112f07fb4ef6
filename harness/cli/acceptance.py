"""``foretoken acceptance RECORDS...``: compute every definition of acceptance from the same records."""

import argparse
import json
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.record_files import load_experiment, load_records
from harness.core.text import text_table
from harness.measures.definitions import Definition, Log, definitions_of
from harness.measures.pairing import num_failed, overlap_of


def execute(args: argparse.Namespace) -> int:
    logs = [_log(path) for path in args.records]
    definitions = definitions_of(logs)
    rows = [_row(definition, logs) for definition in definitions]
    for number, (path, log) in enumerate(zip(args.records, logs, strict=True), start=1):
        print(f"[{number}] {path}: {_described(log)}")
    print("\n" + "\n".join(_lines(definitions, rows)))
    print("\nvalue [low, high]: 95 % over examples. Drafts accepted behind a stopping EOS, which vLLM and Spec-Bench count,")
    print("are not in a record; theirs are computed without. Failed runs are in no number.")
    if args.json is not None:
        document = {"records": [_facts(*pair) for pair in zip(args.records, logs, strict=True)], "definitions": rows}
        try:
            args.json.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf8")
        except OSError as error:
            raise UsageError(f"json {args.json}: cannot be written ({error.strerror}); choose another file") from error
    return 0


def _log(path: Path) -> Log:
    if path.is_dir():
        raise UsageError(f"records {path}: a folder; expected record files (.jsonl), one a column")
    records, experiment = load_records(path), load_experiment(path)
    log = Log(experiment, records, _plain(path, experiment))
    if log.longest == 0:
        raise UsageError(f"records {path}: nothing was drafted in them; expected those of a method that drafts and verifies")
    return log


def _plain(path: Path, experiment: Any) -> list[Any]:
    """The records in the same folder in which this drafter's overlap with the target was measured, on the same prompts."""
    if experiment.method.drafter is None:
        return []
    same = {"method": experiment.method, "plugins": (), "num_threads": None, "comparison": ""}
    wanted, label = experiment.replace(**same).signature, experiment.method.drafter.label
    for file in sorted(path.parent.glob("*.jsonl")):
        if file == path or not file.with_suffix(".json").exists():
            continue
        if load_experiment(file).replace(**same).signature == wanted:
            records = load_records(file)
            if any(overlap_of(record, label) is not None for record in records):
                return records
    return []


def _facts(path: Path, log: Log) -> dict[str, Any]:
    method, failed = log.experiment.method, num_failed(log.records)
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
        "num_failed": failed,
    }


def _described(log: Log) -> str:
    facts = _facts(Path(), log)
    schedule = "" if facts["schedule"] == "constant" else f" ({facts['schedule']})"
    return (
        f"{facts['task']}, {facts['target']} with {facts['drafter']}, {facts['rule']}, gamma {facts['gamma']}{schedule}, "
        f"temperature {facts['temperature']:g}; {facts['num_records']} records, {facts['num_failed']} failed"
    )


def _row(definition: Definition, logs: "list[Log]") -> dict[str, Any]:
    found = [definition.measure(log) for log in logs]
    columns = [{"status": definition.lacking} if one is None else {"status": "measured", **one.as_dict()} for one in found]
    fields = ("name", "group", "meaning", "source")
    return {name: getattr(definition, name) for name in fields} | {"columns": columns}


def _lines(definitions: "list[Definition]", rows: list[dict[str, Any]]) -> list[str]:
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
    spread = "" if column["low"] is None else f" [{column['low']:.3f}, {column['high']:.3f}]"
    return f"{column['value']:.3f}{spread}"
