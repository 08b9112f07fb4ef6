"""The catalogue: every table is listed, none invents a number, and each fills from records."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.statistics import DESCRIPTIVE, Estimate, Missing
from harness.papers import FIGURES, TABLES, get_figure, get_table
from harness.papers.leviathan.setup import ROLES
from harness.tables import published
from harness.tables.base import ABSENT, NUMBERS, Cell, cell_of
from harness.tables.evidence import Evidence
from harness.tables.published import NOT_RECOVERED
from tasks import TASKS

PUBLISHED = {7: "table_1", 8: "table_2", 9: "table_3", 10: "table_4", 11: "table_5"}


def nothing(experiment: Experiment) -> list[Record]:
    return []


def test_all_tables_and_figures_are_listed() -> None:
    assert list(TABLES) == list(range(1, 35))
    assert {table.name for table in TABLES.values()} >= {"ppd-2", "leviathan-3", "specdec-19", "optimized-5"}
    assert len({table.name for table in TABLES.values()}) == 34
    assert len(FIGURES) == 19
    made = (("ppd", 4), ("leviathan", 5), ("specdec", 5), ("optimized", 5))
    assert set(FIGURES) == {f"{paper}-{number}" for paper, count in made for number in range(1, count + 1)}


def test_the_unknown_is_refused_in_one_line() -> None:
    for call, argument in ((get_table, 35), (get_table, 0), (get_figure, "leviathan-9"), (get_figure, "optimized-6")):
        with pytest.raises(UsageError, match=r"^(figure '|table \d).*expected"):
            call(argument)
    with pytest.raises(UsageError, match="profile 'huge'"):
        get_table(9).plan(Settings(profile="huge"))
    with pytest.raises(UsageError, match="model role 'gpt5'"):
        get_table(9).plan(Settings(models=(("gpt5", "somewhere"),)))


def test_the_tradeoff_table_equals_the_printed_digits() -> None:
    cells = get_table(7).cells(Settings(), Evidence(nothing))
    assert len(cells) == 12
    for cell in cells:
        assert cell.status == "computed"
        assert f"{cell.measured:.2f}" == f"{cell.published:.2f}", cell


@pytest.mark.parametrize("number", sorted(TABLES))
@pytest.mark.parametrize("profile", sorted(ROLES))
def test_without_records_no_cell_has_a_measurement(number: int, profile: str) -> None:
    table, settings = TABLES[number], Settings(profile=profile)
    cells = table.cells(settings, Evidence(nothing))
    assert len({(cell.row, cell.column) for cell in cells}) == len(cells) >= 6
    for cell in cells:
        assert cell.column in table.columns
        assert len(cell.row.split(" / ")) == len(table.row_heads)
        needs_no_run = number == 7 or "Theorem 3.8" in cell.row or cell.row == "weights"
        known = "set" if cell.column == "gamma" else "computed" if needs_no_run else None
        assert cell.status == known or cell.status == "not run" or cell.status.startswith(ABSENT), cell
        assert not cell.row.startswith("LaMDA") or cell.status.startswith("impossible: LaMDA is not public"), cell


@pytest.mark.parametrize("number", sorted(PUBLISHED))
def test_every_published_number_is_in_the_table(number: int) -> None:
    """Counted from the CSV files, so that a dropped row cannot go unseen."""
    columns = {7: ("operations_x", "speed_x"), 8: ("alpha", "speed_x"), 9: ("alpha",), 10: ("alpha", "c", "exp_x", "emp_x")}
    rows = published.read("leviathan", PUBLISHED[number])
    expected = sorted(float(row[name]) for row in rows for name in columns.get(number, ("alpha", "speed_x")) if row[name])
    cells = [cell for cell in TABLES[number].cells(Settings(), Evidence(nothing)) if cell.column not in ("gamma", "tokens")]
    shown = sorted(cell.published for cell in cells if cell.published is not None and "Theorem 3.8" not in cell.row)
    assert shown == expected
    assert len(expected) >= 12


@pytest.mark.parametrize("number", [8, 9, 10, 11])
def test_with_records_every_runnable_cell_fills(number: int, synthetic: SimpleNamespace) -> None:
    table, settings = TABLES[number], Settings()
    cells = table.cells(settings, Evidence(synthetic.run_all(table.plan(settings))))
    assert len(cells) >= 36
    for cell in cells:
        if cell.column != "of ended":  # synthetic outputs all hit the length limit
            assert cell.status in NUMBERS or cell.row.startswith("LaMDA"), cell
        if cell.status == "measured" and cell.column != "tokens":
            assert cell.n >= 20, cell
            assert cell.low is None or cell.low - 1e-9 <= cell.measured <= cell.high + 1e-9, cell
            assert cell.n >= DESCRIPTIVE or cell.exact or cell.low is None, cell


def test_alpha_cells_show_their_own_drafter(synthetic: SimpleNamespace) -> None:
    table = TABLES[9]
    cells = {(c.row, c.column): c for c in table.cells(Settings(), Evidence(synthetic.run_all(table.plan(Settings()))))}
    means = {"Unigram": 0.08, "Bigram": 0.2, "T5-small": 0.6, "T5-base": 0.7, "T5-large": 0.75}
    for draft, mean in means.items():
        cell = cells[f"T5-XXL (EnDe) / {draft} / 0", "alpha"]
        assert cell.measured == pytest.approx(mean, abs=0.005)
    assert cells["T5-XXL (EnDe) / T5-small / 0", "alpha"].published == 0.75
    assert cells["T5-XXL (EnDe) / T5-small / 0", "tokens"].published == 10_000
    assert any(row.startswith("stand-in: gpt-target") for row, _ in cells)


def test_alpha_is_shown_without_runaways_too(synthetic: SimpleNamespace) -> None:
    """Outputs that loop or hit the limit hold many tokens: their share and the alpha of the others, counted by hand."""
    settings = Settings(limit=4)
    known = synthetic.run_all(TABLES[9].plan(settings))

    def shown(loops: int, cut: int = 0) -> tuple[str, float | None, float | None]:
        def records_of(arm: Experiment) -> list[Record]:
            found = []
            for number, record in enumerate(known(arm)):
                tokens = [5, 6] * 10 if number < loops else list(range(20))
                reason = "length" if loops <= number < loops + cut else "eos"
                values = [1.0] * 20 if number < loops + cut else [0.5] * 20
                overlap = [dataclasses.replace(one, by_lenience={"1.0": values}) for one in record.overlap]
                found.append(dataclasses.replace(record, tokens=tokens, stop_reason=reason, overlap=overlap))
            return found

        row = "T5-XXL (EnDe) / T5-small / 0"
        cells = {one.column: one for one in TABLES[9].cells(settings, Evidence(records_of)) if one.row == row}
        return cells["alpha"].note, cells["alpha"].measured, cells["of ended"].measured

    away = "of 4 outputs loop or hit the length limit"
    assert shown(1) == (f"1 {away} (25% of the tokens)", 0.625, 0.5)
    assert shown(1, 1) == (f"2 {away} (50% of the tokens)", 0.75, 0.5)
    assert shown(4) == (f"4 {away} (100% of the tokens)", 1.0, None)
    assert shown(0) == ("", 0.5, 0.5)


def test_plans_are_comparisons_of_known_tasks_without_shared_timed_arms() -> None:
    """An arm that two timed comparisons shared would be recorded with the first and miss from the second's interleaving."""
    for profile in ROLES:
        settings = Settings(profile=profile)
        timed = {c for number in (8, 11) for c in TABLES[number].plan(settings) if len(c.arms) > 1}
        signatures = [arm.signature for comparison in timed for arm in comparison.arms]
        assert len(signatures) == len(set(signatures)) >= (18 if profile == "pocket" else 20)  # nobody published drafts for it
        assert TABLES[8].plan(settings) == TABLES[10].plan(settings)
        for number, table in TABLES.items():
            for comparison in table.plan(settings):
                assert all(arm.task in TASKS for arm in comparison.arms)
                assert len({arm.signature for arm in comparison.arms}) == len(comparison.arms), number


