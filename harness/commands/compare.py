"""``foretoken compare A B``: two record files of the same examples, paired, with intervals."""

import argparse
from pathlib import Path

from harness.commands.options import add_plugin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", type=Path, metavar="A", help="a record file: the baseline")
    parser.add_argument("method", type=Path, metavar="B", help="a record file: what is compared with it")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    add_plugin(parser)


def execute(args: argparse.Namespace) -> int:
    import json

    from harness.compare import compare_records
    from harness.records import distinct, load_experiment, load_records

    paths = (args.baseline, args.method)
    found = compare_records([load_experiment(path) for path in paths], [distinct(load_records(path)) for path in paths])
    if args.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        print(found.as_text())
    return 0
