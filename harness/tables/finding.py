"""The finding on top of a table: plain sentences that code makes of its cells, disagreements with the paper first.

A table declares at most three questions, and all that its cells can answer are answered: none is chosen by its outcome.

Two things are counted. ``order``: of pairs of cells, how often the first is clearly higher. ``side``: how often a cell is
clearly above a bound. "Clearly": the interval does not hold the bound; of a pair, that of the difference does not hold 0. Where
both are of the same examples, of one arm or of two, the difference is drawn example by example; otherwise it is that of numbers
that do not depend on one another. All comparisons of a sentence are decided at once (Holm 1979): a chance of 5 % that any of
them is wrong. What the paper's numbers say of the cells that are decided stands behind it, cell by cell: "the reverse" is the
other sign of each. ``against`` counts how often ours is above the published number.

The total is every cell that was run: what has no interval, was refused or gave no number is named beside what is undecided, so
"all" and "both" mean that nothing was left out. A cell without a model in this profile, one that is impossible, one that was
never run and one that no output reaches are not of the total: no number of theirs was had and then dropped, and the table
itself shows why it is blank.

A time of one process holds nothing of what processes differ by; a sentence that counts such times says so. Times that were
recorded at different commits are not counted in one sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor
from typing import NamedTuple

from harness.core.settings import Settings
from harness.measures.statistics import (
    DESCRIPTIVE,
    SAME,
    Estimate,
    Student,
    chance_beyond,
    holm,
    independent_difference,
    independent_students,
    paired_difference,
)
from harness.tables.base import REFUSED, TIMED_UNITS, Cell, Finding, Said, Table

FASTER = ("faster", "slower")
TOO_FEW, NO_INTERVAL, NO_NUMBER = "of too few examples", "without an interval", "without a number"
EQUAL = "equal"  # what has no spread and is the same
APART = "recorded at different commits or on other processors"  # times, of code that may be faster in one than in the other
LACKS = (EQUAL, TOO_FEW, NO_INTERVAL, REFUSED, NO_NUMBER, APART)
ONE_TRAINING = "(one training of each)"  # behind models that are compared by one training alone
Pair = tuple[Cell, Cell]
Pairs = Callable[[Sequence[Cell]], list[Pair]]
Parts = tuple[str, ...]
Where = Callable[[Parts], bool]
Sign = int | str | None  # 1, -1, 0 where an interval allows either, one of LACKS, None of what is not in the total
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class Compared(NamedTuple):
    """A comparison's sign by its own interval, with which chance it is none, the paper's sign and where that is printed."""

    sign: Sign
    chance: float = 0.0
    papers: int | None = None
    place: str = ""


def opening(table: Table, settings: Settings, cells: Sequence[Cell]) -> str:
    """Write what stands on top of a table: which data stand in for the paper's, if any do, then the finding."""
    return " ".join(filter(None, (table.data(settings), finding(table, cells))))


def finding(table: Table, cells: Sequence[Cell]) -> str:
    """Write all that is declared; what contradicts the paper leads."""
    said = [one for find in table.findings if (one := find(cells)) is not None]
    if not said:
        return f"Nothing can be said: {_why_nothing(cells)}."
    return " ".join(f"{capitalized(one.text)}." for one in sorted(said, key=lambda one: not one.contradicts))


def _why_nothing(cells: Sequence[Cell]) -> str:
    """Say why a table has no sentence: by what stands beside the paper's numbers, if anything does."""
    numbers = [cell for cell in cells if cell.measured is not None]
    if not numbers:
        return "nothing is recorded yet"
    beside = [cell for cell in numbers if cell.paper_value is not None]
    if all(_lack(cell) == TOO_FEW for cell in beside or numbers):
        return f"numbers of fewer than {DESCRIPTIVE} examples have no interval"
    if beside:
        return "no comparison of these numbers is declared"
    return "no two numbers here answer one question, and the paper's are lost or of something else"


def capitalized(text: str) -> str:
    """Capitalize the first letter alone, so that "PPD" and "SQuAD" keep the rest."""
    return text[:1].upper() + text[1:]


def always(parts: Parts) -> bool:
    return True


# Which cells


def by_head(column: str | None, head: int, first: str, second: str, where: Where = always, apart: str = "") -> Pairs:
    """Pairs of cells of a column (None: of each but ``apart``) in rows that differ in one head: ``first`` and ``second``.

    A value that ends in a comma is what the head begins with.
    """

    def pairs(cells: Sequence[Cell]) -> list[Pair]:
        found: dict[str, dict[tuple[str, ...], Cell]] = {first: {}, second: {}}
        for cell in cells:
            parts = cell.heads
            for value in (first, second):
                is_it = parts[head].startswith(value) if value.endswith(",") else parts[head] == value
                if is_it and where(parts) and column in (cell.column, None) and cell.column != apart:
                    found[value][cell.column, *parts[:head], *parts[head + 1 :]] = cell
        return [(cell, found[second][rest]) for rest, cell in found[first].items() if rest in found[second]]

    return pairs


