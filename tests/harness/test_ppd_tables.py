"""PPD's match-rate tables: every printed number stands beside the right measurement, and says what differs from the paper."""

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Experiment, ModelSpec
from harness.core.records import Record
from harness.core.settings import Settings, folder_of
from harness.measures.pipelines import match_rate, ranks_of
from harness.measures.statistics import Missing
from harness.models.names import num_layers
from harness.papers import INPUTS, TABLES, command_of
from harness.papers.ppd.match import middle, position_of
from harness.papers.ppd.setup import (
    DEPTHS,
    ROLES,
    TASKS,
    heads_of,
    layer_notes,
    layers_of,
    limit_of,
    match_arm,
    paper_layers,
    setting,
)
from harness.report.relation import judge
from harness.tables import published
from harness.tables.base import Cell, Table
from harness.tables.evidence import Evidence
from harness.tables.layout import terminal_table, title
from harness.zoo.build import ensure
from harness.zoo.recipes import RECIPES
from kernels.inputs import SamplingSpec
from methods.ppd.theory import scaled_layer
from tasks import get_task
from tasks.base import Example
from tasks.sources.read import read_examples

NUMBERS = {1: "table_2", 3: "table_5", 4: "table_6", 5: "table_7", 6: "table_8"}
MADE = {number: table for number in NUMBERS if isinstance(table := TABLES[number], Table)}
FEW = Settings(limit=6, fixed_length=True)
ENDED = Settings(limit=6)
RecordsOf = Callable[[Experiment], list[Record]]


def by_place(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.row, cell.column): cell for cell in cells}


@pytest.fixture
def records_of(synthetic: SimpleNamespace) -> RecordsOf:
    """All five tables run whole, few examples."""
    return synthetic.run_all([comparison for table in MADE.values() for comparison in table.plan(FEW)])


def test_tables_have_the_papers_numbers() -> None:
    assert {number: table.paper_number for number, table in MADE.items()} == {1: 2, 3: 5, 4: 6, 5: 7, 6: 8}
    sizes = {number: len(table.cells(FEW, Evidence(lambda arm: []))) for number, table in MADE.items()}
    assert sizes == {1: 90, 3: 6, 4: 270, 5: 270, 6: 270}


@pytest.mark.parametrize("number", NUMBERS)
def test_every_printed_number_is_shown_once(number: int) -> None:
    printed = sorted(float(row["match_rate_pct"]) for row in published.read("ppd", NUMBERS[number]))
    shown = sorted(cell.published for cell in MADE[number].cells(FEW, Evidence(lambda arm: [])))
    assert shown == printed


def test_table_2_measures_what_it_prints(records_of: RecordsOf) -> None:
    cells = by_place(MADE[1].cells(FEW, Evidence(records_of)))
    for row in published.read("ppd", "table_2"):
        cell = cells[f"{row['dataset']} / {row['k']} / {row['trained']}", f"layer {row['layer']}"]
        records = records_of(match_arm(FEW, row["dataset"]))
        expected = match_rate(records, row["trained"], int(row["layer"]), int(row["k"]))
        assert (cell.published, cell.measured) == (float(row["match_rate_pct"]), expected.value)
        assert (cell.status, cell.unit, cell.n) == ("measured", "%", 6)
        shown = (expected.low, expected.high) if expected.exact else (None, None)  # of six examples exact intervals alone
        assert (cell.low, cell.high) == shown
    assert len({cell.measured for cell in cells.values()}) > 20


