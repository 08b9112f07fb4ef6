"""The command line: COMMANDS names each command's flags (flags.py) and the function that executes it.

A command imports what it needs at its top, torch too; only the chosen one is imported, after its flags are read.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points

from harness.cli import flags, run_flags
from harness.cli.options import begin_engine
from harness.core import plugins
from harness.core.errors import UsageError
from methods.errors import InputError, WorkerError
from tasks.base import DataError

HELP = {
    "run": "run one experiment from flags; the last line of the output is one JSON document",
    "table": "write and print a table of the catalogue, from records or after running what is missing",
    "figure": "draw a figure of the catalogue, from records or after running what is missing",
    "tables": "show the catalogue with the state of each table and figure",
    "zoo": "train the zoo's models that are not cached yet",
    "heads": "train heads for intermediate layers of a decoder-only model, for PPD",
    "bench": "time our loops against transformers', interleaved",
    "regress": "compare a small pinned set of metrics with the committed baselines",
    "audit": "check that every exact method is exact, and how far off the lossy ones are; status 1 where not",
    "compare": "compare two record files, paired by example, with intervals",
    "acceptance": "one raw log, every definition of acceptance in the literature side by side",
    "show": "show one generation, coloured by what was accepted",
    "report": "write the static site of all tables, figures, claims and records at hand",
    "ledger": "write paper against measured over all tables into one CSV",
    "plugins": "list the tasks, drafters, rules, schedules, methods and tables of plug-ins, broken ones with their error",
    "check-plugin": "hold a plug-in against the contract of its kind; status 1 where it is broken",
}
COMMANDS = {  # by name: what adds its flags, and the module and function beside this one that execute it
    "run": (run_flags.add_arguments, "run.execute"),
    "table": (flags.table, "catalogue.execute_table"),
    "figure": (flags.figure, "catalogue.execute_figure"),
    "tables": (flags.tables, "catalogue.execute_tables"),
    "zoo": (flags.zoo, "zoo.execute"),
    "heads": (flags.heads, "zoo.execute_heads"),
    "bench": (flags.bench, "bench.execute"),
    "regress": (flags.regress, "bench.execute_regress"),
    "audit": (flags.audit, "audit.execute"),
    "compare": (flags.compare, "records.execute_compare"),
    "acceptance": (flags.acceptance, "records.execute_acceptance"),
    "show": (flags.show, "records.execute_show"),
    "report": (flags.report, "report.execute"),
    "ledger": (flags.ledger, "report.execute_ledger"),
    "plugins": (flags.plugins, "plugins.execute"),
    "check-plugin": (flags.check_plugin, "plugins.execute_check"),
}


class Parser(argparse.ArgumentParser):
    """A parser that prints an error as one line and exits with status 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"foretoken: {message}; see '{self.prog} --help'\n")


def parser() -> Parser:
    """The whole parser. No command is imported for it, so that help and refusals come at once."""
    top = Parser(prog="foretoken", description="Measures and reproduces accelerated decoding of language models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (add_arguments, _) in COMMANDS.items():
        add_arguments(commands.add_parser(name, help=HELP[name], description=HELP[name]))
    return top


def _execute(args: argparse.Namespace) -> int:
    """Import the chosen command alone and execute it. A cluster begins to start beside the import, which takes seconds."""
    if hasattr(args, "plugin"):
        _load_plugins(args.plugin)
    if hasattr(args, "engine"):
        args.make_runner = begin_engine(args)
    module, function = COMMANDS[args.command][1].split(".")
    execute: Callable[[argparse.Namespace], int] = getattr(import_module(f"harness.cli.{module}"), function)
    return execute(args)


def _check_words(arguments: Sequence[str]) -> None:
    """Raise UsageError for words that neither argparse nor a record can hold."""
    for word in arguments:
        if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageError(f"argument {word!r}: not UTF-8; expected text, and folders and files named so")
        if word.startswith("--") and word.endswith("=--"):  # argparse makes it an empty list
            raise UsageError(f"{word}: expected a value behind the equals sign")


def _load_plugins(files: Sequence[str]) -> None:
    """Load plug-ins, and before them the papers, whose tables they add to; without plug-ins neither."""
    if files or any(entry_points(group=f"foretoken.{kind}s") for kind in plugins.NAMES):
        import_module("harness.papers")
    plugins.load(files)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_words(arguments)
        return _execute(parser().parse_args(arguments))
    except (UsageError, InputError, DataError) as error:
        print(f"foretoken: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except WorkerError as error:
        print(f"foretoken: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("foretoken: stopped; the records made so far are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"foretoken: {error.filename}: {error.strerror}; check that path, and free space", file=sys.stderr)
        return 2
