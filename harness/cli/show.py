"""``foretoken show``: print one generation, coloured by what was drafted, accepted and corrected."""

import argparse
import sys
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.record_files import load_experiment, load_records
from harness.tables.coloured import to_html, to_terminal
from harness.tables.evidence import stored_decoder


def execute(args: argparse.Namespace) -> int:
    path, number = _address(args.record)
    records = load_records(path)
    if not 1 <= number <= len(records):
        raise UsageError(f"record {args.record!r}: expected a number from 1 to {len(records)} after the colon")
    record = records[number - 1]
    if record.status != "ok":
        raise UsageError(f"record {args.record!r}: this example failed ({record.error}); choose another")
    decode = stored_decoder(path.parent, load_experiment(path).target)
    if args.html is not None:
        args.html.write_text(to_html(record, decode, record.example), encoding="utf8")
        print(args.html)
        return 0
    print(to_terminal(record, decode, sys.stdout.isatty()))
    return 0


def _address(text: str) -> tuple[Path, int]:
    name, colon, number = text.rpartition(":")
    if colon and number.isdecimal() and len(number) < 20:
        return Path(name), int(number)
    return Path(text), 1
