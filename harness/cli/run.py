"""``foretoken run``: run one experiment from flags. The last line of the output is one JSON document."""

import argparse
import json
import math
import sys
from typing import Any

from harness.cli.run_experiments import check_flags, experiments
from harness.core.experiment import Comparison, MethodSpec
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import measure_run
from harness.measures.pairing import incomparable
from harness.run.estimate import print_plan
from harness.run.peers import as_text, measured, with_peers
from harness.run.runner import pin


def execute(args: argparse.Namespace) -> int:
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
    metrics = measure_run(comparison, records)
    beside = measured(
        (comparison.arms[0], records[0]),
        records[-1],
        {name: (peer, runner.records(peer)) for name, peer in peers.items()},
        lambda arms, of_arms: judge_run(arms, of_arms, runner),
    )
    refused = next(filter(None, (incomparable(baseline, records[-1]) for baseline in records[:-1])), None)
    document = {
        "signature": method.signature,
        "records": str(runner.path(method)),
        "baseline_records": str(runner.path(comparison.arms[0])) if len(comparison.arms) > 1 else None,
        "audit": judge_run(comparison, records, runner),
        "metrics": {name: _finite(estimate.as_dict()) for name, estimate in metrics.items()},
        "refused": refused.why if refused else None,
        "beam_budget": _beam_budget(method.method),
        "peers": [_finite(peer.as_dict()) for peer in beside],
    }
    _print_metrics(metrics, document)
    if beside:
        print("\n" + as_text(beside, args.method, refused or metrics.get("speedup"), metrics.get("tokens_per_step")))
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    failed = sum(record.status == "failed" for record in records[-1])
    if failed:
        first = next(record.error for record in records[-1] if record.status == "failed")
        print(f"foretoken: {failed} of {len(records[-1])} examples failed; the first: {first}", file=sys.stderr)
    return 1 if failed == len(records[-1]) else 0


def _finite(value: Any) -> Any:
    """JSON has no infinities: what is not finite is unknown."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _beam_budget(method: MethodSpec) -> int | None:
    """Contexts that a round of speculative beam search may ask the target for, w + u gamma (Leviathan A.4)."""
    if method.name != "speculative-beam":
        return None
    return int(method.options.num_beams + method.options.draft_width * method.gamma)


def _print_metrics(metrics: dict, document: dict) -> None:
    for name, estimate in metrics.items():
        spread = "" if estimate.low is None else f"  [{estimate.low:.4g}, {estimate.high:.4g}]"
        print(f"{name:32s} {estimate.value:10.4g}{spread}  n={estimate.n} {estimate.unit}")
    print(f"audit: {document['audit']['verdict']}: {document['audit']['summary']}")
    if document["refused"]:
        print(f"speedup {document['refused']}")
    if document["beam_budget"] is not None:
        print(f"budget: at most {document['beam_budget']} contexts of the target a round (w + u gamma)")
