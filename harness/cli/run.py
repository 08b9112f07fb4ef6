"""``foretoken run``: run one experiment from flags, or a grid of them. The last line of the output is one JSON document."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from harness.cli.own_data import evaluated_source, notes
from harness.cli.run_flags import is_grid, read_options, refuse_unread, takes_of
from harness.core.errors import UsageError
from harness.core.experiment import (
    TRANSLATED,
    Comparison,
    DrafterSpec,
    EarlyProbe,
    Experiment,
    MemoryProbe,
    MethodSpec,
    ModelSpec,
    OverlapProbe,
    Probe,
    comparison_id,
    plain_arms,
)
from harness.core.notes import Notes
from harness.core.records import Record
from harness.core.settings import checked_device, model_name, source_of
from harness.exact.run_verdict import judge_run
from harness.measures.of_run import measure_run, ms_per_token, tokens_per_s
from harness.measures.pairing import incomparable
from harness.measures.statistics import Estimate, Missing
from harness.measures.verdicts import NOT_KEPT
from harness.models.names import is_encoder_decoder
from harness.papers.leviathan.speed import memory_access_factor_eq1
from harness.run.build import shared_tokens, specs_of
from harness.run.peers import as_text, measured, with_peers
from harness.run.plan import print_plan
from harness.run.refusals import THEIRS
from harness.run.runner import Runner, pin
from kernels.inputs import SamplingSpec
from methods.options import options_class
from methods.parts import METHODS
from tasks import get_task


def execute(args: argparse.Namespace) -> int:
    if is_grid(args):
        from harness.cli import grid

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
    metrics, document = judged(runner, comparison, records)
    document["peers"] = [_finite(peer.as_dict()) for peer in beside]
    _print_metrics(metrics, document)
    if beside:
        speed = metrics.get("speedup") if document["refused"] is None else Missing(document["refused"])
        print("\n" + as_text(beside, args.method, speed, metrics.get("tokens_per_step")))
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    for remark in remarks(method, records[-1]):
        print(f"foretoken: {remark}", file=sys.stderr)
    return status_of(records[-1], document)


def judged(runner: Runner, comparison: Comparison, records: list[list[Record]]) -> tuple[dict[str, Estimate], dict[str, Any]]:
    """Return the metrics of the last arm beside the plain ones, and the document that holds them with the audit's verdict."""
    method, metrics = comparison.arms[-1], measure_run(comparison, records)
    if "memory_access_factor" in metrics and (eq1 := memory_access_factor_eq1(method, metrics)) is not None:
        metrics["memory_access_factor_eq1"] = eq1
    refused = next(filter(None, (incomparable(baseline, records[-1]) for baseline in records[:-1])), None)
    if incomparable(records[0], records[-1]) is None:
        metrics |= _rates(records)
    facts = Notes(runner.folder)
    document: dict[str, Any] = {
        "signature": method.signature,
        "weights": {spec.name: words for spec in specs_of(method) if (words := facts.model(spec).get("weights"))},
        "records": str(runner.path(method)),
        "baseline_records": str(runner.path(comparison.arms[0])) if len(comparison.arms) > 1 else None,
        "audit": judge_run(comparison, records, runner.with_models),
        "metrics": {name: _finite(estimate.as_dict()) for name, estimate in metrics.items()},
        "refused": refused.why if refused else None,
        "beam_budget": _beam_budget(method.method),
        "peers": [],
    }
    return metrics, document


def _rates(records: list[list[Record]]) -> dict[str, Estimate]:
    """Tokens a second and milliseconds a token of the last arm and, where there is one, of the plain arm."""
    arms = {"": records[-1]} | ({"baseline_": records[0]} if len(records) > 1 else {})
    found = {f"{arm}{rate.__name__}": rate(of_arm) for arm, of_arm in arms.items() for rate in (tokens_per_s, ms_per_token)}
    return {name: rate for name, rate in found.items() if rate is not None}


def remarks(method: Experiment, records: Sequence[Record]) -> list[str]:
    """Return what a user is told about the examples: which were tested, and how many failed."""
    told = notes(method, len({record.example for record in records}))
    if failed := [record for record in records if record.status == "failed"]:
        told.append(f"{len(failed)} of {len(records)} examples failed; the first: {failed[0].error}")
    return told


def status_of(records: Sequence[Record], document: dict[str, Any]) -> int:
    """Return the exit status: 1 where all examples failed, or a guarantee is broken."""
    all_failed = all(record.status == "failed" for record in records)
    return 1 if all_failed or document["audit"]["verdict"] in NOT_KEPT else 0


