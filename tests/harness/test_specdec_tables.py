"""SpecDec's tables of quality and speed: every printed number stands beside the right measurement, and lost ones say so."""

import csv
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.experiment import Comparison, Experiment, ModelSpec
from harness.core.notes import Notes
from harness.core.record_files import RecordFile
from harness.core.records import Divergence, Record
from harness.core.settings import Settings
from harness.measures.of_run import of_task
from harness.papers import TABLES
from harness.papers.specdec.columns import trained_on
from harness.papers.specdec.measures import sentence_speedup
from harness.papers.specdec.quality import GRID
from harness.papers.specdec.setup import (
    ALIKE,
    ALONE,
    BEAM,
    BIG,
    CAPTIONS_ALONE,
    CNNDM,
    EN_DE,
    GREEDY,
    HIGH_EFFICIENCY,
    HIGH_QUALITY,
    NOT_DEVELOPED,
    PAIRS,
    QUALITY,
    ROLES,
    STRICT,
    THEIR_BEAM,
    Setup,
    arms_of,
    gamma_of,
    greedy,
)
from harness.run.plan import COMMAND, run_plan
from harness.run.runner import Runner, model_facts, pin
from harness.tables import published
from harness.tables.base import Cell, Table
from harness.tables.engine import Known, Row
from harness.tables.evidence import Evidence, stored_evidence
from harness.tables.finding import opening
from harness.tables.published import NOT_RECOVERED
from harness.zoo.cache import seal
from harness.zoo.corpus import build_corpus, read_corpus
from harness.zoo.recipes import RECIPES, folder_of, recipe_for
from harness.zoo.text import batches_for
from tasks import get_task
from tasks.base import Example
from tasks.sources.read import read_examples

NUMBERS = {12: 1, 13: 2, 14: 3, 15: 4, 16: 5, 17: 6, 18: 8, 19: 9, 20: 10, 21: 11, 22: 12, 23: 13}
MADE = {number: table for number in NUMBERS if isinstance(table := TABLES[number], Table)}
FEW = Settings(limit=6, repeats=2)
POCKET = Settings(profile="pocket", source="a/folder")
ALL = {number: table for number, table in TABLES.items() if isinstance(table, Table) and table.paper == "specdec"}
RecordsOf = Callable[[Experiment], list[Record]]
SECONDS = {"autoregressive": 0.01, "beam": 0.03, "transformers": 0.05}


def nothing(experiment: Experiment) -> list[Record]:
    return []


def by_place(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.row, cell.column): cell for cell in cells}


def record_of(synthetic: SimpleNamespace, arm: Experiment, number: int, repeat: int) -> Record:
    """Sentences differ in length and acceptance; beams and lossy methods write other tokens, one in three, than greedy."""
    method, length = arm.method, 12 + 4 * (number % 3)
    common = {"repeat": repeat, "start_s": 0.02}
    if method.name in SECONDS:
        record = synthetic.plain(arm, f"e{number}", length, SECONDS[method.name], **common)
    else:
        most = {"top-1": 3, "top-beta": 3 + method.values.get("beta", 3)}.get(method.values.get("rule"), method.gamma)
        turn = [(number + index) % (most + 1) for index in range(5)]
        record = synthetic.drafted(arm, f"e{number}", length, turn if method.drafter else (most,), **common)
    words = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf"]
    text = [words[(number + index) % len(words)] for index in range(10)]
    lossy = method.name in ("beam", "transformers", "drafter-alone") or method.values.get("rule") == "top-beta"
    if lossy and number % 3 == 0:
        record.tokens = [*(record.tokens or []), 7, 7]
        text[4 : 4 + method.values.get("beta", 3)] = ["falsch"]
    record.steps = None if method.name == "transformers" else record.steps
    reference = " ".join(words[(number + index) % len(words)] for index in range(10))
    record.text = " ".join(text)
    example = Example(f"e{number}", {"source": "s", "article": "a"}, (reference,))
    record.statistics = dict(get_task(arm.task).statistics(example, record.text))
    record.nats = (0.25 + number / 64) * len(record.tokens or ())
    return record


def run(synthetic: SimpleNamespace, settings: Settings, *numbers: int) -> RecordsOf:
    """Those tables run whole."""
    known = {}
    for arm in {arm: None for number in numbers for one in MADE[number].plan(settings) for arm in one.arms}:
        known[arm] = [record_of(synthetic, arm, number, repeat) for repeat in range(arm.repeats) for number in range(arm.limit)]
    return lambda arm: known.get(arm, [])


def test_tables_have_the_papers_numbers() -> None:
    assert {number: table.paper_number for number, table in MADE.items()} == NUMBERS
    assert all(table.paper == "specdec" for table in MADE.values())


def test_published_numbers_are_the_shared_ones(shared: Path) -> None:
    """Copied, not typed: the product has its own copy of every file."""
    theirs = {path.name: path.read_text() for path in (shared / "papers/published/specdec").glob("*.csv")}
    ours = {path.name: path.read_text() for path in (published.FOLDER / "specdec").glob("*.csv")}
    assert len(theirs) == 22
    assert ours == theirs


