"""``foretoken bench``: our loops against transformers' on the zoo; results go to results/bench/."""

import argparse
import json
from pathlib import Path

from harness.commands.options import RESULTS, positive, source_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="toy", metavar="SOURCE", help="what the zoo is trained and prompted on")
    parser.add_argument("--profile", choices=("toy", "test"), default="toy", help="sizes of the zoo (default: toy)")
    parser.add_argument("--only", choices=("gpt", "llama", "t5"), help="one family of models")
    parser.add_argument("--gamma", type=positive("--gamma"), default=4, help="drafted tokens a round (default: 4)")
    parser.add_argument("--prompts", type=positive("--prompts"), default=8, help="how many (default: 8)")
    parser.add_argument("--repeats", type=positive("--repeats"), default=3, help="of each prompt (default: 3)")
    parser.add_argument("--tokens", type=positive("--tokens"), default=48, help="generated a prompt (default: 48)")
    parser.add_argument("--examples", type=positive("--examples"), default=1000, help="of the memory check (default: 1000)")
    parser.add_argument("--threads", type=positive("--threads"), help="CPU threads of torch (default: all cores)")


def execute(args: argparse.Namespace) -> int:
    import torch

    from harness import environment
    from harness.bench import FAMILIES, Row, Sizes, bench_family

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    rows: list[Row] = []
    sizes = Sizes(args.gamma, args.prompts, args.repeats, args.tokens)
    for family in [args.only] if args.only else FAMILIES:
        for row in bench_family(FAMILIES[family], sizes, args.profile, source_of(args.data), args.examples):
            print(row.as_text(), flush=True)
            rows.append(row)
    path = RESULTS / "bench" / f"loops-{args.profile}-{Path(args.data).name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": environment.describe(), "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf8")
    missed = sum(not row.met for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} goals met; written: {path}")
    return 0