@pytest.mark.parametrize("number", [4, 5, 6])
def test_positions_and_totals(number: int, records_of: RecordsOf) -> None:
    """With outputs of equal length a total is the mean over its bins, and Table 2's cell for the same layer, k and head."""
    rows = published.read("ppd", NUMBERS[number])
    cells, whole = by_place(MADE[number].cells(FEW, Evidence(records_of))), by_place(MADE[1].cells(FEW, Evidence(records_of)))
    for row in rows:
        column, positions = position_of(row["token_position"])
        cell = cells[f"{row['layer']} / {row['k']} / {row['trained']}", column]
        expected = match_rate(
            records_of(match_arm(FEW, row["dataset"])), row["trained"], int(row["layer"]), int(row["k"]), positions
        )
        assert (cell.published, cell.measured) == (float(row["match_rate_pct"]), expected.value)
    totals = [cell for (_, column), cell in cells.items() if column == "Total"]
    for total in totals:
        bins = [cell.measured for (name, column), cell in cells.items() if name == total.row and column != "Total"]
        assert len(bins) == 8
        assert total.measured == pytest.approx(sum(bins) / 8, abs=1e-9)
        layer, k, trained = total.row.split(" / ")
        assert total.measured == whole[f"{rows[0]['dataset']} / {k} / {trained}", f"layer {layer}"].measured
    assert len(totals) == 30
    assert len({cell.measured for cell in cells.values()}) > 20


def test_bins_cover_every_position_once() -> None:
    for name in ("table_6", "table_7", "table_8"):
        rows = published.read("ppd", name)
        labels = dict.fromkeys(row["token_position"] for row in rows)
        bins = [bounds for label in labels if (bounds := position_of(label)[1]) is not None]
        length = int(setting(rows[0]["dataset"])["gen_tokens"])
        assert [position for bounds in bins for position in bounds] == list(range(length))


def test_the_paper_s_own_totals_are_means_over_its_bins() -> None:
    """Why ours are read as the same quantity (text_claims.csv says that all 90 agree)."""
    checked = 0
    for name in ("table_6", "table_7", "table_8"):
        rows = published.read("ppd", name)
        groups: dict[tuple[str, ...], dict[str, float]] = {}
        for row in rows:
            group = groups.setdefault((row["layer"], row["k"], row["trained"]), {})
            group[row["token_position"]] = float(row["match_rate_pct"])
        for values in groups.values():
            total = values.pop("total")
            assert total == pytest.approx(sum(values.values()) / len(values), abs=0.011)
            checked += 1
    assert checked == 90


def test_at_eos_rates_are_pooled_over_what_is_there(synthetic: SimpleNamespace) -> None:
    """Outputs of different lengths: the total is all matches over all tokens, not the mean over bins; the note says so."""
    table = MADE[5]
    arm = match_arm(ENDED, "WMT")
    assert not arm.ignore_eos
    assert arm.signature != match_arm(FEW, "WMT").signature
    records = synthetic.run(arm)
    records[0].stop_reason = "eos"
    cells = by_place(table.cells(ENDED, Evidence(lambda experiment: records if experiment == arm else [])))
    ranks = [rank for record in records for rank in ranks_of(record, "N", 20)]
    total = cells["20 / 3 / N", "Total"]
    assert total.measured == pytest.approx(100 * sum(rank < 3 for rank in ranks) / len(ranks))
    assert "1 of 6 outputs ended at EOS; 23.0 tokens on average" in cells["10 / 1 / N", "1-16"].note
    empty = cells["20 / 3 / N", "113-128"]
    assert (empty.status, empty.measured, empty.note) == ("not reached", None, "no output is so long; nothing failed")
    assert [(one.relation, one.reason) for one in judge([empty], ENDED)] == [("not comparable", "not reached")]
    text = terminal_table(table, ENDED, list(cells.values()))
    words = " ".join(text.split())
    assert "33-48 (here)" in text, "some outputs reach its block"
    assert "Columns 49-64, 65-80, 81-96 stand in the CSV and the report alone: no output is so long; nothing failed." in words
    assert "81-96 (" not in text
    assert any("what is there is pooled" in note and "not the mean over positions" in note for note in table.notes(ENDED))
    assert any("EOS is ignored, as in the paper" in note for note in table.notes(FEW))


