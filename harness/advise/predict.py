"""Predict the speed-up of every drafter and gamma from a pilot: one plain arm, and one arm a drafter whose gamma sweeps.

The plain arm, and that of the look before it, carries each drafter's overlap with the target at every position of its text
(Leviathan, Corollary 3.6). At temperature 0 that is 0 or 1, whether the draft would stand there, so that the rounds of any
gamma follow from the text; at other temperatures it is the chance that it stands, and rounds are drawn. The sweep has rounds of
every number of drafts, and so shows what drafting, verifying and the rest of a round cost. What a generation takes outside its
rounds, its prompt above all, is measured and stays.

The speed-up is that of whole generations: seconds of the plain arm over those that its own text would take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.advise.rounds import Table, budget_of, empty_share, paired_batches, plain_times, warm_rounds
from harness.core.experiment import DrafterSpec
from harness.core.records import Record
from harness.measures.of_run import decoded_together
from harness.measures.pairing import overlap_of, steps_of, succeeded
from harness.measures.statistics import Estimate, halved, of_sums
from methods.speculative import theory
from methods.speculative.acceptance import position_conditional
from methods.speculative.schedules import swept

MOST_DRAFTS = 12
GAMMAS = swept(MOST_DRAFTS)
DRAWS = 8  # of the rounds of a text, where they are drawn


@dataclass(frozen=True)
class Costs:
    """The cost of a full round at one ``gamma``, seconds, all rows of a batch running.

    ar_s: a token of plain decoding, its share of the prompt included. begin_s: what a token takes outside rounds. draft_s: one
    draft. verify_s: the target over gamma + 1 tokens of every row. rest_s: what else a round takes.
    """

    gamma: int
    rows: int
    ar_s: float
    begin_s: float
    draft_s: float
    verify_s: float
    rest_s: float

    def speed(self, alpha: float) -> float:
        """Return the speed-up where every draft stands with chance ``alpha``: Eq. 1's tokens, these costs."""
        tokens = self.rows * theory.expected_tokens(alpha, self.gamma)
        rest_s = self.rest_s + tokens * self.begin_s
        return float(theory.predicted_speedup(tokens, self.ar_s, self.draft_s, self.verify_s, rest_s, self.gamma))


def acceptance_for(costs: Costs, speed: float) -> float | None:
    """Return the alpha at which a drafter is so fast; None where it is faster already at 0, or not even at 1."""
    if not costs.speed(0.0) <= speed <= costs.speed(1.0):
        return None
    return halved(lambda alpha: costs.speed(alpha) < speed, steps=50)


@dataclass(frozen=True)
class Cell:
    """One drafter at one gamma: its predicted speed-up, its costs, and the alpha of Eq. 1 that gives the same speed."""

    drafter: DrafterSpec
    costs: Costs
    speed: Estimate
    alpha: float | None

    @property
    def gamma(self) -> int:
        return self.costs.gamma

    @property
    def name(self) -> str:
        return f"{self.drafter.label}, gamma {self.gamma}"


@dataclass(frozen=True)
class Pipeline:
    """What PPD could reach at a plan, by its match rate on the look's texts: at most ``speed`` times plain decoding.

    No minutes tell what its processes cost; so it has a bound in place of a prediction.
    """

    early_layer: int
    candidates: int
    match_rate: float
    speed: float

    def may_win(self, cells: Sequence[Cell]) -> bool:
        """Say whether it could be faster than plain decoding and than every prediction."""
        return self.speed > max([1.0, *(cell.speed.value for cell in cells)])


