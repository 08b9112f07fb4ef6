"""Optimized's tables: every printed number stands beside the right measurement, and gains are split as they arose."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import optimized_runs as runs
import pytest

from harness.core.experiment import Experiment, RuleTimesProbe
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.statistics import Missing
from harness.papers import get_table
from harness.papers.optimized import columns as verification
from harness.papers.optimized.columns import CALL_TIME, CALLS, OUT_OF_DOMAIN
from harness.papers.optimized.setup import (
    ALL_CASES,
    BASELINE,
    EXACT,
    FILTERED,
    FUSED,
    LARGE_V2,
    PAPERS,
    PLAIN,
    RELEASED,
    ROLES,
    RULES,
    SIGMOID,
    UNTRAINED,
    arms_of,
    without_profiler,
)
from harness.papers.optimized.tables import SWEEP
from harness.tables import published
from harness.tables.base import Cell
from harness.tables.evidence import Evidence

FEW = Settings(limit=6)
EVERYWHERE = Settings(limit=6, models=tuple((role, f"some/{role}") for role in PAPERS))
NUMBERS = (30, 31, 32, 33, 34)
CLEAN_ROW = f"LibriSpeech clean / Small.EN / {FILTERED}"


def nothing(experiment: Experiment) -> list[Record]:
    return []


def by_place(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.row, cell.column): cell for cell in cells}


@cache
def made(number: int, settings: Settings = FEW) -> dict[tuple[str, str], Cell]:
    table = get_table(number)
    return by_place(table.cells(settings, Evidence(runs.run_all(table.plan(settings)))))


@pytest.mark.parametrize("number", NUMBERS)
def test_every_published_number_stands_somewhere(number: int) -> None:
    """The paper's sigmoid stands beside both of ours; its rows are those of transformers' default sampling."""
    rows = published.read("optimized", f"table_{get_table(number).paper_number}")
    expected = Counter[float]()
    for row in rows:
        times = 2 if row.get("method") == "sigmoid" or row.get("row_kind") == "scaled" else 1
        expected[float(row["value"])] += times
        if row.get("profiling_time_reduction_pct"):
            expected[float(row["profiling_time_reduction_pct"])] += times
    for settings in (FEW, EVERYWHERE):
        all_cells = get_table(number).cells(settings, Evidence(nothing))
        cells = [cell for cell in all_cells if cell.column not in (CALLS, CALL_TIME)]
        shown = Counter(cell.published for cell in cells if cell.published is not None)
        assert shown == expected
        assert all(FILTERED in cell.row for cell in cells if cell.published is not None)
    assert expected.total() >= 20


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("settings", [FEW, EVERYWHERE])
def test_with_records_every_cell_of_a_pair_with_models_fills(number: int, settings: Settings) -> None:
    cells = list(made(number, settings).values())
    for cell in cells:
        absent = settings is FEW and any(pair in cell.row.split(" / ") for pair in ("Large V2", "Qwen 7B", "Gemma 7B"))
        assert cell.status.startswith("no model: the zoo has no") if absent else cell.status == "measured", cell
    assert len(cells) >= 100


def test_gains_are_split_into_faster_and_fewer_calls() -> None:
    cells = made(30)
    arms = arms_of(FEW, ALL_CASES[0])
    counts = {rule: sum(runs.num_calls(arms[rule], number) for number in range(6)) for rule in RULES}
    seconds = {
        rule: sum(runs.call_seconds(arms[rule], n, call) for n in range(6) for call in range(runs.num_calls(arms[rule], n)))
        for rule in RULES
    }
    for rule in (EXACT, FUSED, SIGMOID, RELEASED):
        saved, fewer, faster = (cells[f"{CLEAN_ROW} / {rule}", name] for name in ("saved", CALLS, CALL_TIME))
        assert fewer.measured == pytest.approx(counts[rule] / counts[BASELINE])
        assert saved.measured == pytest.approx(100 * (1 - seconds[rule] / seconds[BASELINE]))
        assert faster.measured * fewer.measured == pytest.approx(1 - saved.measured / 100)
        assert (saved.low, saved.high) == (None, None), "of six examples no interval is shown"
    assert cells[f"{CLEAN_ROW} / {EXACT}", CALLS].measured == 1
    assert cells[f"{CLEAN_ROW} / {SIGMOID}", CALLS].measured < 0.6
    assert cells[f"{CLEAN_ROW} / {SIGMOID}", CALLS].published == pytest.approx(0.384)
    assert cells[f"{CLEAN_ROW} / {BASELINE}", "calls"].measured == counts[BASELINE]
    assert (f"{CLEAN_ROW} / {BASELINE}", "saved") not in cells


def test_acceptance_stands_beside_the_alpha_of_its_own_draft() -> None:
    cells = made(30)
    for rule, alpha in ((SIGMOID, runs.ALPHA), (f"{UNTRAINED}{SIGMOID}", runs.FRESH_ALPHA)):
        assert cells[f"{CLEAN_ROW} / {rule}", "alpha"].measured == pytest.approx(alpha)
        assert 0 < cells[f"{CLEAN_ROW} / {rule}", "accepted"].measured <= 1
    assert cells[f"{CLEAN_ROW} / {EXACT}", "as baseline"].measured == 100
    assert cells[f"{CLEAN_ROW} / {SIGMOID}", "as baseline"].measured == 0
    fresh = cells[f"{CLEAN_ROW} / {UNTRAINED}{SIGMOID}", CALLS].measured
    assert fresh == pytest.approx(sum(2 * (5 + n % 3) - 3 for n in range(6)) / sum(2 * (5 + n % 3) for n in range(6)))


def test_metrics_are_fractions() -> None:
    cells = made(30)
    assert cells[f"{CLEAN_ROW} / {BASELINE}", "WER"].measured == 0
    assert cells[f"{CLEAN_ROW} / {SIGMOID}", "WER"].measured == pytest.approx(1 / 6)
    assert (f"{CLEAN_ROW} / {BASELINE}", "ROUGE-1") not in cells
    row = f"XSum / Llama2 7B / {FILTERED}"
    assert cells[f"{row} / {BASELINE}", "ROUGE-1"].measured == pytest.approx(1.0)
    assert cells[f"{row} / {SIGMOID}", "ROUGE-1"].measured == pytest.approx(5 / 6)
    assert cells[f"{row} / {BASELINE}", "ROUGE-1"].published == 0.20


def test_steps_are_the_mean_and_deviation_of_all_calls() -> None:
    cells = made(33)
    arms = arms_of(FEW, ALL_CASES[0])
    arm = arms[EXACT]
    times = np.array([1e3 * runs.call_seconds(arm, n, call) for n in range(6) for call in range(runs.num_calls(arm, n))])
    assert cells[f"{CLEAN_ROW} / {EXACT}", "a call"].measured == pytest.approx(times.mean())
    assert cells[f"{CLEAN_ROW} / {EXACT}", "deviation"].measured == pytest.approx(times.std())
    assert cells[f"{CLEAN_ROW} / {EXACT}", "a call"].published == 3.81
    assert cells[f"{CLEAN_ROW} / {EXACT}", "profiled"].measured == pytest.approx(times.sum())


def test_zoo_whisper_on_real_recordings_is_out_of_domain() -> None:
    real = replace(FEW, source="some/folder")
    cells = made(30, real)
    assert cells[f"{CLEAN_ROW} / {BASELINE}", "WER"].note == OUT_OF_DOMAIN
    assert not cells[f"{CLEAN_ROW} / {BASELINE}", "calls"].note
    own = replace(real, models=(("small.en", "my/whisper"), ("distil-small.en", "my/draft")))
    assert not made(30, own)[f"{CLEAN_ROW} / {BASELINE}", "WER"].note


@pytest.mark.parametrize("number", NUMBERS)
def test_a_drifting_machine_leaves_refused_times_with_the_reason(number: int) -> None:
    table = get_table(number)
    run = runs.run_all(table.plan(FEW))

    def slowing(experiment: Experiment) -> list[Record]:
        found = run(experiment)
        if experiment.method.name == "autoregressive":
            for record in found[len(found) // 2 :]:
                record.steps.round_s = [1.5 * runs.TOKEN_S] * 12
        return found

    times = ("saved", "wall saved", "saved a call", CALL_TIME, "profiled", "a call", "deviation", "wall", "over plain")
    found = [cell for cell in table.cells(FEW, Evidence(slowing)) if not cell.status.startswith("no model")]
    cells = [cell for cell in found if cell.column in times]
    assert len(cells) >= 30
    assert all(cell.status == "refused" and "drifted by +50%" in cell.note for cell in cells)
    counts = [cell for cell in found if cell.column in ("calls", CALLS)]
    assert all(cell.status == "measured" for cell in counts), "a count is what it is on any machine"
    assert counts or number == 32


@pytest.mark.parametrize(
    ("profiled", "events", "wall", "expected"),
    [
        (1.0, 1.2, 1.3, None),
        (1.0, 0.9, 1.3, "CUDA events only"),
        (1.0, 1.4, 1.3, "CUDA events have"),
        (0.0, 1.2, 1.3, "saw no work"),
        (1.0, None, 1.0, None),
        (2.2, None, 1.0, "the clock only"),
    ],
)
def test_clocks_that_contradict_each_other_refuse_a_time(
    profiled: float, events: float | None, wall: float, expected: str | None
) -> None:
    arms = arms_of(FEW, ALL_CASES[0])
    records = runs.records(arms[EXACT])
    for record in records:
        assert record.rule_times is not None
        record.rule_times.profiled_s, record.rule_times.wall_s = [profiled], [wall]
        record.rule_times.event_s = [] if events is None else [events]
    found = verification.contradiction(arms[EXACT], records)
    assert (found is None) if expected is None else isinstance(found, Missing) and expected in found.why


def test_calls_are_compared_within_the_process_that_timed_them() -> None:
    """Not that of the texts: times may be taken later, by decoding them again."""
    arms = arms_of(FEW, ALL_CASES[0])
    base, own = runs.records(arms[BASELINE]), runs.records(arms[EXACT])
    for record in own:
        assert record.rule_times is not None
        record.rule_times.run = "later"
    for measure in (verification.call_ratio, partial(verification.ratio, value=verification.profiled_s)):
        assert measure(base, own) is None
    assert verification.ratio(base, own, verification.wall_s) is not None
    for record in base:
        record.rule_times.run, record.run = "later", "another"
    for measure in (verification.call_ratio, partial(verification.ratio, value=verification.profiled_s)):
        assert measure(base, own) is not None
    assert verification.ratio(base, own, verification.wall_s) is None


@pytest.mark.parametrize("number", [31, 34])
def test_printed_numbers_of_scales_stand_beside_logits_as_the_papers_models_gave_them(number: int) -> None:
    """Half precision from Whisper, full from the others; the baseline's row names no logits."""
    cells = [cell for cell in get_table(number).cells(EVERYWHERE, Evidence(nothing)) if cell.published is not None]
    found = {(cell.row.split(" / ")[0], cell.row.split(" / ")[2]) for cell in cells if cell.row.split(" / ")[2]}
    assert {logits for target, logits in found if target in ("Small.EN", "Large V2")} == {"float16"}
    assert {logits for target, logits in found if target not in ("Small.EN", "Large V2")} == {"float32"}


