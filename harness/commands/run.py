"""``foretoken run``: one ad-hoc experiment. The last line of the output is one JSON document."""

import argparse
import json
import math
import sys
from typing import Any

from harness.commands.options import add_common, checked_device, layer_list, model_name, positive, source_of
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, EarlySpec, Experiment, MethodSpec, ModelSpec, plain_arms
from methods.sampling import Sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    _add_what(parser)
    _add_method(parser)
    _add_limits(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("task and models").add_argument
    add("--task", required=True, help="squad, wmt-en-de, ..., cnndm, xsum, text")
    add("--target", required=True, metavar="MODEL", help="a local folder, a Hub id, or zoo:NAME")
    add("--target-revision", metavar="COMMIT", help="pins a Hub id")
    add("--draft", metavar="MODEL", help="the draft model, likewise; for n-gram drafters the zoo's table")
    add("--draft-revision", metavar="COMMIT", help="pins a Hub id")
    add("--prompt-template", metavar="TEXT", help=r"with {field} of the task's inputs and \n for newlines")
    add("--chat-template", action="store_true", help="wrap the prompt in the tokenizer's chat template")


def early_layer(text: str) -> int | None:
    """An argparse type: a layer, or None for "auto"."""
    return None if text == "auto" else positive("--early-layer")(text)


def candidates(text: str) -> int | None:
    return None if text == "auto" else positive("--candidates")(text)


def _add_method(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("method and sampling").add_argument
    add("--method", default="autoregressive", help="autoregressive, beam, ppd, speculative, speculative-beam")
    add("--drafter", help="model or block (both with --draft), unigram, bigram, copy, random, hierarchical")
    add("--inner-draft", metavar="MODEL", help="the hierarchical drafter's own draft model")
    add("--inner-gamma", type=positive("--inner-gamma"), default=2, help="how many tokens it drafts (default: 2)")
    add("--rule", default="speculative-sampling", help="speculative-sampling, lenience, top-1 or top-beta")
    add("--lenience", type=float, default=1.0, help="l of rule lenience, 0 < l <= 1 (default: 1)")
    add("--as-described", action="store_true", help="the paper's printed form where it differs from what it must mean")
    add("--beta", type=positive("--beta"), default=3, help="of rule top-beta: among the target's best BETA (default: 3)")
    add("--tau", type=float, default=1.0, help="of rule top-beta: within TAU of its best log-probability (default: 1)")
    add("--score", default="verifier", help="of rule top-beta: verifier (default), or as_described (the drafter's, as printed)")
    add("--cap", default="released", help="of top-1 and top-beta: gamma + 1 tokens a round (released) or gamma (printed)")
    add("--schedule", default="constant", help='constant, heuristic ("+2 / -1") or optimal (with --alpha and --cost)')
    add("--gamma", type=int, default=5, help="how many tokens to draft a round (default: 5)")
    add("--alpha", type=float, help="measured acceptance rate, for schedule optimal")
    add("--cost", type=float, help="measured draft/target cost ratio, for schedule optimal")
    add("--num-beams", type=positive("--num-beams"), default=4, help="width of beam search (default: 4)")
    add("--draft-beams", type=positive("--draft-beams"), help="draft width of speculative-beam (default: twice the width)")
    add("--early-layer", type=early_layer, metavar="N", help="where ppd predicts, half the depth or more; or auto (default)")
    add("--candidates", type=candidates, metavar="K", help="tokens that ppd begins early, or auto (default: 1)", default=1)
    add("--execution", default="process", help="of ppd: process (one a candidate), batched (one for all) or simulated")
    add(
        "--match-layers",
        type=layer_list("--match-layers"),
        default=(),
        metavar="N,N",
        help="measure PPD's match rate at these layers as well",
    )
    add("--heads", metavar="FOLDER", help="early heads that `foretoken heads` trained, or zoo:NAME (default: the model's own)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    add("--top-k", type=int, help="keep the k largest logits")
    add("--top-p", type=float, help="keep the nucleus of this mass")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add("--repeats", type=positive("--repeats"), default=1, help="how often each example is run (default: 1)")
    add("--batch-size", type=positive("--batch-size"), default=1, help="rows decoded together (default: 1)")
    add("--max-new-tokens", type=positive("--max-new-tokens"), help="default: the task's own")
    add("--max-input-tokens", type=positive("--max-input-tokens"), help="cut a prompt's longest field down to this")
    add("--ignore-eos", action="store_true", help="always generate the full length")
    add("--threads", type=positive("--threads"), help="CPU threads of torch (default: all cores)")


def execute(args: argparse.Namespace) -> int:
    from harness.audit import audit
    from harness.measures import measure_run
    from harness.pairing import incomparable
    from harness.runner import Runner, pin

    comparison = Comparison(tuple(pin(experiment) for experiment in experiments(args).arms))
    if args.dry_run:
        from harness.estimate import print_plan

        print_plan([comparison], args.records)
        return 0
    runner = Runner(args.records, quiet=args.quiet)
    runner.run(comparison, f"{args.task} {args.method}")
    records = [runner.records(arm) for arm in comparison.arms]
    method = comparison.arms[-1]
    metrics = measure_run(comparison, records)
    refused = next(filter(None, (incomparable(baseline, records[-1]) for baseline in records[:-1])), None)
    document = {
        "signature": method.signature,
        "records": str(runner.path(method)),
        "baseline_records": str(runner.path(comparison.arms[0])) if len(comparison.arms) > 1 else None,
        "audit": audit(comparison, records, runner),
        "metrics": {name: _finite(estimate.as_dict()) for name, estimate in metrics.items()},
        "refused": refused.reason if refused else None,
        "beam_budget": _beam_budget(method.method),
    }
    _print_metrics(metrics, document)
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    failed = sum(record.status == "failed" for record in records[-1])
    if failed:
        print(f"foretoken: {failed} of {len(records[-1])} examples failed; their records say why", file=sys.stderr)
    return 1 if failed == len(records[-1]) else 0


def experiments(args: argparse.Namespace) -> Comparison:
    """The plain arm, on whose output alpha is measured, and the arm that was asked for."""
    from harness.models import is_encoder_decoder
    from tasks import get_task

    if args.method.startswith("speculative") and args.gamma < 1:
        raise UsageError(f"gamma {args.gamma}: expected an integer >= 1; for plain decoding use --method autoregressive")
    task = get_task(args.task)
    target = ModelSpec(name=model_name(args.target), revision=args.target_revision)
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
        overlap=(drafter,) if drafter is not None else (),
        early=_early(args),
        leniences=tuple(sorted({1.0, args.lenience}, reverse=True)),
        device=checked_device(args.device),
        dtype=args.dtype,
        num_threads=args.threads,
    )
    if args.method == "autoregressive":
        return Comparison((base,))
    if args.method == "speculative-beam":
        base = base.replace(method=MethodSpec(name="beam", num_beams=args.num_beams), overlap=())
    method = _method(args, drafter)
    plain = base.replace(beside=repr(method))
    arm = base.replace(method=method, overlap=(), leniences=(1.0,), early=())
    return Comparison((*plain_arms(plain, method), arm))


def _method(args: argparse.Namespace, drafter: DrafterSpec | None) -> MethodSpec:
    return MethodSpec(
        name=args.method,
        drafter=drafter,
        rule="lenience" if args.lenience != 1.0 else args.rule,
        lenience=args.lenience,
        as_described=args.as_described,
        beta=args.beta,
        tau=args.tau,
        score=args.score,
        cap=args.cap,
        schedule=args.schedule,
        gamma=args.gamma,
        alpha=args.alpha,
        cost=args.cost,
        num_beams=args.num_beams if "beam" in args.method else 1,
        draft_beams=(args.draft_beams or 2 * args.num_beams) if args.method == "speculative-beam" else 1,
        **(_pipeline(args) if args.method == "ppd" else {}),
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
        if args.method.startswith("speculative"):
            raise UsageError(f"method {args.method!r}: expected --draft MODEL, or --drafter copy, which needs no model")
        return None
    inner = DrafterSpec(kind="model", model=ModelSpec(name=model_name(args.inner_draft))) if args.inner_draft else None
    return DrafterSpec(kind=kind, model=model, inner=inner, inner_gamma=args.inner_gamma)


def _finite(values: dict) -> dict:
    """JSON has no infinities: what is not finite is unknown."""
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()}


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