def _finite(value: Any) -> Any:
    """JSON has no infinities: what is not finite is unknown."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _beam_budget(method: MethodSpec) -> int | None:
    """Contexts that a round of speculative beam search may ask the target for, w + u gamma (Leviathan A.4)."""
    width = getattr(method.options, "draft_width", None)
    return None if width is None else int(method.num_beams + width * method.gamma)


def _print_metrics(metrics: dict, document: dict) -> None:
    for name, estimate in metrics.items():
        spread = "" if estimate.low is None else f"  [{estimate.low:.4g}, {estimate.high:.4g}]"
        few = "" if not spread or estimate.shown.low is not None else ", too few: describes these alone"
        print(f"{name:32s} {estimate.value:10.4g}{spread}  n={estimate.n}{few} {estimate.unit}")
    for name, weights in document["weights"].items():
        print(f"weights of {name}: {weights}")
    print(f"audit: {document['audit']['verdict']}: {document['audit']['summary']}")
    if document["refused"]:
        print(f"speedup {document['refused']}")
    if document["beam_budget"] is not None:
        print(f"budget: at most {document['beam_budget']} contexts of the target a round (w + u gamma)")


def experiments(args: argparse.Namespace) -> Comparison:
    """Return the plain arm, on whose output alpha is measured, and the arm that was asked for, on the rows that are tested."""
    source = source_of(args.data, args.profile, args.field, args.config, args.split)
    comparison = _arms(args, source)
    models = list(dict.fromkeys(spec for arm in comparison.arms for spec in specs_of(arm)))
    source = evaluated_source(source, args.task, models)
    return Comparison(tuple(arm.replace(source=source) for arm in comparison.arms))


def _arms(args: argparse.Namespace, source: str) -> Comparison:
    task = get_task(args.task)
    target = ModelSpec(
        name=model_name(args.target, args.target_revision), revision=args.target_revision, device_map=args.device_map
    )
    drafter = _drafter(args)
    base = Experiment(
        task=args.task,
        source=source,
        profile=args.profile,
        target=target,
        method=MethodSpec(name="autoregressive"),
        sampling=SamplingSpec(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p),
        seed=args.seed,
        limit=args.limit or 20,
        repeats=args.repeats,
        batch_size=args.batch_size,
        max_new_tokens=args.max_new_tokens or task.max_new_tokens,
        max_input_tokens=args.max_input_tokens,
        ignore_eos=args.ignore_eos,
        prompt_style="t5" if is_encoder_decoder(target, args.profile, source) else "instruction",
        prompt_template=args.prompt_template,
        chat_template=args.chat_template,
        probes=(*_overlap(args, drafter), *_early(args), *_memory(args)),
        device=checked_device(args.device, args.engine),
        dtype=args.dtype,
        num_threads=args.threads,
    )
    if args.method == "autoregressive":
        return Comparison((base,))
    method = _method(args, drafter)
    if method.num_beams > 1 and method.name != "beam":
        base = base.replace(method=MethodSpec.of("beam", num_beams=method.num_beams), probes=_memory(args))
    plain = base.replace(comparison=comparison_id("run", method.name, method))
    arm = plain.replace(method=method, probes=_memory(args))
    return Comparison((*plain_arms(plain, method), arm))


def check_flags(args: argparse.Namespace) -> None:
    """UsageError for a flag that nothing of this run reads."""
    drafter = _drafter(args)
    if args.heads and not args.match_layers and "heads" not in takes_of(args.method):
        raise UsageError(f"--heads {args.heads}: nothing reads it; leave it out, or choose --method ppd or --match-layers N,N")
    if args.draft_revision and not args.draft:
        raise UsageError(
            f"--draft-revision {args.draft_revision}: nothing reads it; leave it out, or name the model by --draft"
        )
    refuse_unread(args, _chosen(args) | {"drafter": None if drafter is None else drafter.kind})


def _chosen(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the names of the method, its rule and its schedule. A lenience chooses its rule."""
    takes, rule = takes_of(args.method), "lenience" if _lenience(args) != 1.0 else args.rule
    schedule = args.schedule if "schedule" in takes else None
    return {"method": args.method, "rule": rule if "rule" in takes else None, "schedule": schedule}


def _lenience(args: argparse.Namespace) -> float:
    return getattr(args, "lenience", 1.0)


def _method(args: argparse.Namespace, drafter: DrafterSpec | None) -> MethodSpec:
    """Every part takes its options from the flags of their names."""
    takes, chosen = takes_of(args.method), _chosen(args)
    options = {one: value for kind, name in chosen.items() for one, value in read_options(args, kind, name).items()}
    return MethodSpec.of(
        args.method,
        drafter=drafter if "drafter" in takes else None,
        heads=_heads(args) if "heads" in takes else None,
        rule=chosen["rule"],
        schedule=chosen["schedule"],
        **options,
    )


def _memory(args: argparse.Namespace) -> tuple[Probe, ...]:
    return (MemoryProbe(),) if args.memory else ()


def _overlap(args: argparse.Namespace, drafter: DrafterSpec | None) -> tuple[Probe, ...]:
    """Probe the drafter's overlap at lenience 1 and at the rule's; transformers' own drafters have no probabilities."""
    if drafter is None or drafter.kind in THEIRS:
        return ()
    return (OverlapProbe(drafter=drafter, leniences=tuple(sorted({1.0, _lenience(args)}, reverse=True))),)


def _early(args: argparse.Namespace) -> tuple[Probe, ...]:
    """Return the model's own head, and the trained ones where some are named."""
    if not args.match_layers:
        return ()
    heads = _heads(args)
    return tuple(EarlyProbe(layers=args.match_layers, heads=one) for one in ((None,) if heads is None else (None, heads)))


def _heads(args: argparse.Namespace) -> ModelSpec | None:
    return ModelSpec(name=model_name(args.heads)) if args.heads else None


def _drafter(args: argparse.Namespace) -> DrafterSpec | None:
    model = ModelSpec(name=model_name(args.draft, args.draft_revision), revision=args.draft_revision) if args.draft else None
    kind = args.drafter or ("model" if model is not None else None)
    if kind is None:
        if args.method in METHODS and getattr(options_class(METHODS[args.method]), "needs_drafter", False):
            raise UsageError(f"method {args.method!r}: expected --draft MODEL, or --drafter copy, which needs no model")
        return None
    inner = DrafterSpec(kind="model", model=ModelSpec(name=model_name(args.inner_draft))) if args.inner_draft else None
    return DrafterSpec(kind=kind, model=model, inner=inner, options=read_options(args, "drafter", kind))
