"""The ledger: paper against measured, one line a cell, over all tables of the catalogue."""

import csv
import io
from collections.abc import Iterator, Sequence

from harness.report.items import TableItem

COLUMNS = (
    "catalogue", "paper", "table", "row", "column", "published", "measured", "low", "high", "unit", "n",
    "relation", "reason", "status", "note", "command", "commit",
)  # fmt: skip


def ledger_rows(tables: Sequence[TableItem]) -> Iterator[dict[str, object]]:
    """A line a cell; a table without cells has one line that says so, so that every table is counted."""
    for table in tables:
        known: dict[str, object] = {
            "catalogue": table.number,
            "paper": table.paper,
            "table": table.paper_number,
            "command": table.command,
            "commit": table.commit,
        }
        if not table.judged:
            yield known | {"relation": "not comparable", "reason": "not run", "status": table.state}
        for one in table.judged:
            cell = {name: getattr(one.cell, name) for name in COLUMNS if hasattr(one.cell, name)}
            yield known | cell | {"relation": one.relation, "reason": one.reason}


def ledger_text(tables: Sequence[TableItem]) -> str:
    """CSV; numbers at full precision, empty where there is none."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in ledger_rows(tables):
        writer.writerow({name: "" if row.get(name) is None else row[name] for name in COLUMNS})
    return out.getvalue()
