"""The command line: COMMANDS names each command's flags (flags.py) and the function that executes it.

A command imports what it needs at its top, torch too; only the chosen one is imported, after its flags are read.
"""

import sys

if sys.flags.optimize > 1:
    print("foretoken: PYTHONOPTIMIZE=2 (-OO) strips docstrings, which transformers reads; unset it, or use 1", file=sys.stderr)
    sys.exit(2)

import argparse
import signal
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from harness.cli import flags, run_flags
from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.messages import FOR_THE_USER, one_line
from harness.core.settings import checked_device
from methods.errors import WorkerError

if TYPE_CHECKING:
    from harness.run.ray.cluster import Cluster
    from harness.run.runner import Runner

HELP = {
    "run": "run one experiment from flags; the last line of the output is one JSON document",
    "table": "write and print a table of the catalogue, from records or after running what is missing",
    "figure": "draw a figure of the catalogue, from records or after running what is missing",
    "reproduce": "write every table and figure of the catalogue: the plan first, then table by table what is missing",
    "tables": "show the catalogue with the state of each table and figure",
    "zoo": "train the zoo's models that are not cached yet",
    "get": "fetch public models that two CPU cores run, once, with their licences and sizes",
    "heads": "train heads for intermediate layers of a decoder-only model, for PPD",
    "draft": "distil a small draft for a decoder-only model or a Whisper, for speculative decoding",
    "bench": "time our loops against transformers', interleaved, and passes of models by their number of rows",
    "advise": "which drafter and gamma to use on this machine: measured in minutes, predicted, checked, as commands to paste",
    "regress": "compare a small pinned set of metrics, or your own pair, with a committed baseline; status 1 where one moved",
    "gpu": "check and time everything on a GPU, part by part within some minutes; --rehearse runs it without one",
    "audit": "check that every exact method is exact, and how far off the lossy ones are; status 1 where not",
    "compare": "compare two record files, paired by example, with intervals",
    "acceptance": "one raw log, ours or another engine's, every definition of acceptance in the literature side by side",
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
    "reproduce": (flags.reproduce, "reproduce.execute"),
    "tables": (flags.tables, "catalogue.execute_tables"),
    "zoo": (flags.zoo, "zoo.execute"),
    "get": (flags.get, "zoo.execute_get"),
    "heads": (flags.heads, "zoo.execute_heads"),
    "draft": (flags.draft, "zoo.execute_draft"),
    "bench": (flags.bench, "bench.execute"),
    "advise": (flags.advise, "advise.execute"),
    "regress": (flags.regress, "regress.execute"),
    "gpu": (flags.gpu, "gpu.execute"),
    "audit": (flags.audit, "exact.execute_audit"),
    "compare": (flags.compare, "records.execute_compare"),
    "acceptance": (flags.acceptance, "acceptance.execute"),
    "show": (flags.show, "records.execute_show"),
    "report": (flags.report, "report.execute"),
    "ledger": (flags.ledger, "report.execute_ledger"),
    "plugins": (flags.plugins, "exact.execute_plugins"),
    "check-plugin": (flags.check_plugin, "exact.execute_check"),
}


class _Parser(argparse.ArgumentParser):
    """A parser that prints an error as one line and exits with status 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"foretoken: {message}; see '{self.prog} --help'\n")


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser, with the flags of the chosen command, or of all. No command is imported for it, so help comes at once."""
    top = _Parser(prog="foretoken", description="Measures and reproduces accelerated decoding of language models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (add_arguments, _) in COMMANDS.items():
        command = commands.add_parser(name, help=HELP[name], description=HELP[name])
        if chosen in (name, None):
            add_arguments(command)
    return top


def _execute(args: argparse.Namespace) -> int:
    """Import the chosen command alone and execute it. A cluster begins to start beside the import, which takes seconds."""
    if hasattr(args, "plugin"):
        _load_plugins(args.plugin)
    if hasattr(args, "engine"):
        args.make_runner = _begin_engine(args)
    module, function = COMMANDS[args.command][1].split(".")
    execute: Callable[[argparse.Namespace], int] = getattr(import_module(f"harness.cli.{module}"), function)
    with plugins.at_fault():
        return execute(args)


def _begin_engine(args: argparse.Namespace) -> "Callable[[], Runner]":
    """Return a function that makes the runner later. A cluster begins to start now, beside the imports, if anything is to run.

    UsageError for an engine that is not installed, and for flags that the chosen one does not read.
    """
    if args.engine == "local":
        for flag in ("workers", "address"):
            if (value := getattr(args, flag)) is not None:
                raise UsageError(f"--{flag} {value}: engine 'local' does not read it; leave it out, or choose --engine ray")
        return partial(_local_runner, args)
    if find_spec("ray") is None:
        raise UsageError("engine 'ray': the package ray is not installed; run: .venv/bin/pip install -e '.[ray]'")
    checked_device(args.device, args.engine)
    if args.dry_run or not vars(args).get("reproduce", True):
        return partial(_ray_runner, args, None)
    return partial(_ray_runner, args, _cluster(args))


def _local_runner(args: argparse.Namespace) -> "Runner":
    from harness.run import patience
    from harness.run.runner import Runner

    return Runner(args.records, args.quiet, args.again, args.replay, patience.asked_for())


def _ray_runner(args: argparse.Namespace, cluster: "Cluster | None") -> "Runner":
    from harness.run.ray.engine import RayRunner

    return RayRunner(args.records, cluster or _cluster(args), args.quiet, args.workers, args.again, args.replay)


def _cluster(args: argparse.Namespace) -> "Cluster":
    from harness.run.ray.cluster import Cluster

    return Cluster(args.address, args.quiet)


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
    """Execute a command and return its exit status. Without arguments it is this process's, and SIGTERM ends it as Ctrl-C."""
    if arguments is None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_words(arguments)
        return _execute(parser(next(iter(arguments), "")).parse_args(arguments))
    except FOR_THE_USER as error:
        print(f"foretoken: {one_line(error)}", file=sys.stderr)
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
