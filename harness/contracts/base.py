"""What a check finds: a property that holds, with what it saw, or one that does not, and how."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One property of a contract; ``note`` is what was seen, or what is wrong."""

    what: str
    kept: bool
    note: str = ""


class Broken(Exception):
    """A property that does not hold; the message says how."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def attempt(what: str, check: Callable[[], str | None]) -> Finding:
    """Run one check. Whatever a stranger's code raises breaks this property and no other check."""
    try:
        return Finding(what, True, check() or "")
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        return Finding(what, False, said if isinstance(error, Broken) else f"{type(error).__name__}: {said}".rstrip(": "))
