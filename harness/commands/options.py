"""Flags that several commands share, and how their values become descriptions."""

import argparse
from pathlib import Path

from harness.errors import UsageError
from harness.experiment import DTYPES

PROFILES = ("toy", "small", "paper", "test")
RESULTS = Path("results")
PUBLIC = ("small", "paper")  # profiles of public models, and so of public data
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


def positive(flag: str):  # type: ignore[no-untyped-def]
    """An argparse type: an integer of at least 1, refused with the flag's name."""

    def convert(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{flag} {text!r}: expected an integer >= 1")
        return int(text)

    return convert


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
    path = Path(text).expanduser()
    return str(path.resolve()) if path.is_dir() else text


def checked_device(name: str) -> str:
    """A device that is there; refused in one line otherwise."""
    import torch

    if name == "cpu":
        return name
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
