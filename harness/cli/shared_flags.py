"""Flags that several commands take: each is described once, and a command says what is different about it there."""

import argparse
from functools import partial
from typing import Any

from harness.cli.flag_types import path_name, positive
from harness.core.experiment import ATTENTIONS, DTYPES
from harness.core.settings import PROFILES, RECORDS, REPLICAS

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
DATA = '"toy", "hub", hub:OWNER/NAME, a folder or a file (default: hub for profiles of public models, else toy)'
SHARED: dict[str, dict[str, Any]] = {  # flags that several commands take, as argparse has them
    "--profile": {
        "choices": PROFILES,
        "default": "toy",
        "help": "which models and sizes (default: toy)",
    },
    "--data": {"metavar": "SOURCE", "help": DATA},
    "--field": {
        "action": "append",
        "default": [],
        "metavar": "FIELD=COLUMN",
        "help": "the column that stands for a field of the task, such as prompt=story or translation.de=german (repeatable)",
    },
    "--config": {"metavar": "NAME", "help": "the configuration of hub:OWNER/NAME"},
    "--device": {"default": "cpu", "help": "cpu, cuda or cuda:N (default: cpu)"},
    "--dtype": {"choices": DTYPES, "default": "float32", "help": "weights and arithmetic (default: float32)"},
    "--graphs": {
        "choices": ("on", "off"),
        "default": "off",
        "help": "on: caches of fixed shapes, and on CUDA every pass one graph (default: off)",
    },
    "--attention": {
        "choices": ATTENTIONS,
        "help": "which of transformers' attentions a model without a stack of its own runs (default: transformers' choice)",
    },
    "--limit": {"type": positive, "metavar": "N", "help": "how many examples"},
    "--seed": {"type": int, "default": 0, "help": "of data order and sampling (default: 0)"},
    "--records": {"type": path_name, "default": RECORDS, "metavar": "FOLDER", "help": "where records are kept"},
    "--quiet": {"action": "store_true", "help": "no progress bars"},
    "--dry-run": {"action": "store_true", "help": "say what would run, its size and its cost, and run nothing"},
    "--plugin": {
        "action": "append",
        "default": [],
        "metavar": "FILE",
        "help": "also know what this Python file offers (repeatable)",
    },
    "--again": {
        "action": "store_true",
        "help": "record anew what was refused because the machine's speed drifted or arms ran in different processes",
    },
    "--replay": {
        "choices": ("all", "sample", "none"),
        "default": "sample",
        "help": "replay recorded outputs through transformers' own forward pass: all, 20 to 50 examples of every arm (sample, "
        "the default), or none",
    },
    # torch starts as many threads as it is told, or dies of it
    "--threads": {"type": partial(positive, most=1024), "help": "CPU threads of torch (default: all cores)"},
    "--json": {"action": "store_true", "help": "print one JSON document instead of lines"},
    "--replicas": {
        "type": positive,
        "metavar": "N",
        "help": "processes that share the examples of what is timed, or compared between models trained by as many seeds "
        f"(default: 1; {REPLICAS} in profile pocket and in what is committed)",
    },
    "--reproduce": {"action": "store_true", "help": "run what is missing first"},
}
COMMON = (
    "--profile", "--data", "--device", "--dtype", "--graphs", "--limit", "--seed", "--records", "--quiet", "--dry-run",
    "--plugin",
)  # fmt: skip


def add(parser: Parser, *flags: str, **changes: Any) -> None:
    """Add shared flags, with what is different about them here."""
    for flag in flags:
        parser.add_argument(flag, **(SHARED[flag] | changes))


def add_count(parser: Parser, flag: str, text: str, default: int | None = None, **more: Any) -> None:
    """Add a flag for an integer of at least 1."""
    shown = text if default is None else f"{text} (default: {default})"
    parser.add_argument(flag, type=positive, default=default, help=shown, **more)


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes that makes records, perhaps on a cluster."""
    add(parser, *COMMON, "--again", "--replay")
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="one process (local, the default) or workers"
    )
    add_count(engine, "--workers", "of engine ray: at most this many (default: what has room)", metavar="N")
    engine.add_argument(
        "--address", metavar="ADDR", help="of engine ray: a running cluster's, or auto (default: start one on this machine)"
    )
