"""Flags that several commands share, and how their values become descriptions."""

import argparse
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UsageError
from harness.core.experiment import DTYPES
from harness.core.settings import RESULTS, Settings, checked_device, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.experiment import Comparison
    from harness.run.ray.cluster import Cluster
    from harness.run.runner import Runner

PROFILES = ("toy", "small", "paper", "test")
MOST = 2**31 - 1  # what the libraries below can count to
DATA_HELP = '"toy", "hub", a folder or a file (default: hub for small and paper, else toy)'


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", choices=PROFILES, default="toy", help="which models and sizes (default: toy)")
    parser.add_argument("--data", metavar="SOURCE", help=DATA_HELP)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="weights and arithmetic (default: float32)")
    parser.add_argument("--limit", type=positive("--limit"), metavar="N", help="how many examples")
    parser.add_argument("--seed", type=int, default=0, help="of data order and sampling (default: 0)")
    parser.add_argument("--records", type=Path, default=RESULTS / "records", metavar="FOLDER", help="where records are kept")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, its size and its cost, and run nothing")
    add_plugin(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """For every command that makes records which a cluster may make."""
    parser.add_argument(
        "--again",
        action="store_true",
        help="record anew what was refused because the machine's speed drifted or arms ran in different processes",
    )
    add = parser.add_argument_group("engine").add_argument
    add("--engine", choices=("local", "ray"), default="local", help="one process (local, the default) or workers")
    add("--workers", type=positive("--workers"), metavar="N", help="of engine ray: at most this many (default: what has room)")
    add("--address", metavar="ADDR", help="of engine ray: a running cluster's, or auto (default: start one on this machine)")


def begin_engine(args: argparse.Namespace) -> "Callable[[], Runner]":
    """What makes the runner, later: a cluster begins to start now, beside the imports, if anything is to run at all.

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
    from harness.run.runner import Runner

    return Runner(args.records, args.quiet, args.again)


def _ray_runner(args: argparse.Namespace, cluster: "Cluster | None") -> "Runner":
    from harness.run.ray.engine import RayRunner

    return RayRunner(args.records, cluster or _cluster(args), args.quiet, args.workers, args.again)


def _cluster(args: argparse.Namespace) -> "Cluster":
    from harness.run.ray.cluster import Cluster

    return Cluster(args.address, args.quiet)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """For every command that takes names which a plug-in may add."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE", help="also know what this Python file offers (repeatable)"
    )


def add_catalogue(parser: argparse.ArgumentParser) -> None:
    """What every command on the catalogue's tables and figures takes."""
    parser.add_argument("--model", action="append", default=[], metavar="ROLE=MODEL", help="replace a model of the profile")
    parser.add_argument("--stop-at-eos", action="store_true", help="end outputs at EOS where the paper ignores it (PPD)")
    add_common(parser)


def positive(flag: str, most: int = MOST):  # type: ignore[no-untyped-def]
    """An argparse type: an integer of at least 1 and at most ``most``, refused with the flag's name."""

    def convert(text: str) -> int:
        value = int(text) if text.isdecimal() and len(text) < 20 else 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{flag} {text[:40]!r}: expected an integer from 1 to {most}")
        return value

    return convert


threads = positive("--threads", 1024)  # torch starts as many as it is told, or dies of it


def layer_list(flag: str):  # type: ignore[no-untyped-def]
    """An argparse type: different integers with commas between, in order; which of them a model has is seen later."""

    def convert(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        if not all(part.strip().isdigit() for part in parts) or len(set(map(int, parts))) < len(parts):
            raise argparse.ArgumentTypeError(f"{flag} {text!r}: expected different numbers with commas between, such as 10,20")
        return tuple(sorted(map(int, parts)))

    return convert


def model_name(text: str) -> str:
    """Local folders are made absolute, so that a record names the same model from everywhere."""
    path = Path(expanduser(text))
    return str(path.resolve()) if path.is_dir() else text


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        profile=args.profile,
        source=source_of(args.data, args.profile),
        limit=args.limit,
        seed=args.seed,
        device=checked_device(args.device, getattr(args, "engine", "local")),
        dtype=args.dtype,
        models=_replacements(args.model),
        stop_at_eos=args.stop_at_eos,
    )


def check_stop_at_eos(plan: "Callable[[Settings], list[Comparison]]", settings: Settings, name: str) -> None:
    """UsageError where it was asked for and changes nothing."""
    if settings.stop_at_eos and plan(settings) == plan(replace(settings, stop_at_eos=False)):
        raise UsageError(f"stop_at_eos: {name} has no fixed lengths, its outputs end at EOS already; leave the flag out")


def _replacements(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """``ROLE=MODEL`` pairs that put a Hub id or a folder in a role's place."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"model {pair!r}: expected ROLE=MODEL, for example t5-small=google-t5/t5-small")
    return tuple((role, _absolute(name)) for role, name in (pair.split("=", 1) for pair in pairs))


def _absolute(name: str) -> str:
    path = Path(expanduser(name))
    return str(path.resolve()) if path.is_dir() else name