def test_settings_reach_the_experiments() -> None:
    settings = Settings(source="folder", limit=7, repeats=2, seed=3, dtype="float64", models=(("t5-small", "my/draft"),))
    arms = [arm for comparison in TABLES[8].plan(settings) for arm in comparison.arms]
    assert {(a.source, a.limit, a.repeats, a.seed, a.dtype) for a in arms} == {("folder", 7, 2, 3, "float64")}
    names = {arm.method.drafter.model.name for arm in arms if arm.method.drafter}
    assert names == {"my/draft", "zoo:t5-base", "zoo:t5-large"}


def test_lenience_theory_row_contradicts_the_print_where_the_paper_does() -> None:
    rows = {(row["temp"], row["lenience"]): row for row in published.read("leviathan", "table_5") if row["speed_x"]}
    cells = [cell for cell in TABLES[11].cells(Settings(), Evidence(nothing)) if cell.row.startswith("speed by Theorem 3.8")]
    assert len(cells) == len(rows) == 8
    for cell in cells:
        row = rows[cell.row.rsplit(" / ", 1)[1], cell.column.removeprefix("l = ")]
        assert cell.measured == pytest.approx(float(row["speed_computed_thm3_8"]), abs=6e-4)
        assert bool(cell.note) == cell.row.endswith("/ 1"), cell


