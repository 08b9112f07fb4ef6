"""``foretoken regress``: compare a pinned set of metrics with the committed baselines; status 1 where one moved."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.core.errors import UsageError
from harness.report.regress import measure, moves, read_baseline, update_baseline
from harness.run.runner import Runner


def execute(args: argparse.Namespace) -> int:
    if args.update is not None and not args.update.strip():
        raise UsageError("update '': expected a reason for the new numbers, which goes into CHANGELOG.md")
    with TemporaryDirectory() as folder:
        measured = measure(Runner(Path(folder), quiet=args.quiet))
    known = any(args.baselines.glob("*.json"))
    changed = moves(read_baseline(args.baselines), measured) if known or args.update is None else []
    if args.update is not None:
        update_baseline(args.baselines, measured, changed, args.update.strip(), args.changelog)
        print(f"{len(measured)} baselines written to {args.baselines}, {len(changed)} numbers moved; see {args.changelog}")
        return 0
    total = sum(len(values["metrics"]) + 1 for values in measured.values())
    if not changed:
        print(f"regress: none of {total} numbers and verdicts moved")
        return 0
    print(f"regress: {len(changed)} of {total} numbers and verdicts moved")
    for move in changed:
        print(f"  {move.comparison:20s} {move.metric:28s} {move.baseline:40s} -> {move.now}")
    return 1
