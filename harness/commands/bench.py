"""``foretoken bench``: our loops against transformers' on the zoo, or the verification kernels; results/bench/."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from harness.commands.bench_kernels import add_kernel_arguments, execute_kernels
from harness.commands.options import DATA_HELP, RESULTS, positive, source_of, threads
from harness.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("loops", "kernels"), default="loops", help="what is timed (default: loops)")
    parser.add_argument("--data", metavar="SOURCE", help=f"what the zoo is trained and prompted on: {DATA_HELP}")
    parser.add_argument("--profile", choices=("toy", "test"), default="toy", help="sizes of the zoo (default: toy)")
    parser.add_argument("--only", choices=("gpt", "llama", "t5"), help="one family of models")
    parser.add_argument("--gamma", type=positive("--gamma"), default=5, help="drafted tokens a round (default: 5)")
    parser.add_argument("--prompts", type=positive("--prompts"), default=12, help="how many (default: 12)")
    parser.add_argument("--repeats", type=positive("--repeats"), default=3, help="of each prompt (default: 3)")
    parser.add_argument("--tokens", type=positive("--tokens"), default=64, help="generated a prompt, at most (default: 64)")
    parser.add_argument("--examples", type=positive("--examples"), default=1000, help="of the memory check (default: 1000)")
    parser.add_argument("--threads", type=threads, help="CPU threads of torch (default: all cores)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be timed, and which models are cached")
    add_kernel_arguments(parser.add_argument_group("kernels only (--gamma, --repeats and --threads count there too)"))


def execute(args: argparse.Namespace) -> int:
    if args.what == "kernels":
        return execute_kernels(args)
    import torch

    from harness.bench import FAMILIES, Row, Sizes, bench_family

    if args.tokens <= args.gamma:
        raise UsageError(f"tokens {args.tokens}: expected more than gamma ({args.gamma}), or no round drafts that many")
    source = source_of(args.data, args.profile)
    families = [FAMILIES[name] for name in ([args.only] if args.only else FAMILIES)]
    if args.dry_run:
        _print_models([name for family in families for name in family.models], args.profile, source)
        return 0
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    rows: list[Row] = []
    sizes = Sizes(args.gamma, args.prompts, args.repeats, args.tokens)
    for family in families:
        for row in bench_family(family, sizes, args.profile, source, args.examples):
            print(row.as_text(), flush=True)
            rows.append(row)
    path = _write(rows, sizes, args.profile, source)
    missed = sum(not row.met for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} goals met; written: {path}")
    return 0


def _print_models(names: list[str], profile: str, source: str) -> None:
    from harness.models import scale_of
    from harness.zoo import is_complete, model_folder, recipe_for, recipe_hash

    scale = scale_of(profile)
    for name in names:
        digest = recipe_hash(name, scale, source)
        steps = recipe_for(name, scale, source).steps
        state = "cached" if is_complete(model_folder(name, digest)) else f"to train: {steps} steps"
        print(f"{name:20s} {digest}  {state}")


def _write(rows: list, sizes: object, profile: str, source: str) -> Path:
    """One file a profile and source; the rows with what they were made of."""
    import torch

    from harness import environment

    path = RESULTS / "bench" / f"loops-{profile}-{Path(source).name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "environment": {**environment.describe(), "threads": torch.get_num_threads()},
        "sizes": asdict(sizes),  # type: ignore[call-overload]
        "rows": [row.as_dict() for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf8")
    return path
