"""The experiments that the flags of ``foretoken run`` ask for."""

import argparse
from dataclasses import replace

from harness.cli.run_flags import read_options, refuse_unread, takes_of
from harness.core.errors import UsageError
from harness.core.experiment import (
    ROUNDED,
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
from harness.core.settings import checked_device, model_name, source_of
from harness.models.names import is_encoder_decoder
from harness.run.build import specs_of
from harness.run.own_data import evaluated_source
from harness.run.refusals import THEIRS, check_attention
from kernels.inputs import SamplingSpec
from methods.options import options_class
from methods.parts import METHODS
from tasks import get_task


def experiments(args: argparse.Namespace) -> Comparison:
    """Return the plain arm, on whose output alpha is measured, and the arm that was asked for, on the rows that are tested."""
    return on_tested_rows(arms_asked_for(args))


def on_tested_rows(comparison: Comparison) -> Comparison:
    """Return a comparison on the rows that none of its models learned from."""
    first = comparison.arms[0]
    source = evaluated_source(first.source, first.task, _models_of(comparison))
    return Comparison(tuple(arm.replace(source=source) for arm in comparison.arms))


def arms_asked_for(args: argparse.Namespace) -> Comparison:
    """Return the plain arm and the one that was asked for, on data as it was named."""
    found = _arms(args, source_of(args.data, args.profile, args.field, args.config, args.split))
    check_attention(args.attention, args.dtype, _models_of(found))
    return found


def _models_of(comparison: Comparison) -> list[ModelSpec]:
    return list(dict.fromkeys(spec for arm in comparison.arms for spec in specs_of(arm)))


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
        graphs=args.graphs == "on",
        attention=args.attention,
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
    if kind == ROUNDED:
        model = _rounded(model, ModelSpec(name=model_name(args.target, args.target_revision), revision=args.target_revision))
    inner = DrafterSpec(kind="model", model=ModelSpec(name=model_name(args.inner_draft))) if args.inner_draft else None
    return DrafterSpec(kind=kind, model=model, inner=inner, options=read_options(args, "drafter", kind))


def _rounded(draft: ModelSpec | None, target: ModelSpec) -> ModelSpec:
    """Return the target in int8 where no draft is named, else the draft, of the target's revision where none is."""
    if draft is None:
        return replace(target, name=f"int8:{target.base}")
    return draft if draft.base != target.base else replace(draft, revision=draft.revision or target.revision)
