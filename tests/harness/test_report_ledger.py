"""The ledger and its verdicts: one line a cell, relations by the printed digits, a reason for every miss."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.settings import Settings
from harness.papers import TABLES
from harness.report.items import LEDGER, table_items
from harness.report.relation import REASONS, judge, tally
from harness.tables import published
from harness.tables.base import Cell

ROOT = Path(__file__).resolve().parents[2]
TOY, PAPER = Settings(), Settings(profile="paper")


def cell(published: float | str | None, measured: float | None = 1.0, half: float | None = 0.1, **values: object) -> Cell:
    low, high = (None, None) if half is None or measured is None else (measured - half, measured + half)
    status = "measured" if measured is not None else "not run"
    return Cell(**{"row": "r", "column": "c", "published": published, "measured": measured, "low": low, "high": high,
                   "n": 50, "status": status, **values})  # fmt: skip


@pytest.mark.parametrize(
    ("one", "settings", "relation", "reason"),
    [
        (cell(1.02, half=0.08), TOY, "agrees", ""),
        (cell(1.1, half=0.11), TOY, "not comparable", "too wide"),  # 0.89 is more than a tenth off, and so is no agreement
        (cell(1.0, half=0.02, parts_differ=True), TOY, "not comparable", "parts differ"),
        (cell(0.0, half=1.5), TOY, "not comparable", "too wide"),
        (cell(1.06, 1.03, 0.026), TOY, "agrees", ""),  # 1.056 is 1.06 to the printed digits
        (cell(1.2), TOY, "below", "toy models"),
        (cell(0.8, unit="x"), TOY, "above", "toy models; hardware"),
        (cell(0.8, unit="x"), PAPER, "above", "hardware"),
        (cell(0.8, unit="BLEU"), PAPER, "above", "disagrees: see note"),
        (cell(0.8), Settings(profile="small"), "above", "stand-in models"),
        (cell(0.8), Settings(models=(("t5-xxl", "mine"),)), "above", "replaced models"),
        (cell(1.0, half=None, n=None, status="computed"), TOY, "not comparable", "arithmetic"),
        (cell(1.2, half=None, n=None, status="computed"), TOY, "below", "disagrees: see note"),
        (cell(1.2, half=None, n=None, status="computed", unit="MiB"), TOY, "below", "toy models"),
        (cell(1.0, half=None), TOY, "not comparable", "no interval"),
        (cell(1.0, half=None, n=29), TOY, "not comparable", "too few"),
        (cell("not recovered"), TOY, "not comparable", "not recovered"),
        (cell(None), TOY, "not comparable", "no published number"),
        (cell(1.0, None), TOY, "not comparable", "not run"),
        (cell("not recovered", None), TOY, "not comparable", "not run; not recovered"),
        (cell(1.0, None, status="failed"), TOY, "not comparable", "failed"),
        (cell(1.0, None, status="impossible: LaMDA is not public"), TOY, "not comparable", "model not public"),
        (cell(1.0, None, status="impossible: no GPU"), TOY, "not comparable", "impossible"),
        (cell(1.0, None, status="no model: the zoo has no Qwen"), TOY, "not comparable", "no model"),
        (cell(0.8, unit="% of time"), TOY, "above", "toy models; hardware"),
        (cell(0.8, unit="of calls"), TOY, "above", "toy models"),
        (cell(0.8, unit="MiB"), PAPER, "above", "other measure"),
    ],
)
def test_relation_and_reason(one: Cell, settings: Settings, relation: str, reason: str) -> None:
    (judged,) = judge([one], settings)
    assert (judged.relation, judged.reason) == (relation, reason)
    assert all(code in REASONS for code in reason.split("; ") if code)


def test_a_total_whose_parts_are_off_on_both_sides_does_not_agree() -> None:
    """Fault: PPD's layer 10 on SQuAD "agreed", with early tokens far above the paper's and late ones far below."""
    total = replace(cell(1.1), parts_differ=True)
    assert [(one.relation, one.reason) for one in judge([total], TOY)] == [("not comparable", "parts differ")]
    below = replace(cell(1.2), parts_differ=True)
    assert [one.relation for one in judge([below], TOY)] == ["below"], "what is off in total needs no parts"


def test_digits_are_those_that_the_paper_prints_in_this_cell() -> None:
    """Table 5 of Leviathan has alphas of two digits and speeds of one in a column: 3.865 is its 3.9, 0.84 not its 0.80."""
    cells = [cell(0.8, 0.84, 0.001, printed="0.80"), cell(3.9, 3.865, 0.001, printed="3.9"), cell(0.8, 0.84, 0.001)]
    assert [one.num_decimals for one in cells] == [2, 1, 1]
    assert [one.relation for one in judge(cells, TOY)] == ["above", "agrees", "agrees"]
    line = next(row for row in published.read("leviathan", "table_3") if row["alpha"] == "0.80")
    assert isinstance(number := published.value(line, "alpha"), published.Printed)
    assert (number, number.text, number.origin) == (0.8, "0.80", "paper")


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("paper text; public text (..., row GAD = arXiv 2203.16487v1)", "paper"),
        ("arXiv 2211.17192v2 text; notes on arXiv 2211.17192", "paper"),
        ("hemingkx/SpecDec:readme.md", "README"),
        ("public text (..., row GAD = arXiv 2203.16487v1)", "arXiv v1"),
        ("computed", "derived"),
    ],
)
def test_only_what_the_paper_prints_is_called_the_papers(source: str, origin: str) -> None:
    assert published.origin_of(source) == origin


def test_a_published_number_beside_two_of_ours_counts_once() -> None:
    """The sigmoid's numbers stand beside both of ours; a lost number and a copied setting are apart."""
    cells = [
        cell(1.02, half=0.05, place="t.csv, line 2, x"),
        cell(1.5, place="t.csv, line 2, x"),
        cell(1.5, place="t.csv, line 3, x"),
        cell(7.0, 7.0, None, n=None, status="computed", place="t.csv, line 4, gamma"),
        cell("not recovered"),
    ]
    counts = tally(judge(cells, TOY))
    assert counts == {"agrees": 1, "above": 0, "below": 1, "repeated": 1, "arithmetic": 1, "not recovered": 1}