def test_table_5_reads_each_kind_of_sampling(records_of: RecordsOf) -> None:
    table = MADE[3]
    arms = [comparison.arms[0] for comparison in table.plan(Settings())]
    drawn = (SamplingSpec(temperature=1.0, top_k=3), SamplingSpec(temperature=1.0, top_p=0.95))
    assert [arm.sampling for arm in arms[::2]] == [arm.sampling for arm in arms[1::2]] == [SamplingSpec(), *drawn]
    assert [(arm.task, arm.limit, arm.max_new_tokens) for arm in arms] == [("cnndm", 100, 128), ("squad", 100, 16)] * 3
    assert {early.layers for arm in arms for early in arm.early} == {(20,)}
    assert all(early.heads is None for arm in arms for early in arm.early)
    cells = by_place(table.cells(FEW, Evidence(records_of)))
    assert [row for row, column in cells if column == "SQUAD"] == ["Greedy", "Top-k sampling k = 3", "Top-p sampling p = 0.95"]
    few = {(arm.task, arm.sampling.top_k): arm for arm in (comparison.arms[0] for comparison in table.plan(FEW))}
    expected = match_rate(records_of(few["squad", 3]), "N", 20, 3)
    cell = cells["Top-k sampling k = 3", "SQUAD"]
    assert (cell.published, cell.measured, cell.n) == (43.78, expected.value, 6)
    assert any("prints no layer" in note and "layer 20 of 40" in note for note in table.notes(Settings()))


def test_arms_are_the_papers_protocol() -> None:
    for dataset, task in TASKS.items():
        arm = match_arm(Settings(), dataset)
        assert (arm.task, arm.method.name, arm.sampling.greedy, arm.ignore_eos) == (task, "autoregressive", True, False)
        assert arm.max_new_tokens == {"SQUAD": 16, "WMT": 128, "CNN/DM": 128}[dataset]
        assert match_arm(Settings(fixed_length=True), dataset) == arm.replace(ignore_eos=True)
        assert arm.prompt_style == "instruction"
        assert [early.label for early in arm.early] == ["N", "Y"]
        assert {early.layers for early in arm.early} == {(10, 20, 30, 35, 37)}
        assert limit_of(Settings(profile="paper"), dataset) == {"SQUAD": 10570, "WMT": 1500, "CNN/DM": 11487}[dataset]
        assert limit_of(Settings(limit=3), dataset) == 3
        assert limit_of(Settings(profile="test"), dataset) == limit_of(Settings(profile="test", source="some"), dataset) == 4
    assert limit_of(Settings(source="some"), "WMT") == int(setting("WMT")["n_test"]) > limit_of(Settings(), "WMT")
    for number, datasets in {4: ["SQUAD"], 5: ["WMT"], 6: ["CNN/DM"], 1: list(TASKS)}.items():
        planned = [comparison.arms for comparison in MADE[number].plan(Settings())]
        assert planned == [(match_arm(Settings(), dataset),) for dataset in datasets]


def test_prompts_are_the_papers_literally() -> None:
    fields = {
        "SQUAD": ({"context": "Some text.", "question": "Why?", "title": "t"}, {"context": "Some text.", "question": "Why?"}),
        "WMT": ({"source": "It rains."}, {"source_sentence": "It rains."}),
        "CNN/DM": ({"article": "It rained."}, {"context": "It rained."}),
    }
    shown = {label.split(",")[0]: text for label, text in INPUTS[0].entries()}
    for dataset, task in TASKS.items():
        ours, theirs = fields[dataset]
        expected = setting(dataset)["prompt_newlines_as_backslash_n"].replace("\\n", "\n")
        assert get_task(task).prompt(Example("1", ours, ("x",)), "instruction") == expected.format(**theirs)
        assert shown[dataset] == expected