@pytest.mark.parametrize("number", [12, 14, 15, 17])
def test_every_recovered_number_is_shown(number: int) -> None:
    """Counted from the CSV files. Settings and another paper's teachers are no results of this one."""
    rows = published.read("specdec", f"table_{NUMBERS[number]}")
    results = [row for row in rows if row["metric"] != "beta,tau" and "Saharia" not in row["model"]]
    expected = sorted(float(row["value"]) for row in results if row["value"])
    cells = MADE[number].cells(Settings(), Evidence(nothing))
    assert sorted(cell.published for cell in cells if isinstance(cell.published, float)) == expected
    assert len(expected) >= 1
    assert sum(cell.published == NOT_RECOVERED for cell in cells) >= 6


def test_table_1_says_which_numbers_are_lost() -> None:
    cells = by_place(MADE[12].cells(Settings(), Evidence(nothing)))
    k = f"k = {gamma_of(Settings(), EN_DE)}"
    for row, column, value in [
        ("AT, no Seq-KD / b = 5", "BLEU", NOT_RECOVERED),
        ("AT verifier / b = 5", "speed", 1.0),
        ("AT verifier / b = 5, transformers", "speed", None),
        ("AT verifier / b = 1", "speed", NOT_RECOVERED),
        ("AT verifier / b = 1", "iterations", None),
        (f"NAT drafter / {k}", "speed", 14.3),
        (f"NAT drafter / {k}", "BLEU", 26.48),
        (f"NAT drafter / {k}", "iterations", 1.6),
        (f"SpecDec / {k}", "speed", 3.0),
        (f"SpecDec++ / {k}, top-3, tau 1", "speed", 3.6),
        (f"SpecDec++ / {k}, top-5, tau 3", "speed", 4.5),
        (f"SpecDec++ / {k}, top-5, tau 3", "BLEU", NOT_RECOVERED),
        (f"SpecDec++ / {k}, top-5, tau 3", "over greedy", None),
    ]:
        assert cells[row, column].published == value, (row, column)
    assert ("AT, no Seq-KD / b = 5", "speed") not in cells  # another model, run apart


def test_numbers_of_another_version_of_the_paper_say_so() -> None:
    """Two of Table 1 are arXiv v1's, told by others; the third that they tell is also in the paper's text."""
    (note,) = [one for one in MADE[12].notes(Settings()) if one.startswith("(paper)")]
    assert "speed_x of NAT drafter, k=25; BLEU of NAT drafter, k=25: number of arXiv v1" in note
    assert "iterations" not in note
    assert not [one for one in MADE[14].notes(Settings()) if one.startswith("(paper)")]


def test_models_are_named_with_their_shape_and_updates() -> None:
    """Some models are trained for less long than others: a reader must see it beside the numbers."""
    for number in MADE:
        for note in MADE[number].notes(Settings()):
            if note.startswith("Models here"):
                assert note.count("zoo:") == note.count(" updates"), note
    drafter = RECIPES["toy"]["specdec-drafter"]
    shown = f"zoo:specdec-drafter (2 + 2 layers, width 128, k = 8, {drafter.steps} updates behind {drafter.initial.steps} of"
    assert any(shown in note for note in MADE[12].notes(Settings()))


def test_depths_are_those_of_the_models_here() -> None:
    for profile, depths in (
        ("toy", {"base, 2 + 24", "deep-shallow, 6 + 2"}),
        ("paper", {"base, 6 + 6", "deep-shallow, 12 + 2"}),
    ):
        rows = MADE[21].cells(Settings(profile=profile), Evidence(nothing))
        assert {cell.row.split(" / ")[0] for cell in rows} == depths


def test_table_9_has_no_number_of_a_setting_that_its_caption_lacks() -> None:
    printed = {cell.row.rpartition(", ")[2]: cell.published for cell in MADE[19].cells(Settings(), Evidence(nothing))}
    assert printed["tau 3"] is None
    assert MADE[19].cells(Settings(), Evidence(nothing))[0].published == NOT_RECOVERED


def test_a_table_trains_only_what_it_shows() -> None:
    """The drafter with the shared encoder is Table 18's alone; Table 1 needs these three, their teacher and a pair alike."""

    def models(number: int) -> set[str]:
        arms = [arm for one in MADE[number].plan(Settings()) for arm in one.arms]
        drafters = [arm.method.drafter.model for arm in arms if arm.method.drafter is not None]
        return {spec.name for spec in [*(arm.target for arm in arms), *drafters]}

    alike = {"zoo:specdec-alike-verifier", "zoo:specdec-alike-drafter"}
    assert models(12) == {"zoo:specdec-verifier", "zoo:specdec-verifier-raw", "zoo:specdec-drafter"} | alike
    assert not [number for number in MADE if "zoo:specdec-drafter-shared" in models(number)]


