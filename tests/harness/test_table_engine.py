"""The table engine: a table's plan, cells, notes and arms follow from its sections and columns."""

from types import SimpleNamespace

import pytest

from harness.core.experiment import Comparison, Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.statistics import Estimate, Missing, Refused, ratio_of_examples
from harness.tables.engine import Column, Known, Result, Row, Section, replicas_note, section_cells, table
from harness.tables.evidence import Evidence
from harness.tables.layout import markdown_table

WHY = "no model of that size"
CALLS: list[str] = []


def emitted(known: Known, row: Row) -> Result:
    return ratio_of_examples([(one.example, len(one.tokens or ()), len(one.steps.emitted)) for one in known[row.arm][1]])


def facts(arm: tuple[Experiment, list[Record]]) -> Estimate:
    CALLS.append(arm[0].signature)
    return Estimate(1.0, None, None, 1)


COLUMNS = (
    Column("tokens", emitted, "tokens", note="tokens: emitted in a round.", published="emitted"),
    Column("twice", lambda known, row: known.once(facts, row.arm), kind="derived"),
    Column("again", lambda known, row: known.once(facts, row.arm), reads=("plain",), remark=lambda known, row: row.name),
    Column("gamma", lambda known, row: Estimate(row.key["gamma"], None, None, 1), kind="set", published="gamma"),
    Column("scored", lambda known, row: Missing("the scorer is not installed"), optional=True),
    Column("refused", lambda known, row: Refused("refused: drifted"), applies=lambda arm, row: row.name == "small"),
    Column("never shown", note="never shown: nor is this."),
)
PAPERS = {"small": {"emitted": 2.5, "gamma": 3.0}}


@pytest.fixture
def made(synthetic: SimpleNamespace) -> SimpleNamespace:
    plain = synthetic.plain_experiment(limit=2)
    drafted = plain.replace(method=synthetic.drafted_experiment(plain).method, probes=())
    arms = {"plain": plain, "draft": drafted, "large": Missing(WHY)}
    key = PAPERS["small"]
    rows = (Row("small", "draft", key), Row("large", "large", key))
    alone = Section({"draft": drafted}, lambda known: tuple(Row(f"alone, {name}", name, key) for name in known))
    other = (Column("tokens", lambda known, row: None, "tokens"),)

    def sections(settings: Settings) -> list[Section]:
        return [Section(arms, rows), alone, Section(arms, (Row("other", "plain"),), other)]

    shown = table(
        number=99, paper="own", paper_number=1, title="drafts", row_heads=("draft",), columns=COLUMNS, sections=sections,
        blocks=(("tokens", "gamma"), ("twice", "again", "scored", "refused")), published=lambda key, name: key[name],
        first_notes=lambda settings: ["first"], last_notes=lambda settings, arms: [f"{len(arms)} arms"],
    )  # fmt: skip
    records = {
        plain.signature: [synthetic.plain(plain, name, 12) for name in "ab"],
        drafted.signature: [synthetic.drafted(drafted, name, 12, (2,)) for name in "ab"],
    }
    return SimpleNamespace(table=shown, plain=plain, drafted=drafted, records_of=lambda arm: records[arm.signature])


def test_the_plan_the_arms_and_the_notes_follow(made: SimpleNamespace) -> None:
    """A comparison a section, each once; notes of the columns that are shown, between the first and the last."""
    plan = made.table.plan(Settings())
    assert [comparison.arms for comparison in plan] == [(made.plain, made.drafted), (made.drafted,)]
    assert made.table.arms(Settings()) == {made.plain, made.drafted}
    assert made.table.notes(Settings()) == ["first", "tokens: emitted in a round.", "3 arms"]
    assert made.table.columns == ("tokens", "gamma", "twice", "again", "scored", "refused")