def once(pairs: Pairs, head: int) -> Pairs:
    """Of pairs in rows that differ in one head alone, the first that the paper has, or else the first."""

    def first(cells: Sequence[Cell]) -> list[Pair]:
        found: dict[tuple[tuple[str, ...], ...], Pair] = {}
        for pair in sorted(pairs(cells), key=lambda pair: pair[0].paper_value is None):
            found.setdefault(tuple((cell.column, *cell.heads[:head], *cell.heads[head + 1 :]) for cell in pair), pair)
        return list(found.values())

    return first


def by_columns(first: str, second: str, where: Where = always) -> Pairs:
    """Pairs of cells of one row."""

    def pairs(cells: Sequence[Cell]) -> list[Pair]:
        found = {(cell.row, cell.column): cell for cell in cells if where(cell.heads)}
        rows = dict.fromkeys(row for row, _ in found)
        return [(found[row, first], found[row, second]) for row in rows if (row, first) in found and (row, second) in found]

    return pairs


# What they say


def order(
    pairs: Pairs,
    what: str,
    first_when: str,
    second_when: str,
    of: str,
    told: int = 0,
    describes: bool = False,
    beside: bool = True,
) -> Finding:
    """Say for how many pairs (``of``) ``what`` is higher ``first_when`` ("at temperature 0") than ``second_when``.

    ``told``: the sign that the paper's text tells where its numbers are lost. ``describes``: where all pairs have too few
    examples for an interval, say which values are higher, of these examples alone. ``beside``: say whether the paper found the
    same. It is no where its numbers are of something else, or ours of one training a side: that says nothing of its claim.
    """
    names, sentence = ("higher", "lower"), f"{what} is {{}} {first_when} than {second_when}"

    def find(cells: Sequence[Cell]) -> Said | None:
        found = pairs(cells)
        papers = [_sign(a.paper_value, b.paper_value) for a, b in found]
        papers = papers if any(sign is not None for sign in papers) else [told or None] * len(found)
        papers = papers if beside else [None] * len(found)
        ours = [
            _apart(a, b)._replace(papers=sign, place=a.place and f"{a.place} {b.place}")
            for (a, b), sign in zip(found, papers, strict=True)
        ]
        if describes and {one.sign for one in ours if one.sign is not None} == {TOO_FEW}:
            values = [_sign(a.measured, b.measured) for a, b in found]
            if any(values):
                return _described(
                    [one._replace(sign=value) for one, value in zip(ours, values, strict=True)], names, sentence, of
                )
        return _said(ours, names, sentence, of, _processes([cell for pair in found for cell in pair]))

    return find


def side(column: str, bound: float, what: str, names: tuple[str, str], than: str, of: str, where: Where = always) -> Finding:
    """Say for how many cells of a column (``of``) ``what`` lies above a bound ("faster"), and for how many below."""

    def find(cells: Sequence[Cell]) -> Said | None:
        found = [cell for cell in cells if cell.column == column and where(cell.heads)]
        recording = _recording(found)
        ours = [
            Compared(APART)
            if _is_apart(cell.made_by, recording, cell.unit)
            else _from(cell, bound)._replace(papers=_sign(cell.paper_value, bound), place=cell.place)
            for cell in found
        ]
        return _said(ours, names, f"{what} is {{}} {than}", of, _processes(found))

    return find


def against(what: str) -> Finding:
    """Say for how many cells ours is above the published number, and for how many below."""

    def find(cells: Sequence[Cell]) -> Said | None:
        ours = [_from(cell, cell.paper_value, cell.half_digit) for cell in cells if cell.paper_value is not None]
        return _said(ours, ("above", "below"), f"{what} is {{}} the paper's", "numbers")

    return find


def together(*findings: Finding) -> Finding:
    """Say two things that must not be read one without the other in one sentence."""

    def find(cells: Sequence[Cell]) -> Said | None:
        said = [one for finding in findings if (one := finding(cells)) is not None]
        return Said("; ".join(one.text for one in said), any(one.contradicts for one in said)) if said else None

    return find


def with_and_without(finding: Finding, without: Finding, whom: str) -> Finding:
    """Say what is found, and what ``without`` some of the data (``whom``) where that is another answer."""

    def find(cells: Sequence[Cell]) -> Said | None:
        of_all, of_rest = finding(cells), without(cells)
        if of_all is None or of_rest is None or of_all.text == of_rest.text:
            return of_all
        text = f"{of_all.text}. Without {whom}, {of_rest.text}"
        return Said(text, of_all.contradicts and of_rest.contradicts)

    return find


