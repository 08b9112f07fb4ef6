"""``foretoken run``: one ad-hoc experiment. The last line of the output is one JSON document."""

import argparse
import json
import math
import sys
from typing import Any

from harness.commands.options import begin_engine, checked_device, model_name, source_of
from harness.commands.run_flags import add_arguments, refuse_unread
from harness.errors import UsageError
from harness.experiment import DRAFTING, Comparison, DrafterSpec, EarlySpec, Experiment, MethodSpec, ModelSpec, plain_arms
from methods.sampling import Sampling

__all__ = ["add_arguments", "execute", "experiments"]

NUM_BEAMS = {"beam": 4, "speculative-beam": 4}  # where --num-beams is not given; 1 for others


def execute(args: argparse.Namespace) -> int:
    make_runner = begin_engine(args)

    from harness.audit.of_run import audit
    from harness.measures import measure_run
    from harness.pairing import incomparable
    from harness.peers import as_text, measured, with_peers
    from harness.runner import pin

    own, asked = with_peers(experiments(args), args.peer)
    comparison, peers = Comparison(tuple(map(pin, own.arms))), {name: pin(peer) for name, peer in asked.items()}
    everything = Comparison((*comparison.arms, *peers.values()))
    _check_flags(args)
    if args.dry_run:
        from harness.estimate import print_plan

        print_plan([everything], args.records)
        return 0
    runner = make_runner()
    runner.run(everything, f"{args.task} {args.method}")
    records = [runner.records(arm) for arm in comparison.arms]
    method = comparison.arms[-1]
    metrics = measure_run(comparison, records)
    beside = measured(
        (comparison.arms[0], records[0]),
        records[-1],
        {name: (peer, runner.records(peer)) for name, peer in peers.items()},
        lambda arms, of_arms: audit(arms, of_arms, runner),
    )
    refused = next(filter(None, (incomparable(baseline, records[-1]) for baseline in records[:-1])), None)
    document = {
        "signature": method.signature,
        "records": str(runner.path(method)),
        "baseline_records": str(runner.path(comparison.arms[0])) if len(comparison.arms) > 1 else None,
        "audit": audit(comparison, records, runner),
        "metrics": {name: _finite(estimate.as_dict()) for name, estimate in metrics.items()},
        "refused": refused.reason if refused else None,
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


def experiments(args: argparse.Namespace) -> Comparison:
    """The plain arm, on whose output alpha is measured, and the arm that was asked for."""
    from harness.assisted import THEIRS
    from harness.models import is_encoder_decoder
    from tasks import get_task

    if args.method in DRAFTING and args.gamma < 1:
        raise UsageError(f"gamma {args.gamma}: expected an integer >= 1; for plain decoding use --method autoregressive")
    task = get_task(args.task)
    target = ModelSpec(name=model_name(args.target), revision=args.target_revision, device_map=args.device_map)
    drafter = _drafter(args)
    base = Experiment(
        task=args.task,
        source=source_of(args.data, args.profile),
        profile=args.profile,
        target=target,
        method=MethodSpec(name="autoregressive"),
        sampling=Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p),
        seed=args.seed,
        limit=args.limit or 20,
        repeats=args.repeats,
        batch_size=args.batch_size,
        max_new_tokens=args.max_new_tokens or task.max_new_tokens,
        max_input_tokens=args.max_input_tokens,
        ignore_eos=args.ignore_eos,
        prompt_style="t5" if is_encoder_decoder(target, args.profile, source_of(args.data, args.profile)) else "instruction",
        prompt_template=args.prompt_template,
        chat_template=args.chat_template,
        overlap=(drafter,) if drafter is not None and drafter.kind not in THEIRS else (),
        early=_early(args),
        leniences=tuple(sorted({1.0, args.lenience}, reverse=True)),
        memory=args.memory,
        device=checked_device(args.device, args.engine),
        dtype=args.dtype,
        num_threads=args.threads,
    )
    if args.method == "autoregressive":
        return Comparison((base,))
    method = _method(args, drafter)
    if method.name in ("speculative-beam", "transformers") and method.num_beams > 1:
        base = base.replace(method=MethodSpec(name="beam", num_beams=method.num_beams), overlap=())
    plain = base.replace(beside=repr(method))
    arm = base.replace(method=method, overlap=(), leniences=(1.0,), early=())
    return Comparison((*plain_arms(plain, method), arm))


