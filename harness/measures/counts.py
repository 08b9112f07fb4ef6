"""What other engines count of drafting and verifying, for a request or for a whole server, and the log of such counts.

An engine's counts hold less than our rounds: a definition that needs more than was counted has no value there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from methods.speculative.acceptance import Statistic

OfCounts = Callable[["Counts"], Statistic | None]
Histogram = tuple[int, ...]
TREE = "its drafts are a tree: alpha by place is unknown"
UNTOLD = "it is unknown whether its drafts are a chain or a tree, so alpha by place is, too"
START = "the server's start"
LONGEST = 1000  # drafts of a round: none has so many


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts of one request, or of a whole server; None where an engine does not count it.

    ``accepted`` are drafts that stand; the token that the target adds to each round is in none of these but ``emitted``.
    ``rounds`` are all rounds of decoding, ``drafting`` those that drafted, ``gamma`` the most drafts a round may have. A round
    that drafted may have 0 drafts made: vLLM takes off those that a grammar rules out before they are verified.
    ``histogram[j]`` are the rounds in which exactly j drafts stand, ``by_length[k][j]`` those of them that drafted k.
    ``is_tree``: drafts are a tree, of which one path is counted: at no place does a draft follow the one before; None where
    that is not known, so that they are not read as a chain.

    Raises:
        ValueError: the counts contradict one another, so that no run can have left them.
    """

    request: str
    accepted: int
    drafted: int | None = None
    rounds: int | None = None
    drafting: int | None = None
    emitted: int | None = None
    gamma: int | None = None
    histogram: Histogram | None = None
    by_length: Mapping[int, Histogram] | None = None
    is_tree: bool | None = False

    def __post_init__(self) -> None:
        steps = self.rounds if self.drafting is None else self.drafting
        if self.gamma is not None:
            _at_most("drafts of a round", self.gamma, "at most", LONGEST)
        if self.drafted is not None:
            _at_most("accepted drafts", self.accepted, "drafts made", self.drafted)
        if self.drafted is not None and steps == 0:
            _equal("the drafts made", self.drafted, "those of no round", 0)
        if self.drafted is not None and steps is not None and self.gamma is not None:
            _at_most("drafts made", self.drafted, f"{steps} rounds of {self.gamma} drafts", steps * self.gamma)
        if self.histogram is not None:
            _at_most("drafts that stand in one round", most(self.histogram), "at most", LONGEST)
            if steps is not None:
                _equal("the sum of the histogram", sum(self.histogram), "the number of rounds", steps)
            _equal("the histogram's accepted drafts", weighted(self.histogram), "the accepted drafts", self.accepted)
            if self.gamma is not None:
                _at_most("drafts that stand in one round", most(self.histogram), "drafts of a round", self.gamma)
        if self.by_length is not None:
            self._check_lengths(self.by_length)

    def _check_lengths(self, by_length: Mapping[int, Histogram]) -> None:
        most_drafted = max(by_length, default=0)
        _at_most("drafts of a round", most_drafted, "at most", LONGEST if self.gamma is None else self.gamma)
        for length, row in by_length.items():
            _at_most(f"drafts that stand in a round of {length}", most(row), "its drafts", length)
        if self.histogram is not None:
            summed = added(by_length.values())
            longest = max(len(summed), len(self.histogram))
            if padded(summed, longest) != padded(self.histogram, longest):
                raise ValueError(
                    f"impossible counts: histograms by length add up to {summed}, the histogram is {self.histogram}"
                )
        if self.drafted is not None:
            made = sum(length * sum(row) for length, row in by_length.items())
            _equal("the drafts of the histograms by length", made, "the drafts made", self.drafted)

    @property
    def is_chain(self) -> bool:
        """Say whether every draft is known to follow the one before."""
        return self.is_tree is False

    @property
    def lengths(self) -> Mapping[int, Histogram] | None:
        """Histograms by how many tokens a round drafted: as counted, or known because every round drafted gamma in a chain."""
        if not self.is_chain:
            return None
        if self.by_length is not None or self.histogram is None or self.gamma is None:
            return self.by_length
        return {self.gamma: self.histogram} if self.drafted == self.gamma * sum(self.histogram) else None

    def accepted_over(self, denominator: int | None) -> Statistic | None:
        return None if denominator is None else (float(self.accepted), float(denominator))

    @property
    def verified(self) -> int | None:
        """Drafts up to and including the first rejection of each round."""
        if self.lengths is None:
            return None
        return sum(count * min(stand + 1, k) for k, row in self.lengths.items() for stand, count in enumerate(row))

    def joint(self, position: int) -> Statistic | None:
        """Rounds whose first ``position`` drafts stand, over all of the histogram; None where none may draft so many."""
        if not self.is_chain or self.histogram is None or (self.gamma is not None and position > self.gamma):
            return None
        return float(sum(self.histogram[position:])), float(sum(self.histogram))

    def conditional(self, position: int) -> Statistic | None:
        """Rounds whose draft at ``position`` stands, over those that decided on it."""
        if self.lengths is None or self.histogram is None:
            return None
        decided = sum(sum(row[position - 1 :]) for length, row in self.lengths.items() if length >= position)
        return float(sum(self.histogram[position:])), float(decided)


