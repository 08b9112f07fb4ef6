"""Findings: the results of checks, of an audit or of a contract."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from harness.measures.verdicts import GREEN
from methods.types import Guarantee

Findings = dict[str, dict[str, Any]]  # JSON objects by the name of a subject or control


@dataclass(frozen=True)
class Finding:
    """The result of one check: a verdict, one line about it, and its evidence in JSON's types."""

    verdict: str
    note: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict in (*GREEN, "kept")

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **self.evidence}


class Broken(Exception):
    """A property does not hold; the message says how."""


def expect(holds: bool, otherwise: str) -> None:
    """Raise Broken unless the property holds."""
    if not holds:
        raise Broken(otherwise)


def attempt(check: str, run: Callable[[], Finding | str | None]) -> Finding:
    """Run one check. Any exception of a plug-in's code breaks this property and no other one."""
    try:
        found = run()
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        note = message if isinstance(error, Broken) else f"{type(error).__name__}: {message}".rstrip(": ")
        return Finding("broken", note, check=check)
    return replace(found, check=check) if isinstance(found, Finding) else Finding("kept", found or "", check=check)


def expect_guarantee(part: Any, protocol: type, methods: str) -> str:
    """Return the guarantee that a rule or method declares. Broken: it declares none, or lacks one of its ``methods``."""
    guarantee = getattr(part, "guarantee", None)
    expect(guarantee in get_args(Guarantee), f"guarantee {guarantee!r}: expected one of {', '.join(get_args(Guarantee))}")
    expect(isinstance(part, protocol), f"has no {methods}")
    return str(guarantee)
