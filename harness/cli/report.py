"""``foretoken report`` writes the site of tables, figures, claims and records; ``foretoken ledger`` a CSV."""

import argparse

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.settings import RECORDS
from harness.report.items import ledger_text, table_items
from harness.report.relation import REPEATED, tally
from harness.report.site import collect, write_site
from harness.tables.files import write_whole


def execute(args: argparse.Namespace) -> int:
    if args.records != RECORDS and not args.records.is_dir():
        raise UsageError(f"records {args.records}: not a folder; expected one that `foretoken run` or `make table-N` wrote")
    plugins.warn_of_broken("table")
    content = collect(args.results, args.records, args.generations)
    count = write_site(content, args.output)
    made = sum(table.file is not None for table in content.tables), sum(bool(figure.files) for figure in content.figures)
    print(
        f"{count} pages: {made[0]} of {len(content.tables)} tables and {made[1]} of {len(content.figures)} figures are made, "
        f"{len(content.experiments)} experiments have records here"
    )
    print(args.output / "index.html")
    return 0


def execute_ledger(args: argparse.Namespace) -> int:
    if not args.tables.is_dir():
        raise UsageError(f"tables {args.tables}: not a folder; expected the JSON files that `make table-N` writes")
    plugins.warn_of_broken("table")
    tables = table_items(args.tables)
    path = write_whole(args.output, ledger_text(tables))
    counts = tally([one for table in tables for one in table.judged])
    found = ", ".join(f"{count} {name}" for name, count in counts.items())
    distinct = sum(counts.values()) - counts.get(REPEATED, 0)
    print(f"{distinct} distinct published numbers in {len(tables)} tables: {found}")
    print(path)
    return 0
