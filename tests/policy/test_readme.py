"""README's numbers are those of the tables that it links to."""

import re

import pytest

from harness.core.checkout import ROOT

LINK = re.compile(r"\]\((results/[^)]*\.md)\)")
NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"({NUMBER}) ?%? \[({NUMBER}), ({NUMBER})\]")


def quoted(text: str) -> list[tuple[str, tuple[str, str, str]]]:
    """Return every value with an interval, and the table that was linked to last before it in its section."""
    found: list[tuple[str, tuple[str, str, str]]] = []
    for section in (" ".join(part.split()) for part in re.split(r"^## ", text, flags=re.MULTILINE)):
        places = sorted([*LINK.finditer(section), *INTERVAL.finditer(section)], key=lambda one: one.start())
        table = ""
        for one in places:
            if one.re is LINK:
                table = one[1]
            elif table:
                found.append((table, (one[1], one[2], one[3])))
    return found


def holds(table: str, numbers: tuple[str, str, str]) -> bool:
    """Say whether some interval of a table is this one, rounded to the digits that are quoted."""
    return any(all(_rounds_to(own, told) for own, told in zip(one, numbers, strict=True)) for one in INTERVAL.findall(table))


def _rounds_to(own: str, told: str) -> bool:
    """Say whether a number as a table prints it may be quoted so; what lies half-way may go either way."""
    digits = len(told.partition(".")[2])
    return abs(float(own) - float(told)) <= 0.5 * 10**-digits + 1e-9 and digits <= len(own.partition(".")[2])


def test_every_interval_stands_in_the_table_that_is_linked() -> None:
    """Fault: a table was recorded anew, and README went on with the numbers before."""
    told = quoted((ROOT / "README.md").read_text(encoding="utf8"))
    assert len(told) > 20
    wrong = [
        f"{name}: {value} [{low}, {high}]"
        for name, (value, low, high) in told
        if not holds((ROOT / name).read_text(encoding="utf8"), (value, low, high))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("numbers", "is_there"),
    [
        (("1.3", "1.1", "1.5"), True),
        (("1.28", "1.09", "1.47"), True),
        (("1.28", "1.09", "1.48"), False),
        (("26", "20", "33"), True),
    ],
)
def test_a_number_may_be_rounded_but_not_changed(numbers: tuple[str, str, str], is_there: bool) -> None:
    assert holds("| 1.28 [1.09, 1.47] | 26.46 [20.11, 32.81] |", numbers) == is_there
