"""SpecDec's tables of memory, latency, time by module and worked examples: what was counted, beside what was published."""

import dataclasses
from collections.abc import Callable
from functools import cache

import pytest
import specdec_runs as runs

from harness.core.experiment import Experiment
from harness.core.records import Divergence, Record
from harness.core.settings import Settings
from harness.measures.statistics import Missing
from harness.models.fit import estimate
from harness.papers import get_table
from harness.papers.specdec.cost import arms_at, peaks_mib, total_peak_mib, weights_mib
from harness.papers.specdec.profile import CONCURRENT, OWN
from harness.papers.specdec.setup import BEAM, CNNDM, EN_DE, GREEDY, HIGH_EFFICIENCY, SIZES, STRICT, THEIR_BEAM
from harness.tables import published
from harness.tables.base import Cell
from harness.tables.engine import Known
from harness.tables.evidence import Evidence
from harness.tables.published import NOT_RECOVERED

FEW = Settings(limit=32, repeats=2)
PAPERS = {24: 14, 25: 15, 26: 16, 27: 17, 28: 18, 29: 19}
BATCH = 4


def nothing(experiment: Experiment) -> list[Record]:
    return []


def by_place(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.row, cell.column): cell for cell in cells}


def facts_of(experiment: Experiment) -> dict[str, dict[str, int | None]]:
    """The models' sizes, as a run notes them."""
    drafter = experiment.method.drafter
    specs = [experiment.target, *([drafter.model] if drafter is not None and drafter.model is not None else [])]
    return {spec.name: {"num_parameters": estimate(spec).num_parameters} for spec in specs}


def evidence_of(records_of: Callable[[Experiment], list[Record]]) -> Evidence:
    return Evidence(records_of, facts_of=facts_of)


@cache
def made(number: int) -> dict[tuple[str, str], Cell]:
    """A table's cells, all of it run."""
    table = get_table(number)
    return by_place(table.cells(FEW, evidence_of(runs.run_all(table.plan(FEW)))))


@pytest.mark.parametrize("number", PAPERS)
@pytest.mark.parametrize("profile", ["toy", "test", "small", "paper"])
def test_tables_stand_in_the_catalogue_and_say_what_was_not_run(number: int, profile: str) -> None:
    table, settings = get_table(number), Settings(profile=profile)
    assert (table.paper, table.paper_number) == ("specdec", PAPERS[number])
    cells = table.cells(settings, Evidence(nothing))
    assert cells
    for cell in cells:
        assert cell.column in table.columns
        assert len(cell.row.split(" / ")) == len(table.row_heads)
        assert cell.measured is None or cell.status == "computed"
    arms = [arm for one in table.plan(settings) for arm in one.arms]
    assert (profile == "small") == (not [arm for arm in arms if arm.method.drafter is not None])
    assert all(isinstance(note, str) for note in table.notes(settings))


def test_the_repositorys_peaks_stand_beside_ours_and_the_papers_are_lost() -> None:
    """Its own sums: SpecDec's peak is AT's and the extra, within a MiB; its weights likewise."""
    cells = made(24)
    for batch in SIZES["toy"].batches:
        at, method, extra = (cells[str(batch), column].published for column in ("AT", "SpecDec++", "extra"))
        assert method - at == extra
        assert cells[str(batch), "extra decoding"].published is None
    assert [cells["1", column].published for column in ("AT", "SpecDec++", "extra")] == [1670.0, 1902.0, 232.0]
    at, both, drafter = (cells["weights", column].published for column in ("AT", "SpecDec++", "extra"))
    assert both - at == pytest.approx(drafter, abs=0.02)
    assert {made(25)["1", column].published for column in ("AT", "SpecDec++", "extra")} == {NOT_RECOVERED}