def test_the_sweep_has_every_scale_in_both_precisions() -> None:
    plan = get_table(31).plan(FEW)
    methods = [
        arm.method for comparison in plan for arm in comparison.arms if arm.method.values.get("rule", "").startswith("sigmoid")
    ]
    found = Counter(
        (method.values.get("rule"), method.values.get("scale"), method.values.get("half_logits")) for method in methods
    )
    assert set(found) == {
        (rule, scale, half) for rule in (RULES[SIGMOID], RULES[RELEASED]) for scale in SWEEP for half in (0, 1)
    }
    assert set(found.values()) == {4}
    assert {arm.signature for one in plan for arm in one.arms} <= {
        arm.signature for one in get_table(34).plan(FEW) for arm in one.arms
    }
    half = replace(FEW, dtype="float16")
    assert not any(arm.method.values.get("half_logits") for one in get_table(31).plan(half) for arm in one.arms)


def test_settings_are_the_papers() -> None:
    arms = [arm for comparison in get_table(30).plan(EVERYWHERE) for arm in comparison.arms]
    ruled = [arm for arm in arms if arm.method.name == "speculative"]
    assert {(arm.method.gamma, arm.method.values.get("schedule"), arm.batch_size) for arm in ruled} == {(5, "heuristic", 1)}
    speech = {"librispeech-clean", "librispeech-other", "tedlium", "common-voice"}
    assert {(arm.task in speech, arm.max_new_tokens) for arm in arms} == {(True, 256), (False, 100)}
    scales = {
        (arm.task in speech, arm.method.values.get("scale"))
        for arm in ruled
        if arm.method.values.get("rule", "").startswith("sigmoid")
    }
    assert scales == {(True, 1e3), (False, 1e4)}
    assert {arm.prompt_template for arm in arms if arm.task not in speech} == {"{article}\nSummary:"}
    claims = {row["claim"]: row["value"] for row in published.read("optimized", "text_claims")}
    assert (claims["initial gamma"], claims["max length ASR / summarization"]) == ("5", "256 / 100")
    assert {arm.sampling.top_k for arm in arms} == {50, None}
    assert len(ruled) == 2 * (16 * 5 + 2 * 3)


