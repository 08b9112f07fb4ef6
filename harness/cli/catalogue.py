"""``foretoken table N``, ``figure NAME`` and ``tables``: tables and figures of the catalogue, and their states."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Comparison
from harness.core.settings import Settings, checked_device, folder_of, model_name, source_of
from harness.papers import FIGURES, INPUTS, TABLES, command_of, get_figure, get_table
from harness.tables.base import Figure, Table, explained
from harness.tables.evidence import Evidence, stored_evidence
from harness.tables.files import header_of, num_lost, write_table
from harness.tables.layout import terminal_table
from harness.tables.published import InputTable
from harness.tables.roles import UnknownRole


def execute_table(args: argparse.Namespace) -> int:
    """Write and print a table, from stored records or after running what is missing."""
    table, settings = get_table(args.number), settings_of(args)
    check_stop_at_eos(table.plan, settings, f"table {table.number}")
    plan, folder = table.plan(settings), folder_of(settings, table.is_committed) / "tables"
    if not _run_missing(args, plan, table.scores):
        return 0
    evidence = stored_evidence(args.records)
    reasons, command = evidence.reasons(plan), command_of("table", str(table.number), settings)
    if plan and not reasons and evidence.count(plan)[0] == 0:
        _say_unrecorded(f"table {table.number}", args, f"run `{command}`")
        return 0
    cells = table.cells(settings, evidence)
    lost, cells = num_lost(folder / f"{table.name}.json", settings, cells), explained(cells, reasons)
    appendix = table.appendix(settings, evidence) if table.appendix else None
    made_by = command_of("table", str(table.number), settings, args.records.resolve().parent.parent)
    header = header_of(made_by, plan, cells, evidence)
    print("\n".join([terminal_table(table, settings, cells), *header.audits]))
    if appendix:
        print(appendix.terminal(sys.stdout.isatty()))
    if lost:
        print(f"kept: {folder / table.name}.* has {lost} measured cells without records here; run `{command}`", file=sys.stderr)
        return 0
    paths = write_table(table, settings, cells, header, folder, appendix)
    print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0


def execute_figure(args: argparse.Namespace) -> int:
    """Draw a figure, from stored records or after running what is missing.

    A file that is there is kept if an arm has no records and none of them says why: the new one would show less.
    """
    figure, settings = get_figure(args.name), settings_of(args)
    plan, folder = figure.plan(settings), folder_of(settings) / "figures"
    check_stop_at_eos(figure.plan, settings, f"figure {figure.name}")
    if not _run_missing(args, plan):
        return 0
    evidence, command = stored_evidence(args.records), command_of("figure", figure.name, settings)
    if plan and evidence.count(plan)[0] == 0:
        _say_unrecorded(f"figure {figure.name}", args, "; ".join([*evidence.reasons(plan), f"run `{command}`"]))
        return 0
    lacking = sum(not evidence.records_of(arm) and not evidence.reason_of(arm) for arm in figure.arms(settings))
    if lacking and (folder / f"{figure.name}.svg").exists():
        print(f"kept: {folder / figure.name}.*; {lacking} of its arms have no records here; run `{command}`", file=sys.stderr)
        return 0
    for path in figure.draw(settings, evidence, folder):
        print(path)
    return 0


def _say_unrecorded(name: str, args: argparse.Namespace, advice: str) -> None:
    print(f"{name}: nothing of it is recorded in {args.records}, no file is written; {advice}")


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        profile=args.profile,
        source=source_of(args.data, args.profile),
        limit=args.limit,
        seed=args.seed,
        device=checked_device(args.device, getattr(args, "engine", "local")),
        dtype=args.dtype,
        models=_replacements(args.model),
        stop_at_eos=args.stop_at_eos,
    )


def check_stop_at_eos(plan: Callable[[Settings], Sequence[Comparison]], settings: Settings, name: str) -> None:
    """UsageError where it was asked for and changes nothing."""
    if settings.stop_at_eos and plan(settings) == plan(replace(settings, stop_at_eos=False)):
        raise UsageError(f"stop_at_eos: {name} has no fixed lengths, its outputs end at EOS already; leave the flag out")


def _replacements(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """``ROLE=MODEL`` pairs that put a Hub id or a folder in a role's place."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"model {pair!r}: expected ROLE=MODEL, for example t5-small=google-t5/t5-small")
    return tuple((role, model_name(name)) for role, name in (pair.split("=", 1) for pair in pairs))


def _run_missing(args: argparse.Namespace, plan: Sequence[Comparison], scores: Sequence[str] = ()) -> bool:
    """Run what is missing with --reproduce; with --dry-run only say what would run, and return False."""
    if args.dry_run or args.reproduce:
        from harness.run.plan import (
            pin_arms,
            print_plan,  # here: rendering alone needs no model and no runner
            run_plan,
        )

        if args.dry_run:
            print_plan([pin_arms(comparison) for comparison in plan], args.records)
            return False
        run_plan(plan, args.make_runner(), scores)
    return True


def execute_tables(args: argparse.Namespace) -> int:
    """List the catalogue with what is recorded of each table and figure, and the papers' tables of settings."""
    rows = catalogue_rows(settings_of(args), stored_evidence(args.records))
    if args.json:
        rows += [{"kind": "setting", "number": None, **_document(table)} for table in INPUTS]
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    for row in rows:
        label = f"{row['number']:>2}" if row["number"] else "  "
        print(f"{label} {row['name']:14s} {row['state']:34s} {row['title']}")
    print("\nSettings, taken over from the papers:")
    for table in INPUTS:
        print(_shown(table))
    return 0


def catalogue_rows(settings: Settings, evidence: Evidence) -> list[dict[str, Any]]:
    """One row for each table and figure. Papers have different roles, so a role that was given must be known to one of them."""
    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    unknown: dict[str, UnknownRole] = {}

    def state(item: Table | Figure) -> str:
        plan, ignored = plan_of(item, settings)
        unknown.update(ignored)
        if plan:
            known.update({role for role, _ in settings.models} - set(ignored))
        return evidence.state(plan)

    for number, table in TABLES.items():
        rows.append(
            {
                "kind": "table",
                "number": number,
                "name": table.name,
                "title": table.title,
                "state": state(table),
                "committed": table.is_committed,
            }
        )
    for name, figure in FIGURES.items():
        rows.append({"kind": "figure", "number": None, "name": name, "title": figure.title, "state": state(figure)})
    if missing := sorted(set(unknown) - known):
        raise UsageError(f"{unknown[missing[0]]}, or a role of another paper")
    return rows


def plan_of(item: Table | Figure, settings: Settings) -> tuple[list[Comparison], dict[str, UnknownRole]]:
    """Return the plan of a table or figure, and those of the given roles that its paper does not have."""
    unknown: dict[str, UnknownRole] = {}
    while True:
        try:
            return item.plan(settings), unknown
        except UnknownRole as error:
            unknown[error.role] = error
            settings = replace(settings, models=tuple(pair for pair in settings.models if pair[0] != error.role))


def _document(table: InputTable) -> dict[str, Any]:
    return {"name": table.name, "title": table.title, "state": "setting", "values": dict(table.entries())}


def _shown(table: InputTable) -> str:
    """One line for each setting; a setting of several lines stands below its name."""
    lines = [f"\n   {table.name:14s} {table.title}"]
    for label, value in table.entries():
        if "\n" in value:
            lines += [f"     {label}:", *(f"       | {line}" for line in value.split("\n"))]
        else:
            lines.append(f"     {label:22s} {value}")
    return "\n".join(lines)