def test_the_paper_s_translation_pairs_are_read_from_a_folder(shared: Path) -> None:
    examples = list(read_examples(get_task("wmt-en-fr"), str(shared / "data"), "test", None, 0))
    with (shared / "data/wmt/newsdiscusstest2015.en-fr.jsonl").open(encoding="utf8") as file:
        lines = [json.loads(line)["translation"] for line in file]
    assert [example.inputs["source"] for example in examples] == [line["en"] for line in lines]
    assert len(lines) == int(setting("WMT")["n_test"]) == 1500


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(40, [10, 20, 30, 35, 37]), (16, [4, 8, 12, 14, 15]), (22, [6, 11, 17, 19, 20]), (4, [1, 2, 3, 3, 3]), (2, [1] * 5)],
)
def test_layers_keep_their_fraction_of_the_depth(depth: int, expected: list[int]) -> None:
    found = [scaled_layer(layer, depth) for layer in paper_layers()]
    assert found == expected
    for layer, here in zip(paper_layers(), found, strict=True):
        nearest = min(range(1, depth), key=lambda other: (abs(other - layer * depth / 40), -other))
        assert here == nearest


def test_a_target_of_another_depth(synthetic: SimpleNamespace) -> None:
    """Layers that fall together are asked for once, and the note names them."""
    shallow = dataclasses.replace(FEW, profile="test", models=(("vicuna-13b", "zoo:llama-target"),))
    assert layers_of(shallow) == {10: 1, 20: 2, 30: 3, 35: 3, 37: 3}
    assert match_arm(shallow, "WMT").early[0].layers == (1, 2, 3)
    notes = " ".join(layer_notes(shallow, "vicuna-13b"))
    assert "of the 4 layers here, 10 is 1, 20 is 2, 30 is 3, 35 is 3, 37 is 3" in notes
    assert "layers 30 and 35 and 37 fall together" in notes
    assert layer_notes(FEW, "vicuna-13b") == []
    assert middle(dataclasses.replace(shallow, models=(("llama-2-13b", "zoo:llama-target"),))) == 2
    cells = by_place(MADE[1].cells(shallow, Evidence(synthetic.run_all(MADE[1].plan(shallow)))))
    assert cells["WMT / 1 / N", "layer 35"].measured == cells["WMT / 1 / N", "layer 37"].measured
    with pytest.raises(UsageError, match=r"zoo:llama-draft-small for the role vicuna-13b: 1 layer; expected at least 2"):
        match_arm(dataclasses.replace(shallow, models=(("vicuna-13b", "zoo:llama-draft-small"),)), "WMT")


def test_heads_that_are_not_there_are_impossible_and_say_what_to_do(synthetic: SimpleNamespace) -> None:
    for settings in (
        Settings(profile="paper"),
        Settings(profile="small"),
        Settings(models=(("vicuna-13b", "zoo:llama-target"),)),
    ):
        assert isinstance(heads_of(settings), Missing)
        few = dataclasses.replace(settings, limit=3)
        cells = MADE[1].cells(few, Evidence(synthetic.run_all(MADE[1].plan(few))))
        missing = [cell for cell in cells if cell.status.startswith("no model: ")]
        assert len(missing) == 45
        assert all(cell.row.endswith("/ Y") and cell.published and "foretoken heads" in cell.status for cell in missing)
        assert all(cell.status == "measured" for cell in cells if cell not in missing)
    named = Settings(models=(("vicuna-13b", "zoo:llama-target"), ("heads", "my/heads")))
    assert heads_of(named) == ModelSpec(name="my/heads")
    assert [early.label for early in match_arm(named, "WMT").early] == ["N", "Y"]


def test_the_zoos_model_is_as_deep_as_the_papers() -> None:
    for profile in ("toy", "test"):
        assert num_layers(ModelSpec(name=ROLES[profile]["vicuna-13b"]), profile) == 40
        heads = RECIPES[profile]["llama-deep-heads"]
        assert set(paper_layers()) <= set(heads.layers)
    roles = (role for profile in ("pocket", "small", "paper") for role in ROLES[profile].items())
    assert {name for role, name in roles if role != "heads"} == set(DEPTHS)


