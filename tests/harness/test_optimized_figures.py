"""Optimized's figures: tiles are the kernels' own, points are the records' numbers, and nothing is drawn of nothing."""

import re
from dataclasses import replace
from pathlib import Path

import optimized_runs as runs
import pytest
from matplotlib.figure import Figure

from harness.core.errors import UsageError
from harness.core.experiment import RuleTimesProbe
from harness.core.settings import Settings
from harness.papers import get_figure
from harness.papers.optimized.figures import SUMMARY_CASES, memory_arms, timed_arms
from harness.papers.optimized.setup import EXACT, RULES, SIZES
from harness.papers.optimized.tiles import VOCABULARIES, tile_widths
from harness.tables.evidence import Evidence
from kernels.verify.sizes import TILE

FEW = Settings(profile="test", limit=4)
FROM_RECORDS = ("optimized-3", "optimized-4", "optimized-5")


def nothing(experiment: object) -> list:
    return []


@pytest.mark.parametrize("name", [f"optimized-{number}" for number in range(1, 6)])
def test_figures_draw_and_draw_alike(name: str, tmp_path: Path) -> None:
    figure = get_figure(name)
    records_of = runs.run_all(figure.plan(FEW))
    first, second = (figure.draw(FEW, Evidence(records_of), tmp_path / folder) for folder in "ab")
    assert [path.name for path in first] == [f"{name}.svg", f"{name}.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not re.search(r"<dc:date>|/work|/tmp", first[0].read_text())


@pytest.mark.parametrize("name", FROM_RECORDS)
def test_nothing_is_drawn_of_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"make reproduce-figure-{name}`"):
        get_figure(name).draw(FEW, Evidence(nothing), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("vocab_size", sorted(VOCABULARIES.values()))
def test_tiles_cover_a_row_once(vocab_size: int) -> None:
    widths = tile_widths(vocab_size)
    assert sum(widths) == vocab_size
    assert set(widths[:-1]) == {TILE} == {1024}
    assert 0 < widths[-1] <= TILE


def test_the_drawn_tiles_are_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel of other tiles gives another picture and another note."""
    seen: list[Figure] = []
    monkeypatch.setattr("harness.tables.style.save", lambda figure, folder, name: seen.append(figure) or [])
    get_figure("optimized-1").draw(FEW, Evidence(nothing), tmp_path)
    monkeypatch.setattr("kernels.verify.sizes.TILE", 8000)
    get_figure("optimized-1").draw(FEW, Evidence(nothing), tmp_path)
    tiles = [len(figure.axes[0].patches) for figure in seen]
    assert tiles[0] - tiles[1] == 3 * 5 * (32 - 4)
    notes = [" ".join(text.get_text() for text in figure.texts) for figure in seen]
    assert "tiles of 1,024" in notes[0]
    assert "Llama2 32 (160 programs)" in notes[0]
    assert "tiles of 8,000" in notes[1]


def test_points_are_the_records_means(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Figure] = []
    monkeypatch.setattr("harness.tables.style.save", lambda figure, folder, name: seen.append(figure) or [])
    for name in ("optimized-3", "optimized-4"):
        get_figure(name).draw(FEW, Evidence(runs.run_all(get_figure(name).plan(FEW))), tmp_path)
    assert [len(figure.axes) for figure in seen] == [3, 2]
    for figure, kind in zip(seen, ("time", "memory"), strict=True):
        lines = {container.get_label(): container[0].get_ydata() for container in figure.axes[0].containers}
        assert set(lines) == set(RULES)
        for index, gamma in enumerate(SIZES["test"].gammas):
            arms = (timed_arms if kind == "time" else memory_arms)(FEW, SUMMARY_CASES[0], gamma)
            records = runs.records(arms[EXACT])
            if kind == "time":
                times = [1e3 * seconds for record in records for seconds in record.rule_times.profiled_s]
            else:
                times = [record.peak_bytes / runs.MIB for record in records]
            assert lines[EXACT][index] == pytest.approx(sum(times) / len(times))


def test_a_drifting_machine_is_named_below(tmp_path: Path) -> None:
    figure = get_figure("optimized-3")
    run = runs.run_all(figure.plan(FEW))
    for comparison in figure.plan(FEW):
        for record in run(comparison.arms[0])[2:]:
            record.steps.round_s = [2 * runs.TOKEN_S] * 12
    with pytest.raises(UsageError, match=r"figure optimized-3: refused: an arm drifted by \+100%"):
        figure.draw(FEW, Evidence(run), tmp_path)


def test_gamma_runs_from_1_to_20_as_in_the_paper() -> None:
    """To 12 in profile pocket, where one run of a real model takes as long as a hundred of a toy."""
    assert {name: (one.gammas[0], one.gammas[-1]) for name, one in SIZES.items() if name != "pocket"} == dict.fromkeys(
        ("test", "toy", "small", "paper"), (1, 20)
    )
    arms = [arm for one in get_figure("optimized-3").plan(replace(FEW, profile="paper")) for arm in one.arms[1:]]
    assert {arm.method.gamma for arm in arms} == set(range(1, 21))
    assert {arm.method.values.get("schedule") for arm in arms} == {"heuristic"}
    assert not any(RuleTimesProbe() in arm.probes for one in get_figure("optimized-5").plan(FEW) for arm in one.arms)
