"""Flags that several commands share, and how their values become descriptions."""

import argparse
from functools import partial
from importlib.util import find_spec
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.names import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.ray_cluster import Cluster
    from harness.runner import Runner

PROFILES = ("toy", "small", "paper", "test")
RESULTS = Path("results")
PUBLIC = ("small", "paper")  # profiles of public models, and so of public data
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
        raise UsageError("engine 'ray': the package ray is not installed; run: pip install 'foretoken[ray]'")
    checked_device(args.device, args.engine)
    if args.dry_run or not vars(args).get("reproduce", True):
        return partial(_ray_runner, args, None)
    return partial(_ray_runner, args, _cluster(args))


def _local_runner(args: argparse.Namespace) -> "Runner":
    from harness.runner import Runner

    return Runner(args.records, args.quiet, args.again)


def _ray_runner(args: argparse.Namespace, cluster: "Cluster | None") -> "Runner":
    from harness.ray_engine import RayRunner

    return RayRunner(args.records, cluster or _cluster(args), args.quiet, args.workers, args.again)


def _cluster(args: argparse.Namespace) -> "Cluster":
    from harness.ray_cluster import begin

    return begin(args.address, args.quiet, num_early=(args.workers or 1) if args.device == "cpu" else 0)


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


def checked_device(name: str, engine: str = "local") -> str:
    """A device that is there; refused in one line otherwise. With engine ray it is a worker's, which sees its own GPUs only."""
    if name == "cpu":
        return name
    if engine == "ray":
        if name != "cuda":
            raise UsageError(f"device {name!r}: with engine 'ray' expected cpu or cuda; which GPU is chosen by the cluster")
        return name
    import torch

    if not name.startswith("cuda"):
        raise UsageError(f"device {name!r}: expected cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: no CUDA device is visible; use --device cpu or a machine with a GPU")
    return name


def source_of(text: str | None, profile: str = "toy") -> str:
    """Sources are recorded as given, paths made absolute so that a record means the same from everywhere.

    None is the profile's own: "hub" for small and paper, "toy" otherwise.
    """
    if text is None:
        return "hub" if profile in PUBLIC else "toy"
    if text in ("toy", "hub"):
        return text
    path = Path(text)
    if not path.exists():
        raise UsageError(f'data {text!r}: not there; expected "toy", "hub", a folder or a .jsonl, .parquet or .txt file')
    return str(path.resolve())