@pytest.mark.parametrize("number", [13, 16, 18, 19, 20, 21, 22, 23])
def test_tables_that_are_lost_whole_print_so(number: int) -> None:
    shown = {cell.published for cell in MADE[number].cells(Settings(), Evidence(nothing))}
    assert NOT_RECOVERED in shown
    assert shown <= {NOT_RECOVERED, None}


def test_rows_of_table_6_that_are_lost_print_so_and_footnotes_are_no_rows() -> None:
    """All that is left of strict SpecDec's ROUGE is that it equals the verifier's; a teacher has a BLEU in a footnote alone."""
    cells, k = by_place(MADE[17].cells(Settings(), Evidence(nothing))), f"k = {gamma_of(Settings(), CNNDM)}"
    rows = ["AT verifier / b = 5", "AT verifier / b = 1", f"SpecDec / {k}"]
    rows += [f"SpecDec++ / {k}, top-3, tau 1", f"SpecDec++ / {k}, top-5, tau 3"]
    for row in rows:
        for column in ("speed", "ROUGE-1", "ROUGE-2", "ROUGE-L"):
            expected = 3.0 if (row, column) == (f"SpecDec / {k}", "speed") else NOT_RECOVERED
            assert cells[row, column].published == expected, (row, column)
    assert cells[f"NAT drafter / {k}", "ROUGE-1"].published is None
    cells_15 = MADE[15].cells(Settings(), Evidence(nothing))
    teacher = {cell.column: cell.published for cell in cells_15 if cell.row.startswith("teacher, EN-DE")}
    assert teacher["BLEU"] == 29.3
    assert {value for column, value in teacher.items() if column != "BLEU"} == {None}


def test_models_are_said_to_be_one_training_each_and_heads_to_be_shared() -> None:
    for number in (12, 13, 15, 16, 17, 18, 20, 21):
        assert any("Each model is one training" in note for note in MADE[number].notes(Settings()))
    assert any("k = 2 runs the first 1 of the 9 heads trained for k = 10" in note for note in MADE[15].notes(Settings()))


def test_trainings_are_compared_on_real_captions_too_all_for_one_verifier() -> None:
    """Each ablation changes one thing: glancing, or whose translations are learned."""
    assert "multi30k" not in repr(MADE[16].plan(Settings()))
    captions = MADE[16].plan(Settings(source="a/folder"))[-1].arms
    assert {(arm.task, arm.target.name) for arm in captions} == {("multi30k-en-de", "zoo:specdec-multi30k-verifier")}
    drafters = [arm.method.drafter.model.name.removeprefix("zoo:") for arm in captions if arm.method.drafter is not None]
    base, glancing, raw, printed, plain = (recipe_for(name, "toy", "a/folder") for name in drafters)
    assert glancing == dataclasses.replace(base, name=glancing.name, glancing=glancing.glancing)
    assert glancing.glancing is not None
    assert raw == dataclasses.replace(base, name=raw.name, corpus=base.corpus.teacher.corpus)
    assert printed == dataclasses.replace(
        base, name=printed.name, place_decay=1.0, steps=3 * base.steps, glancing=glancing.glancing
    )
    assert plain == dataclasses.replace(printed, name=plain.name, glancing=None)
    assert {(arm.limit, arm.repeats) for arm in captions} == {(1000, 1)}
    rows = {(cell.row, cell.column) for cell in MADE[16].cells(Settings(source="a/folder"), Evidence(nothing))}
    changes = ("with glancing", "no distillation", "printed loss", "printed loss, no glancing")
    assert {(f"base, Multi30k, {change} / k = 8", "of base") for change in changes} <= rows
    assert ("base, Multi30k / k = 8", "emitted") in rows
    assert ("base, Multi30k / k = 8", "of base") not in rows


def test_a_pair_of_one_shape_stands_beside_ours_as_the_papers_does() -> None:
    """The paper's verifier and drafter have 6 + 6 layers both; ours of Table 1 have 2 + 24 and 2 + 2."""
    for scale, group, width in (("toy", "specdec", 64), ("pocket", "specdec-multi30k", 96)):
        for name in ("verifier", "drafter"):
            recipe = RECIPES[scale][f"{group}-alike-{name}"]
            assert (recipe.num_encoder_layers, recipe.num_layers, recipe.width) == (6, 6, width)
    rows = {cell.row: cell.ran for cell in MADE[12].cells(Settings(), Evidence(nothing)) if cell.column == "over greedy"}
    assert rows["AT verifier / b = 1"] == "Marian, 2+24"
    assert rows["SpecDec / k = 8"] == "Marian, 2+24; block drafter, 2+2"
    assert rows["6 + 6, alike: SpecDec / k = 8"] == "Marian, 6+6; block drafter, 6+6"
    paper = {cell.row for cell in MADE[12].cells(Settings(profile="paper"), Evidence(nothing))}
    assert not any("alike" in row for row in paper), "the paper's base pair is alike"


