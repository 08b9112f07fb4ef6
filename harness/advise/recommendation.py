"""What a pilot and its check come to: the choice, in words, with what would have to change for another one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log

from harness.advise.predict import Cell, Pipeline, acceptance_for
from harness.core.text import text_table
from harness.measures.statistics import Estimate, Missing, Refused

RUNS_IF = "PPD runs only where what it could reach at most, by a look at the target's layers, is more than any prediction"
PPD = "PPD"
EVEN = 1.0  # plain decoding over itself
ALIKE = 0.98  # of the fastest: what a check of minutes cannot tell from it


@dataclass(frozen=True)
class Checked:
    """A prediction that was run: its speed-up over all examples of the check, and over those that the pilot did not see.

    The intervals hold for all predictions of a check at once.
    """

    cell: Cell
    achieved: Estimate | Missing
    unseen: Estimate | Missing

    @property
    def off(self) -> float | None:
        """Return by how much the prediction is above what was achieved, as a share of that."""
        return self.cell.speed.value / self.achieved.value - 1 if isinstance(self.achieved, Estimate) else None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer at one batch size. ``curves`` are survival curves by drafter, ``refused`` why others are not predicted.

    ``pipeline`` is what PPD could reach at most; None where it is among those refused. ``pipeline_reached`` is what it reached;
    None where it did not run.
    plain_s: seconds of a token of plain decoding. verify_s: seconds of the target over so many positions.
    """

    batch_size: int
    plain_s: float
    verify_s: dict[int, float]
    cells: list[Cell]
    curves: dict[str, list[Estimate]]
    refused: dict[str, str] = field(default_factory=dict)
    checked: list[Checked] = field(default_factory=list)
    num_examples: tuple[int, int] = (0, 0)  # of the pilot and of the check
    pipeline: Pipeline | None = None
    pipeline_reached: Estimate | Missing | None = None

    @property
    def num_ran(self) -> int:
        """Return how many methods the check ran, whose intervals hold at once."""
        return len(self.checked) + (self.pipeline_reached is not None)

    @property
    def reached(self) -> dict[str, Estimate]:
        """Return how fast everything was that ran, PPD among it, by name; without what has no time to show."""
        results = {one.cell.name: one.achieved for one in self.checked} | {PPD: self.pipeline_reached}
        return {name: one for name, one in results.items() if isinstance(one, Estimate)}

    @property
    def pipeline_leads(self) -> bool:
        """Say whether PPD was faster than all others that ran, by more than what a check cannot tell."""
        own, others = self.reached.get(PPD), [one.value for name, one in self.reached.items() if name != PPD]
        return own is not None and ALIKE * own.value > max(others, default=0.0)

    @property
    def uses_pipeline(self) -> bool:
        """Say whether PPD is what to use: it leads, and its interval lies above plain decoding."""
        return self.pipeline_leads and (self.reached[PPD].low or 0.0) > EVEN

    @property
    def best(self) -> Checked | None:
        """Return the one to prefer of those that ran; None where no time may be shown.

        Of those within ``ALIKE`` of the fastest, whose order is the check's noise, it is the one that was predicted to be the
        fastest, on texts that are others in part; one that is clear of plain decoding comes before one that is not.
        """
        known = [one for one in self.checked if isinstance(one.achieved, Estimate)]
        least = ALIKE * max(map(_achieved, known), default=0.0)
        alike = [one for one in known if _achieved(one) >= least]
        return max(alike, key=lambda one: ((_low(one) or 0.0) > EVEN, one.cell.speed.value), default=None)

    @property
    def chosen(self) -> Checked | None:
        """Return what to use: the best, if its interval lies above plain decoding and PPD is not beyond it; else None.

        The intervals of all that ran hold at once (``statistics.tail_among``), and fewer than six or seven examples have none:
        where none is faster than plain decoding, the best of them seems to be with a chance of 2 to 4 %.
        """
        best = self.best
        return best if best is not None and (_low(best) or 0.0) > EVEN and not self.uses_pipeline else None

    @property
    def fastest(self) -> list[Cell]:
        """Return every drafter's fastest prediction, in their order."""
        by_drafter: dict[str, Cell] = {}
        for cell in sorted(self.cells, key=lambda one: -one.speed.value):
            by_drafter.setdefault(cell.drafter.label, cell)
        return list(by_drafter.values())


