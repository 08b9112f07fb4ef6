"""``foretoken table N``, ``figure NAME`` and ``tables``: tables and figures of the catalogue, and their states."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.checkout import commit, is_clean
from harness.core.errors import UsageError
from harness.core.experiment import Comparison
from harness.core.settings import (
    COMMITTED,
    RECORDS,
    Settings,
    checked_device,
    committed_for,
    folder_of,
    is_committed,
    model_name,
    own_folder,
    portable,
    source_of,
    usual,
)
from harness.papers import FIGURES, INPUTS, TABLES, command_of, get_figure, get_table
from harness.tables.archive import archive_of, keep, num_more, unpacked
from harness.tables.base import Cell, Figure, Table, explained, without_idle_replicas
from harness.tables.evidence import Evidence, evidence_for, kept_evidence, stored_evidence
from harness.tables.files import commits_of, header_of, num_lost, write_table
from harness.tables.finding import opening
from harness.tables.layout import terminal_table
from harness.tables.published import InputTable
from harness.tables.recordings import FILE, Recording, note_recording
from harness.tables.roles import UnknownRole


def execute_table(args: argparse.Namespace) -> int:
    """Write and print a table, from stored records or after running what is missing."""
    make_table(get_table(args.number), args)
    return 0


def make_table(table: Table, args: argparse.Namespace) -> list[Cell]:
    """Write and print a table; return its cells, none where nothing of it is recorded.

    Without records of one's own it is made from the committed evidence.
    """
    settings = _settings_for(table, args)
    check_fixed_length(table.plan, settings, f"table {table.number}")
    plan = _checked_plan(table, settings)
    if not _run_missing(args, plan, table.scores):
        return []
    evidence = evidence_of(table, plan, args, settings)
    reasons, command = evidence.reasons(plan), command_of("table", str(table.number), settings)
    if plan and not reasons and evidence.count(plan)[0] == 0:
        advice = command_of("table", str(table.number), settings_of(args))
        _say_unrecorded(table, args, settings, f"run `{advice}`")
        return []
    folder = _place(table, evidence, args, settings)
    settings, evidence, kept = _keep(table, args, settings, folder, evidence)
    plan = table.plan(settings)
    cells = table.cells(settings, evidence)
    if not plan and all(cell.measured is None for cell in cells):
        print(f"table {table.number}: profile {settings.profile} has nothing to run of it and no number; no file is written")
        return []
    lost, cells = num_lost(folder / "tables" / f"{table.name}.json", settings, cells), explained(cells, reasons)
    appendix = table.appendix(settings, evidence) if table.appendix else None
    made_by = command_of("table", str(table.number), settings, args.records.resolve().parent.parent)
    header = header_of(made_by, plan, cells, evidence)
    print("\n".join([terminal_table(table, settings, cells), *header.audits]))
    if appendix:
        print(appendix.terminal(sys.stdout.isatty()))
    if lost:
        place = folder / "tables" / table.name
        print(f"kept: {place}.* has {lost} measured cells without records here; run `{command}`", file=sys.stderr)
        return cells
    if header.recorded and is_committed(settings) and folder == folder_of(settings):
        this = Recording(table.name, header.commit, header.recorded, opening(table, settings, cells))
        header = replace(header, recording=note_recording(folder / FILE, this))
    paths = write_table(table, settings, cells, header, folder / "tables", appendix)
    print("written: " + ", ".join(map(str, [*paths, *kept])), file=sys.stderr)
    return cells


def execute_figure(args: argparse.Namespace) -> int:
    """Draw a figure, from stored records or after running what is missing."""
    make_figure(get_figure(args.name), args)
    return 0


def make_figure(figure: Figure, args: argparse.Namespace) -> None:
    """Draw a figure, as ``make_table`` makes a table.

    A file that is there is kept if an arm has no records and none of them says why: the new one would show less.
    """
    settings = _settings_for(figure, args)
    plan = _checked_plan(figure, settings)
    check_fixed_length(figure.plan, settings, f"figure {figure.name}")
    if not _run_missing(args, plan):
        return
    evidence, command = evidence_of(figure, plan, args, settings), command_of("figure", figure.name, settings)
    if plan and evidence.count(plan)[0] == 0:
        _say_unrecorded(figure, args, settings, "; ".join([*evidence.reasons(plan), f"run `{command}`"]))
        return
    folder = _place(figure, evidence, args, settings)
    lacking = evidence.num_lacking(figure.arms(settings))
    if lacking and (folder / "figures" / f"{figure.name}.svg").exists():
        place = folder / "figures" / figure.name
        print(f"kept: {place}.*; {lacking} of its arms have no records here; run `{command}`", file=sys.stderr)
        return
    settings, evidence, kept = _keep(figure, args, settings, folder, evidence)
    for path in [*figure.draw(settings, evidence, folder / "figures"), *kept]:
        print(path)


def evidence_of(item: Table | Figure, plan: Sequence[Comparison], args: argparse.Namespace, settings: Settings) -> Evidence:
    """Return the user's own records, or else, where no other folder is named, the committed ones."""
    if args.records != RECORDS:
        return stored_evidence(args.records)
    return evidence_for(plan, item.paper, args.records, folder_of(settings))


def _settings_for(item: Table | Figure, args: argparse.Namespace) -> Settings:
    """Return the settings that were asked for; by default the committed ones.

    Of what has replicas a single one is recorded by default, and shown where it was recorded. What needs no run in any profile
    is the same in all of them, and stands among the committed ones.
    """
    settings = settings_of(args)
    if not item.plan(settings) and not item.plan(COMMITTED):
        return COMMITTED
    if args.reproduce or args.dry_run:
        return settings if settings != Settings() or item.plan(settings) != item.plan(COMMITTED) else COMMITTED
    return shown_settings(item, settings, stored_evidence(args.records))


