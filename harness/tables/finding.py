"""The finding on top of a table: one or two plain sentences that code makes of its cells, disagreements with the paper first.

Two things are counted. ``order``: of pairs of cells, how often the first is clearly higher. ``side``: how often a cell is
clearly above a bound. "Clearly": the 95 % intervals do not meet. What the paper's numbers say of the same cells stands behind
it. Where no interval decides anything, the finding says so. ``against`` counts how often ours is above the published number.
"""

from collections.abc import Callable, Sequence

from harness.measures.statistics import DESCRIPTIVE
from harness.tables.base import Cell, Finding, Said, Table

SENTENCES = 2
FASTER = ("faster", "slower")
Pair = tuple[Cell, Cell]
Pairs = Callable[[Sequence[Cell]], list[Pair]]
Parts = tuple[str, ...]
Where = Callable[[Parts], bool]
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def finding(table: Table, cells: Sequence[Cell]) -> str:
    """Write the sentences: at most SENTENCES, those that contradict the paper first."""
    said = [one for find in table.findings if (one := find(cells)) is not None]
    decided = sorted((one for one in said if one.decides), key=lambda one: not one.contradicts)
    if decided:
        return " ".join(f"{_capitalized(one.text)}." for one in decided[:SENTENCES])
    if said:
        return f"Nothing can be said: {'; '.join(one.text for one in said[:SENTENCES])}."
    if all(cell.measured is None for cell in cells):
        return "Nothing can be said: nothing is recorded yet."
    if all(cell.low is None for cell in cells if not cell.is_arithmetic):
        return f"Nothing can be said: numbers of fewer than {DESCRIPTIVE} examples have no interval."
    return "Nothing can be said: no two numbers here answer one question, and the paper's are lost or of something else."


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def always(parts: Parts) -> bool:
    return True


def parts_of(cell: Cell) -> Parts:
    """The heads of a cell's row."""
    return tuple(cell.row.split(" / "))


# Which cells


def by_head(column: str | None, head: int, first: str, second: str, where: Where = always) -> Pairs:
    """Pairs of cells of a column (None: of each) in rows that differ in one head alone: ``first`` and ``second``.

    A value that ends in a comma is what the head begins with.
    """

    def pairs(cells: Sequence[Cell]) -> list[Pair]:
        found: dict[str, dict[tuple[str, ...], Cell]] = {first: {}, second: {}}
        for cell in cells:
            parts = parts_of(cell)
            for value in (first, second):
                is_it = parts[head].startswith(value) if value.endswith(",") else parts[head] == value
                if is_it and where(parts) and column in (cell.column, None):
                    found[value][cell.column, *parts[:head], *parts[head + 1 :]] = cell
        return [(cell, found[second][rest]) for rest, cell in found[first].items() if rest in found[second]]

    return pairs


def by_columns(first: str, second: str, where: Where = always) -> Pairs:
    """Pairs of cells of one row."""

    def pairs(cells: Sequence[Cell]) -> list[Pair]:
        found = {(cell.row, cell.column): cell for cell in cells if where(parts_of(cell))}
        rows = dict.fromkeys(row for row, _ in found)
        return [(found[row, first], found[row, second]) for row in rows if (row, first) in found and (row, second) in found]

    return pairs


# What they say


def order(pairs: Pairs, what: str, first_when: str, second_when: str, of: str, told: int = 0) -> Finding:
    """Say for how many pairs (``of``) ``what`` is higher ``first_when`` ("at temperature 0") than ``second_when``.

    ``told``: the sign that the paper's text tells where its numbers are lost.
    """

    def find(cells: Sequence[Cell]) -> Said | None:
        found = pairs(cells)
        ours = [sign for one in found if (sign := _apart(*one)) is not None]
        shown = [(a.paper_value, b.paper_value) for a, b in found if a.measured is not None and b.measured is not None]
        papers = [_sign(first, second) for first, second in shown if first is not None and second is not None] or [told]
        return _said(ours, papers, ("higher", "lower"), f"{what} is {{}} {first_when} than {second_when}{{}} here", " for ", of)

    return find


