"""The rounds of a pilot as records keep them: what each kind of round cost, and what a generation took outside its rounds."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from harness.core.records import Record
from harness.measures.of_run import decoded_together
from harness.measures.pairing import steps_of

SLOW = 1.3  # times the median of like rounds: no round counts as longer, in any arm: what interrupted it is not its cost
FEW = 5  # rounds of one kind: of fewer the cost is read off its neighbours
Batch = tuple[list[Record], list[Record]]  # the rows that were decoded together, by the plain arm and by a drafted one


class Round(NamedTuple):
    """A round of a batch: rows that still ran, the most drafts of one, and seconds."""

    active: int
    drafts: int
    draft_s: float
    verify_s: float
    rest_s: float

    @property
    def positions(self) -> int:
        """Return the target's positions that it computed, over which its cost hardly depends on rows or drafts alone."""
        return self.active * (self.drafts + 1)


def paired_batches(plain: Sequence[Record], drafted: Sequence[Record], batch_size: int) -> list[Batch]:
    """Return the batches that both arms decoded whole."""
    theirs = {tuple(row.key for row in rows): rows for rows in decoded_together(drafted, batch_size)}
    own = {tuple(row.key for row in rows): rows for rows in decoded_together(plain, batch_size)}
    return [(rows, theirs[keys]) for keys, rows in own.items() if keys in theirs]


def rounds_of(rows: Sequence[Record]) -> Iterator[Round]:
    """Yield the rounds of a batch: every row that takes part has the whole batch's seconds."""
    steps = [row.steps for row in rows if row.steps is not None]
    for index in range(max((len(one.drafted) for one in steps), default=0)):
        active = [one for one in steps if index < len(one.drafted)]
        draft_s, verify_s = active[0].draft_s[index], active[0].verify_s[index]
        drafts = max(len(one.drafted[index]) for one in active)
        yield Round(len(active), drafts, draft_s, verify_s, active[0].round_s[index] - draft_s - verify_s)


def warm_rounds(batches: Sequence[Sequence[Record]]) -> list[list[Round]]:
    """Return the rounds of batches but the first of each, where any has more.

    A text's first round follows its prompt, so that nothing of what it reads is in the caches: it took twice as long for a T5.
    Of a sweep it is always one of one draft, whose cost would be that of a first round.
    """
    rounds = [list(rounds_of(rows)) for rows in batches]
    return [own[1:] for own in rounds] if any(len(own) > 1 for own in rounds) else rounds


