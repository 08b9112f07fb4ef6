"""``foretoken reproduce``: every table and figure that is committed, and the ledger, planned first, recorded table by table.

What is recorded is not run again, so a command that was killed goes on where it stopped. Models are trained first, several at
once; then comparisons run one after another, since times of two that run at once spoil one another. What two tables show may be
recorded anew for the later one: at the end all are written once more, of all that is recorded.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from time import monotonic

import numpy as np

from harness.cli.catalogue import evidence_of, make_figure, make_table, settings_of, why_not
from harness.core.checkout import commit, is_clean
from harness.core.experiment import Comparison, arms_of
from harness.core.settings import RESULTS, Settings, folder_of
from harness.papers import FIGURES, TABLES
from harness.report.items import ledger_text, table_items
from harness.run.runner import ensure_models
from harness.tables.base import REFUSED, Cell, Figure, Table
from harness.tables.evidence import Evidence
from harness.tables.files import write_whole

Item = Table | Figure


def execute(args: argparse.Namespace) -> int:
    """Say what is to be done; do it, table by table, then figures and the ledger; say which cells were refused."""
    settings = settings_of(args)
    everything: list[Item] = [*(table for table in TABLES.values() if table.is_committed), *FIGURES.values()]
    items = [item for item in everything if not why_not(item, settings)]
    for item in everything:
        if why := why_not(item, settings):
            print(f"left out: {why}")
    print_plan(items, args, settings)
    if args.dry_run:
        return 0
    ensure_models(arm for item in items for comparison in item.plan(settings) for arm in comparison.arms)
    refused: dict[str, Counter[str]] = {}
    for number, item in enumerate(items, start=1):
        begin, said = monotonic(), StringIO()
        print(f"[{number}/{len(items)}] {_label(item)} ...", file=sys.stderr)
        with redirect_stdout(said):
            if isinstance(item, Table):
                refused[_label(item)] = refusals(make_table(item, args))
            else:
                make_figure(item, args)
        print(f"[{number}/{len(items)}] {_label(item)}: {(monotonic() - begin) / 60:.1f} minutes", flush=True)
    print("writing all once more, of all that is recorded ...", file=sys.stderr)
    rendering = argparse.Namespace(**(vars(args) | {"reproduce": False}))
    for item in items:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            if isinstance(item, Table):
                refused[_label(item)] = refusals(make_table(item, rendering))
            else:
                make_figure(item, rendering)
    folder = folder_of(settings)
    if (folder / "tables").is_dir():
        print(f"written: {write_whole(folder / 'ledger.csv', ledger_text(table_items(folder / 'tables')))}")
    print_refusals({label: found for label, found in refused.items() if found})
    return 0


def print_plan(items: Sequence[Item], args: argparse.Namespace, settings: Settings) -> None:
    """One line for each table and figure: the runs that are left, and how long they took when they were recorded last."""
    if folder_of(settings) == RESULTS and not is_clean(now := commit()):
        print(f"not committed: the tree is at {now}, no clean commit, so everything is written to {RESULTS / 'runs'}")
    total, unknown, counted = 0.0, 0, set[str]()
    for item in items:
        plan = item.plan(settings)
        new = [comparison for comparison in plan if not counted.issuperset(arm.signature for arm in comparison.arms)]
        counted.update(arm.signature for arm in arms_of(plan))
        own = evidence_of(item, plan, args, settings)
        seconds, left, num_unknown = to_run(new, own, args)
        total, unknown = total + seconds, unknown + num_unknown
        known = f"{seconds / 60:6.1f} minutes" + (f", {num_unknown} runs unknown" if num_unknown else "")
        print(f"{_label(item):22s} {left:6d} runs left, {known if left else 'nothing to run'}")
    if others := [str(table.number) for table in TABLES.values() if not table.is_committed]:
        print(f"left out, as they are not committed: tables {', '.join(others)}; `make reproduce-table-N` makes one")
    print(f"decoding alone at least {total / 60:.0f} minutes; unknown for {unknown} runs, training not counted")


def to_run(plan: Sequence[Comparison], past: Evidence, args: argparse.Namespace) -> tuple[float, int, int]:
    """Return the seconds that decoding what is left of a plan took last time, its runs, and those without a last time."""
    seconds, left, unknown = 0.0, 0, 0
    for arm in arms_of(plan):
        known = past.records_of(arm)
        missing = arm.num_runs - (len(known) if past.folder == args.records else 0)
        times = [record.wall_s for record in known if record.wall_s is not None]
        left += max(missing, 0)
        if times:
            seconds += max(missing, 0) * float(np.mean(times))
        else:
            unknown += max(missing, 0)
    return seconds, left, unknown


def refusals(cells: Sequence[Cell]) -> Counter[str]:
    """Count the cells without a number by the reason."""
    without = [cell for cell in cells if cell.measured is None]
    return Counter(
        (cell.note if cell.status in ("failed", REFUSED, "not reached") else cell.status) or "not run" for cell in without
    )


def print_refusals(refused: dict[str, Counter[str]]) -> None:
    print("cells without a number: " + ("" if refused else "none"))
    for label, reasons in refused.items():
        for reason, count in reasons.most_common():
            print(f"  {label}: {count} x {reason}")


def _label(item: Item) -> str:
    return f"table {item.number} ({item.name})" if isinstance(item, Table) else f"figure {item.name}"
