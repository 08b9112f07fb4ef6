"""``foretoken audit --captured`` and ``--endpoint``: outputs of any engine, plain and speculative, held against each other."""

import argparse
import json
import sys
from datetime import UTC, datetime
from itertools import islice

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.core.settings import checked_device, model_name, source_of
from harness.exact.captured.capture import read_capture
from harness.exact.captured.endpoint import Endpoint, questions_of, record
from harness.exact.captured.matched import ARMS, CONTROL
from harness.exact.captured.replayed import LocalTarget
from harness.exact.captured.verdict import judge_captures, lines_of
from harness.models.names import pin_model
from harness.run.own_data import evaluated_source, left_out_line
from tasks import get_task
from tasks.sources.read import read_examples

PROMPTS, SAMPLES = 20, 10  # asked of an endpoint: prompts, and sampled outputs of each


def execute_captured(args: argparse.Namespace) -> int:
    """Judge captures, recorded first where an endpoint is given. Status 0: all settings passed, 1: one did not."""
    _check_flags(args)
    paths, source = args.captured, source_of(args.data, "toy", args.field, args.config, args.split)
    if args.endpoint is not None:
        endpoint = Endpoint(args.endpoint, args.plain, args.speculative, args.timeout)
        paths, num_asked = record(endpoint, _questions(args, source, endpoint.is_chat), args.records, args.quiet)
    captures = [read_capture(path) for path in paths]
    target = None
    if args.target is not None:
        pinned = pin_model(ModelSpec(name=model_name(args.target)), "toy", source)
        target = LocalTarget(pinned, checked_device(args.device), args.dtype)
    document = judge_captures(captures, target)
    lines = lines_of(document)
    if args.endpoint is not None:
        document["answers_asked_now"] = num_asked
        if not num_asked:
            day = datetime.fromtimestamp(paths[0].stat().st_mtime, UTC).date().isoformat()
            lines.append(f"no question was asked: all answers are of {day} (UTC), in {paths[0].parent}; remove it to ask again")
    print(json.dumps(document, ensure_ascii=False) if args.json else "\n".join(lines))
    return 0 if document["passed"] else 1


def _check_flags(args: argparse.Namespace) -> None:
    if args.draft is not None or args.only is not None or args.dry_run:
        raise UsageError("audit: --captured and --endpoint read neither --draft nor --only nor --dry-run; leave them out")
    if args.endpoint is None:
        if not CONTROL <= len(args.captured) <= len(ARMS):
            raise UsageError(
                f"--captured: given {len(args.captured)} times, expected 2 or 3: plain, speculative and perhaps plain again"
            )
        if args.samples is not None or args.prompts is not None:
            raise UsageError("audit: --samples and --prompts are read with --endpoint alone; leave them out")
        if args.field or args.config is not None or args.split is not None:
            raise UsageError("audit: --field, --config and --split choose rows to ask, captures have theirs; leave them out")
        if args.plain is not None or args.speculative is not None:
            raise UsageError("audit: --plain and --speculative are read with --endpoint alone; leave them out")
        return
    if args.captured:
        raise UsageError("audit: --captured and --endpoint exclude each other; leave one out")
    if args.plain is None or args.speculative is None:
        raise UsageError("--endpoint: expected --plain MODEL and --speculative MODEL, the names that the server knows them by")
    if args.plain == args.speculative:
        raise UsageError(
            f"--plain and --speculative: both {args.plain!r}, so one deployment would be held against itself; give two names, "
            "or capture each server and give the files by --captured"
        )


def _questions(args: argparse.Namespace, source: str, is_chat: bool) -> list[dict[str, object]]:
    task, count = get_task(args.task or "text"), args.prompts or PROMPTS
    models = [] if args.target is None else [ModelSpec(name=model_name(args.target))]
    tested = evaluated_source(source, task.name, models)
    for line in left_out_line(tested):
        print(f"foretoken: {line}", file=sys.stderr)
    examples = islice(read_examples(task, tested, "test", count, args.seed), count)
    prompts = list(dict.fromkeys(task.prompt(example, "instruction") for example in examples))
    return list(questions_of(prompts, args.samples or SAMPLES, args.max_new_tokens, is_chat))