def test_a_peak_is_the_weights_and_the_most_that_a_batch_took() -> None:
    cells = made(24)
    arms = arms_at(FEW, EN_DE, BATCH, memory=True)
    firsts = range(0, 32, BATCH)
    for name, column in ((GREEDY, "AT"), (HIGH_EFFICIENCY, "SpecDec++")):
        expected = [runs.peak_mib(arms[name], first) for first in firsts]
        weights = cells["weights", column].measured
        assert cells[str(BATCH), column].measured == pytest.approx(weights + max(expected), abs=1e-5)
        assert cells[str(BATCH), column].low is None, "a maximum has no interval"
        decoding = cells[str(BATCH), f"{column} decoding"]
        assert decoding.measured == pytest.approx(sum(expected) / len(expected), abs=1e-5)
        assert decoding.n == len(expected)
    extra = cells[str(BATCH), "extra decoding"]
    assert extra.measured == pytest.approx(1.5, abs=1e-5)
    assert (extra.low, extra.high) == (None, None), "the same in every batch"
    drafter = arms[HIGH_EFFICIENCY].method.drafter.model
    assert cells["weights", "extra"].measured == pytest.approx(estimate(drafter).memory_bytes / runs.MIB)
    assert cells[str(BATCH), "extra"].measured == pytest.approx(cells["weights", "extra"].measured + 1.5, abs=1e-5)


def test_memory_and_time_are_measured_apart() -> None:
    for table, setup in ((26, EN_DE), (27, CNNDM)):
        plan = get_table(table).plan(FEW)
        held = [one for one in plan if one.arms[0].probes]
        assert len(held) == len(plan) / 2
        assert {one.arms[0].batch_size for one in plan} == set(SIZES["toy"].batches)
        assert {arm.repeats for one in held for arm in one.arms} == {1}
        shared = {arm for one in get_table(table - 2).plan(FEW) for arm in one.arms}
        assert shared <= {arm for one in held for arm in one.arms}, "Table 14 and 15 read runs of 16 and 17"
        assert all(arm.task == setup.task for one in plan for arm in one.arms)


def test_unknown_peaks_are_refused_with_a_reason() -> None:
    arm = arms_at(FEW, EN_DE, BATCH, memory=True)[GREEDY]
    records = [dataclasses.replace(record, peak_bytes=None) for record in runs.records(arm)]
    assert isinstance(peaks_mib(arm, records), Missing)
    refused = total_peak_mib(Known({GREEDY: (arm, records)}, evidence_of(nothing)), GREEDY)
    assert isinstance(refused, Missing)
    assert refused.why.startswith("unknown: ")
    table = get_table(24)
    known = {one: records if one == arm else runs.records(one) for plan in table.plan(FEW) for one in plan.arms}
    cells = by_place(table.cells(FEW, evidence_of(lambda one: known[one])))
    assert cells[str(BATCH), "AT"].status == "failed"
    assert cells["8", "AT"].status == "measured"


@pytest.mark.parametrize("profile", ["toy", "test", "paper"])
def test_all_arms_of_a_table_have_the_same_limits(profile: str) -> None:
    """Also another verifier's, T5-large's: a summary is not cut to a translation's length."""
    for number in range(12, 30):
        arms = [arm for one in get_table(number).plan(Settings(profile=profile)) for arm in one.arms]
        assert len({(arm.max_input_tokens, arm.max_new_tokens) for arm in arms}) == 1, number
    limits = {arm.max_new_tokens for one in get_table(27).plan(Settings(profile=profile)) for arm in one.arms}
    assert limits == {SIZES[profile].max_summary}


def test_latency_is_a_batchs_and_speed_is_over_the_same_batch() -> None:
    cells = made(26)
    arms = arms_at(FEW, EN_DE, BATCH)
    seconds = {}
    for name, arm in arms.items():
        whole = [
            runs.batch_factor(BATCH) * max(runs.row_seconds(arm, first + i)[0] for i in range(BATCH))
            for first in range(0, 32, BATCH)
        ]
        seconds[name] = sum(whole)
        row = f"base / {name} / {BATCH}"
        assert cells[row, "latency"].measured == pytest.approx(1e3 * sum(whole) / len(whole))
        assert cells[row, "a sentence"].measured == pytest.approx(1e3 * sum(whole) / 32)
        assert cells[row, "latency"].n == len(whole)
        if name != THEIR_BEAM:  # whose memory is not measured
            known = Known({name: (arm, [])}, evidence_of(nothing))
            assert cells[row, "weights"].measured == pytest.approx(weights_mib(known, name).value)
    assert len(seconds) == 5
    for name in arms:
        row = f"base / {name} / {BATCH}"
        assert cells[row, "speed"].measured == pytest.approx(seconds[BEAM] / seconds[name])
        assert cells[row, "over greedy"].measured == pytest.approx(seconds[GREEDY] / seconds[name])


