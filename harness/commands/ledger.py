"""``foretoken ledger``: paper against measured over all tables, in one CSV."""

import argparse
from pathlib import Path

from harness import plugins
from harness.commands.options import RESULTS, add_plugin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", type=Path, default=RESULTS / "tables", metavar="FOLDER", help="tables as JSON files")
    parser.add_argument("--output", type=Path, default=RESULTS / "ledger.csv", metavar="FILE", help="the file to write")
    add_plugin(parser)


def execute(args: argparse.Namespace) -> int:
    from harness.errors import UsageError
    from harness.render.files import write_whole
    from harness.report.items import table_items
    from harness.report.ledger import ledger_text
    from harness.report.verdicts import tally

    if not args.tables.is_dir():
        raise UsageError(f"tables {args.tables}: not a folder; expected the JSON files that `make table-N` writes")
    plugins.warn_of_broken("table")
    tables = table_items(args.tables)
    path = write_whole(args.output, ledger_text(tables))
    counts = tally([one for table in tables for one in table.judged])
    found = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{sum(counts.values())} published numbers in {len(tables)} tables: {found}")
    print(path)
    return 0