class Table:
    """[n, keys] seconds and numbers of rounds, by batch and by a key of the round; the slowest are cut.

    ``free``: whatever has key 0 costs nothing.
    """

    def __init__(
        self,
        rounds: Sequence[Sequence[Round]],
        key: Callable[[Round], int],
        value: Callable[[Round], float],
        free: bool = False,
    ) -> None:
        self.free = free
        self.keys = sorted({key(one) for own in rounds for one in own})
        place = {name: index for index, name in enumerate(self.keys)}
        found: list[list[float]] = [[] for _ in self.keys]
        for one in (one for own in rounds for one in own):
            found[place[key(one)]].append(value(one))
        most = [SLOW * float(np.median(values)) for values in found]
        self.seconds = np.zeros((len(rounds), len(self.keys)))
        self.counts = np.zeros_like(self.seconds)
        for batch, own in enumerate(rounds):
            for one in own:
                index = place[key(one)]
                self.seconds[batch, index] += min(value(one), most[index])
                self.counts[batch, index] += 1
        enough = self.counts.sum(0) >= FEW
        if enough.any():
            self.counts[:, ~enough] = 0.0

    @property
    def known(self) -> list[int]:
        """Return the keys, in order, of which there are enough rounds."""
        return [key for key, count in zip(self.keys, self.counts.sum(0), strict=True) if count]

    def at(self, wanted: Sequence[int], seconds: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the mean seconds at keys, between those that were measured on the line between them; [keys] sums in.

        Where the sums have no round of a key, it is the mean of all that are known.
        """
        whole = self.counts.sum(0)
        known = whole > 0
        means = np.divide(seconds, counts, out=self.seconds.sum(0) / np.maximum(whole, 1), where=counts > 0)
        keys, values = np.array(self.keys)[known], means[known]
        if self.free and 0 not in keys:
            keys, values = np.append(0, keys), np.append(0.0, values)
        return np.interp(wanted, keys, values)


def budget_of(row: Record, max_new_tokens: int) -> int:
    """Return how many tokens a row could have emitted: as many as it did where it ended by length."""
    return len(row.tokens or ()) if row.stop_reason == "length" else max_new_tokens


def empty_share(rows: Sequence[Record]) -> float:
    """Return in how many of the rounds in which no draft stood the drafter had none to propose."""
    none, wrong = 0, 0
    for steps in map(steps_of, rows):
        for step in steps[:-1]:  # before the last token nothing is drafted
            none += not step.drafted
            wrong += bool(step.drafted) and step.num_accepted == 0
    return none / (none + wrong) if none else 0.0


def wall_s(rows: Sequence[Record]) -> float:
    """Return the seconds of a batch."""
    return float(sum(row.wall_s or 0.0 for row in rows))


def in_rounds(rows: Sequence[Record]) -> float:
    """Return the seconds of a batch that lie in its rounds, which its longest row saw all of."""
    return max((sum(row.steps.round_s) for row in rows if row.steps is not None), default=0.0)


class PlainTimes(NamedTuple):
    """[n] seconds of texts by plain decoding, those of the pilot first, then those that were only looked at.

    plain_s, begin_s: of the pilot's texts all seconds, and those that the drafted arm takes outside its rounds. other_plain_s,
    other_begin_s: those of what was looked at, at the pilot's pace. rounds_s, rounds_n: of the pilot's rounds, for that pace.
    Each is 0 for texts of the other kind.
    """

    plain_s: np.ndarray
    begin_s: np.ndarray
    other_plain_s: np.ndarray
    other_begin_s: np.ndarray
    rounds_s: np.ndarray
    rounds_n: np.ndarray


def plain_times(batches: Sequence[Batch], looked: Sequence[Sequence[Record]]) -> PlainTimes:
    """Return how long plain decoding takes, the prompt above all in what lies outside its rounds.

    An interruption outside the rounds of one of the two arms is left out: of each batch the smaller of both counts, times the
    median over batches of what an arm takes over that smaller one. Rounds of what was looked at, at another time, count as long
    as the pilot's, and its prompts in proportion.
    """
    plain, drafted = (np.array([_outside(batch[side]) for batch in batches]) for side in (0, 1))
    least = np.maximum(np.minimum(plain, drafted), 1e-9)
    plain, drafted = (least * max(1.0, float(np.median(one / least))) for one in (plain, drafted))
    rounds_s, rounds_n = _plain_rounds([own for own, _ in batches])
    others_s, others_n = _plain_rounds(looked)
    round_s = rounds_s.sum() / max(1, rounds_n.sum())
    pace = round_s * others_n.sum() / others_s.sum() if others_s.sum() else 1.0
    outside = pace * np.array([_outside(rows) for rows in looked])
    own, other = np.zeros(len(batches)), np.zeros(len(looked))
    return PlainTimes(
        plain_s=np.append(plain + rounds_s, other),
        begin_s=np.append(drafted, other),
        other_plain_s=np.append(own, others_n * round_s + outside),
        other_begin_s=np.append(own, outside * drafted.sum() / plain.sum()),
        rounds_s=np.append(rounds_s, other),
        rounds_n=np.append(rounds_n, other),
    )


def _outside(rows: Sequence[Record]) -> float:
    """Return the seconds of a batch outside its rounds."""
    return max(0.0, wall_s(rows) - in_rounds(rows))


def _plain_rounds(batches: Sequence[Sequence[Record]]) -> tuple[np.ndarray, np.ndarray]:
    """[n] seconds in the rounds of plain batches, the slowest cut as those of the other arms are, and how many rounds."""
    longest = [max((row.steps.round_s for row in rows if row.steps is not None), key=len, default=[]) for rows in batches]
    every = [second for own in longest for second in own]
    most = SLOW * float(np.median(every)) if every else 0.0
    return np.array([sum(min(second, most) for second in own) for own in longest]), np.array(
        [float(len(own)) for own in longest]
    )
