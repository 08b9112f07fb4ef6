"""Counters of a metrics endpoint, in Prometheus' text format: one dump, or what was counted between two of one server.

A counter begins with its process at 0 and only grows. Python's client also writes when it made each one (``_created``), unless
that is switched off or several processes share their counters. It writes a counter with labels from its first count on, so one
that only the later dump has began in between.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.engines.entries import LARGEST, Entry

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?")
CREATED = "_created"
RESTARTED = (
    "the server was started anew in between, or the files are of two servers, or the wrong way round; expected two dumps of "
    "one server that kept running, the earlier one as --before"
)


@dataclass(frozen=True)
class Series:
    """A counter's name without ``_total``, and its labels as they are written."""

    name: str
    labels: str

    def __str__(self) -> str:
        return self.name + self.labels


@dataclass(frozen=True)
class Dump:
    """What the counters of a dump say, the lines in which they stand, and when each was made where that is said."""

    counts: Mapping[Series, int]
    lines: Mapping[Series, Entry]
    created: Mapping[Series, float]

    def total(self, name: str) -> int:
        """Return the sum over a counter's labels."""
        return sum(count for series, count in self.counts.items() if series.name == name)

    def since(self, before: "Dump") -> "Dump":
        """Return what was counted after an earlier dump.

        Raises:
            UsageError: a counter is absent, smaller, or was made at another time: not one server that kept running.
        """
        for series, counted in before.counts.items():
            if series not in self.counts:
                raise before.lines[series].error(f"{series}: absent in the later dump; {RESTARTED}")
            if self.counts[series] < counted:
                now = f"{series}: {self.counts[series]}, but {counted} in the earlier dump"
                raise self.lines[series].error(f"{now}; {RESTARTED}")
            if self.created.get(series) != before.created.get(series, self.created.get(series)):
                raise self.lines[series].error(f"{series}: made at another time than in the earlier dump; {RESTARTED}")
        counts = {series: counted - before.counts.get(series, 0) for series, counted in self.counts.items()}
        return Dump(counts, self.lines, self.created)


def read_dump(entries: Sequence[Entry], names: Sequence[str]) -> Dump:
    """Read the counters of these names.

    Raises:
        UsageError: a line is not in Prometheus' text format, holds no count, or repeats a counter.
    """
    counts: dict[Series, int] = {}
    lines: dict[Series, Entry] = {}
    created: dict[Series, float] = {}
    for entry in entries:
        found = entry.made(partial(_counter, names))
        if found is None:
            continue
        series, value, is_time = found
        if is_time:
            created[series] = value
        elif series in counts:
            raise entry.error(f"{series}: a second time; a file holds one dump")
        else:
            counts[series], lines[series] = int(value), entry
    return Dump(counts, lines, created)


def _counter(names: Sequence[str], line: Any) -> tuple[Series, float, bool] | None:
    """Return a counter with its count, or with the time at which it was made; None for any other line."""
    if isinstance(line, str) and line.startswith("#"):
        return None
    found = SAMPLE.fullmatch(line) if isinstance(line, str) else None
    if found is None:
        raise ValueError(f"{str(line)[:60]!r}: not a line of Prometheus' text format")
    written, labels, text = found[1], found[2] or "", found[3]
    is_time = written.endswith(CREATED)
    name = written.removesuffix(CREATED if is_time else "_total")
    if name not in names:
        return None
    return Series(name, labels), _number(written, text) if is_time else _count(written, text), is_time


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r}; expected a number") from None


def _count(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < LARGEST or not value.is_integer():
        raise ValueError(f"{name}: {text!r}; expected a count from 0 on")
    return int(value)
