"""The command line. Each command lives in harness/commands/ and offers ``add_arguments`` and ``execute``."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from harness import plugins
from harness.errors import UsageError
from methods.errors import InputError, WorkerError
from tasks.errors import DataError

COMMANDS = {
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
    "plugins": "list the tasks, drafters, rules, methods and tables of plug-ins, broken ones with their error",
    "check-plugin": "hold a plug-in against the contract of its kind; status 1 where it is broken",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and exits with status 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"foretoken: {message}; see '{self.prog} --help'\n")


def parser(only: str | None = None) -> Parser:
    """The whole parser; with ``only`` the other commands' modules (and torch with them) are not imported."""
    top = Parser(prog="foretoken", description="Measures and reproduces accelerated decoding of language models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        if only in (None, name):
            module = import_module(f"harness.commands.{name.replace('-', '_')}")
            module.add_arguments(sub)
            sub.set_defaults(execute=module.execute)
    return top


def _check_words(arguments: Sequence[str]) -> None:
    """UsageError for what neither argparse nor a record can hold."""
    for word in arguments:
        if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageError(f"argument {word!r}: not UTF-8; expected text, and folders and files named so")
        if word.startswith("--") and word.endswith("=--"):  # argparse makes it an empty list
            raise UsageError(f"{word}: expected a value behind the equals sign")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in arguments if word in COMMANDS), "none")
    try:
        _check_words(arguments)
        args = parser(chosen).parse_args(arguments)
        if hasattr(args, "plugin"):
            plugins.load(args.plugin)
        return args.execute(args)
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
