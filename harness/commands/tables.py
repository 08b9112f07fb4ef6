"""``foretoken tables``: the catalogue, with what is recorded of each table and figure under these settings."""

import argparse
import json

from harness.commands.options import add_common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.add_argument("--model", action="append", default=[], metavar="ROLE=MODEL", help="replace a model of the profile")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from harness.catalogue import FIGURES, TABLES, Figure, Planned
    from harness.reproduce import Store, settings_of, state_of

    settings, store = settings_of(args), Store(args.records)
    rows = []
    for number, table in TABLES.items():
        state = table.status if isinstance(table, Planned) else state_of(table.plan(settings), store)
        rows.append({"kind": "table", "number": number, "name": table.name, "title": table.title, "state": state})
    for name, figure in FIGURES.items():
        state = state_of(figure.plan(settings), store) if isinstance(figure, Figure) else figure
        title = figure.title if isinstance(figure, Figure) else ""
        rows.append({"kind": "figure", "number": None, "name": name, "title": title, "state": state})
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    for row in rows:
        label = f"{row['number']:>2}" if row["number"] else "  "
        print(f"{label} {row['name']:14s} {row['state']:34s} {row['title']}")
    return 0