def test_arms_are_the_papers_settings() -> None:
    arms = arms_of(Settings(), EN_DE)
    methods = {name: arms[name].method for name in (GREEDY, BEAM, THEIR_BEAM, ALONE, STRICT, HIGH_QUALITY, HIGH_EFFICIENCY)}
    assert [(one.name, one.values.get("num_beams", 1)) for one in list(methods.values())[:3]] == [
        ("autoregressive", 1),
        ("beam", 5),
        ("transformers", 5),
    ]
    assert (methods[ALONE].name, methods[STRICT].rule.name) == ("drafter-alone", "top-1")
    assert [
        tuple(methods[name].values[one] for one in ("rule", "beta", "tau")) for name in (HIGH_QUALITY, HIGH_EFFICIENCY)
    ] == [
        ("top-beta", 3, 1.0),
        ("top-beta", 5, 3.0),
    ]
    assert {methods[name].values["score"] for name in (HIGH_QUALITY, HIGH_EFFICIENCY)} == {"verifier"}
    assert {one.gamma for one in list(methods.values())[3:]} == {gamma_of(Settings(), EN_DE)}
    assert (gamma_of(Settings(profile="paper"), EN_DE), gamma_of(Settings(profile="paper"), BIG)) == (25, 30)
    assert all(arm.sampling.greedy and arm.batch_size == 1 for arm in arms.values() if isinstance(arm, Experiment))


def test_tables_share_records_and_no_other_arm_is_shared() -> None:
    """What is shared is a whole comparison: an arm of two would miss from the second's interleaving."""
    for profile in ("toy", "test", "paper"):
        settings = Settings(profile=profile)
        plans = {number: table.plan(settings) for number, table in MADE.items()}
        main = plans[12][1]
        assert all(main in plans[number] for number in (19, 20, 21, 22, 23))
        assert len(plans[18]) == 3
        assert plans[23][1] == plans[18][1]
        distinct = dict.fromkeys(comparison for plan in plans.values() for comparison in plan)
        signatures = [arm.signature for comparison in distinct for arm in comparison.arms]
        assert len(signatures) == len(set(signatures)) >= 80
        assert {comparison.arms[0].method.name for comparison in distinct if len(comparison.arms) > 1} == {"autoregressive"}


def test_replaced_models_and_settings_reach_every_arm() -> None:
    settings = Settings(source="folder", limit=7, repeats=2, seed=3, dtype="float64", models=(("drafter", "my/drafter"),))
    arms = MADE[12].plan(settings)[1].arms
    assert {(a.source, a.limit, a.repeats, a.seed, a.dtype) for a in arms} == {("folder", 7, 2, 3, "float64")}
    names = {arm.method.drafter.model.name for arm in arms if arm.method.drafter}
    assert names == {"my/drafter"}
    assert not {arm.signature for arm in arms} & {arm.signature for arm in MADE[12].plan(Settings())[1].arms}


def test_without_public_checkpoints_every_cell_says_why() -> None:
    for table in MADE.values():
        assert table.plan(Settings(profile="small")) == []
        cells = table.cells(Settings(profile="small"), Evidence(nothing))
        assert {cell.status for cell in cells} == {f"no model: {ROLES['small']['verifier'].why}"}


def test_profile_pocket_translates_captions_by_pairs_that_its_recipes_train() -> None:
    """Whatever a table plans: no news, no model without a recipe, no drafter of another verifier or of other blocks."""
    for number, table in ALL.items():
        for arm in table.arms(POCKET):
            assert arm.task == "multi30k-en-de", number
            target = recipe_for(arm.target.name.removeprefix("zoo:"), "pocket", POCKET.source)
            assert {part.task for part in target.corpus.parts} == {"multi30k-en-de"}, arm.target
            if arm.method.drafter is not None:
                drafter = recipe_for(arm.method.drafter.model.name.removeprefix("zoo:"), "pocket", POCKET.source)
                assert drafter.verifier == target, (number, drafter.name)
                assert drafter.block_size == arm.method.gamma, (number, drafter.name)
    assert not any("multi30k-multi30k" in name for name in RECIPES["pocket"])


def test_profile_pocket_has_all_of_table_1_and_says_of_other_tables_why_not() -> None:
    empty = {number: table.cells(POCKET, Evidence(nothing)) for number, table in ALL.items() if table.is_committed}
    assert {cell.status for cell in empty[12]} == {"not run"}
    reasons = {f"no model: {why.why}" for why in (CAPTIONS_ALONE, NOT_DEVELOPED)}
    assert {cell.status for cells in empty.values() for cell in cells} == {"not run", *reasons}
    assert {cell.status for number in (13, 14) for cell in empty[number]} == {f"no model: {NOT_DEVELOPED.why}"}
    assert {cell.status for number in (17, 18) for cell in empty[number]} == {f"no model: {CAPTIONS_ALONE.why}"}
    ran = {cell.row: cell.ran for cell in empty[12] if cell.column == "BLEU"}
    assert ran["AT, no Seq-KD / b = 5"] == ran["AT verifier / b = 1"] == "Marian, 2+24"
    assert ran["SpecDec / k = 8"] == "Marian, 2+24; block drafter, 2+2"
    assert ran["6 + 6, alike: SpecDec / k = 8"] == "Marian, 6+6; block drafter, 6+6"