def as_formula(formula: str) -> Finding:
    """Say how many printed numbers are what a formula gives, to their digits."""

    def find(cells: Sequence[Cell]) -> Said | None:
        found = [cell for cell in cells if cell.is_arithmetic and cell.paper_value is not None]
        same = [cell for cell in found if f"{cell.measured:.{len(cell.digits.partition('.')[2])}f}" == cell.digits]
        if not found:
            return None
        amount = _amount(len(same), len(found), "printed numbers")
        return Said(f"{formula} gives {amount}, to their digits", len(same) < len(found))

    return find


def _described(values: Sequence[Compared], names: tuple[str, str], sentence: str, of: str) -> Said | None:
    """Write counts of values that have no interval: they describe these examples and contradict nobody."""
    alike = all(one.sign == one.papers for one in values if None not in (one.sign, one.papers))
    shown = [one._replace(sign=EQUAL if one.sign == 0 else one.sign, papers=one.papers if alike else None) for one in values]
    said = _said(shown, names, f"in these examples alone (too few for an interval), {sentence}", of)
    return None if said is None else replace(said, contradicts=False)


def _said(compared: Sequence[Compared], names: tuple[str, str], sentence: str, of: str, how: str = "") -> Said | None:
    """Write counts of signs as a sentence: what most of ours are, the rest of the total, and the paper's of those decided.

    ``how`` they were measured stands behind what is decided.
    """
    at_once = _at_once([one for one in compared if one.sign is not None])
    counted = [one.sign for one in at_once]
    if not counted:
        return None
    total, counts = len(counted), {name: counted.count(sign) for name, sign in zip(names, (1, -1), strict=True)}
    most, least = sorted(names, key=lambda name: -counts[name])
    left = {least: counts[least], "undecided": counted.count(0)} | {lack: counted.count(lack) for lack in LACKS}
    rest = f" ({', '.join(f'{number(count)} {name}' if total > 1 else name for name, count in left.items() if count)})"
    if left[EQUAL] == total:
        of_all = f" for {_amount(total, total, of)}" if total > 1 else ""
        return Said(f"{sentence.format(f'neither {names[0]} nor {names[1]}')}{of_all} here")
    if not counts[most]:
        where = f"for {'either' if total == 2 else 'any'} of {number(total)} {of} here" if total > 1 else "here"
        alone = {name: sum(one.sign == sign for one in compared) for name, sign in zip(names, (1, -1), strict=True)}
        one_by_one = " and ".join(f"{number(count)} {name}" for name, count in alone.items() if count)
        either = ", as intervals allow either" + (
            f" once all are compared together (one by one: {one_by_one})" if one_by_one else ""
        )
        why = either if left["undecided"] == total else rest
        return Said(f"whether {sentence.format(' or '.join(names))} cannot be told {where}{why}")
    amount = f" for {_amount(counts[most], total, of)}" if total > 1 else ""
    beside, contradicts = beside_papers([one for one in at_once if one.sign in (1, -1)], total, of)
    return Said(f"{sentence.format(most)}{amount} here{'' if counts[most] == total else rest}{how}{beside}", contradicts)


def _processes(cells: Sequence[Cell]) -> str:
    """Say that times are of one process each, as far as they are."""
    timed = [cell for cell in cells if cell.unit in TIMED_UNITS and cell.status == "measured" and cell.low is not None]
    num_alone = sum(cell.student is None for cell in timed)
    return "" if not num_alone else f", {'' if num_alone == len(timed) else 'some '}timed in one process"


def _recording(cells: Sequence[Cell]) -> frozenset[str]:
    """Return by which commits and processors most of the times were recorded."""
    made = [cell.made_by for cell in cells if cell.unit in TIMED_UNITS and cell.made_by]
    return max(made, key=made.count, default=frozenset())


def _is_apart(first: frozenset[str], second: frozenset[str], unit: str) -> bool:
    """Say whether these are times that other code, or another machine, took."""
    return unit in TIMED_UNITS and bool(first and second) and first != second


def _at_once(compared: Sequence[Compared]) -> list[Compared]:
    """Leave undecided what its own interval decides and all of them at once do not. What has no spread is no test."""
    tests = [index for index, one in enumerate(compared) if isinstance(one.sign, int) and one.chance > 0]
    found = list(compared)
    for index, is_decided in zip(tests, holm([compared[index].chance for index in tests]), strict=True):
        found[index] = compared[index] if is_decided else compared[index]._replace(sign=0)
    return found


