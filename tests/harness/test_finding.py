"""The finding on top of a table turns with its cells, and says nothing that intervals do not."""

from dataclasses import replace

import pytest

from harness.core.settings import Settings
from harness.papers import TABLES, get_table
from harness.tables.base import Cell
from harness.tables.evidence import Evidence
from harness.tables.finding import finding

PAIRS = [("T5-XXL (EnDe)", draft) for draft in ("T5-small", "T5-base", "T5-large")]
PAIRS += [("T5-XXL (CNNDM)", draft) for draft in ("T5-small", "T5-base", "T5-large")]
PAIRS += [("GPT-like (97M)", "GPT-like (6M)")]


def alphas(greedy: float, sampled: float, half: float = 0.02) -> list[Cell]:
    """Leviathan's Table 3 with the paper's numbers; the greedy rows of neural pairs have one alpha here, the others another."""
    cells = []
    for cell in get_table(9).cells(Settings(), Evidence(lambda experiment: [])):
        target, draft, temperature = cell.row.split(" / ")
        if cell.column == "alpha" and (target, draft) in PAIRS:
            value = greedy if temperature == "0" else sampled
            cell = replace(cell, measured=value, low=value - half, high=value + half, n=200, status="measured")
        cells.append(cell)
    return cells


def test_a_disagreement_with_the_paper_comes_first() -> None:
    said = finding(get_table(9), alphas(0.5, 0.7))
    assert said.startswith(
        "Alpha is lower at temperature 0 than at 1 for all seven neural pairs here; the paper found the reverse"
    )


def test_the_sentence_turns_with_the_cells() -> None:
    assert finding(get_table(9), alphas(0.7, 0.5)).startswith(
        "Alpha is higher at temperature 0 than at 1 for all seven neural pairs here, as in the paper"
    )


def test_where_intervals_meet_nothing_is_said() -> None:
    said = finding(get_table(9), alphas(0.5, 0.52))
    assert said.startswith(
        "Nothing can be said: alpha is higher or lower at temperature 0 than at 1 for none of seven neural pairs here"
    )


def test_numbers_without_an_interval_decide_nothing() -> None:
    cells = [replace(cell, low=None, high=None) for cell in alphas(0.5, 0.9)]
    assert finding(get_table(9), cells) == "Nothing can be said: numbers of fewer than 30 examples have no interval."


def speeds(low: float, high: float) -> list[Cell]:
    return [
        Cell(f"{task} / {draft} / 0", "speed", 3.4, (low + high) / 2, low, high, 100, "x", "measured", printed="3.4")
        for task in ("EnDe", "CNNDM")
        for draft in ("T5-small", "T5-base")
    ]


def test_a_bound_is_counted_on_both_sides() -> None:
    assert finding(get_table(8), speeds(0.6, 0.8)) == (
        "Speculative decoding is slower than the target alone for all four pairs here; the paper found the reverse."
    )
    assert finding(get_table(8), speeds(1.2, 1.4)) == (
        "Speculative decoding is faster than the target alone for all four pairs here, as in the paper."
    )
    mixed = [*speeds(1.2, 1.4)[:2], speeds(0.6, 0.8)[2], speeds(0.9, 1.1)[3]]
    assert finding(get_table(8), mixed) == (
        "Speculative decoding is faster than the target alone for two of four pairs here (one slower, one undecided), "
        "as in the paper."
    )


def test_arithmetic_that_misses_the_print_is_a_disagreement() -> None:
    cells = get_table(7).cells(Settings(), Evidence(lambda experiment: []))
    assert (
        finding(get_table(7), cells) == "The theory (Theorems 3.8 and 3.11) gives all twelve printed numbers, to their digits."
    )
    wrong = [replace(cells[0], measured=(cells[0].measured or 0) + 0.01), *cells[1:]]
    assert "gives eleven of twelve printed numbers" in finding(get_table(7), wrong)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_what_is_committed_has_a_published_number_or_a_finding(table) -> None:
    """SpecDec's Tables 9, 12, 13 and 15 have neither: they can be made, and are left out of what is committed."""
    cells = table.cells(Settings(), Evidence(lambda experiment: []))
    has_either = bool(table.findings) or any(cell.paper_value is not None for cell in cells)
    assert table.is_committed <= has_either
    assert table.is_committed == (table.name not in ("specdec-9", "specdec-12", "specdec-13", "specdec-15"))
