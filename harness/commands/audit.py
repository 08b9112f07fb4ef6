"""``foretoken audit``: is everything that claims to be exact exact, and how far off is what does not? Status 1 where not."""

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from harness.commands.options import RESULTS, add_plugin, checked_device, model_name, positive, source_of
from harness.errors import UsageError
from harness.experiment import DTYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--scale", choices=("toy", "test"), default="toy", help="which zoo is audited (default: toy)")
    add("--target", metavar="MODEL", help="audit your own pair instead: a folder or a Hub id; with --draft")
    add("--draft", metavar="MODEL", help="what drafts for it")
    add("--task", default="text", help="whose prompts your own pair is given (default: text)")
    add("--data", metavar="SOURCE", default="toy", help='"toy", "hub", a folder or a file (default: toy)')
    add("--only", metavar="WORDS", help="subjects whose name holds these words; writes no report")
    add("--samples", type=positive("--samples"), metavar="N", help="sampled outputs a subject; more find smaller faults")
    add("--prompts", type=positive("--prompts"), metavar="N", help="greedy outputs a subject")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--dtype", choices=DTYPES, default="float32", help="weights and arithmetic (default: float32)")
    workers = "processes, each with its own models (default: one per core; on a GPU this one alone)"
    add("--workers", type=positive("--workers"), metavar="N", help=workers)
    add("--seed", type=int, default=0, help="of prompts and sampling (default: 0)")
    add("--output", type=Path, default=RESULTS / "audit", metavar="FOLDER", help="where the report is written")
    add("--records", type=Path, default=RESULTS / "records", metavar="FOLDER", help="where records and findings are kept")
    add("--quiet", action="store_true", help="no progress bar")
    add("--dry-run", action="store_true", help="list what would be audited, and audit nothing")
    add_plugin(parser)


def execute(args: argparse.Namespace) -> int:
    from harness import environment
    from harness.audit.models import own_subjects, zoo_subjects
    from harness.audit.report import document_of, outcome, write
    from harness.audit.run import audit, audited_code, models_of
    from harness.audit.subjects import SIZES

    if (args.target is None) != (args.draft is None):
        raise UsageError("audit: --target and --draft belong together; give both, or neither to audit the zoo")
    source, where = source_of(args.data), {"device": checked_device(args.device), "dtype": args.dtype}
    sizes = SIZES["own" if args.target else args.scale]
    sizes = replace(sizes, samples=args.samples or sizes.samples, prompts=args.prompts or sizes.prompts)
    if args.target:
        subjects = own_subjects(model_name(args.target), model_name(args.draft), args.task, source, sizes, args.seed)
    else:
        subjects = zoo_subjects(args.scale, source, sizes, args.seed)
    subjects = [replace(one, plain=one.plain.replace(**where)) for one in subjects if (args.only or "") in one.name]
    if not subjects:
        raise UsageError(f"only {args.only!r}: no subject's name holds that; `foretoken audit --dry-run` lists them")
    if args.dry_run:
        print("\n".join(subject.name for subject in subjects))
        return 0
    name = Path(args.target).name if args.target else f"zoo-{args.scale}"
    models, code = models_of(subjects), audited_code()
    identity = json.dumps([code, models, repr(sizes), source, args.seed, where, args.task], sort_keys=True)
    folder = args.records / f"audit-{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    workers = args.workers if args.workers or where["device"] == "cpu" else 0
    found, controls = audit(subjects, sizes, folder, args.quiet, workers)
    facts = {
        "command": _command(args),
        "code": code,
        "seed": args.seed,
        "environment": environment.describe(args.device),
        "models": models,
    }
    document = document_of(name, subjects, found, controls, sizes, facts)
    for row in document["red"]:
        print(f"red: {row}: {found[row]['verdict']}")
    for control in document["controls_missed"]:
        print(f"control missed: {control}")
    print(outcome(document))
    if args.only is None:
        print("written: " + ", ".join(map(str, write(document, args.output))), file=sys.stderr)
    return 0 if document["passed"] else 1


def _command(args: argparse.Namespace) -> str:
    """Models by their names alone, so that no machine's folders enter a file."""
    if args.target is None:
        flags = [f"--scale {args.scale}"]
    else:
        flags = [f"--target {Path(args.target).name}", f"--draft {Path(args.draft).name}", f"--task {args.task}"]
    flags += [f"--data {Path(args.data).name}"] if args.data != "toy" else []
    given = {"samples": None, "prompts": None, "device": "cpu", "dtype": "float32", "seed": 0}
    flags += [f"--{name} {getattr(args, name)}" for name, default in given.items() if getattr(args, name) != default]
    return " ".join(["foretoken audit", *flags])
