"""``foretoken plugins``: what plug-ins offer, where it comes from, and what is wrong with those that cannot be taken."""

import argparse
import json
from dataclasses import asdict

from harness import plugins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="Python files to look at beside the installed packages")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def execute(args: argparse.Namespace) -> int:
    plugins.load(args.files, strict=False)
    found = plugins.known()
    if args.json:
        print(json.dumps([asdict(plugin) for plugin in found], ensure_ascii=False))
        return 0
    if not found:
        print("no plug-in: no installed package has an entry point of foretoken's; CONTRIBUTING.md shows how to write one")
        return 0
    heads = ("kind", "name", "from", "version", "object or file", "state")
    rows = [heads, *(_row(plugin) for plugin in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(plugin: plugins.Plugin) -> tuple[str, ...]:
    state = f"broken: {plugin.error}" if plugin.error else f"sha256 {plugin.digest}"
    return (plugin.kind, plugin.name, plugin.origin, plugin.version or "-", plugin.where, state)