def test_a_table_of_captions_begins_with_what_they_are() -> None:
    """Neither the paper's news, nor tables without a model, nor the captions beside news in profile toy are called so."""

    def begins(number: int, settings: Settings) -> bool:
        table = TABLES[number]
        assert isinstance(table, Table)
        return opening(table, settings, table.cells(settings, Evidence(nothing))).startswith("Image captions are")

    assert all(begins(number, POCKET) for number in (8, 9, 10, 12, 16, 20, 24, 26, 28))
    assert not any(begins(number, POCKET) for number in (11, 13, 17, 18))
    assert not any(begins(number, Settings(source="a/folder")) for number in (8, 9, 12, 16))


def test_table_12_measures_what_it_prints(synthetic: SimpleNamespace) -> None:
    records_of, arms = run(synthetic, FEW, 12), arms_of(FEW, EN_DE)
    cells, k = by_place(MADE[12].cells(FEW, Evidence(records_of))), f"k = {gamma_of(FEW, EN_DE)}"
    rows = {
        "AT verifier / b = 5": BEAM,
        "AT verifier / b = 5, transformers": THEIR_BEAM,
        "AT verifier / b = 1": GREEDY,
        f"NAT drafter / {k}": ALONE,
        f"SpecDec / {k}": STRICT,
        f"SpecDec++ / {k}, top-3, tau 1": HIGH_QUALITY,
        f"SpecDec++ / {k}, top-5, tau 3": HIGH_EFFICIENCY,
    }
    seconds = {name: sum(record.wall_s for record in records_of(arms[name])) for name in rows.values()}
    task = get_task("wmt-en-de")
    for row, name in rows.items():
        records = records_of(arms[name])
        assert cells[row, "speed"].measured == pytest.approx(seconds[BEAM] / seconds[name])
        assert cells[row, "over greedy"].measured == pytest.approx(seconds[GREEDY] / seconds[name])
        assert ((row, "over strict") in cells) == (name in (STRICT, HIGH_QUALITY, HIGH_EFFICIENCY))
        if name in (HIGH_QUALITY, HIGH_EFFICIENCY):
            assert cells[row, "over strict"].measured == pytest.approx(seconds[STRICT] / seconds[name])
        scores = of_task(task, records)
        for column, metric in (("BLEU", "bleu"), ("sacreBLEU", "sacrebleu")):
            cell, score = cells[row, column], scores[metric].shown
            assert (cell.measured, cell.low, cell.high) == (score.value, score.low, score.high)
        assert cells[row, "as greedy"].measured == pytest.approx(100 * (1 if name in (GREEDY, STRICT) else 2 / 3))
        assert (cells[row, "as greedy"].low is None) == (name == GREEDY), "beside itself greedy decoding is an identity"
        if name != THEIR_BEAM:
            rounds = [len(record.steps.drafted) for record in records]
            assert cells[row, "iterations"].measured == pytest.approx(sum(rounds) / len(rounds))
    steps = [record.steps for record in records_of(arms[STRICT])]
    rounds = sum(len(one.emitted) for one in steps)
    strict = f"SpecDec / {k}"
    assert cells[strict, "emitted"].measured == pytest.approx(sum(sum(one.emitted) for one in steps) / rounds)
    assert cells[strict, "accepted"].measured < cells[strict, "emitted"].measured
    assert cells[strict, "of drafted"].measured < cells[strict, "of verified"].measured < 1
    assert all(cell.n == FEW.limit and (cell.low is not None) == cell.exact for cell in cells.values() if cell.measured)
    assert ("AT verifier / b = 5, transformers", "iterations") not in cells
    assert not any(row.startswith(("AT", "NAT")) for row, column in cells if column == "accepted")


def test_a_sentence_that_makes_a_speed_over_strict_is_named(synthetic: SimpleNamespace) -> None:
    """Strict SpecDec loops in one sentence; the speed without it is by hand, and where none weighs there is no note."""
    records_of, arms = run(synthetic, FEW, 12), arms_of(FEW, EN_DE)
    row = f"SpecDec++ / k = {gamma_of(FEW, EN_DE)}, top-3, tau 1"
    for record in records_of(arms[STRICT]):
        if record.example == "e4":
            record.wall_s *= 20
            record.tokens = [5] * 84
    cell = by_place(MADE[12].cells(FEW, Evidence(records_of)))[row, "over strict"]
    strict, relaxed = (
        {
            rest: sum(one.wall_s for one in records_of(arms[name]) if rest == "all" or one.example != "e4")
            for rest in ("all", "without e4")
        }
        for name in (STRICT, HIGH_QUALITY)
    )
    assert cell.measured == pytest.approx(strict["all"] / relaxed["all"])
    assert cell.note.startswith(f"{strict['without e4'] / relaxed['without e4']:.2f} [")
    assert " without e4, where strict SpecDec writes 84 tokens and this row 16" in cell.note
    for record in records_of(arms[STRICT]):
        record.wall_s = next(one.wall_s for one in records_of(arms[HIGH_QUALITY]) if one.key == record.key)
        if record.example == "e4":  # as slow as before, but no longer than the relaxed rule's
            record.wall_s, record.tokens = 20 * record.wall_s, [5] * 16
    assert by_place(MADE[12].cells(FEW, Evidence(records_of)))[row, "over strict"].note == ""
    for record in records_of(arms[STRICT]):
        record.wall_s = next(one.wall_s for one in records_of(arms[HIGH_QUALITY]) if one.key == record.key)
    assert by_place(MADE[12].cells(FEW, Evidence(records_of)))[row, "over strict"].note == ""