def test_wall_clock_is_taken_without_torchs_profiler_on_cuda() -> None:
    cpu, cuda = (get_table(32).plan(replace(FEW, device=device)) for device in ("cpu", "cuda"))
    assert cpu == get_table(30).plan(FEW)
    assert all(RuleTimesProbe() not in arm.probes for one in cuda for arm in one.arms)
    arms = {PLAIN: cuda[0].arms[0]}
    assert without_profiler(FEW, arms) == arms


@pytest.mark.parametrize("profile", sorted(ROLES))
def test_each_profile_says_what_it_cannot_fill(profile: str) -> None:
    settings = Settings(profile=profile)
    arms = [arms_of(settings, case) for case in ALL_CASES]
    absent = {case.pair.target for case, one in zip(ALL_CASES, arms, strict=True) if isinstance(one[EXACT], Missing)}
    expected = {
        "paper": set(),
        "pocket": {"Small.EN", LARGE_V2.target, "Llama2 7B", "Llama2 13B", "Qwen 7B", "Gemma 7B"},  # in some settings
        "small": {LARGE_V2.target, "Llama2 7B", "Llama2 13B", "Gemma 7B"},
        "toy": {LARGE_V2.target, "Qwen 7B", "Gemma 7B"},
        "test": {LARGE_V2.target, "Qwen 7B", "Gemma 7B"},
    }
    assert absent == expected[profile]
    assert set(ROLES[profile]) == set(PAPERS)
