"""``foretoken zoo`` trains the models that are not cached; ``foretoken heads`` trains early heads of any decoder-only model."""

import argparse
import sys
import time

import torch

from harness.core.experiment import ModelSpec
from harness.core.settings import checked_device, model_name, source_of
from harness.models.names import pin_model
from harness.run import head_training
from harness.zoo.build import ensure
from harness.zoo.cache import is_complete, model_folder
from harness.zoo.recipes import recipe_for, recipe_hash, recipes_of
from tasks import get_training_task


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


def execute_heads(args: argparse.Namespace) -> int:
    source = source_of(args.data, args.profile)
    spec = pin_model(
        ModelSpec(name=model_name(args.target, args.target_revision), revision=args.target_revision), args.profile, source
    )
    job = head_training.Job(
        target=spec,
        task=get_training_task(args.task).name,
        source=source,
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
        print(f"on {args.task} ({source}): {job.training}")
        return 0
    device = checked_device(args.device)
    torch.set_num_threads(args.threads)
    print(head_training.train(job, args.output, device))
    print(f"{args.output}")
    return 0
