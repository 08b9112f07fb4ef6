"""``foretoken advise``: which drafter and gamma to use for a model, a task and this machine, or that none pays."""

import argparse
import json
import shlex
from collections.abc import Sequence

from harness.advise.commands import commands
from harness.advise.measure import (
    SHARES,
    Arms,
    Stages,
    all_failed,
    check_drafters,
    counted,
    depth_of,
    early_exit,
    pilots,
    pipelined,
    unseen,
)
from harness.advise.page import ADVICE, as_dict, write_page
from harness.advise.predict import Cell, Pilot, Pipeline, best_three, survival
from harness.advise.recommendation import RUNS_IF, Answer, Checked, lines, over_batches
from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.files import short_hash
from harness.core.messages import first_line
from harness.core.settings import checked_device, model_name, source_of
from harness.measures.of_run import speedup
from harness.measures.statistics import Estimate, Missing, Refused
from harness.models.names import is_encoder_decoder
from harness.run.build import specs_of
from harness.run.own_data import evaluated_source, learned_lines, learned_rows, left_out_line
from harness.run.refusals import check_attention, check_graphs
from harness.run.runner import Runner, pin
from kernels.inputs import SamplingSpec
from methods.errors import WorkerError
from tasks import get_task


def execute(args: argparse.Namespace) -> int:
    plain = plain_experiment(args)
    drafters = [DrafterSpec(kind=args.drafter, model=ModelSpec(name=model_name(one))) for one in args.drafts]
    drafters += [DrafterSpec(kind="copy"), DrafterSpec(kind="suffix")]
    pin(plain)
    for one in drafters:
        check_graphs(plain.replace(method=MethodSpec.of("speculative", drafter=one)))
    if args.dry_run:
        print(_plan(args, drafters))
        return 0
    runner = Runner(args.records, args.quiet, args.again, args.replay)
    check_drafters(plain, drafters, runner)
    seconds = args.minutes * 60 / len(args.batch)
    identity = short_hash(repr((pin(plain).signature, drafters, args.batch)), 8)
    name = f"{plain.target.short.replace(':', '-')}-{plain.task}-{identity}"
    answers = [
        answer_for(Stages(plain.replace(batch_size=size), seconds, runner), drafters, args, f"{name}-{size}")
        for size in args.batch
    ]
    tested = plain.replace(replicas=2, replica=1, limit=max(max(one.num_examples) for one in answers))  # as Stages has it
    pinned = [pin(tested.replace(method=MethodSpec.of("speculative", drafter=one))) for one in drafters]
    learned = learned_rows(pin(tested), dict.fromkeys(spec for one in pinned for spec in specs_of(one)))
    text = "\n".join([*_text(answers, args, plain), *left_out_line(plain.source), *learned_lines(learned)])
    title = f"Advice: {plain.target.short}, {plain.task}, temperature {plain.sampling.temperature:g}"
    page = write_page(answers, title, text, args.records / ADVICE, name)
    print(text)
    print(f"page: {page}")
    document = {"page": str(page), "learned_rows": learned, "answers": [as_dict(one) for one in answers]}
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0 if all(one.reached for one in answers) else 1


def plain_experiment(args: argparse.Namespace) -> Experiment:
    """Return plain decoding as it was asked for, at batch size 1."""
    task, models = get_task(args.task), [ModelSpec(name=model_name(one)) for one in (args.target, *args.drafts)]
    source = source_of(args.data, args.profile, args.field, args.config, args.split)
    source, target = evaluated_source(source, args.task, models), models[0]
    check_attention(args.attention, args.dtype, models)
    return Experiment(
        task=args.task,
        source=source,
        profile=args.profile,
        target=target,
        method=MethodSpec(name="autoregressive"),
        sampling=SamplingSpec(temperature=args.temperature),
        seed=args.seed,
        max_new_tokens=args.max_new_tokens or task.max_new_tokens,
        max_input_tokens=args.max_input_tokens,
        prompt_style="t5" if is_encoder_decoder(target, args.profile, source) else "instruction",
        prompt_template=args.prompt_template,
        chat_template=args.chat_template,
        device=checked_device(args.device),
        dtype=args.dtype,
        num_threads=args.threads,
        graphs=args.graphs == "on",
        attention=args.attention,
    )