def shown_settings(item: Table | Figure, settings: Settings, evidence: Evidence) -> Settings:
    """Return the committed settings in place of the usual ones, unless these plan otherwise and that is recorded."""
    committed = committed_for(settings.profile)
    if committed is None or settings != usual(settings.profile):
        return settings
    plan = item.plan(settings)
    return settings if plan != item.plan(committed) and evidence.count(plan)[0] else committed


def _place(item: Table | Figure, evidence: Evidence, args: argparse.Namespace, settings: Settings) -> Path:
    """Say where files go.

    What is committed is replaced only by what is of clean commits, and rendered at one; what is not there yet comes to be only
    where all of its arms have records, or say why they have none.
    """
    folder, own = folder_of(settings), own_folder(without_idle_replicas(item, settings))
    if isinstance(item, Table) and not item.is_committed:
        return own
    if not is_committed(settings):
        return folder
    unclean = [one for one in dict.fromkeys([commit(), *commits_of(item.plan(settings), evidence)]) if not is_clean(one)]
    why = f"made at {', '.join(unclean)}, no clean commit" if unclean else ""
    kept = unpacked(archive_of(folder, item.paper))
    if not why and kept is not None and evidence.folder == args.records:
        more = num_more(item.arms(settings), args.records, kept)
        why = f"{more} runs that are committed are not recorded in {args.records}" if more else ""
    if not why and not _written(item, folder) and (lacking := evidence.num_lacking(item.arms(settings))):
        why = f"{lacking} of its {len(item.arms(settings))} arms are not recorded"
    if why:
        folder = own
        print(f"not committed: {why}; written to {folder}", file=sys.stderr)
    return folder


def _keep(
    item: Table | Figure, args: argparse.Namespace, settings: Settings, folder: Path, evidence: Evidence
) -> tuple[Settings, Evidence, list[Path]]:
    """Put the records behind what is committed beside it; return the settings and the evidence that it is rendered from.

    What is recorded of a folder of data is rendered from there, where the folder's place is not known any more.
    """
    arms = item.arms(settings)
    if not is_committed(settings) or folder != folder_of(settings) or not arms or evidence.folder != args.records:
        return settings, evidence, []
    archive = archive_of(folder, item.paper)
    everything: list[Table | Figure] = [*TABLES.values(), *FIGURES.values()]
    whole = [one for one in everything if one.paper == item.paper and not why_not(one, settings)]
    planned = {arm for one in whole for arm in one.arms(settings)}
    if num_left := keep(arms, args.records, archive, planned):
        print(
            f"note: {num_left} findings in {archive} were of other recordings of these arms and are left out; record the "
            "tables that show them anew, too",
            file=sys.stderr,
        )
    stored = unpacked(archive) if settings != portable(settings) else None
    return portable(settings), evidence if stored is None else kept_evidence(stored), [archive]


def why_not(item: Table | Figure, settings: Settings) -> str:
    """Say why a profile does not have a table or figure; empty where it has."""
    try:
        _checked_plan(item, settings)
        return ""
    except UsageError as error:
        return str(error)


def _checked_plan(item: Table | Figure, settings: Settings) -> list[Comparison]:
    """Return the plan of a table or figure; UsageError for one with graphs of which an arm has no static form."""
    plan = item.plan(settings)
    if settings.graphs:
        from harness.run.refusals import check_graphs  # here: rendering alone needs nothing that runs

        for comparison in plan:
            for arm in comparison.arms:
                check_graphs(arm)
    return plan


def _say_unrecorded(item: Table | Figure, args: argparse.Namespace, settings: Settings, advice: str) -> None:
    """Say it, how it is recorded, and how what is committed of other settings is shown."""
    name = f"table {item.number}" if isinstance(item, Table) else f"figure {item.name}"
    committed = committed_for(settings.profile)
    if committed is not None and committed != settings and _written(item, folder_of(committed)):
        profile = "" if settings.profile == COMMITTED.profile else f" --profile {settings.profile}"
        advice += f"; `foretoken {name}{profile}` shows what is committed"
    print(f"{name}: nothing of it is recorded in {args.records}, no file is written; {advice}")


def _written(item: Table | Figure, folder: Path) -> list[Path]:
    """Return the files of a table or figure in a folder of results."""
    return [*(folder / ("tables" if isinstance(item, Table) else "figures")).glob(f"{item.name}.*")]


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        profile=args.profile,
        source=source_of(args.data, args.profile),
        limit=args.limit,
        seed=args.seed,
        device=checked_device(args.device, getattr(args, "engine", "local")),
        dtype=args.dtype,
        models=_replacements(args.model),
        fixed_length=args.fixed_length,
        replicas=args.replicas or usual(args.profile).replicas,
        graphs=args.graphs == "on",
    )


def check_fixed_length(plan: Callable[[Settings], Sequence[Comparison]], settings: Settings, name: str) -> None:
    """UsageError where it was asked for and changes nothing."""
    if settings.fixed_length and plan(settings) == plan(replace(settings, fixed_length=False)):
        raise UsageError(f"fixed_length: {name} has none, its paper's outputs end at EOS as ours do; leave the flag out")


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
            known_arms,
            print_plan,  # here: rendering alone needs no model and no runner
            run_plan,
        )

        if args.dry_run:
            print_plan(known_arms(plan), args.records)
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
        plan, ignored = plan_of(item, shown_settings(item, settings, evidence))
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
