"""``foretoken tables``: the catalogue, with what is recorded of each table and figure, and the papers' tables of settings."""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.commands.options import add_catalogue
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.catalogue import Figure, Settings, Table
    from harness.catalogue.inputs import InputTable
    from harness.catalogue.roles import UnknownRole
    from harness.experiment import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    add_catalogue(parser)


def execute(args: argparse.Namespace) -> int:
    from harness.catalogue.inputs import INPUTS
    from harness.reproduce import Store, settings_of

    rows = catalogue_rows(settings_of(args), Store(args.records))
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


def catalogue_rows(settings: "Settings", store: Any) -> list[dict[str, Any]]:
    """A row a table and figure. Papers have models of their own, so each role that was given must be known to one of them."""
    from harness.catalogue import FIGURES, TABLES
    from harness.reproduce import state_of

    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    unknown: dict[str, UnknownRole] = {}

    def state(item: "Table | Figure") -> str:
        plan, ignored = plan_of(item, settings)
        unknown.update(ignored)
        if plan:
            known.update({role for role, _ in settings.models} - set(ignored))
        return state_of(plan, store)

    for number, table in TABLES.items():
        rows.append({"kind": "table", "number": number, "name": table.name, "title": table.title, "state": state(table)})
    for name, figure in FIGURES.items():
        rows.append({"kind": "figure", "number": None, "name": name, "title": figure.title, "state": state(figure)})
    if missing := sorted(set(unknown) - known):
        raise UsageError(f"{unknown[missing[0]]}, or a role of another paper")
    return rows


def plan_of(item: "Table | Figure", settings: "Settings") -> "tuple[list[Comparison], dict[str, UnknownRole]]":
    """An item's plan, and those of the given roles that its paper does not have."""
    from harness.catalogue.roles import UnknownRole

    unknown: dict[str, UnknownRole] = {}
    while True:
        try:
            return item.plan(settings), unknown
        except UnknownRole as error:
            unknown[error.role] = error
            settings = replace(settings, models=tuple(pair for pair in settings.models if pair[0] != error.role))


def _document(table: "InputTable") -> dict[str, Any]:
    return {"name": table.name, "title": table.title, "state": "setting", "values": dict(table.entries())}


def _shown(table: "InputTable") -> str:
    """A setting a line; one of several lines below its name."""
    lines = [f"\n   {table.name:14s} {table.title}"]
    for label, value in table.entries():
        if "\n" in value:
            lines += [f"     {label}:", *(f"       | {line}" for line in value.split("\n"))]
        else:
            lines.append(f"     {label:22s} {value}")
    return "\n".join(lines)