def answer_for(stages: Stages, drafters: Sequence[DrafterSpec], args: argparse.Namespace, name: str) -> Answer:
    """Look, measure, predict and check at one batch size."""
    depth = depth_of(stages.plain, stages.runner)
    look = stages.look(depth.probed, drafters)
    table = counted(look.plain, look.experiments[0], args.records / ADVICE / f"{name}-ngrams", stages.runner)
    layers, pipeline = early_exit(look.plain, depth), pipelined(look.plain, depth, stages.batch_size)
    own = [layers] if isinstance(layers, DrafterSpec) else []
    piloted = stages.pilot([*drafters, table, *own])
    measured = pilots(piloted, look.plain)
    known = [one for one in measured.values() if isinstance(one, Pilot)]
    cells = [
        cell for one in known for gamma in one.gammas if (cell := one.predict(gamma, stages.plain.max_new_tokens)) is not None
    ]
    best = best_three(cells)
    promising = pipeline if isinstance(pipeline, Pipeline) and pipeline.may_win(best) else None
    checked, reached = _checked(stages, best, promising, piloted) if best or promising else ([], None)
    left_out = {**measured, "early exit": layers, "PPD": pipeline}
    seconds = sum(row.wall_s or 0.0 for row in piloted.plain)
    return Answer(
        batch_size=stages.batch_size,
        plain_s=seconds / max(1, sum(len(row.tokens or ()) for row in piloted.plain)),
        verify_s=known[0].verify_s if known else {},
        cells=cells,
        curves={label: survival(own) for label, own in zip(measured, piloted.records[1:], strict=True)},
        refused={label: one.why for label, one in left_out.items() if isinstance(one, Missing)},
        checked=checked,
        num_examples=(len(piloted.plain), stages.num_checked),
        pipeline=None if isinstance(pipeline, Missing) else pipeline,
        pipeline_reached=reached,
    )


def _checked(
    stages: Stages, cells: Sequence[Cell], pipeline: Pipeline | None, piloted: Arms
) -> tuple[list[Checked], Estimate | Missing | None]:
    """Run predictions, and PPD where there is a plan for it; return what they reached. Where PPD cannot run, that is said."""
    try:
        arms = stages.check(cells, len(piloted.plain), pipeline)
    except (UsageError, WorkerError) as error:
        if pipeline is None:
            raise
        refused = Missing(first_line(error))
        return (_checked(stages, cells, None, piloted)[0] if cells else []), refused
    fresh, among = unseen(arms, piloted), len(cells) + (pipeline is not None)
    checked = [
        Checked(cell, achieved(arms, index, among), achieved(fresh, index, among, arms.refusal(index)))
        for index, cell in enumerate(cells, start=1)
    ]
    if pipeline is None:
        return checked, None
    return checked, achieved(arms, among, among, all_failed(arms.records[among]) or arms.refusal(among))


def achieved(arms: Arms, index: int, among: int, refused: Missing | None = None) -> Estimate | Missing:
    """Return the speed-up of an arm, with an interval that holds for all ``among`` of them at once."""
    found = refused or speedup(arms.plain, arms.records[index], among)
    return Missing("no example was decoded by both") if found is None else found


def _text(answers: Sequence[Answer], args: argparse.Namespace, plain: Experiment) -> list[str]:
    found = list[str]()
    for answer in answers:
        found += [*lines(answer), ""]
        if answer.chosen is not None:
            found += [*_commands(answer.chosen.cell, args, plain, answer.batch_size), ""]
        failed = isinstance(answer.pipeline_reached, Missing) and not isinstance(answer.pipeline_reached, Refused)
        if (ppd := answer.pipeline) is not None and not failed:
            method = ["--method", "ppd", "--early-layer", str(ppd.early_layer), "--candidates", str(ppd.candidates)]
            found += [f"PPD: {shlex.join(['foretoken', 'run', *_common(args, plain, answer.batch_size), *method])}", ""]
    return [*found, *over_batches(answers)]


def _common(args: argparse.Namespace, plain: Experiment, batch_size: int) -> list[str]:
    """Return the words of our command that say what is decoded and how, without the method."""
    common = ["--task", args.task, "--target", plain.target.name]
    for flag, value, default in (
        ("--data", args.data, None),
        ("--config", args.config, None),
        ("--split", args.split, None),
        ("--profile", args.profile, "toy"),
        ("--temperature", args.temperature, 0.0),
        ("--batch-size", batch_size, 1),
        ("--max-new-tokens", args.max_new_tokens, None),
        ("--max-input-tokens", args.max_input_tokens, None),
        ("--prompt-template", args.prompt_template, None),
        ("--threads", args.threads, None),
        ("--seed", args.seed, 0),
        ("--device", args.device, "cpu"),
        ("--dtype", args.dtype, "float32"),
        ("--graphs", args.graphs, "off"),
        ("--attention", args.attention, None),
    ):
        common += [] if value == default else [flag, str(value)]
    for field in args.field:
        common += ["--field", field]
    return [*common, "--chat-template"] if args.chat_template else common


def _commands(cell: Cell, args: argparse.Namespace, plain: Experiment, batch_size: int) -> list[str]:
    common = _common(args, plain, batch_size)
    is_text, drafter = plain.prompt_style != "t5", cell.drafter
    found = commands(
        common,
        plain.target,
        drafter,
        cell.gamma,
        sampling=plain.sampling,
        batch_size=batch_size,
        text=is_text,
        max_new_tokens=plain.max_new_tokens,
    )
    return [f"{engine}: {words}" for engine, words in found.items()]


def _plan(args: argparse.Namespace, drafters: Sequence[DrafterSpec]) -> str:
    layers = [] if args.graphs == "on" else ["first-layers"]
    names = ", ".join([*(one.label for one in drafters), "bigram (counted on the target's own texts)", *layers])
    shares = ", ".join(f"{name} {share * args.minutes / len(args.batch):.1f}" for name, share in SHARES.items())
    return f"drafters: {names}\nminutes at each batch size of {', '.join(map(str, args.batch))}: {shares}\n{RUNS_IF}"
