"""``foretoken show``: one generation, coloured by what was drafted, accepted and corrected."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", help="a record file, optionally with :N for its N-th record (counted from 1)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page instead of printing")


def execute(args: argparse.Namespace) -> int:
    from harness.models import load_tokenizer
    from harness.records import load_experiment, load_records
    from harness.render.coloured import to_html, to_terminal

    path, number = _address(args.record)
    records = load_records(path)
    if not 1 <= number <= len(records):
        raise UsageError(f"record {args.record!r}: expected a number from 1 to {len(records)} after the colon")
    record = records[number - 1]
    if record.status != "ok":
        raise UsageError(f"record {args.record!r}: this example failed ({record.error}); choose another")
    decode = partial(_decode, load_tokenizer(load_experiment(path).target))
    if args.html is not None:
        args.html.write_text(to_html(record, decode, record.example), encoding="utf8")
        print(args.html)
        return 0
    print(to_terminal(record, decode, sys.stdout.isatty()))
    return 0


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids))


def _address(text: str) -> tuple[Path, int]:
    name, colon, number = text.rpartition(":")
    if colon and number.isdecimal() and len(number) < 20:
        return Path(name), int(number)
    return Path(text), 1
