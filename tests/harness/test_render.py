"""Tables as files and a generation in colours."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.core.checkout import ROOT
from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.settings import Settings
from harness.papers import TABLES, get_table
from harness.tables.base import Cell, Table
from harness.tables.coloured import Token, coloured_rounds, to_html, to_terminal
from harness.tables.evidence import Evidence
from harness.tables.files import Header, recorded, write_table
from harness.tables.layout import WIDTH, Grid, markdown_table, measured_text, published_text, terminal_table
from harness.tables.published import NOT_RECOVERED

HEADER = Header(
    command="make reproduce-table-9",
    commit="abc123",
    environment={"torch": "2.13.0", "processor": "an EPYC", "cores": 2},
    record_files=("x.jsonl",),
)
MADE = [table for table in TABLES.values() if isinstance(table, Table)]
SMALL = Table(
    number=9,
    paper="leviathan",
    paper_number=3,
    title="small & odd_title",
    row_heads=("target", "draft"),
    blocks=(("alpha",), ("ratio",)),
    plan=lambda settings: [],
    cells=lambda settings, evidence: [],
    notes=lambda settings: ["a note"],
)
CELLS = [
    Cell("big / small", "alpha", 0.75, 0.7123, 0.69, 0.7349, 20, "", "measured", "2 failed"),
    Cell("big / lost", "alpha", NOT_RECOVERED, status="not run"),
    Cell("big / secret", "alpha", 0.5, status="impossible: it, is not public"),
    Cell("big / none", "alpha", None, 0.2, 0.1, 0.3, 4, "", "measured", "2 failed"),
    Cell("big / small", "ratio", None, 1 / 3, unit="x", status="computed"),
    Cell("big / none", "ratio", None, unit="x", status="failed", note="it drifted"),
]


def test_a_recording_of_unknown_days_says_so(synthetic: SimpleNamespace) -> None:
    """And one of several days and processes names the first and the last, and counts."""
    records = [
        replace(one, run=run)
        for run, one in zip("aab", synthetic.run(get_table(9).plan(Settings(limit=3))[0].arms[0]), strict=True)
    ]
    days = [{"date": day} for day in ("2026-11-23", "2026-11-22", "2026-11-24")]
    assert recorded(records, days) == "on 2026-11-22 to 2026-11-24 (UTC) in 2 processes"
    assert recorded(records[:1], days[:1]) == "on 2026-11-23 (UTC) in 1 process"
    assert recorded(records[:1], [*days, {}]) == "on an unknown day in 1 process"
    assert recorded([], []) == ""


def test_csv_has_the_agreed_columns_and_ten_digits(tmp_path: Path) -> None:
    write_table(SMALL, Settings(), CELLS, HEADER, tmp_path)
    text = (tmp_path / "leviathan-3.csv").read_text()
    assert text.splitlines()[0] == "target,draft,column,published,measured,low,high,n,unit,status"
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(CELLS)
    for row, cell in zip(rows, CELLS, strict=True):
        for name in ("published", "measured", "low", "high", "n"):
            expected = getattr(cell, name)
            if expected is None or isinstance(expected, str):
                assert row[name] == (expected or "")
            else:
                assert float(row[name]) == pytest.approx(expected, rel=1e-9, abs=0)
        assert (row["target"], row["draft"]) == tuple(cell.row.split(" / "))
        assert (row["column"], row["unit"], row["status"]) == (cell.column, cell.unit, cell.status)


def test_row_heads_keep_their_columns_in_the_csv(tmp_path: Path) -> None:
    """A slash in a head splits nothing, and a head named as a column of the CSV, of the table or another head has its own."""
    table = replace(SMALL, row_heads=("data", "n", "alpha", "n"))
    write_table(table, Settings(), [Cell("CNN/DM / 3 / x / 4", "alpha", None, 0.5, n=7, status="measured")], HEADER, tmp_path)
    [row] = csv.DictReader((tmp_path / "leviathan-3.csv").read_text().splitlines())
    found = {name: row[name] for name in ("data", "n (row)", "alpha", "n (row) (row)", "column", "measured", "n")}
    assert list(found.values()) == ["CNN/DM", "3", "x", "4", "alpha", "0.5", "7"]


def test_markdown_puts_published_beside_measured(tmp_path: Path) -> None:
    write_table(SMALL, Settings(), CELLS, HEADER, tmp_path)
    page = (tmp_path / "leviathan-3.md").read_text()
    assert re.search(r"\| big +\| small +\| 0\.75 +\| 0\.71 \[0\.69, 0\.73\]~ \(1\) +\| 20", page)
    assert re.search(r"\| big +\| lost +\| not recovered \| not run", page)
    assert re.search(r"\| big +\| none +\| +\| 0\.20 \[0\.10, 0\.30\](~|) \(1\)", page)
    assert "- (1) 2 failed" in page
    assert "- (2) it, is not public" in page
    assert "- (3) it drifted" in page
    for fact in ("make reproduce-table-9", "abc123", "processor an EPYC", "cores 2", "examples 4 to 20", "a note"):
        assert fact in page
    assert "torch" not in page
    assert "x.jsonl" not in page


def test_markdown_columns_are_aligned() -> None:
    for block in markdown_table(SMALL, CELLS).split("\n\n")[:2]:
        lines = block.strip().splitlines()
        assert len(lines) >= 4
        assert len({len(line) for line in lines}) == 1
        assert len({tuple(m.start() for m in re.finditer(r"\|", line)) for line in lines}) == 1


def test_json_and_latex(tmp_path: Path) -> None:
    write_table(SMALL, Settings(limit=3), CELLS, HEADER, tmp_path)
    document = json.loads((tmp_path / "leviathan-3.json").read_text())
    assert document["settings"]["limit"] == 3
    assert document["header"]["commit"] == "abc123"
    for found, cell in zip(document["cells"], CELLS, strict=True):
        assert Cell(**{**found, "measured": cell.measured}) == cell
        is_number = isinstance(cell.measured, float)
        assert found["measured"] == (pytest.approx(cell.measured, rel=1e-9, abs=0) if is_number else cell.measured)
    tex = (tmp_path / "leviathan-3.tex").read_text()
    assert r"small \& odd\_title" in tex
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == 2
    for block in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", tex, flags=re.DOTALL):
        rows = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert len(rows) >= 3
        assert all(row.count(" & ") == len(block[0]) - 1 for row in rows)


def test_writing_twice_gives_the_same_bytes_and_leaves_nothing_else(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_table(SMALL, Settings(), CELLS, HEADER, tmp_path)]
    second = [path.read_bytes() for path in write_table(SMALL, Settings(), CELLS, HEADER, tmp_path)]
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"leviathan-3.{ending}" for ending in ("csv", "json", "md", "tex")
    ]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"leviathan-3\.md: cannot be written"):
        write_table(SMALL, Settings(), CELLS, HEADER, tmp_path / "file")


def facts_of(experiment: Experiment) -> dict[str, dict[str, int]]:
    """Sizes of all models, as a run notes them."""
    drafter = experiment.method.drafter
    specs = [experiment.target, *([drafter.model] if drafter is not None and drafter.model is not None else [])]
    return {spec.name: {"num_parameters": 1000} for spec in specs}


@pytest.mark.parametrize("table", MADE, ids=lambda table: table.name)
@pytest.mark.parametrize("recorded", [False, True])
def test_every_table_renders(table: Table, recorded: bool, synthetic: SimpleNamespace, tmp_path: Path) -> None:
    settings = Settings(limit=8)
    records_of = synthetic.run_all(table.plan(settings)) if recorded else lambda experiment: []
    cells = table.cells(settings, Evidence(records_of, facts_of=facts_of))
    paths = write_table(table, settings, cells, HEADER, tmp_path)
    assert [path.name for path in paths] == [f"{table.name}.{ending}" for ending in ("md", "csv", "json", "tex")]
    text = terminal_table(table, settings, cells)
    assert ("not run" in text) == (not recorded and table.number != 7)
    assert text.count("\n| ") >= 5
    assert max(map(len, paths[0].read_text(encoding="utf8").split("\n\n## ")[0].splitlines())) <= WIDTH
    assert "Nothing can be said" in text or recorded or table.number == 7


def test_long_names_of_what_ran_are_footnotes() -> None:
    """No committed page has a longer line than WIDTH; a name stands once, however many rows it ran in."""
    name = "a model whose weights were made of very much, " * 4
    text = markdown_table(SMALL, [replace(cell, ran=name) for cell in CELLS])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert " ".join(text.split()).count(name.strip()) == 1
    pages = [path for path in (ROOT / "results").glob("**/tables/*.md") if "runs" not in path.parts]
    assert len(pages) > 30
    assert not [path for path in pages if max(map(len, path.read_text(encoding="utf8").splitlines())) > WIDTH]


def test_table_9_shows_the_papers_alpha_beside_ours(synthetic: SimpleNamespace) -> None:
    table = TABLES[9]
    text = terminal_table(table, Settings(), table.cells(Settings(), Evidence(synthetic.run_all(table.plan(Settings())))))
    assert re.search(
        r"\| T5-XXL \(EnDe\) +\| T5-small +\| 0 +\| T5, 12\+12; 1\+1 +\| 0\.75 +\| "
        r"0\.60 \[0\.\d\d, 0\.\d\d\]~? \(\d+\) +\|",
        text,
    )
    assert re.search(r"\| LaMDA \(137B\) +\| LaMDA \(2B\) +\| 1 +\| +\| 0\.71 +\| impossible \(\d\)", text)


def test_the_readmes_sample_is_the_committed_table() -> None:
    """Its rows are made of the committed cells, footnotes apart."""
    root = Path(__file__).resolve().parents[2]
    document = json.loads((root / "results" / "tables" / "leviathan-3.json").read_text(encoding="utf8"))
    cells = {(cell["row"], cell["column"]): Cell(**cell) for cell in document["cells"]}
    readme = (root / "README.md").read_text(encoding="utf8").splitlines()
    _, *rows = [[part.strip() for part in line.split("|")[1:-1]] for line in readme if line.startswith("    | ")]
    assert len(rows) == 2
    for *heads, paper, here in rows:
        cell = cells[" / ".join(heads), "alpha"]
        assert paper == published_text(cell)
        assert here == re.sub(r" \(\d+\)$", "", measured_text(cell, Grid([], [], 3)))


WORDS = {10: "Ein", 11: " <Haus>", 12: " am", 13: " See", 14: ".", 15: "\n", 900: " Hund", 901: " Kuh", 902: " Esel"}


def decode(ids: list[int]) -> str:
    return "".join(WORDS[token] for token in ids).removeprefix(" ")


def test_rounds_are_coloured_by_what_became_of_each_token(synthetic: SimpleNamespace) -> None:
    experiment = synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=2)
    rounds = coloured_rounds(synthetic.drafted(experiment, "a", 6, accepted=(1, 0, 2)), decode)
    assert rounds[0] == [Token("Ein", "accepted"), Token(" Kuh", "rejected"), Token(" <Haus>", "corrected")]
    assert rounds[1] == [Token(" Hund", "rejected"), Token(" Kuh", "dropped"), Token(" am", "corrected")]
    assert rounds[2] == [Token(" See", "accepted"), Token(".", "accepted"), Token("⏎", "bonus")]


def test_coloured_text_is_the_output(synthetic: SimpleNamespace) -> None:
    experiment = synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=3)
    for num_tokens in (1, 2, 3, 4, 5):
        record = synthetic.drafted(experiment, "a", num_tokens, accepted=(2, 3, 0))
        kept = [t.text for row in coloured_rounds(record, decode) for t in row if t.kind in ("accepted", "corrected", "bonus")]
        assert "".join(kept) == decode(record.tokens)


def test_drafts_behind_a_stopping_draft_are_dropped_not_rejected(synthetic: SimpleNamespace) -> None:
    record = synthetic.drafted(synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=3), "a", 2, accepted=(2,))
    assert (record.steps.num_accepted, record.steps.emitted) == ([2], [2])
    assert [token.kind for token in coloured_rounds(record, decode)[0]] == ["accepted", "accepted", "dropped"]


def test_terminal_and_page(synthetic: SimpleNamespace) -> None:
    experiment = synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=2)
    record = synthetic.drafted(experiment, "a", 6, accepted=(1, 0, 2))
    marked = to_terminal(record, decode, colour=False)
    assert marked.splitlines()[0] == "1  Ein[- Kuh-][+ <Haus>+]"
    assert "6 tokens in 3 runs of the target: 2.00 tokens a run" in marked
    assert re.sub(r"\x1b\[[0-9;]*m", "", to_terminal(record, decode)).splitlines()[0] == "1  Ein Kuh <Haus>"
    page = to_html(record, decode, "a < b")
    assert "&lt;Haus&gt;" in page
    assert "<Haus>" not in page
    assert page.count("<li>") == page.count("</li>") == 3
    with pytest.raises(UsageError, match="status failed"):
        to_html(synthetic.failed(experiment, "a"), decode)


def test_rows_without_a_model_are_counted_in_a_line() -> None:
    """Optimized's Qwen and Gemma rows have the paper's numbers alone in profile toy: the CSV and the report have them."""
    cells = [
        Cell("here / a", "alpha", 0.5, 0.4, 0.3, 0.5, 50, "", "measured"),
        Cell("gone / a", "alpha", 0.6, status="no model: the zoo has no Qwen"),
        Cell("gone / b", "alpha", 0.7, status="no model: the zoo has no Qwen"),
    ]
    text = terminal_table(SMALL, Settings(), cells)
    assert "| gone" not in text
    assert "2 rows of the paper stand in the CSV and the report alone: the zoo has no Qwen." in text
    assert terminal_table(SMALL, Settings(), cells[1:]).count("| gone") == 2, "where no row has one, all are shown"


def test_a_cell_of_fewer_examples_than_its_row_names_its_n() -> None:
    """PPD's Table 6 printed n = 640 beside a rate of 78 texts; alone in a grid, these 78 are the row's."""
    cells = [
        Cell("big / small", "alpha", None, 0.7, 0.6, 0.8, 640, "", "measured"),
        Cell("big / small", "ratio", None, 0.5, 0.4, 0.6, 78, "", "measured", "odd"),
        Cell("big / other", "alpha", None, 0.7, 0.6, 0.8, 640, "", "measured"),
        Cell("big / other", "ratio", None, 0.5, 0.4, 0.6, 640, "", "measured"),
        Cell("big / weights", "alpha", None, 0.7, 0.6, 0.8, 640, "", "measured"),
        Cell("big / weights", "ratio", None, 3.57, None, None, None, "", "computed"),  # of a model, not of examples
        Cell("big / one", "alpha", None, 0.7, 0.6, 0.8, 640, "", "measured"),
        Cell("big / one", "ratio", None, 0.11, None, None, 1, "", "measured"),  # of the one text that did not loop, say
    ]
    together = markdown_table(replace(SMALL, blocks=(("alpha", "ratio"),)), cells)
    assert "| 0.70 [0.60, 0.80] | 0.50 [0.40, 0.60]~ n=78 (1) | 640 |" in together
    assert "| 0.11 n=1 " in together
    assert together.count("n=") == 2
    assert re.search(r"\| 0\.50 \[0\.40, 0\.60\]~ \(1\) +\| 78 +\|", markdown_table(SMALL, cells))
