"""``foretoken check-plugin``: the contract of its kind, run on a plug-in or on one of our own. Status 1 if broken."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="NAME-or-FILE", help="a Python file, a package, NAME, or KIND:NAME (rule:exact)")


def execute(args: argparse.Namespace) -> int:
    from harness.contracts.check import findings, subjects_of

    num_checks = num_broken = 0
    for subject in subjects_of(args.subject):
        print(subject.label)
        for finding in findings(subject):
            num_checks += 1
            num_broken += not finding.kept
            note = f": {finding.note}" if finding.note else ""
            print(f"  {'ok  ' if finding.kept else 'FAIL'}  {finding.what}{note}", flush=True)
    print(f"contract {'broken' if num_broken else 'kept'}: {num_checks - num_broken} of {num_checks} checks passed")
    return 1 if num_broken else 0