def test_what_shows_a_few_percent_has_more_sentences() -> None:
    """Of toy translation; the user's numbers stand."""

    def sizes(setup: Setup = EN_DE, **fields: Any) -> tuple[int, int]:
        plain = greedy(Settings(**fields), setup, "main")
        assert isinstance(plain, Experiment)
        return plain.limit, plain.repeats

    assert [sizes(setup) for setup in (EN_DE, ALIKE, BIG, CNNDM)] == [(400, 1), (400, 1), (150, 1), (100, 1)]
    assert sizes(source="a/folder") == (100, 1)
    assert [sizes(profile=profile) for profile in ("test", "paper")] == [(4, 1), (3003, 1)]
    assert [sizes(limit=8), sizes(repeats=3), sizes(limit=500)] == [(8, 1), (400, 3), (500, 1)]


@pytest.mark.parametrize("number", [12, 13, 14, 15, 16, 17, 18, 20, 21, 28])
def test_what_has_intervals_has_100_examples(number: int) -> None:
    arms = [arm for source in ("toy", "a/folder") for one in TABLES[number].plan(Settings(source=source)) for arm in one.arms]
    assert min(arm.limit for arm in arms) >= 100


def test_the_faster_beam_search_is_the_baseline(synthetic: SimpleNamespace) -> None:
    records_of, arms = run(synthetic, FEW, 12), arms_of(FEW, EN_DE)
    cells = by_place(MADE[12].cells(FEW, Evidence(records_of)))
    ours, theirs = "AT verifier / b = 5", "AT verifier / b = 5, transformers"
    assert cells[ours, "speed"].measured == 1.0
    assert "the faster of the two beam searches; 100.0% of their outputs are equal" in cells[ours, "speed"].note
    assert cells[theirs, "speed"].note == ""
    assert (cells[ours, "speed"].published, cells[theirs, "speed"].published) == (1.0, None)
    for record in records_of(arms[THEIR_BEAM]):
        record.wall_s /= 10
        record.tokens = record.tokens[:-1] if record.example == "e0" else record.tokens
    cells = by_place(MADE[12].cells(FEW, Evidence(records_of)))
    assert (cells[theirs, "speed"].measured, cells[ours, "speed"].note) == (1.0, "")
    assert "83.3% of their outputs are equal" in cells[theirs, "speed"].note
    assert (cells[theirs, "speed"].published, cells[ours, "speed"].published) == (1.0, None), "the paper's 1 is the baseline's"
    assert cells[ours, "BLEU"].published == NOT_RECOVERED
    assert cells[ours, "speed"].measured < 0.5
    assert cells["AT verifier / b = 1", "speed"].measured < 1


def test_wrong_outputs_bar_speed_and_near_ties_are_counted(synthetic: SimpleNamespace) -> None:
    records_of, arms = run(synthetic, FEW, 12), arms_of(FEW, EN_DE)
    row = f"SpecDec / k = {gamma_of(FEW, EN_DE)}"
    part = Divergence(position=3, margin=1e-6, bound=1e-4, replays_agree=True, kind="near-tie")
    parted = records_of(arms[STRICT])[1]
    parted.divergence, parted.tokens = part, [1, 2, 3]
    cells = by_place(MADE[12].cells(FEW, Evidence(records_of)))
    assert cells[row, "speed"].status == "measured"
    assert "1 of 12 outputs part from greedy decoding's, each at a near-tie" in cells[row, "as greedy"].note
    assert cells[row, "as greedy"].measured == pytest.approx(100 * 11 / 12)
    parted.divergence = dataclasses.replace(part, kind="bug")
    cells = by_place(MADE[12].cells(FEW, Evidence(records_of)))
    for column in ("speed", "over greedy"):
        assert cells[row, column].status == "refused"
        assert "1 of 12 outputs differ from plain decoding's, and not by rounding" in cells[row, column].note
    assert cells[f"{row.replace('SpecDec', 'SpecDec++')}, top-3, tau 1", "speed"].status == "measured"


def test_a_sentence_counts_not_its_tokens(synthetic: SimpleNamespace) -> None:
    """An arm that writes twice the tokens in the time of greedy decoding is no faster for it."""
    plain = synthetic.plain_experiment(limit=3)
    greedy = [synthetic.plain(plain, f"e{i}", 10 + i, 0.01) for i in range(3)]
    wordy = [synthetic.plain(plain, f"e{i}", 2 * (10 + i), 0.005) for i in range(3)]
    assert sentence_speedup(greedy, greedy, wordy).value == pytest.approx(1.0)
    for record in wordy:
        record.run = "another process"
    assert "different processes" in sentence_speedup(greedy, greedy, wordy).why


