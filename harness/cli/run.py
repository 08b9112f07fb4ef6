"""``foretoken run``: run one experiment from flags, or a grid of them. The last line of the output is one JSON document."""

import argparse
import json
import sys
from functools import partial

from harness.cli import grid
from harness.cli.run_experiments import check_flags, experiments
from harness.cli.run_flags import is_grid
from harness.cli.run_judged import finite, judged, remarks, status_of
from harness.core.experiment import TRANSLATED, Comparison
from harness.core.text import interval_text
from harness.exact.run_verdict import judge_run
from harness.measures.statistics import Refused
from harness.report.grid import Point
from harness.run.build import shared_tokens
from harness.run.own_data import learned_lines
from harness.run.peers import as_text, measured, with_peers
from harness.run.plan import print_plan
from harness.run.runner import pin


def execute(args: argparse.Namespace) -> int:
    if is_grid(args):
        return grid.execute(args)
    own, asked = with_peers(experiments(args), args.peer)
    comparison, peers = Comparison(tuple(map(pin, own.arms))), {name: pin(peer) for name, peer in asked.items()}
    everything = Comparison((*comparison.arms, *peers.values()))
    check_flags(args)
    if args.dry_run:
        print_plan([everything], args.records)
        return 0
    runner = args.make_runner()
    runner.run(everything, f"{args.task} {args.method}")
    records = [runner.records(arm) for arm in comparison.arms]
    method = comparison.arms[-1]
    if method.method.drafter is not None and method.method.drafter.kind in TRANSLATED:
        print(f"foretoken: {runner.with_models(method, partial(shared_tokens, method))}", file=sys.stderr)
    beside = measured(
        (comparison.arms[0], records[0]),
        records[-1],
        {name: (peer, runner.records(peer)) for name, peer in peers.items()},
        lambda arms, of_arms: judge_run(arms, of_arms, runner.with_models),
    )
    point, document = judged(runner, comparison, records)
    document["peers"] = [finite(peer.as_dict()) for peer in beside]
    _print_metrics(point, document)
    if beside:
        speed = point.metrics.get("speedup") if point.refused is None else Refused(point.refused)
        print("\n" + as_text(beside, args.method, speed, point.metrics.get("tokens_per_step")))
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    for remark in remarks(method, records):
        print(f"foretoken: {remark}", file=sys.stderr)
    return status_of(records, document)


def _print_metrics(point: Point, document: dict) -> None:
    for name, estimate in point.metrics.items():
        spread = interval_text(estimate.low, estimate.high, ".4g")
        few = "" if not spread or estimate.shown.low is not None else ", too few: describes these alone"
        print(f"{name:32s} {estimate.value:10.4g}{spread}  n={estimate.n}{few} {estimate.unit}")
    for name, weights in document["weights"].items():
        print(f"weights of {name}: {weights}")
    for line in learned_lines(document["learned_rows"]):
        print(line)
    print(f"audit: {document['audit']['verdict']}: {document['audit']['summary']}")
    for why, name in {why: name for name, why in reversed(point.lacking.items())}.items():
        print(f"{name} {why}")
    if document["beam_budget"] is not None:
        print(f"budget: at most {document['beam_budget']} contexts of the target a round (w + u gamma)")