def _achieved(one: Checked) -> float:
    assert isinstance(one.achieved, Estimate)
    return one.achieved.value


def _low(one: Checked) -> float | None:
    return one.achieved.low if isinstance(one.achieved, Estimate) else None


def lines(answer: Answer) -> list[str]:
    """Say all of an answer but its commands, a line each."""
    return [*_costs(answer), "", *_table(answer), "", *verdict(answer), *changes(answer)]


def _costs(answer: Answer) -> list[str]:
    cost = ", ".join(f"{count}: {second * 1e3:.3g}" for count, second in sorted(answer.verify_s.items()))
    found = [
        f"batch {answer.batch_size}: a token of plain decoding takes {answer.plain_s * 1e3:.3g} ms, prompt included; "
        f"milliseconds of the target over n positions: {cost}"
    ]
    for cell in answer.fastest:
        costs = cell.costs
        found.append(
            f"{cell.drafter.label}: a draft takes {costs.draft_s * 1e3:.3g} ms, the rest of a round {costs.rest_s * 1e3:.3g} "
            f"ms; the first drafts stand in {_shares(answer.curves.get(cell.drafter.label, []))} of rounds"
        )
    found += [f"{name}: {why}" for name, why in answer.refused.items()]
    return found if answer.pipeline is None else [*found, bound_of(answer.pipeline, answer.pipeline_reached)]


def bound_of(one: Pipeline, reached: Estimate | Missing | None) -> str:
    """Say what PPD could reach, and what it reached where it ran."""
    tokens = "1 candidate" if one.candidates == 1 else f"{one.candidates} candidates"
    return (
        f"PPD: at most {one.speed:.2f} times as fast as plain decoding, were its processes free (Theorem 4.1 with the cost of "
        f"heads): {tokens} after layer {one.early_layer}, match rate {one.match_rate:.2f}; " + _ran(reached)
    )


def _ran(reached: Estimate | Missing | None) -> str:
    if reached is None:
        return "not run, since that is not more than what is predicted"
    return f"it reached {shown(reached)}" if isinstance(reached, Estimate) else f"its run has no number: {reached.why}"


def _shares(curve: Sequence[Estimate]) -> str:
    return " ".join(f"{one.value:.2f}" for one in curve[:5]) or "none"


def _table(answer: Answer) -> list[str]:
    rows = [("method", "predicted", "achieved", "predicted is off by", "achieved on prompts that the pilot did not see")]
    for one in answer.checked:
        off = "" if one.off is None else f"{one.off:+.1%}"
        rows.append((one.cell.name, shown(one.cell.speed), shown(one.achieved), off, shown(one.unseen)))
    checked = [one.cell for one in answer.checked]
    rows += [(cell.name, shown(cell.speed), "not run", "", "") for cell in answer.fastest if cell not in checked]
    if answer.pipeline is not None and answer.pipeline_reached is not None:
        rows.append((PPD, f"at most {answer.pipeline.speed:.2f}", shown(answer.pipeline_reached), "", ""))
    return text_table(rows)


def verdict(answer: Answer) -> list[str]:
    """Say what to use, that nothing pays, or that too little was measured to say either."""
    best = answer.best
    name = choice_of(answer) or (PPD if answer.pipeline_leads or best is None else best.cell.name)
    achieved = answer.reached.get(name)
    if achieved is None:
        results = [*(one.achieved for one in answer.checked), answer.pipeline_reached]
        reasons = dict.fromkeys(one.why for one in results if isinstance(one, Missing))
        return [f"no recommendation: {'; '.join(reasons) or 'no prediction could be run'}"]
    reached = f"{name} is {shown(achieved)} times as fast as plain decoding, {answer.num_examples[1]} examples"
    few = achieved.shown.low is None
    if few:
        reached += ", too few to say more than of these: give more --minutes"
    if answer.num_ran > 1 and achieved.low is not None:
        reached += f"; its interval holds for the best of the {answer.num_ran} that ran"
    if choice_of(answer) == name:
        return [f"{'this seems to pay' if few else f'use {name}'}: {reached}"]
    if achieved.low is None:
        return [f"no recommendation: {reached}"]
    slower = achieved.high is not None and achieved.high < EVEN
    why = "the best is slower" if slower else "the best is not clear of plain decoding"
    return [f"do not use it: {why}: {reached}"]