def test_the_papers_own_model_is_lost_but_for_what_its_text_says() -> None:
    for number in (26, 27):
        cells = made(number)
        rows = [cell for cell in cells.values() if cell.row.startswith("T5-large")]
        assert {cell.published for cell in rows if cell.column in ("latency", "peak")} == {NOT_RECOVERED}
        assert all(cell.published is None for cell in cells.values() if not cell.row.startswith("T5-large"))
        assert not [cell for cell in rows if cell.column == "speed"]
    note = get_table(26).notes(FEW)[0]
    assert "latency_s >1" in note
    assert "memory_GB <2" in note


def test_a_wrong_output_anywhere_in_a_batch_bars_the_speed() -> None:
    table, arm = get_table(26), arms_at(FEW, EN_DE, BATCH)[STRICT]
    bad = runs.records(arm)
    bad[BATCH + 1].divergence = Divergence(position=3, margin=1.0, bound=1e-4, replays_agree=False, kind="bug")
    known = {one: bad if one == arm else runs.records(one) for plan in table.plan(FEW) for one in plan.arms}
    cells = by_place(table.cells(FEW, evidence_of(lambda one: known[one])))
    for column in ("latency", "a sentence", "speed", "over greedy"):
        cell = cells[f"base / {STRICT} / {BATCH}", column]
        assert cell.status == "refused"
        assert "differ from plain decoding's" in cell.note
    assert cells[f"base / {HIGH_EFFICIENCY} / {BATCH}", "latency"].status == "measured"


def test_the_faster_beam_search_of_a_batch_size_is_its_baseline() -> None:
    table, ours, theirs = get_table(26), arms_at(FEW, EN_DE, BATCH)[BEAM], arms_at(FEW, EN_DE, BATCH)[THEIR_BEAM]
    known = {one: runs.records(one) for plan in table.plan(FEW) for one in plan.arms}
    for record in known[theirs]:
        record.wall_s /= 10
    for record in known[theirs][::4]:
        record.tokens = [*record.tokens, 5]
    cells = by_place(table.cells(FEW, evidence_of(lambda one: known[one])))
    seconds = {arm: sum(record.wall_s for record in known[arm]) for arm in (ours, theirs)}
    at_batch = {name: cells[f"base / {name} / {BATCH}", "speed"] for name in (BEAM, THEIR_BEAM)}
    assert at_batch[THEIR_BEAM].measured == 1
    assert at_batch[BEAM].measured == pytest.approx(seconds[theirs] / seconds[ours])
    assert "the faster of the two beam searches; 75.0% of their outputs are equal" in at_batch[THEIR_BEAM].note
    assert cells[f"base / {BEAM} / 1", "speed"].measured == 1, "other batch sizes have their own"
    assert "100.0% of their outputs are equal" in cells[f"base / {BEAM} / 1", "speed"].note