@dataclass(frozen=True)
class Told:
    """A number that an engine's own tool derives from the log: its name there, and how it stands to the definitions here."""

    name: str
    value: float | Sequence[float] | Mapping[str, int] | None
    relation: str


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A log that another engine wrote.

    ``source`` is the file of the engine that the format was taken from, at a commit. ``given`` are definitions whose value the
    log states without the counts behind it. ``is_total``: no requests are told apart, so that nothing can be resampled.
    ``remedy`` says what to give where it is unknown whether drafts are a chain. ``since`` is where counters of a server begin:
    at its start, or at an earlier dump; empty where the log is of one run. ``passed_over`` are lines that could not be read.
    """

    format: str
    source: str
    requests: Sequence[Counts] = ()
    told: Sequence[Told] = ()
    given: Mapping[str, float] = field(default_factory=dict)
    is_total: bool = False
    num_left_out: int = 0
    lenience: float | None = None
    remedy: str = ""
    since: str = ""
    passed_over: Sequence[str] = ()

    @property
    def gamma(self) -> int | None:
        """Return how many tokens every round may draft in a chain; None where that differs, or there is no chain."""
        gammas = {one.gamma if one.is_chain else None for one in self.requests}
        return gammas.pop() if len(gammas) == 1 else None

    @property
    def longest(self) -> int:
        """The most drafts of a round, or the most that stand in one where the log does not say."""
        stand = [most(one.histogram) for one in self.requests if one.histogram is not None]
        return max(max(stand), self.gamma or 0) if stand else 0

    @property
    def is_empty(self) -> bool:
        """Say whether nothing was drafted; a total without counts states its averages, or nothing."""
        if self.is_total and not self.requests:
            return not self.told
        return not any(one.drafted or one.drafting or one.rounds for one in self.requests)

    @property
    def shape(self) -> Literal["chain", "tree", "unknown"] | None:
        """Return what the drafts of its requests are; None of a log without counts."""
        found = [one.is_tree for one in self.requests]
        if not found:
            return None
        return "tree" if any(found) else "unknown" if None in found else "chain"

    @property
    def not_a_chain(self) -> str:
        """Say why nothing is known by places of a chain, and what to give; empty where drafts are one."""
        return {"tree": TREE, "unknown": f"{UNTOLD}; {self.remedy}"}.get(self.shape or "", "")

    @property
    def lacking(self) -> str:
        return f"not counted in this log ({self.format})" + (f"; {self.not_a_chain}" if self.not_a_chain else "")

    @property
    def histograms(self) -> list[Histogram] | None:
        """The histogram of each request by place in a chain; None where they are not counted."""
        found = [one.histogram for one in self.requests if one.histogram is not None and one.is_chain]
        return found if len(found) == len(self.requests) else None

    def rows(self, of_counts: OfCounts) -> list[tuple[str, float, float]] | None:
        """Return (request, numerator, denominator); None where a request lacks a count that the ratio needs."""
        found = [(one.request, of_counts(one)) for one in self.requests]
        counted = [(request, *statistic) for request, statistic in found if statistic is not None]
        return counted if len(counted) == len(found) else None


def weighted(histogram: Sequence[int]) -> int:
    """Return the accepted drafts of a histogram."""
    return sum(stand * count for stand, count in enumerate(histogram))


def most(histogram: Sequence[int]) -> int:
    """Return the most drafts that stand in a round of it."""
    return max((stand for stand, count in enumerate(histogram) if count), default=0)


def padded(histogram: Sequence[int], length: int) -> Histogram:
    return (*histogram, *[0] * (length - len(histogram)))


def added(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms of any lengths."""
    rows = list(histograms)
    longest = max(map(len, rows), default=0)
    return tuple(sum(column) for column in zip(*(padded(row, longest) for row in rows), strict=True))


def _at_most(what: str, value: int, limit: str, most_of_it: int) -> None:
    if value > most_of_it:
        raise ValueError(f"impossible counts: {what} {value}, {limit} {most_of_it}")


def _equal(what: str, value: int, other: str, expected: int) -> None:
    if value != expected:
        raise ValueError(f"impossible counts: {what} is {value}, {other} {expected}")