def changes(answer: Answer) -> list[str]:
    """Say at which acceptance, by Eq. 1 and the measured costs, another choice would win."""
    best = answer.best
    if best is None:
        return []
    cell = best.cell
    at = acceptance_for(cell.costs, EVEN)
    if at is not None:
        found = [f"{cell.name} is as fast as plain decoding at an acceptance of {at:.2f} (here {_here(cell)})"]
    elif cell.costs.speed(1.0) < EVEN:
        found = [f"{cell.name} would not pay if every draft stood: {cell.costs.speed(1.0):.2f}"]
    else:
        found = [f"{cell.name} would pay at any acceptance: at least {cell.costs.speed(0.0):.2f}"]
    mark = max(cell.speed.value, EVEN)
    others = [other for other in answer.fastest if other.drafter != cell.drafter]
    if answer.uses_pipeline:
        mark, others = answer.reached[PPD].value, answer.fastest
    return [*found, *(f"{other.name} {_against(other, mark, answer)}" for other in others)]


def _against(other: Cell, mark: float, answer: Answer) -> str:
    """Say at which acceptance a drafter is faster than ``mark``: what was predicted of the best, plain decoding, or PPD."""
    if other.costs.speed(1.0) < mark:
        return f"would not win at any acceptance: at most {other.costs.speed(1.0):.2f}"
    ran = [one for one in answer.checked if one.cell == other and isinstance(one.achieved, Estimate)]
    best = answer.best
    if ran and best is not None and not answer.uses_pipeline and _achieved(ran[0]) >= ALIKE * _achieved(best):
        return f"is alike: {shown(ran[0].achieved)} times as fast as plain decoding when it ran"
    needed = acceptance_for(other.costs, mark)
    from_there = "at any acceptance" if needed is None else f"from an acceptance of {needed:.2f} on"
    if other.speed.value < mark:
        return f"would win {from_there} (here {_here(other)})"
    instead = (
        "by what it reached when it ran it is not the best"
        if ran
        else "it was not run, or its times were refused: give more --minutes"
    )
    return f"was predicted to win, as it would {from_there} (here {_here(other)}): {instead}"


def _here(cell: Cell) -> str:
    return "unknown" if cell.alpha is None else f"{cell.alpha:.2f}"


def over_batches(answers: Sequence[Answer]) -> list[str]:
    """Say between which batch sizes the choice changes, and about where drafting stops to pay."""
    found = []
    for first, second in pairwise(answers):
        names = [choice_of(one) or "plain decoding" for one in (first, second)]
        sizes = f"batch {first.batch_size} and {second.batch_size}"
        if names[0] == names[1]:
            found.append(f"between {sizes} the choice stays: {names[0]}")
            continue
        at = crossing(first, second)
        where = "" if at is None else f", where drafting stops to pay at about batch {at:.2g} (on a line between the two)"
        found.append(f"between {sizes} the choice changes from {names[0]} to {names[1]}{where}")
    return found


def choice_of(answer: Answer) -> str | None:
    """Return the name of what to use; None for plain decoding."""
    if answer.uses_pipeline:
        return PPD
    return None if answer.chosen is None else answer.chosen.cell.name


def crossing(first: Answer, second: Answer) -> float | None:
    """Return the batch size at which the best speed is 1, on a line between two over the logarithm of the size."""
    speeds = [max(one.value for one in answer.reached.values()) for answer in (first, second) if answer.reached]
    if len(speeds) < 2 or (speeds[0] - EVEN) * (speeds[1] - EVEN) >= 0:
        return None
    share = (speeds[0] - EVEN) / (speeds[0] - speeds[1])
    return exp(log(first.batch_size) + share * (log(second.batch_size) - log(first.batch_size)))


def shown(number: Estimate | Missing) -> str:
    """Format a number with its interval; "~" marks one of too few examples to hold elsewhere."""
    if isinstance(number, Missing):
        return "refused" if isinstance(number, Refused) else "unknown"
    return f"{number.as_text('.2f')}{'' if number.low is None or number.shown.low is not None else '~'}"
