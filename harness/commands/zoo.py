"""``foretoken zoo``: train every model that is not cached yet, or those that are named."""

import argparse
import sys
import time

from harness.commands.options import DATA_HELP, source_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models (default: all)")
    parser.add_argument("--scale", choices=("toy", "test", "small", "paper"), default="toy", help="sizes (default: toy)")
    parser.add_argument("--data", metavar="SOURCE", help=f"what to train on: {DATA_HELP}")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained and what is cached")


def execute(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    from harness.zoo import ensure, is_complete, model_folder, recipe_for, recipe_hash, recipes_of

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
