"""``foretoken regress``: exit status 1 and a table of what moved, 0 where nothing did."""

import argparse
from pathlib import Path

from harness.commands.options import RESULTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--update", metavar="REASON", help="rewrite the baselines; the reason goes into CHANGELOG.md")
    parser.add_argument("--baselines", type=Path, default=RESULTS / "baselines", metavar="FOLDER", help="the committed numbers")
    parser.add_argument(
        "--changelog", type=Path, default=Path("CHANGELOG.md"), metavar="FILE", help="where --update writes why"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def execute(args: argparse.Namespace) -> int:
    from tempfile import TemporaryDirectory

    from harness.errors import UsageError
    from harness.regress import measure, moves, read_baseline, update_baseline
    from harness.runner import Runner

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
