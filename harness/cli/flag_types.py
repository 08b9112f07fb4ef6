"""What the values of flags are: argparse types that refuse in one line what cannot be."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST = 2**31 - 1  # what the libraries below can count to


def positive(text: str, most: int = MOST) -> int:
    """An argparse type: an integer of at least 1 and at most ``most``."""
    value = int(text) if text.isdecimal() and len(text) < 20 else 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected an integer from 1 to {most}")
    return value


def path_name(text: str) -> Path:
    """An argparse type: a folder or a file. An empty name, which a shell makes of an unset variable, would be this folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: expected the name of a folder or a file")
    return Path(text)


def minutes(text: str) -> float:
    """An argparse type: a time of more than 0 and at most a week."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 7 * 24 * 60:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected minutes, more than 0 and at most {7 * 24 * 60}")
    return value


def several(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type: one value of a kind, or a tuple of different ones that are given with commas between."""

    def read(text: str) -> Any:
        if "," not in text:
            return kind(text)
        try:
            values = tuple(map(kind, text.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers with commas between, such as 1,2,4") from error
        if "" in values:
            raise argparse.ArgumentTypeError(f"{text!r}: expected names with commas between, such as model,copy")
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"{text!r}: one is given twice; expected different ones with commas between")
        return values

    read.__name__ = kind.__name__
    return read


def layer_list(text: str) -> tuple[int, ...]:
    """An argparse type: different integers with commas between, in order; which of them a model has is seen later."""
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected different numbers with commas between, such as 10,20")
    return tuple(sorted(map(int, parts)))


def count_list(text: str) -> tuple[int, ...]:
    """An argparse type: different integers of at least 1 with commas between, in order."""
    found = layer_list(text)
    if 0 in found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected integers of at least 1 with commas between, such as 1,8")
    return found
