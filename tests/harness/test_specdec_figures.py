"""SpecDec's figures: boxes are a record's tokens, points and bars the tables' numbers, and nothing is drawn of nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import specdec_runs as runs
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.records import Divergence, Record
from harness.core.settings import Settings
from harness.papers import get_figure, get_table
from harness.papers.specdec import figures, rounds
from harness.papers.specdec.cost import arms_at
from harness.papers.specdec.examples import END, trace_of
from harness.papers.specdec.setup import BEAM, EN_DE, GREEDY, HIGH_EFFICIENCY, STRICT, THEIR_BEAM, arms_of
from harness.papers.specdec.traces import RELAXED, arms
from harness.tables import published
from harness.tables.evidence import Evidence

NAMES = [f"specdec-{number}" for number in range(1, 6)]
FEW = Settings(limit=8, repeats=1)
SMALL = Settings(limit=32, repeats=1)
WRONG = Divergence(position=3, margin=1.0, bound=1e-4, replays_agree=False, kind="bug")


def decoder(experiment: Experiment) -> Callable[[list[int]], str]:
    """What a font or a formula could stumble over."""
    words = ["The", " fox", " ü", " $5$", "\n", " 漢", " "]
    return lambda ids: "".join(words[token % len(words)] for token in ids)


def spaced(ids: list[int]) -> str:
    return "".join(f" {token}" for token in ids)


def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, to look into."""
    seen: list[Figure] = []
    monkeypatch.setattr("harness.tables.style.save", lambda figure, folder, name: seen.append(figure) or [])
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_figures_draw_from_records(name: str, tmp_path: Path) -> None:
    figure = get_figure(name)
    records_of = runs.run_all(figure.plan(FEW))
    first, second = (figure.draw(FEW, Evidence(records_of, decoder_of=decoder), tmp_path / folder) for folder in "ab")
    assert [path.name for path in first] == [f"{name}.svg", f"{name}.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[1].read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"<dc:date>|/work|/tmp", first[0].read_text())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_of_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"make reproduce-figure-{name}`"):
        get_figure(name).draw(FEW, Evidence(lambda experiment: []), tmp_path)
    assert not list(tmp_path.iterdir())


def test_figures_read_the_tables_runs() -> None:
    planned = {arm for one in get_table(12).plan(FEW) for arm in one.arms}
    for name in ("specdec-2", "specdec-4"):
        assert {arm for one in get_figure(name).plan(FEW) for arm in one.arms} <= planned
    for name in ("specdec-1", "specdec-3"):
        assert get_figure(name).plan(FEW) == get_table(29).plan(FEW)
    timed = {arm for one in get_table(26).plan(FEW) for arm in one.arms if not arm.probes}
    assert {arm for one in get_figure("specdec-5").plan(FEW) for arm in one.arms} <= timed


@pytest.mark.parametrize("method", [STRICT, RELAXED])
def test_boxes_are_the_rounds(method: str) -> None:
    """Masks over drafts over choices; what enters next is what stood, what was drafted and stands, and the verifier's own."""
    ended = 0
    for record in runs.records(arms(FEW)[method]):
        steps, start = record.steps, 0
        for index, one in enumerate(trace_of(record, spaced, "").iterations):
            source, drafts, choices, following = rounds.boxes(one)
            masks = [box.column for box in source if box.kind is None]
            assert masks == [box.column for box in drafts]
            texts = [str(token) for token in steps.drafted[index]]
            shown = [END if text == str(runs.EOS) else text for text in texts]
            assert [box.text.strip() for box in drafts] == shown[: len(drafts)]
            assert len(drafts) == len(texts) or drafts[-1].text == END
            stood = [box for box in drafts if box.kind in ("accepted", "candidate")]
            assert len(stood) == min(steps.num_accepted[index], steps.emitted[index])
            for draft, choice in zip(drafts, choices, strict=False):
                assert draft.kind in ("rejected", "dropped") or (draft.text == choice.text) == (choice.kind == "accepted")
            start += steps.emitted[index]
            tail = [box.text.strip() for box in following if box.kind is not None][1:]
            output = [str(token) for token in record.tokens[:start]]
            expected = [END if text == str(runs.EOS) else text for text in output]
            assert tail == expected[-len(tail) :]
            ended += any(box.text == END for box in following)
    assert ended == FEW.limit


def test_blocks_are_shown_of_a_drafter_that_the_profile_has() -> None:
    """Real captions have one drafter, of shorter blocks than the table's; a role without a model was taken."""
    shown = arms(Settings(profile="pocket", source="folder"))
    assert all(isinstance(arm, Experiment) for arm in shown.values())


def test_the_first_round_that_fits_is_shown() -> None:
    """Strict: a bifurcation behind two drafts that stand, not in the first iteration. Relaxed: with a candidate."""
    strict, relaxed = (runs.records(arms(FEW)[method]) for method in (STRICT, RELAXED))
    wishes = [lambda one: one.bifurcation is not None and rounds._num(one, "candidate") > 0]
    record, first = rounds._choose("specdec-3", relaxed, spaced, wishes)
    trace = trace_of(record, spaced, "")
    assert first + 1 < len(trace.iterations)
    assert any(token.kind == "candidate" for token in trace.iterations[first].drafter)
    with pytest.raises(UsageError, match="no recorded run has an iteration of the kind"):
        rounds._choose("specdec-3", strict, spaced, wishes)


def test_points_are_table_1s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, figure = kept(monkeypatch), get_figure("specdec-2")
    records_of = runs.run_all(get_table(12).plan(FEW))
    cells = {(cell.row, cell.column): cell for cell in get_table(12).cells(FEW, Evidence(records_of))}
    found, refused = figures.points(figures.recorded(FEW, Evidence(records_of), "specdec-2"))
    assert set(found) == set(figures.MARKS)
    assert not refused
    speeds = {row: cell.measured for (row, column), cell in cells.items() if column == "speed"}
    values = {(speed, cells[row, "BLEU"].measured) for row, speed in speeds.items()}
    assert {(speed.value, quality.value) for speed, quality in found.values()} <= values
    figure.draw(FEW, Evidence(records_of), tmp_path)
    assert len(seen[0].axes[0].containers) == len(found)
    assert sorted(figures.published_speeds().values()) == [3.0, 3.6, 4.5]


def notes_of(figure: Figure) -> str:
    """Footnotes, their lines joined."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def test_an_arm_whose_speed_is_refused_is_named_below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, figure = kept(monkeypatch), get_figure("specdec-2")
    run = runs.run_all(figure.plan(FEW))
    bad = arms_of(FEW, EN_DE)[STRICT]
    run(bad)[2].divergence = WRONG
    figure.draw(FEW, Evidence(run), tmp_path)
    assert f"Not shown: {STRICT}: refused: 1 of 8 outputs differ" in notes_of(seen[0])
    assert len(seen[0].axes[0].containers) == len(figures.MARKS) - 1


def test_a_batch_size_with_a_wrong_output_is_named_below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, figure = kept(monkeypatch), get_figure("specdec-5")
    run = runs.run_all(figure.plan(SMALL))
    for batch, name in ((4, STRICT), (32, THEIR_BEAM)):
        run(arms_at(SMALL, EN_DE, batch)[name])[3].divergence = WRONG
    figure.draw(SMALL, Evidence(run), tmp_path)
    above, below = seen[0].axes
    counts = {container.get_label(): len(container[0].get_xdata()) for container in above.containers}
    assert counts == {GREEDY: 5, BEAM: 5, THEIR_BEAM: 4, STRICT: 4, HIGH_EFFICIENCY: 5}
    assert not any(len(container[0].get_xdata()) for container in below.containers), "which beam is the faster is unknown"
    assert f"Not shown: {STRICT}, at batch size 4 on cpu, float32: refused: 1 of 8 outputs differ" in notes_of(seen[0])
    assert f"Not shown: {THEIR_BEAM}, at batch size 32 on cpu, float32: refused: 1 of 1 outputs differ" in notes_of(seen[0])


def test_the_distribution_counts_every_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bars of both histograms sum to 100 %; the claimed range is the paper's."""
    seen, figure = kept(monkeypatch), get_figure("specdec-4")
    figure.draw(FEW, Evidence(runs.run_all(figure.plan(FEW))), tmp_path)
    arm = arms_of(FEW, EN_DE)
    fast, slow = (
        np.array([runs.row_seconds(arm[name], number)[0] for number in range(FEW.limit)]) for name in (HIGH_EFFICIENCY, BEAM)
    )
    labels = [text.get_text() for text in seen[0].axes[0].get_legend().get_texts()]
    assert labels[0].startswith(f"over AT, b = 5: median {np.median(slow / fast):.1f},")
    outlines = [patch.get_xy() for patch in seen[0].axes[0].patches if isinstance(patch, Polygon)]
    for edges in outlines:
        area = abs(np.sum(edges[:-1, 0] * edges[1:, 1] - edges[1:, 0] * edges[:-1, 1])) / 2
        assert area == pytest.approx(100 * figures.BIN)
    assert len(outlines) == 2
    assert figures.claimed_range() == (3.0, 6.0)
    assert any("3-6" in row["value"] for row in published.read("specdec", "text_claims"))


def test_a_wrong_output_bars_the_distribution(tmp_path: Path) -> None:
    figure = get_figure("specdec-4")
    run = runs.run_all(figure.plan(FEW))

    def elsewhere(experiment: Experiment) -> list[Record]:
        records = run(experiment)
        if experiment.method.values.get("rule") == "top-beta":
            for record in records:
                record.run = "another process"
        return records

    with pytest.raises(UsageError, match="figure specdec-4: refused: the two arms ran in different processes"):
        figure.draw(FEW, Evidence(elsewhere), tmp_path)


def test_speed_by_batch_is_over_beam_search_at_the_largest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, figure = kept(monkeypatch), get_figure("specdec-5")
    figure.draw(SMALL, Evidence(runs.run_all(figure.plan(SMALL))), tmp_path)
    above, below = seen[0].axes
    speeds = {container.get_label(): container[0].get_ydata() for container in below.containers}
    times = {container.get_label(): container[0].get_ydata() for container in above.containers}
    assert speeds[BEAM][-1] == pytest.approx(1)
    for name, values in speeds.items():
        assert values == pytest.approx(times[BEAM][-1] / times[name])
    records = runs.records(arms_at(SMALL, EN_DE, 4)[GREEDY])
    assert times[GREEDY][1] == pytest.approx(1e3 * sum(record.wall_s for record in records) / len(records))
    assert set(speeds) == {GREEDY, BEAM, THEIR_BEAM, STRICT, HIGH_EFFICIENCY}


def test_the_faster_beam_search_is_1_in_the_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, figure = kept(monkeypatch), get_figure("specdec-5")
    run = runs.run_all(figure.plan(SMALL))
    for record in run(arms_at(SMALL, EN_DE, 32)[THEIR_BEAM]):
        record.wall_s /= 10
    figure.draw(SMALL, Evidence(run), tmp_path)
    speeds = {container.get_label(): container[0].get_ydata() for container in seen[0].axes[1].containers}
    assert speeds[THEIR_BEAM][-1] == pytest.approx(1)
    assert speeds[BEAM][-1] == pytest.approx(0.125)  # 0.015 s a token, divided by ten, over 0.012


def test_every_device_that_was_measured_has_its_column(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, figure = kept(monkeypatch), get_figure("specdec-5")
    run = runs.run_all(figure.plan(SMALL))

    def records_of(experiment: Experiment) -> list[Record]:
        there = experiment.device == "cuda" and experiment.dtype == "float16"
        return run(experiment.replace(device="cpu", dtype="float32")) if there else run(experiment)

    figure.draw(SMALL, Evidence(records_of), tmp_path)
    assert [axes.get_title(loc="left") for axes in seen[0].axes[:2]] == ["cpu, float32", "cuda, float16"]