class Pilot:
    """The pilot of one drafter: the seconds of its rounds, and which tokens of plain decoding's texts it would have drafted.

    ``looked``: more plain decoding, of which those texts count whose overlap with the drafter is known.
    """

    def __init__(
        self,
        plain: Sequence[Record],
        drafted: Sequence[Record],
        drafter: DrafterSpec,
        batch_size: int,
        looked: Sequence[Record] = (),
    ) -> None:
        self.drafter, self.rows = drafter, batch_size
        self.batches = paired_batches(plain, drafted, batch_size)
        sizes = {len(own) for own, _ in self.batches}  # a round of other batches costs something else
        more = [
            rows
            for rows in decoded_together(looked, batch_size)
            if len(rows) in sizes and all(overlap_of(row, drafter.label) is not None for row in rows)
        ]
        self.texts = [*(own for own, _ in self.batches), *more]
        rounds = warm_rounds([theirs for _, theirs in self.batches]) + [[] for _ in more]
        self.verify = Table(rounds, lambda one: one.positions, lambda one: one.verify_s)
        self.draft = Table(rounds, lambda one: one.drafts, lambda one: one.draft_s, free=True)
        self.rest = Table(rounds, lambda one: one.drafts, lambda one: one.rest_s)
        self.empty = empty_share([row for _, theirs in self.batches for row in theirs])
        times = plain_times(self.batches, more)
        self.known = times._asdict() | {
            "tokens": np.array([float(sum(len(row.tokens or ()) for row in own)) for own in self.texts]),
            "verify_s": self.verify.seconds,
            "verify_n": self.verify.counts,
            "draft_s": self.draft.seconds,
            "rest_s": self.rest.seconds,
            "drafts_n": self.draft.counts,
        }

    @property
    def gammas(self) -> tuple[int, ...]:
        """Return the numbers of drafts whose rounds, or those of one draft more, the sweep had enough of."""
        most, known = max(self.verify.known, default=0), self.draft.known
        return tuple(gamma for gamma in GAMMAS if (gamma in known or gamma + 1 in known) and self.rows * (gamma + 1) <= most)

    @property
    def verify_s(self) -> dict[int, float]:
        """Return the seconds of the target over every number of positions that came up."""
        seconds, counts = self.verify.seconds.sum(0), self.verify.counts.sum(0)
        known = zip(self.verify.keys, seconds, counts, strict=True)
        return {key: float(second / count) for key, second, count in known if count}

    def predict(self, gamma: int, max_new_tokens: int) -> Cell | None:
        """Return the speed-up of whole generations at a gamma; the interval resamples batches, their costs with them."""
        positions, drafts = self._simulated(gamma, max_new_tokens)
        statistics = {**self.known, "positions": _matrix(positions), "rounds": _matrix(drafts)}
        keys = sorted({key for one in positions for key in one}), sorted({key for one in drafts for key in one})
        speed = of_sums(statistics, lambda total, n: self._speed(total, *keys), "x")
        if speed is None:
            return None
        costs = self._costs(gamma)
        return Cell(self.drafter, costs, speed, acceptance_for(costs, speed.value))

    def _speed(self, total: dict[str, np.ndarray], positions: Sequence[int], drafts: Sequence[int]) -> float:
        rounds, drafted = total["rounds"].sum(), float(total["rounds"] @ np.array(drafts))
        verify_s = total["positions"] @ self.verify.at(positions, total["verify_s"], total["verify_n"])
        draft_s, rest_s = (
            total["rounds"] @ table.at(drafts, total[name], total["drafts_n"])
            for table, name in ((self.draft, "draft_s"), (self.rest, "rest_s"))
        )
        plain_s, begin_s = self._plain(total)
        tokens = float(total["tokens"])
        return float(
            theory.predicted_speedup(
                tokens / rounds,
                plain_s / tokens,
                draft_s / drafted if drafted else 0.0,
                verify_s / rounds,
                (rest_s + begin_s + (0.0 if drafted else draft_s)) / rounds,
                drafted / rounds,
            )
        )

    def _plain(self, total: dict[str, np.ndarray]) -> tuple[float, float]:
        """Return the seconds of plain decoding, and of the drafted arm outside its rounds; what was looked at goes at the pace
        of the pilot's texts among these, as all costs do."""
        whole = self.known["rounds_s"].sum() / max(1.0, self.known["rounds_n"].sum())
        pace = total["rounds_s"] / total["rounds_n"] / whole if total["rounds_n"] and whole else 1.0
        plain_s, begin_s = (total[name] + pace * total[f"other_{name}"] for name in ("plain_s", "begin_s"))
        return float(plain_s), float(begin_s)

    def _costs(self, gamma: int) -> Costs:
        total = {name: values.sum(0) for name, values in self.known.items()}
        draft_s, rest_s = (
            float(table.at([gamma], total[name], total["drafts_n"])[0])
            for table, name in ((self.draft, "draft_s"), (self.rest, "rest_s"))
        )
        verify_s = float(self.verify.at([self.rows * (gamma + 1)], total["verify_s"], total["verify_n"])[0])
        ar_s, begin_s = (seconds / float(total["tokens"]) for seconds in self._plain(total))
        return Costs(gamma, self.rows, ar_s, begin_s, draft_s / gamma, verify_s, rest_s)

    def _simulated(self, gamma: int, max_new_tokens: int) -> tuple[list[dict[int, float]], list[dict[int, float]]]:
        """Return for every batch of texts how many rounds have each number of positions, and of drafts; a mean over draws."""
        generator, positions, drafts = np.random.default_rng(0), list[dict[int, float]](), list[dict[int, float]]()
        for own in self.texts:
            overlaps = [np.array(overlap_of(row, self.drafter.label) or ()) for row in own]
            certain = self.empty == 0 and all(np.isin(one.round(6), (0, 1)).all() for one in overlaps)
            draws = 1 if certain else DRAWS
            found: tuple[dict[int, float], dict[int, float]] = ({}, {})
            for _ in range(draws):
                rounds = [
                    self._drawn(row, overlap, gamma, max_new_tokens, generator)
                    for row, overlap in zip(own, overlaps, strict=True)
                ]
                for index in range(max(map(len, rounds), default=0)):
                    active = [one[index] for one in rounds if index < len(one)]
                    for counts, key in zip(found, (len(active) * (max(active) + 1), max(active)), strict=True):
                        counts[key] = counts.get(key, 0.0) + 1 / draws
            positions.append(found[0])
            drafts.append(found[1])
        return positions, drafts

    def _drawn(
        self, row: Record, overlap: np.ndarray, gamma: int, max_new_tokens: int, generator: np.random.Generator
    ) -> list[int]:
        stands = generator.random(len(overlap)) < overlap
        empty = ~stands & (generator.random(len(overlap)) < self.empty)
        return replayed(stands.tolist(), empty.tolist(), gamma, budget_of(row, max_new_tokens))


