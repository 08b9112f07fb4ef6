"""The papers' claims: verdicts follow from the published files and change with them."""

from fractions import Fraction

import pytest

from harness.papers import PAPERS, TABLES
from harness.papers import claims as checked
from harness.papers.claim import Claim, against, at_most, corners, rounding
from harness.papers.leviathan import claims as leviathan
from harness.papers.optimized import claims as optimized
from harness.papers.ppd import claims as ppd
from harness.tables import published


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
    assert len(claims) >= 18
    for claim in claims:
        assert claim.lines, claim.title
        assert len(verdicts(claim)) == len(claim.lines), claim.title
        assert all(line.printed and line.computed and line.arithmetic for line in claim.lines)
        assert all(TABLES[number].paper == claim.paper for number in claim.tables)
        assert all((published.FOLDER / claim.paper / source).is_file() for source in claim.sources)


def test_four_measured_speeds_exceed_a_free_draft_at_the_printed_digits() -> None:
    """By Equation 1 in rationals: EnDe small at 1, CNNDM small at 0 and 1, CNNDM base at 1; the first only by its rounding."""
    beyond = []
    for row in published.read("leviathan", "table_4"):
        alpha, gamma = Fraction(row["alpha"]), int(row["gamma"])
        if Fraction(row["emp_x"]) > sum((alpha**power for power in range(gamma + 1)), Fraction(0)):
            beyond.append(f"{row['task']}, {row['draft']}, temperature {row['temp']}")
    found = verdicts(leviathan.measured_speed())
    assert [label for label, verdict in found.items() if verdict != "holds"] == beyond
    assert len(beyond) == 4
    assert found["EnDe, T5-small, temperature 1"] == "only within rounding"


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
        (ppd.condition, "layer 10"),
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


@pytest.mark.skipif(
    not (published.FOLDER / "optimized").is_dir(), reason="Optimized's published numbers are not in this checkout"
)
def test_calls_fall_under_the_sigmoid_and_stay_under_the_exact_kernel() -> None:
    """The derived file was computed apart from this code, to three digits."""
    lines = {line.label: line for line in optimized.calls().lines}
    rows = published.read("optimized", "derived_call_ratio")
    assert len(lines) == len(rows) == 32
    for row in rows:
        place = f"{row['dataset']}{' ' + row['subset'] if row['subset'] else ''}, {row['target']}, {row['method']}"
        assert float(lines[place].computed) == pytest.approx(float(row["implied_calls_ratio"]), abs=2e-3)
        assert (lines[place].verdict == "contradicted") == (row["method"] == "sigmoid")