def _check_flags(args: argparse.Namespace) -> None:
    drafter = _drafter(args)
    kind = None if drafter is None else drafter.kind
    refuse_unread(args, {"method": args.method, "rule": _rule(args), "schedule": args.schedule, "drafter": kind})


def _rule(args: argparse.Namespace) -> str:
    return "lenience" if args.lenience != 1.0 else args.rule


def _method(args: argparse.Namespace, drafter: DrafterSpec | None) -> MethodSpec:
    num_beams = args.num_beams or NUM_BEAMS.get(args.method, 1)
    return MethodSpec(
        name=args.method,
        drafter=drafter,
        rule=_rule(args),
        lenience=args.lenience,
        as_described=args.as_described,
        beta=args.beta,
        tau=args.tau,
        score=args.score,
        cap=args.cap,
        scale=args.scale,
        half_logits=args.half_logits,
        schedule=args.schedule,
        gamma=args.gamma,
        alpha=args.alpha,
        cost=args.cost,
        num_beams=num_beams,
        draft_beams=(args.draft_beams or 2 * num_beams) if args.method == "speculative-beam" else 1,
        **(_pipeline(args) if args.method == "ppd" else {}),
        **({"early_layer": args.early_layer} if args.method == "transformers" else {}),
    )


def _pipeline(args: argparse.Namespace) -> dict[str, Any]:
    heads = _heads(args)
    return {"early_layer": args.early_layer, "candidates": args.candidates, "execution": args.execution, "heads": heads}


def _early(args: argparse.Namespace) -> tuple[EarlySpec, ...]:
    """The model's own head, and the trained ones where some are named."""
    if not args.match_layers:
        return ()
    heads = _heads(args)
    return tuple(EarlySpec(layers=args.match_layers, heads=one) for one in ((None,) if heads is None else (None, heads)))


def _heads(args: argparse.Namespace) -> ModelSpec | None:
    return ModelSpec(name=model_name(args.heads)) if args.heads else None


def _drafter(args: argparse.Namespace) -> DrafterSpec | None:
    model = ModelSpec(name=model_name(args.draft), revision=args.draft_revision) if args.draft else None
    kind = args.drafter or ("model" if model is not None else None)
    if kind is None:
        if args.method in DRAFTING:
            raise UsageError(f"method {args.method!r}: expected --draft MODEL, or --drafter copy, which needs no model")
        return None
    inner = DrafterSpec(kind="model", model=ModelSpec(name=model_name(args.inner_draft))) if args.inner_draft else None
    return DrafterSpec(kind=kind, model=model, inner=inner, inner_gamma=args.inner_gamma, encoder=args.encoder)


def _finite(value: Any) -> Any:
    """JSON has no infinities: what is not finite is unknown."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _beam_budget(method: MethodSpec) -> int | None:
    """Contexts that a round of speculative beam search may ask the target for, w + u gamma (Leviathan A.4)."""
    return method.num_beams + method.draft_beams * method.gamma if method.name == "speculative-beam" else None


def _print_metrics(metrics: dict, document: dict) -> None:
    for name, estimate in metrics.items():
        spread = "" if estimate.low is None else f"  [{estimate.low:.4g}, {estimate.high:.4g}]"
        print(f"{name:32s} {estimate.value:10.4g}{spread}  n={estimate.n} {estimate.unit}")
    print(f"audit: {document['audit']['verdict']}: {document['audit']['summary']}")
    if document["refused"]:
        print(f"speedup {document['refused']}")
    if document["beam_budget"] is not None:
        print(f"budget: at most {document['beam_budget']} contexts of the target a round (w + u gamma)")