def test_a_drifting_baseline_leaves_refused_cells_with_the_reason(synthetic: SimpleNamespace) -> None:
    table, settings = TABLES[8], Settings()
    records_of = synthetic.run_all(table.plan(settings))

    def slowing(experiment: Experiment) -> list[Record]:
        records = records_of(experiment)
        if experiment.method.name == "autoregressive":
            for record in records[len(records) // 2 :]:
                record.steps.round_s = [1.5 * seconds for seconds in record.steps.round_s]
        return records

    cells = [cell for cell in table.cells(settings, Evidence(slowing)) if cell.column == "speed"]
    assert len(cells) == 12
    assert all(cell.status == "refused" and cell.measured is None and "drifted by +50%" in cell.note for cell in cells)


def test_cells_count_failures_and_say_what_is_missing(synthetic: SimpleNamespace) -> None:
    experiment = synthetic.plain_experiment(limit=4)
    good, bad = synthetic.plain(experiment, "a"), synthetic.failed(experiment, "b")

    def made(records: list[Record], result: Estimate | Missing | None) -> Cell:
        return cell_of(Evidence(lambda arm: records), "r", "c", 0.5, [experiment], lambda: result)

    one = Estimate(0.4, 0.3, 0.5, 1)
    assert made([], one).status == "not run"
    assert made([bad], one).status == "failed"
    assert "RuntimeError: broken" in made([bad], one).note
    assert made([good], None).status == "failed"
    assert made([good], Missing("why")).note == "why"
    cell = made([good, bad], one)
    assert cell.status == "measured"
    assert "1 of 2 runs failed" in cell.note
    assert "2 of at most 4 runs" in cell.note
    with pytest.raises(ValueError, match="status"):
        Cell("r", "c", status="done")
    with pytest.raises(ValueError, match="value"):
        Cell("r", "c", status="measured")


def test_lost_and_absent_published_numbers_are_told_apart() -> None:
    assert published.value(published.Row(speed="", source="not recovered"), "speed") == NOT_RECOVERED
    assert published.value(published.Row(speed="", source="paper text"), "speed") is None
    assert published.value(published.Row(speed="2.5", source="paper text"), "speed") == 2.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value,source\n", "no line below its columns"),
        ("value,source\n0.75\n", "line 2: not as many values as columns"),
        ("value,source\n0.75,paper text,more\n", "line 2: not as many values as columns"),
        ("value,source\nabc,paper text\n", "line 2, value: 'abc'; expected a number, as the paper prints it"),
        ("value,source\nnan,paper text\n", "line 2, value: 'nan'; expected a number, as the paper prints it"),
        ("draft,alpha,source\na,0.5,\nb,0.5,\na,0.9,\n", "line 4: a second line of a; `git checkout` brings back"),
        ("alpha,source\n-0.1,paper text\n", "line 2, alpha: -0.1; expected 0 to 1, of a share"),
        ("match_rate_pct,source\n101,paper text\n", "line 2, match_rate_pct: 101; expected 0 to 100, of a share"),
    ],
)
def test_damaged_published_numbers_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    """Fault: some ended in a traceback, others stood in a table as the paper's."""
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "numbers.csv").write_text(text, encoding="utf8")
    published.read.cache_clear()
    with pytest.raises(UsageError, match=f"published numbers .*{re.escape(expected)}"):
        [published.value(row, column) for row in published.read("one", "numbers") for column in row if column != "source"]


def test_published_numbers_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    with pytest.raises(UsageError, match=r"table_99\.csv"):
        published.read("leviathan", "table_99")