def beside_papers(decided: Sequence[Compared], total: int, of: str) -> tuple[str, bool]:
    """Say of how many decided signs the paper's is the same, and whether most of its are not. It may have none, or a tie.

    A printed number that stands beside several of ours counts once, and not where some of ours have its sign and some not.
    """
    found: dict[str, set[bool]] = {}
    for index, one in enumerate(decided):
        if one.papers:
            found.setdefault(one.place or str(index), set()).add(one.sign == one.papers)
    same = [answers == {True} for answers in found.values() if len(answers) == 1]
    known, agreed = len(same), sum(same)
    if not known:
        return "", False
    if 0 < agreed < known:
        verb = f"agree{'s' if agreed == 1 else ''}"
        who = f"{verb} with the paper" if known == len(decided) else f"that the paper has {verb} with it"
        return f"; {_amount(agreed, known)} decided {of} {who}", 2 * agreed < known
    if known < len(decided):
        which = f" for {'the one' if known == 1 else _amount(known, known)} that it has"
    else:
        which = "" if 2 * known >= total else " for it" if known == 1 else " for these"
    if agreed and not which:
        return ", as in the paper", False
    return f"; the paper found the {'same' if agreed else 'reverse'}{which}", not agreed


def _amount(count: int, total: int, of: str = "") -> str:
    if count == total:
        return f"both {of}".rstrip() if total == 2 else f"all {number(total)} {of}".rstrip()
    return f"{number(count)} of {number(total)} {of}".rstrip()


def number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def _sign(first: float | None, second: float | None) -> int | None:
    return None if first is None or second is None else (first > second) - (first < second)


def _apart(first: Cell, second: Cell) -> Compared:
    """1 or -1 where the interval of the difference does not hold 0; APART of times that other code, or a machine, took."""
    if _is_apart(first.made_by, second.made_by, first.unit):
        return Compared(APART)
    a, b = _bounds(first), _bounds(second)
    if a is None or b is None or first.measured is None or second.measured is None:
        return Compared(_lack(first, second))
    scale = SAME * max(abs(first.measured), abs(second.measured))
    if first.redrawn and second.redrawn and (paired := paired_difference(first.redrawn, second.redrawn)):
        ends = (paired.value, paired.value) if paired.low is None or paired.high is None else (paired.low, paired.high)
        found = _compared(paired.value, ends, _freedom(paired), paired.student, scale)
        return found._replace(chance=max(found.chance, min(1.0, 2 * 0.5**paired.n)))  # so few all favour one side by chance
    ends = independent_difference((a[0], first.measured, a[1]), (b[0], second.measured, b[1]))
    student = independent_students(first.student, second.student)
    return _compared(first.measured - second.measured, ends, min(_freedom(first), _freedom(second)), student, scale)


def _from(cell: Cell, bound: float, half: float = 0.0) -> Compared:
    """Compare a cell with a bound that is known to ``half``."""
    if (bounds := _bounds(cell)) is None or cell.measured is None:
        return Compared(_lack(cell))
    ends = (bounds[0] - bound - half, bounds[1] - bound + half)
    return _compared(cell.measured - bound, ends, _freedom(cell), cell.student, SAME * abs(bound))


def _compared(gap: float, ends: tuple[float, float], freedom: int, student: Student | None, scale: float) -> Compared:
    """Compare a difference with 0 by its interval, which another chance widens or narrows as Student's.

    Where it has replicas, their own interval must allow the chance too: it is of a few degrees of freedom, whichever is wider.
    """
    if ends[0] == ends[1]:
        return Compared(EQUAL if abs(gap) <= scale else _sign(gap, 0))
    if ends[0] <= 0 <= ends[1]:
        return Compared(0, 1.0)
    reach = gap - ends[0] if gap > 0 else ends[1] - gap
    of_examples = chance_beyond(abs(gap) / reach, freedom) if reach else 0.0
    return Compared(_sign(gap, 0), of_examples if student is None else max(of_examples, student.chance(gap)))


def _freedom(number: Cell | Estimate) -> int:
    """Return the degrees of freedom of its interval over examples, in whole numbers."""
    of_count = max(1, (number.n or 2) - 1)
    return of_count if number.freedom is None else min(of_count, floor(number.freedom))


def _lack(*cells: Cell) -> str | None:
    """Name what keeps cells from deciding anything; None if one of them could not be had, was never run, or not reached."""
    if any(cell.measured is None and cell.status not in ("failed", REFUSED) for cell in cells):
        return None
    if failed := [cell for cell in cells if cell.measured is None]:
        return REFUSED if any(cell.status == REFUSED for cell in failed) else NO_NUMBER
    open_ended = [cell for cell in cells if _bounds(cell) is None]
    return TOO_FEW if any(cell.n is not None and cell.n < DESCRIPTIVE for cell in open_ended) else NO_INTERVAL


def _bounds(cell: Cell) -> tuple[float, float] | None:
    if cell.measured is None:
        return None
    if cell.low is not None and cell.high is not None:
        return cell.low, cell.high
    return (cell.measured, cell.measured) if cell.is_arithmetic else None