def side(column: str, bound: float, what: str, names: tuple[str, str], than: str, of: str, where: Where = always) -> Finding:
    """Say for how many cells of a column (``of``) ``what`` lies above a bound ("faster"), and for how many below."""

    def find(cells: Sequence[Cell]) -> Said | None:
        found = [cell for cell in cells if cell.column == column and where(parts_of(cell))]
        ours = [sign for cell in found if (sign := _from(cell, bound)) is not None]
        papers = [
            _sign(cell.paper_value, bound) for cell in found if cell.paper_value is not None and cell.measured is not None
        ]
        return _said(ours, papers, names, f"{what} is {{}} {than}{{}} here", " for ", of)

    return find


def against(what: str) -> Finding:
    """Say for how many cells ours is above the published number, and for how many below."""

    def find(cells: Sequence[Cell]) -> Said | None:
        ours = [sign for cell in cells if cell.paper_value is not None and (sign := _from(cell, cell.paper_value)) is not None]
        return _said(ours, [], ("above", "below"), f"{what} is {{}} the paper's{{}}", " for ", "numbers")

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


def _said(ours: Sequence[int], papers: Sequence[int], names: tuple[str, str], sentence: str, link: str, of: str) -> Said | None:
    """Write counts of signs as a sentence of a name and an amount, behind ``link``: most of ours first, then the paper's."""
    if not ours:
        return None
    counts = {name: ours.count(sign) for name, sign in zip(names, (1, -1), strict=True)}
    most, least = sorted(names, key=lambda name: -counts[name])
    amount = f"{link}{_amount(counts[most], len(ours), of)}" if len(ours) > 1 else ""
    if not counts[most]:
        return Said(f"{sentence.format(' or '.join(names), amount)}, as intervals meet", decides=False)
    undecided = len(ours) - sum(counts.values())
    rest = [f"{number(counts[least])} {least}"] if counts[least] else []
    rest += [f"{number(undecided)} undecided"] if undecided else []
    text = sentence.format(most, amount) + (f" ({', '.join(rest)})" if rest else "")
    theirs = {name: papers.count(sign) for name, sign in zip(names, (1, -1), strict=True)}
    if counts[most] == counts[least] or theirs[most] == theirs[least]:
        return Said(text)
    reverse = theirs[least] > theirs[most]
    share = "" if len(papers) == max(theirs.values()) else f" ({_amount(max(theirs.values()), len(papers))})"
    return Said(f"{text}; the paper found the reverse{share}" if reverse else f"{text}, as in the paper{share}", reverse)


def _amount(count: int, total: int, of: str = "") -> str:
    if count == total:
        return f"both {of}".rstrip() if total == 2 else f"all {number(total)} {of}".rstrip()
    return f"{number(count)} of {number(total)} {of}".rstrip()


def number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def _sign(first: float, second: float) -> int:
    return (first > second) - (first < second)


def _apart(first: Cell, second: Cell) -> int | None:
    """1 or -1 where the intervals do not meet; None where one has neither an interval nor arithmetic's certainty."""
    a, b = _bounds(first), _bounds(second)
    if a is None or b is None:
        return None
    return 1 if a[0] > b[1] else -1 if a[1] < b[0] else 0


def _from(cell: Cell, bound: float) -> int | None:
    bounds = _bounds(cell)
    return None if bounds is None else 1 if bounds[0] > bound else -1 if bounds[1] < bound else 0


def _bounds(cell: Cell) -> tuple[float, float] | None:
    if cell.measured is None:
        return None
    if cell.low is not None and cell.high is not None:
        return cell.low, cell.high
    return (cell.measured, cell.measured) if cell.is_arithmetic else None
