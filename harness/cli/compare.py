"""``foretoken compare A B``: compare two record files of the same examples, paired, with intervals."""

import argparse
import json

from harness.core.record_files import load_experiment, load_records
from harness.measures.compare import compare_records


def execute(args: argparse.Namespace) -> int:
    paths = (args.baseline, args.method)
    found = compare_records([load_experiment(path) for path in paths], [load_records(path) for path in paths])
    if args.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        print(found.as_text())
    return 0
