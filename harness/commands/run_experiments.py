"""The experiments of ``foretoken run``: what its flags describe."""

import argparse
from typing import Any

from harness.assisted import THEIRS
from harness.commands.options import checked_device, model_name, source_of
from harness.commands.run_flags import refuse_unread
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, EarlySpec, Experiment, MethodSpec, ModelSpec, plain_arms
from harness.models import is_encoder_decoder
from harness.names import DRAFTING
from methods.sampling import Sampling
from tasks import get_task

NUM_BEAMS = {"beam": 4, "speculative-beam": 4}  # where --num-beams is not given; 1 for others


def experiments(args: argparse.Namespace) -> Comparison:
    """The plain arm, on whose output alpha is measured, and the arm that was asked for."""
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


def check_flags(args: argparse.Namespace) -> None:
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