def test_cells_follow_from_rows_and_columns(made: SimpleNamespace) -> None:
    CALLS.clear()
    cells = made.table.cells(Settings(), Evidence(made.records_of))
    by_place = {(cell.row, cell.column): cell for cell in cells}
    assert len(by_place) == len(cells)
    tokens = by_place["small", "tokens"]
    assert (tokens.status, tokens.published, tokens.n) == ("measured", 2.5, 2)
    assert tokens.measured == 3
    assert {cell.status for cell in cells if cell.row == "large"} == {f"no model: {WHY}"}
    assert by_place["large", "gamma"].published == 3
    assert (by_place["small", "gamma"].status, by_place["small", "gamma"].measured) == ("set", 3)
    assert "| gamma (set) |" in markdown_table(made.table, cells), "Theorem 3.8 did not give it"
    assert (by_place["small", "twice"].status, by_place["small", "again"].status) == ("computed", "measured")
    assert len(CALLS) == 2, "once for both columns of a section"
    assert by_place["small", "again"].note == "small"
    assert ("alone, draft", "again") not in by_place, "its section lacks an arm that the column reads"
    assert by_place["small", "scored"].status == "impossible: the scorer is not installed"
    assert (by_place["small", "refused"].status, by_place["small", "refused"].note) == ("refused", "refused: drifted")
    assert ("large", "refused") not in by_place
    assert [cell.column for cell in cells if cell.row == "other"] == ["tokens"]
    assert by_place["other", "tokens"].published is None
    assert [cell.column for cell in cells if cell.row == "small"] == list(made.table.columns)


@pytest.mark.parametrize(("limit", "what"), [(15, "share the examples."), (100, "print lies in the intervals.")])
def test_nothing_is_said_of_intervals_where_there_are_none(made: SimpleNamespace, limit: int, what: str) -> None:
    arms = [made.plain.replace(limit=limit, replicas=3)]
    (said,) = replicas_note(arms, [Comparison((arms[0],))])
    assert said.endswith(what)


def test_a_total_knows_whether_its_parts_lie_on_both_sides_of_the_papers(made: SimpleNamespace) -> None:
    above, below = (Estimate(4.0, 3.9, 4.1, 50), 3.0), (Estimate(1.0, 0.9, 1.1, 50), 2.0)
    few, near, lost = (
        (Estimate(1.0, 0.9, 1.1, 20), 2.0),
        (Estimate(2.0, 1.9, 2.1, 50), 2.0),
        (Estimate(1.0, 0.9, 1.1, 50), None),
    )

    def differ(*parts: tuple[Result, float | None]) -> bool:
        total = Column(
            "total", lambda known, row: Estimate(2.5, 2.4, 2.6, 50), published="emitted", parts=lambda known, row: parts
        )
        section = Section({"plain": made.plain}, (Row("all", "plain", PAPERS["small"]),))
        (cell,) = section_cells(section, [total], ["total"], lambda key, name: key[name], Evidence(made.records_of))
        return cell.parts_differ

    assert differ(above, below)
    assert not differ(above, near, few, lost)
    assert not differ()


def test_a_draft_has_the_parameters_that_another_arm_of_the_section_noted(made: SimpleNamespace) -> None:
    """The row shows the plain arm, whose run noted its target alone."""
    drafter = made.drafted.method.drafter
    counts = {made.plain.target.name: 4_200_000, drafter.model.name: 210_000}

    def facts_of(arm: Experiment) -> dict[str, dict[str, int]]:
        drafts = [arm.method.drafter.model] if arm.method.drafter is not None else []
        return {spec.name: {"num_parameters": counts[spec.name]} for spec in (arm.target, *drafts)}

    section = Section({"plain": made.plain, "draft": made.drafted}, (Row("speed", "plain", PAPERS["small"], drafter),))
    cells = section_cells(
        section, COLUMNS, ["tokens"], lambda key, name: key[name], Evidence(made.records_of, facts_of=facts_of)
    )
    (ran,) = {cell.ran for cell in cells}
    assert "4.2 M" in ran.partition(";")[0]
    assert "0.2 M" in ran.partition(";")[2]


def test_rows_that_cannot_run_may_have_their_printed_cells_only(made: SimpleNamespace) -> None:
    arms = {"draft": made.drafted, "large": Missing(WHY)}
    rows = (Row("large", "large", PAPERS["small"]), Row("larger", "large"))
    section = Section(arms, rows, printed_only=True)
    cells = list(
        section_cells(section, COLUMNS, ["tokens", "twice", "gamma"], lambda key, name: key[name], Evidence(lambda arm: []))
    )
    assert [(cell.row, cell.column, cell.published) for cell in cells] == [("large", "tokens", 2.5), ("large", "gamma", 3.0)]


def test_without_records_nothing_is_measured(made: SimpleNamespace) -> None:
    cells = made.table.cells(Settings(), Evidence(lambda arm: []))
    assert {cell.status for cell in cells if cell.column != "gamma"} == {"not run", f"no model: {WHY}"}
    assert not [cell for cell in cells if cell.measured is not None and cell.column != "gamma"]
