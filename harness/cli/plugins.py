"""``foretoken plugins`` lists what plug-ins offer, and what is wrong with them; ``foretoken check-plugin`` runs a contract."""

import argparse
import json
from dataclasses import asdict

import harness.papers  # noqa: F401 - whose tables plug-ins add to
from harness.core import plugins
from harness.core.text import text_table
from harness.exact.contracts import check_entry, find_entries


def execute(args: argparse.Namespace) -> int:
    plugins.load(args.files, strict=False)
    kinds = ("file", *plugins.NAMES)
    found = sorted(plugins.known(), key=lambda plugin: kinds.index(plugin.kind))
    if args.json:
        print(json.dumps([asdict(plugin) for plugin in found], ensure_ascii=False))
        return 0
    if not found:
        print("no plug-in: no installed package has an entry point of foretoken's; CONTRIBUTING.md shows how to write one")
        return 0
    heads = ("kind", "name", "from", "version", "object or file", "state")
    rows = [heads, *(_row(plugin) for plugin in found)]
    print("\n".join(text_table(rows)))
    return 0


def execute_check(args: argparse.Namespace) -> int:
    """Run the contract of its kind on a plug-in or on a part of ours; status 1 where it is broken."""
    num_checks = num_broken = 0
    for entry in find_entries(args.subject):
        print(f"{entry.kind} {entry.name} ({entry.label})")
        for finding in check_entry(entry):
            num_checks += 1
            num_broken += not finding.passed
            note = f": {finding.note}" if finding.note else ""
            print(f"  {'ok  ' if finding.passed else 'FAIL'}  {finding.check}{note}", flush=True)
    print(f"contract {'broken' if num_broken else 'kept'}: {num_checks - num_broken} of {num_checks} checks passed")
    return 1 if num_broken else 0


def _row(plugin: plugins.Plugin) -> tuple[str, ...]:
    state = f"broken: {plugin.error}" if plugin.error else f"sha256 {plugin.digest}"
    return (plugin.kind, plugin.name, plugin.origin, plugin.version or "-", plugin.where, state)