def test_an_ablation_is_paired_with_what_it_is_a_change_of(synthetic: SimpleNamespace) -> None:
    """Tokens a round as a ratio, whose interval is narrower than what two intervals would leave."""
    settings = dataclasses.replace(FEW, limit=32)
    known = run(synthetic, settings, 16)
    slow = {arm.signature: arm for one in MADE[16].plan(settings) for arm in one.arms if "drafter-raw" in repr(arm.method)}
    assert len(slow) == 1

    def records_of(arm: Experiment) -> list[Record]:
        """Without distillation no draft stands."""
        made = [dataclasses.replace(record) for record in known(arm)]
        for record in made if arm.signature in slow else ():
            record.steps = synthetic.drafted(arm, record.example, len(record.tokens), (0,)).steps
        return made

    cells = by_place(MADE[16].cells(settings, Evidence(records_of)))
    base, raw = "base, trained in full", "base, trained in full, no distillation"
    k = next(row.partition(" / ")[2] for row, _ in cells if row.startswith(f"{raw} / "))
    emitted = [cells[f"{name} / {k}", "emitted"].measured for name in (raw, base)]
    gain = cells[f"{raw} / {k}", "of base"]
    assert gain.measured == pytest.approx(100 * emitted[0] / emitted[1])
    assert gain.high < 100


def test_the_best_of_the_grid_says_that_it_was_chosen(synthetic: SimpleNamespace) -> None:
    settings = dataclasses.replace(FEW, repeats=1)
    cells = MADE[14].cells(settings, Evidence(run(synthetic, settings, 14)))
    grid = [cell for cell in cells if cell.column == "BLEU" and cell.row[0].isdigit()]
    assert len(grid) == len(GRID) == 20
    best = by_place(cells)["best / of the grid", "BLEU"]
    assert (best.measured, best.published) == (max(cell.measured for cell in grid), 27.02)
    assert "the highest of 20" in best.note
    assert by_place(cells)["5 / 5", "BLEU"].published == 26.64
    assert by_place(cells)["AT verifier / greedy", "BLEU"].published == 26.62
    assert by_place(cells)["3 / 1", "emitted"].published == NOT_RECOVERED


@pytest.mark.parametrize("number", sorted(NUMBERS))
def test_every_table_fills_from_records(number: int, synthetic: SimpleNamespace) -> None:
    settings = dataclasses.replace(FEW, limit=4, repeats=1)
    table = MADE[number]
    cells = table.cells(settings, Evidence(run(synthetic, settings, number)))
    for cell in cells:
        assert cell.status == "measured" or cell.status.startswith("impossible: "), cell
    measured = [cell for cell in cells if cell.status == "measured"]
    assert len(measured) >= 12
    assert {cell.column for cell in measured} >= set(table.columns) - {"COMET"}
    assert all(cell.n == 4 and (cell.low is not None) == cell.exact for cell in measured), "of four examples exact ones alone"
    assert len(table.notes(settings)) >= 3


def test_pairs_and_sizes_read_their_own_arms(synthetic: SimpleNamespace) -> None:
    settings = dataclasses.replace(FEW, limit=4, repeats=1)
    records_of = run(synthetic, settings, 18)
    for record in records_of(arms_of(settings, PAIRS["RO-EN"])[STRICT]):
        record.wall_s *= 10
    cells = by_place(MADE[18].cells(settings, Evidence(records_of)))
    k = f"k = {gamma_of(settings, EN_DE)}"
    assert cells[f"DE-EN / SpecDec / {k}", "speed"].measured == cells[f"EN-RO / SpecDec / {k}", "speed"].measured
    assert cells[f"RO-EN / SpecDec / {k}", "speed"].measured < cells[f"EN-RO / SpecDec / {k}", "speed"].measured / 5
    sizes = [cell.row for cell in MADE[13].cells(settings, Evidence(nothing)) if cell.column == "emitted"]
    assert len(sizes) == len(set(sizes)) >= 4