def _matrix(counts: Sequence[dict[int, float]]) -> np.ndarray:
    """[n, keys] counts, keys in order."""
    keys = sorted({key for one in counts for key in one})
    return np.array([[one.get(key, 0.0) for key in keys] for one in counts])


def replayed(stands: Sequence[bool], empty: Sequence[bool], gamma: int, budget: int) -> list[int]:
    """Return the number of drafts of every round of a text of known length.

    ``stands``: would a draft stand at a place of the text, all before it being right; ``empty``: has the drafter none there.
    As in ``methods.speculative.decode`` no round drafts more than what is left of the ``budget`` less one.
    """
    rounds, place = list[int](), 0
    while place < len(stands):
        drafts = 0 if empty[place] else max(0, min(gamma, budget - place - 1))
        reach = min(drafts, len(stands) - place)
        accepted = next((index for index in range(reach) if not stands[place + index]), reach)
        rounds.append(drafts)
        place += accepted + 1
    return rounds


def survival(records: Sequence[Record]) -> list[Estimate]:
    """Return the share of rounds whose first j drafts all stand, j from 1 on, were all rounds long enough.

    A product of each place's accepted over decided drafts: rounds that drafted less say nothing about later places
    (right-censored), and rounds of all lengths count. The interval resamples examples.
    """
    rows = [record for record in succeeded(records) if record.steps is not None]
    sums = [
        np.array([position_conditional(place)(steps_of(row)) for row in rows], dtype=float).reshape(-1, 2)
        for place in range(1, MOST_DRAFTS + 1)
    ]
    found = list[Estimate]()
    for place in range(1, MOST_DRAFTS + 1):
        if not rows or sums[place - 1][:, 1].sum() == 0:
            break
        hits, trials = (np.stack([one[:, side] for one in sums[:place]], 1) for side in (0, 1))
        one = of_sums({"hits": hits, "trials": trials}, lambda total, n: _product(total["hits"], total["trials"]))
        if one is not None:
            found.append(one)
    return found


def _product(hits: np.ndarray, trials: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.prod(hits / trials))


def best_three(cells: Sequence[Cell]) -> list[Cell]:
    """Return the three fastest predictions, none beside another of the same drafter, whose gammas differ by one."""
    found = list[Cell]()
    for cell in sorted(cells, key=lambda one: -one.speed.value):
        near = any(one.drafter == cell.drafter and abs(one.gamma - cell.gamma) < 2 for one in found)
        if not near and len(found) < 3:
            found.append(cell)
    return found