def test_notes_say_where_paper_and_theory_part() -> None:
    notes = " ".join(MADE[1].notes(Settings()))
    assert "Layer 10 is before the middle, where Theorem 4.1 does not hold" in notes
    assert "names layers 15,20,30,35,37; the tables have 10,20,30,35,37" in notes
    assert "without a version" in " ".join(MADE[1].notes(Settings(profile="paper")))
    assert "without a version" not in notes
    assert "newsdiscusstest2015" in " ".join(MADE[5].notes(Settings(profile="paper", source="hub")))


def test_cut_prompts_and_loops_are_counted(synthetic: SimpleNamespace) -> None:
    arm = match_arm(FEW, "CNN/DM")
    records = synthetic.run(arm)
    for record in records[:2]:
        record.truncated_tokens = 31
    for record in records:
        record.tokens = [5, 6] * 64
    cells = by_place(MADE[6].cells(FEW, Evidence(lambda experiment: records if experiment == arm else [])))
    note = cells["10 / 1 / N", "1-16"].note
    assert f"2 of 6 prompts were cut to {arm.max_input_tokens} tokens" in note
    assert re.search(r"9\d% of the outputs' 4-grams repeat earlier ones", note)
    assert sum(cell.note == note for cell in cells.values()) == 1


def test_other_settings_go_to_other_files() -> None:
    fixed = Settings(fixed_length=True)
    assert folder_of(Settings()) != folder_of(fixed) == Path("results/runs/toy-toy-fixed-length")
    assert command_of("table", "1", fixed) == "make reproduce-table-1 FIXED_LENGTH=1"
    named = dataclasses.replace(fixed, models=(("heads", "my/heads"),))
    assert command_of("table", "1", named) == "foretoken table 1 --reproduce --fixed-length --model heads=my/heads"


def test_tables_of_settings_are_shown(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    records = ("--records", str(tmp_path))
    assert main(["tables", *records]) == 0
    text = capsys.readouterr().out
    assert "| ### Given this information, please answer the question: {question}" in text
    assert re.search(r"Learning Rate +0\.00002", text)
    assert main(["tables", "--json", "--model", "heads=zoo:llama-deep-heads", *records]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out) if row["kind"] == "setting"}
    assert rows["ppd-4"]["values"]["Batch Size"] == "128"
    assert rows["specdec-7"]["values"]["max update, model NAT drafter, setting WMT16 EN-RO"] == "50K"
    assert set(rows) == {"ppd-1", "ppd-4", "specdec-7"}
    assert main(["tables", "--model", "nobody=x", *records]) == 2
    assert "model role 'nobody'" in capsys.readouterr().err
    assert main(["table", "9", "--fixed-length", *records]) == 2
    assert "fixed_length: table 9" in capsys.readouterr().err


def test_a_table_fits_a_terminal(records_of: RecordsOf) -> None:
    for number, table in MADE.items():
        text = terminal_table(table, FEW, table.cells(FEW, Evidence(records_of)))
        assert title(table) in text
        assert max(len(line) for line in text.splitlines() if line.startswith("|")) <= 170, number


def test_all_tables_from_nothing_on_the_test_zoo(
    zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Every cell of the five tables is filled by running the real model and heads; intervals hold; nothing runs twice."""
    ensure(("llama-deep", "llama-deep-heads"), "test", "toy", workers=0)
    monkeypatch.setattr("harness.core.settings.RESULTS", tmp_path / "results")
    arguments = ["--profile", "test", "--limit", "2", "--records", str(tmp_path / "records"), "--quiet"]
    filled = 0
    for number, table in MADE.items():
        assert main(["table", str(number), "--reproduce", *arguments]) == 0
        with (tmp_path / f"results/runs/test-toy-limit-2/tables/{table.name}.csv").open() as file:
            for row in csv.DictReader(file):
                assert row["status"] == "measured", row
                assert 0 <= float(row["low"] or 0) <= float(row["measured"]) <= float(row["high"] or 100) <= 100
                filled += 1
    assert filled == 906
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").glob("*.jsonl")}
    assert len(before) == 7  # texts, each once; what tables read off them are probes
    assert main(["table", "1", "--reproduce", *arguments]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "not run" not in capsys.readouterr().out