def fake_comet(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ``comet-score`` that runs ``body`` with the options of the real one in ``options``."""
    script = folder / COMMAND
    parse = "import json, sys\nargs = sys.argv[1:]\noptions = {a: b for a, b in zip(args, args[1:]) if a.startswith('-')}\n"
    script.write_text(f"#!{sys.executable}\n{parse}{body}", encoding="utf8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_comet_is_its_own_commands_or_says_why_not(
    synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in scores a sentence by its number of words, and checks that source, output and reference lie side by side."""
    settings = dataclasses.replace(FEW, profile="test", limit=4, repeats=1)
    arm = arms_of(settings, EN_DE)[GREEDY]
    examples = list(read_examples(get_task("wmt-en-de"), "toy", "test", 4, 0))
    records = [record_of(synthetic, arm, number, 0) for number in range(4)]
    for number, (record, example) in enumerate(zip(records, examples, strict=True)):
        record.example, record.text = example.id, "wort " * (number + 1)

    folder, pinned = tmp_path / "records", pin(arm)
    Notes(folder).note_pin(arm, pinned)
    with RecordFile(folder, pinned).open() as file:
        for record in records:
            record.signature = pinned.signature
            file.append(record)

    def cell() -> Cell:
        """What the run scores, and what is rendered from it afterwards without the command."""
        run_plan([Comparison((arm,))], Runner(folder, quiet=True), ("comet",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", "")
            return by_place(MADE[22].cells(settings, stored_evidence(folder)))["AT verifier / b = 1", "COMET"]

    monkeypatch.setenv("PATH", str(tmp_path))
    assert cell().status.startswith("impossible: COMET needs the command comet-score on the PATH")
    fake_comet(
        tmp_path,
        "read = lambda flag: open(options[flag], encoding='utf8').read().splitlines()\n"
        "source, output, reference = read('-s'), read('-t'), read('-r')\n"
        "assert len(source) == len(output) == len(reference) == 4\n"
        "assert options['--model'] == 'Unbabel/wmt20-comet-da'\n"
        "rows = [{'src': s, 'mt': o, 'ref': r, 'COMET': len(o.split())} for s, o, r in zip(source, output, reference)]\n"
        f"assert rows[0]['src'] == {examples[0].inputs['source']!r} and rows[0]['ref'] == {examples[0].references[0]!r}\n"
        "json.dump({options['-t']: rows}, open(options['--to_json'], 'w'))\n",
        monkeypatch,
    )
    found = cell()
    assert (found.measured, found.published, found.n) == (2.5, NOT_RECOVERED, 4)
    assert (found.low, found.high) == (None, None), "of four examples no interval is shown"
    Notes(folder).score_file(pinned, "comet").unlink()
    fake_comet(tmp_path, "sys.exit('KeyError: Model Unbabel/wmt20-comet-da not supported by COMET.')", monkeypatch)
    assert cell().status == "impossible: comet-score failed: KeyError: Model Unbabel/wmt20-comet-da not supported by COMET."


def test_few_training_rows_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the batches of an epoch hold, of a corpus built from a folder of 40; the others watch the training."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data" / "wmt"
    data.mkdir(parents=True)
    for name in ("newstest2014.en-de", "train.en-de"):
        rows = [{"translation": {"en": f"{name} {index}", "de": f"von {name} {index}"}} for index in range(40)]
        (data / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = str(tmp_path / "data")
    arm = arms_of(Settings(profile="test", source=source), EN_DE)[GREEDY]

    def said(arm: Experiment) -> str:
        facts = {arm.target.name: model_facts(arm.target, arm)}
        return trained_on(Known({GREEDY: (arm, [])}, Evidence(nothing, facts_of=lambda one: facts)), Row("", GREEDY))

    assert "unknown" in said(arm)
    taught = arm.replace(target=ModelSpec(name="zoo:specdec-teacher"))  # whose corpus no model writes
    recipe = recipe_for("specdec-teacher", "test", "toy")
    folder = folder_of(recipe.corpus, source)
    folder.mkdir(parents=True)
    build_corpus(recipe.corpus, folder, source)
    seal(folder)
    corpus, seen = read_corpus(folder), set()
    batches = batches_for(recipe, corpus)
    assert len(corpus) == 40
    for step in range(len(batches.plan)):
        seen |= {tuple(row[row > 0].tolist()) for row in batches(step).labels}
    assert said(taught) == f"verifier and drafter were trained on {len(seen)} rows"
    assert len(seen) == 40 - recipe.corpus.num_held_out
    assert said(arm.replace(source="toy")) == ""


def test_what_is_missing_from_the_published_files_says_so() -> None:
    count = 0
    for path in sorted((published.FOLDER / "specdec").glob("table_*.csv")):
        with path.open(newline="", encoding="utf8") as file:
            for row in csv.DictReader(file):
                assert row["source"], (path.name, row)
                assert row.get("value", row.get("text")) or row["source"] == NOT_RECOVERED or row["note"], (path.name, row)
                count += 1
    assert count >= 100


def test_lossy_rules_are_judged_on_their_own_texts(synthetic: SimpleNamespace) -> None:
    """The exponential of nats a token, all texts of the arm together."""
    settings = dataclasses.replace(FEW, limit=4, repeats=1)
    records_of = run(synthetic, settings, 12)
    cells = by_place(MADE[12].cells(settings, Evidence(records_of)))
    records = records_of(arms_of(settings, EN_DE)[HIGH_QUALITY])
    per_token = sum(record.nats for record in records) / sum(len(record.tokens) for record in records)
    k = f"k = {gamma_of(settings, EN_DE)}"
    assert cells[f"SpecDec++ / {k}, {QUALITY}", "perplexity"].measured == pytest.approx(math.exp(per_token))
    for record in records:
        record.nats = None
    unread = by_place(MADE[12].cells(settings, Evidence(records_of)))[f"SpecDec++ / {k}, {QUALITY}", "perplexity"]
    assert unread.status == "impossible: no replay read these texts"