def test_few_batches_have_no_interval() -> None:
    """32 sentences are 8 batches of 4: of fewer than 30 no interval is shown, nor of what is the same in all of them."""
    times, held = made(26), made(24)
    for size in (1, 4, 8, 16, 32):
        shown = [
            times[f"base / {STRICT} / {size}", column]
            for column in ("latency", "a sentence", "speed", "over greedy", "decoding")
        ]
        shown += [held[str(size), column] for column in ("AT decoding", "SpecDec++ decoding", "extra decoding")]
        for cell in shown:
            assert (cell.status, cell.n) == ("measured", 32 // size)
            known = size == 1 and cell.column != "extra decoding"
            assert (cell.low is not None) == (cell.high is not None) == known, cell
    for number in (24, 26):
        assert "fewer than 30" in " ".join(get_table(number).notes(FEW))


def test_a_wrong_output_bars_the_time_of_the_profile_too() -> None:
    table = get_table(28)
    plan = table.plan(FEW)
    known = {one: runs.records(one) for one in plan[0].arms}
    bad = next(
        one for one in plan[0].arms if one.method.drafter is not None and one.method.values.get("encoder") == "concurrent"
    )
    known[bad][3].divergence = Divergence(position=3, margin=1.0, bound=1e-4, replays_agree=False, kind="bug")
    cells = by_place(table.cells(FEW, evidence_of(lambda one: known[one])))
    times = ("a sentence", "gain", "both encoders", *table.blocks[0])
    assert {cells[CONCURRENT, column].status for column in times} == {"refused"}
    assert cells[CONCURRENT, "emitted"].status == "measured"
    assert {cells[OWN, column].status for column in times} == {"measured"}


def test_modules_share_all_of_the_time() -> None:
    cells = made(28)
    table = get_table(28)
    modules = table.blocks[0]
    for row in (OWN, CONCURRENT):
        assert sum(cells[row, module].measured for module in modules) == pytest.approx(100)
        both = cells[row, "both encoders"].measured
        assert both == pytest.approx(cells[row, "AT encoder"].measured + cells[row, "NAT encoder"].measured)
        assert cells[row, "AT encoder"].measured == pytest.approx(2 * cells[row, "NAT encoder"].measured)
    assert cells[OWN, "gain"].measured == pytest.approx(1)
    assert cells[OWN, "both encoders"].published == 16.0
    assert {cells[OWN, module].published for module in modules} == {NOT_RECOVERED}
    assert {cell.published for cell in cells.values() if cell.row != OWN} == {None}
    arms = table.plan(FEW)[0].arms
    assert [arm.method.drafter.options.encoder for arm in arms if arm.method.drafter] == ["own", "concurrent", "shared"]
    assert {
        (arm.method.values.get("beta"), arm.method.values.get("tau"))
        for arm in arms
        if arm.method.values.get("rule") == "top-beta"
    } == {(5, 3.0)}


def test_the_numbers_beside_the_examples_count_their_traces() -> None:
    cells = made(29)
    printed = {name: cells[f"the paper's / {name}", "iterations"].published for name in ("SpecDec", "SpecDec++")}
    assert printed == {"SpecDec": 4.0, "SpecDec++": 2.0}
    assert cells["the paper's / SpecDec", "bifurcations"].published == 2.0
    assert cells["the paper's / SpecDec++", "not first choice"].published == NOT_RECOVERED
    strict, relaxed = ([cell for cell in cells.values() if cell.row.endswith(f"/ {name}")] for name in ("SpecDec", "SpecDec++"))
    counted = [cell.measured for cell in strict if cell.column == "not first choice" and cell.measured is not None]
    assert len(counted) == 4
    assert set(counted) == {0.0}
    assert all(cell.measured > 0 for cell in relaxed if cell.column == "not first choice" and cell.measured is not None)
    assert cells["mean / SpecDec", "iterations"].measured > cells["mean / SpecDec++", "iterations"].measured
    assert cells["mean / SpecDec", "iterations"].n == 32


def test_settings_are_the_papers() -> None:
    """k 10, beta 3, tau 1 in Table 19: below the drafter's own block at paper size, above the base drafter's at toy size."""
    own = get_table(29).plan(Settings(models=(("drafter", "my/drafter"),)))[0].arms
    assert {(arm.method.drafter.model.name, arm.method.gamma) for arm in own if arm.method.drafter} == {("my/drafter", 8)}
    for profile, name in (("paper", "specdec-drafter"), ("toy", "specdec-drafter-k12")):
        arms = get_table(29).plan(Settings(profile=profile))[0].arms
        drafted = [arm.method for arm in arms if arm.method.drafter is not None]
        assert [(one.rule and one.rule.name, one.gamma, one.drafter.model.name) for one in drafted] == [
            ("top-1", 10, f"zoo:{name}"), ("top-beta", 10, f"zoo:{name}"),
        ]  # fmt: skip
        assert (drafted[1].values["beta"], drafted[1].values["tau"]) == (3, 1.0)
    assert {row["setting"] for row in published.read("specdec", "table_19")} == {"k=10", "k=10, top-3, tau=1.0"}
