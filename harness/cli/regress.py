"""``foretoken regress``: a pinned set of metrics against the committed baselines, or somebody's own pair against its own.

Status 1 where a number moved.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.cli.known_commands import answers
from harness.cli.main import parser
from harness.cli.run_experiments import check_flags, experiments
from harness.cli.run_flags import is_grid
from harness.core import products
from harness.core.errors import UsageError
from harness.core.settings import RECORDS, RESULTS
from harness.report.alarms import alarms_file, false_alarms, most_false_alarms
from harness.report.baseline import update, write
from harness.report.holding import hold
from harness.report.pinned import pinned_set
from harness.report.regress import (
    COMMANDS,
    KNOWN,
    RENDERED,
    SCORED,
    Measured,
    Move,
    committed_pages,
    each_apart,
    measure,
    measure_known,
    measure_tables,
    measure_texts,
    moves,
    read_baseline,
    update_baseline,
)
from harness.run.runner import Runner

UNREAD = (  # flags of `run` that nothing here reads: a baseline is run from nothing, in this process, and holds no times
    "records", "dry_run", "again", "replay", "engine", "workers", "address", "peer", "match_layers", "memory", "quiet",
    "plugin",
)  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    if args.update is not None and not args.update.strip():
        raise UsageError("update '': expected a reason for the new numbers, which is kept beside them")
    if args.baseline is not None:
        return _execute_own(args)
    for flag, given in (("write", args.write is not None), ("new-draft", args.new_draft)):
        if given:
            raise UsageError(f"--{flag}: nothing reads it without --baseline FILE; name the file of your own pair")
    return _execute_pinned(args)


def _execute_own(args: argparse.Namespace) -> int:
    """Hold somebody's own pair against its baseline, or write that."""
    path: Path = args.baseline
    chosen = [f"--{flag}" for flag in ("write", "update", "new_draft") if getattr(args, flag) not in (None, False)]
    if len(chosen) > 1:
        raise UsageError(f"{' with '.join(chosen).replace('_', '-')}: one at a time; leave one out")
    if args.repeats is not None:
        raise UsageError(f"--repeats {args.repeats}: of the pinned set only; leave it or --baseline out")
    if args.write is not None:
        written = write(path, experiments(_run_flags(args.write)), args.quiet)
        metrics, n = written.measured["metrics"], len(written.measured["examples"])
        print(f"regress: {path}: written, {len(metrics)} numbers of {n} examples, audit: {written.measured['verdict']}")
        return 0
    if args.update is not None:
        changed = update(path, args.update.strip(), args.quiet)[1]
        print(f"regress: {path}: written anew, {len(changed)} numbers moved")
        _print_moves(changed)
        return 0
    judgement = hold(path, args.new_draft, args.quiet)
    print(judgement.as_text())
    return int(judgement.moved)


def _run_flags(words: Sequence[str]) -> argparse.Namespace:
    """Read the flags of `foretoken run` that stand behind --write; refuse those that change nothing here."""
    flags = parser("run").parse_args(["run", *words])
    usual = parser("run").parse_args(["run", "--task", "text", "--target", "any"])
    if unread := [name for name in UNREAD if getattr(flags, name) != getattr(usual, name)]:
        raise UsageError(
            f"--{unread[0].replace('_', '-')} behind --write: nothing reads it there; leave it out (--quiet and --plugin stand "
            "before --write)"
        )
    if is_grid(flags):
        raise UsageError("several values behind --write: a baseline is of one run; give one, and write a file for each")
    check_flags(flags)
    return flags


def _execute_pinned(args: argparse.Namespace) -> int:
    """Compare the pinned set with the committed baselines."""
    known = any(args.baselines.glob("*.json"))
    baseline = read_baseline(args.baselines) if known or args.update is None else None
    os.environ[products.VARIABLE] = "torch"  # the baselines hold on every machine
    if args.repeats is not None:
        return _count_alarms(args.repeats, args.quiet)
    with ProcessPoolExecutor(1, get_context("spawn")) as beside, TemporaryDirectory() as folder:  # half of the work each
        others = beside.submit(_measure_others, args.update is None)
        measured = measure(Runner(Path(folder), quiet=args.quiet), pinned_set()) | others.result()
    if args.update is not None:
        changed = [] if baseline is None else moves(baseline, measured)
        update_baseline(args.baselines, measured, changed, args.update.strip(), args.changelog)
        print(f"{len(measured)} baselines written to {args.baselines}, {len(changed)} numbers moved; see {args.changelog}")
        return 0
    changed = moves({**(baseline or {}), RENDERED: committed_pages(RESULTS)}, measured)
    total = sum(len(values["metrics"]) + 1 for values in measured.values())
    if not changed:
        print(f"regress: none of {total} numbers and verdicts moved")
        return 0
    print(f"regress: {len(changed)} of {total} numbers and verdicts moved")
    _print_moves(changed)
    return 1


def _measure_others(with_tables: bool) -> Measured:
    """Measure what decodes nothing of the pinned comparisons."""
    found = {SCORED: measure_texts(), KNOWN: measure_known(), COMMANDS: each_apart(answers(), "known")}
    return found | {RENDERED: measure_tables(RESULTS)} if with_tables else found


def _count_alarms(repeats: int, quiet: bool) -> int:
    """Say how often unchanged code moves a number: a line a seed, and a bound behind the last."""
    counts = list[int]()
    for moved in false_alarms(alarms_file(RECORDS), range(1, repeats + 1)):
        counts.append(len(moved))
        if moved or not quiet:
            print(f"regress: seed {len(counts)} of {repeats}: {'; '.join(moved) or 'nothing moved'}", flush=True)
    told = f"on {repeats} other seeds, one thread beside two, {sum(map(bool, counts))} moved anything"
    bound = f"fewer than {most_false_alarms(counts):.1%} of runs of these {len(pinned_set())} comparisons are false alarms"
    print(f"regress: {told}: with 95 % confidence {bound}")
    return int(any(counts))


def _print_moves(changed: Sequence[Move]) -> None:
    for move in changed:
        print(f"  {move.comparison:20s} {move.metric:28s} {move.baseline:16s} -> {move.now:16s}{move.where}")
