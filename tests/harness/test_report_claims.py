"""The papers' claims: verdicts follow from the published files and change with them."""

from fractions import Fraction

import numpy as np
import pytest

from harness.core.settings import Settings
from harness.papers import PAPERS, TABLES
from harness.papers import claims as checked
from harness.papers.claim import Claim, against, at_most, corners, rounding
from harness.papers.leviathan import claims as leviathan
from harness.papers.ppd import claims as ppd
from harness.report.relation import REASONS
from harness.tables import published
from methods.speculative import theory


def verdicts(claim: Claim) -> dict[str, str]:
    return {line.label: line.verdict for line in claim.lines}


def change(monkeypatch: pytest.MonkeyPatch, module: object, table: str, edit: dict[str, str], **where: str) -> None:
    """Let one row of a published table read otherwise."""

    def read(paper: str, name: str) -> tuple[dict[str, str], ...]:
        rows = published.read(paper, name)
        if name != table:
            return rows
        return tuple(row | edit if all(row[key] == value for key, value in where.items()) else row for row in rows)

    monkeypatch.setattr(module, "read", read)


def test_rounding_of_printed_digits() -> None:
    assert rounding("0.75") == (0.745, 0.755)
    assert rounding("0.80") == (0.795, 0.805)
    assert rounding("5") == (4.5, 5.5)
    assert against("2.4", 2.3467) == "contradicted"
    assert against("2.4", 2.3467, 2.27, 2.42) == "only within rounding"
    assert against("2.4", 2.402) == "holds"
    assert at_most("2.6", 2.574, 2.605) == "only within rounding"
    assert at_most("3.1", 2.642, 2.670) == "contradicted"
    assert corners(lambda a, b: a - b, "2", "1") == (0.0, 2.0)


def test_every_claim_has_lines_arithmetic_and_known_tables() -> None:
    claims, unchecked = checked()
    assert len(claims) == sum(len(paper.CLAIMS) for name, paper in PAPERS.items() if name not in unchecked)
    assert len(claims) == 17
    for claim in claims:
        assert claim.lines, claim.title
        assert len(verdicts(claim)) == len(claim.lines), claim.title
        assert all(line.printed and line.computed and line.arithmetic for line in claim.lines)
        assert all(TABLES[number].paper == claim.paper for number in claim.tables)
        assert all((published.FOLDER / claim.paper / source).is_file() for source in claim.sources)


def test_two_measured_speeds_exceed_a_free_draft() -> None:
    """By 1 / (1 - alpha) in rationals, over alpha's and the speed's rounding: CNN/DM with T5-small at both temperatures."""
    half, beyond = Fraction("0.005"), []
    for row in published.read("leviathan", "table_4"):
        least = Fraction(row["emp_x"]) - Fraction(1, 2 * 10 ** len(row["emp_x"].partition(".")[2]))
        if least > 1 / (1 - Fraction(row["alpha"]) - half):
            beyond.append(f"{row['task']}, {row['draft']}, temperature {row['temp']}")
    found = verdicts(leviathan.measured_speed())
    assert [label for label, verdict in found.items() if verdict == "contradicted"] == beyond
    assert [label.rpartition(", ")[0] for label in beyond] == ["CNNDM, T5-small", "CNNDM, T5-small"]


@pytest.mark.parametrize("pattern", [(1, 1, 1, 1, 1, 0), (1, 0), (0.5,), (0.9, 0.2, 0.7), (1, 1, 0.1)])
@pytest.mark.parametrize("gamma", [1, 3, 5, 7])
def test_a_run_never_yields_more_than_one_over_one_minus_alpha(pattern: tuple[float, ...], gamma: int) -> None:
    """Runs over betas that repeat, by the law of the place where a run begins. The first pattern exceeds Equation 1."""
    size = len(pattern)
    moves, yields = np.zeros((size, size)), np.zeros(size)
    for start in range(size):
        stands = 1.0
        for number in range(1, gamma + 2):  # a run of so many tokens: its last is refused, or the one behind all drafts
            beta = pattern[(start + number - 1) % size] if number <= gamma else 0.0
            moves[start, (start + number) % size] += stands * (1 - beta)
            yields[start] += stands * (1 - beta) * number
            stands *= beta
    law = np.full(size, 1 / size)
    mean = np.zeros(size)
    for _ in range(4000):
        law, mean = law @ moves, mean + law
    tokens, alpha = float(yields @ mean / mean.sum()), sum(pattern) / size
    assert tokens <= 1 / (1 - alpha) * (1 + 1e-3)
    if pattern == (1, 1, 1, 1, 1, 0) and gamma == 5:
        assert tokens > float(theory.expected_tokens(alpha, gamma)) + 1


def test_expected_speeds_of_table_4_agree_with_what_was_computed_when_they_were_collected() -> None:
    claim = leviathan.expected_speed()
    rows = published.read("leviathan", "table_4")
    assert len(claim.lines) == len(rows) == 12
    for line, row in zip(claim.lines, rows, strict=True):
        assert float(line.computed) == pytest.approx(float(row["exp_computed_thm3_8"]), abs=6e-4)
        assert line.verdict == ("holds" if row["check"] == "agrees" else "only within rounding")


@pytest.mark.parametrize(
    ("claim", "label"),
    [
        (leviathan.cost_ratio, "T5-large"),
        (leviathan.lenience_inequality, "as printed, l = 1"),
        (leviathan.sharper, "GPT-like (97M) with GPT-like (6M)"),
        (ppd.caption, "compute factor"),
        (ppd.layers, "layer 15"),
    ],
)
def test_known_contradictions_are_found(claim: object, label: str) -> None:
    found = claim()  # type: ignore[operator]
    assert verdicts(found)[label] == "contradicted"
    assert found.verdict == "contradicted"


def test_a_verdict_follows_the_published_number(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, leviathan, "table_4", {"c": "0.04"}, draft="T5-large")
    assert leviathan.cost_ratio().verdict == "holds"
    change(monkeypatch, leviathan, "table_1", {"speed_x": "1.97"}, alpha="0.6", gamma="2")
    assert verdicts(leviathan.tradeoff())["alpha 0.6, gamma 2: speed"] == "contradicted"
    change(monkeypatch, ppd, "table_6", {"match_rate_pct": "99.9"}, token_position="total", layer="10", k="1", trained="N")
    found = verdicts(ppd.totals())
    assert found["Table 6: totals"] == found["Table 6: means"] == "contradicted"
    assert found["Table 7: totals"] == "holds"


def test_notes_say_what_exceeds_the_bound_that_holds_and_call_no_small_model_the_papers() -> None:
    """Theorem 3.8 is no bound; the two values are those that the claim contradicts."""
    for number in (8, 10):
        notes = " ".join(TABLES[number].notes(Settings()))
        assert "1 / (1 - alpha) is, whatever acceptance depends on. Of the paper's values 2 exceed that: " in notes
        assert "that: 3.1 (CNNDM, T5-small, temperature 0), 2.3 (CNNDM, T5-small, temperature 1)." in notes
        assert "allows at c = 0" not in notes
    for text in (REASONS["toy models"], *(note for table in TABLES.values() for note in table.notes(Settings()))):
        assert "of the paper's architecture" not in text
    assert "of the same family" in REASONS["toy models"]