def test_the_ledger_has_every_cell_of_every_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tables = ROOT / "results" / "tables"
    output = tmp_path / "ledger.csv"
    assert main(["ledger", "--tables", str(tables), "--output", str(output)]) == 0
    assert "in 34 tables" in capsys.readouterr().out
    with output.open(newline="", encoding="utf8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == LEDGER
    assert {int(row["catalogue"]) for row in rows} == set(TABLES)
    assert all(row["command"] and (row["reason"] or row["relation"] == "agrees") for row in rows)
    seen = 0
    for path in sorted(tables.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf8"))
        lines = [row for row in rows if row["catalogue"] == str(document["table"])]
        assert len(lines) == len(document["cells"])
        for line, one in zip(lines, document["cells"], strict=True):
            assert {key: line[key] for key in ("row", "column", "unit", "status", "note")} == {
                key: one[key] for key in ("row", "column", "unit", "status", "note")
            }
            for key in ("published", "measured", "low", "high", "n"):
                assert line[key] == ("" if one[key] is None else str(one[key]))
            assert line["commit"] == document["header"]["commit"]
            seen += 1
    assert seen > 2000


def test_tally_counts_each_published_number_once() -> None:
    tables = table_items(ROOT / "results" / "tables")
    judged = [one for table in tables for one in table.judged]
    assert sum(tally(judged).values()) == sum(one.cell.published is not None for one in judged) > 1000


def test_a_folder_that_is_not_there_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["ledger", "--tables", str(tmp_path / "none"), "--output", str(tmp_path / "x.csv")]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "expected the JSON files" in error
