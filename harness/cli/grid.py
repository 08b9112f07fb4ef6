"""``foretoken run`` with several gammas, drafters, rules or ways of sampling: a table, a CSV file and a figure of all of them.

For each way of sampling plain decoding and the method with every drafter, rule and gamma are the arms of one comparison, so
that they take turns example by example. Each arm has a record file of its own.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from harness.cli.run_experiments import arms_asked_for, check_flags, on_tested_rows
from harness.cli.run_flags import AXES
from harness.cli.run_judged import judged, remarks, status_of
from harness.core.errors import UsageError
from harness.core.experiment import ROUNDED, Comparison, ModelSpec, comparison_id
from harness.report.grid import Point, write
from harness.run.own_data import learned_lines
from harness.run.plan import print_plan
from harness.run.runner import Runner, pin
from methods.parts import DRAFTERS

FOLDER = "grids"  # beside the records
PARTS = ("drafter", "rule", "gamma")  # of AXES, those of a method; the others are of how tokens are sampled


def execute(args: argparse.Namespace) -> int:
    if args.peer:
        raise UsageError(f"peer {args.peer[0]!r}: a grid has none; leave it out, or give one value of each flag")
    comparisons = [Comparison(tuple(map(pin, _merged(list(row)).arms))) for row in _by_sampling(args)]
    if args.dry_run:
        print_plan(comparisons, args.records)
        return 0
    runner = args.make_runner()
    points, documents, told, status = list[Point](), list[dict[str, Any]](), list[str](), 0
    for comparison in comparisons:
        runner.run(comparison, f"{args.task} {args.method}, temperature {comparison.arms[0].sampling.temperature:g}")
        for point, document in _points(runner, comparison):
            records = [runner.records(arm) for arm in (comparison.arms[0], point.experiment)]
            points.append(point)
            documents.append(document)
            told += remarks(point.experiment, records)
            status = max(status, status_of(records, document))
    name = comparison_id("grid", f"{args.task} {args.method}", *(point.experiment.signature for point in points))
    print(write(points, args.records / FOLDER / name))
    for line in learned_lines({model: told for document in documents for model, told in document["learned_rows"].items()}):
        print(line)
    print(json.dumps(documents, ensure_ascii=False, allow_nan=False))
    for remark in dict.fromkeys(told):
        print(f"foretoken: {remark}", file=sys.stderr)
    return status


def _by_sampling(args: argparse.Namespace) -> Iterator[Iterator[Comparison]]:
    """Yield the comparisons of a way of sampling, one for each drafter, rule and gamma, for each way in turn."""
    asked = {name: value for name in AXES if (value := getattr(args, name, None)) is not None}
    given = {name: value if isinstance(value, tuple) else (value,) for name, value in asked.items()}
    parts = {name: given.pop(name) for name in PARTS if name in given}
    methods = [_parts(args, dict(zip(parts, chosen, strict=True))) for chosen in product(*parts.values())]
    if args.draft is not None and all("draft" in method for method in methods):
        raise UsageError(f"--draft {args.draft}: none of --drafter {','.join(args.drafter)} reads it; leave it out")
    for chosen in product(*given.values()):
        sampling = vars(args) | dict(zip(given, chosen, strict=True))
        yield (_one(argparse.Namespace(**sampling | method)) for method in methods)


def _parts(args: argparse.Namespace, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of one method of a grid; of several drafters those without a model leave --draft to the others."""
    if not isinstance(args.drafter, tuple):
        return chosen
    reads = getattr(DRAFTERS.get(chosen["drafter"]), "reads", "")
    if chosen["drafter"] == ROUNDED and ModelSpec(name=args.draft or "").rounding is None:
        reads = "none"  # the draft is another drafter's: this one has the target's own weights
    if reads not in ("", "none") and args.draft is None:
        raise UsageError(f"drafter {chosen['drafter']!r}: expected --draft MODEL, which it reads; name one, or leave it out")
    return chosen | ({"draft": None, "draft_revision": None} if reads == "none" else {})


def _one(args: argparse.Namespace) -> Comparison:
    comparison = arms_asked_for(args)
    check_flags(args)
    if not comparison.arms[-1].method.gamma:
        raise UsageError(f"method {args.method!r}: it has no gamma, by which a grid is drawn; choose --method speculative")
    return comparison


def _merged(parts: Sequence[Comparison]) -> Comparison:
    """Return one comparison: the plain arms that the parts share, with the probes of all, and the method of each part.

    It is of the rows that no model of any part learned from.
    """
    methods = [part.arms[-1].method for part in parts]
    if again := next((one for place, one in enumerate(methods) if one in methods[:place]), None):
        raise UsageError(
            f"method {again.name!r}: two values make the same one, as of --rule where --lenience chooses it; give one"
        )
    together = comparison_id("run", methods[0].name, *methods)
    probes = tuple(dict.fromkeys(probe for part in parts for probe in part.arms[0].probes))
    plain, *others = parts[0].arms[:-1]
    arms = (plain.replace(probes=probes), *others, *(part.arms[-1] for part in parts))
    return on_tested_rows(Comparison(tuple(arm.replace(comparison=together) for arm in arms)))


def _points(runner: Runner, comparison: Comparison) -> Iterator[tuple[Point, dict[str, Any]]]:
    plain, *methods = comparison.arms
    baseline = runner.records(plain)
    for arm in methods:
        yield judged(runner, Comparison((plain, arm)), [baseline, runner.records(arm)])
