"""PPD's figures: curves are the formulas at the right rates, timelines are what was recorded, and nothing is invented."""

import dataclasses
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pipelines import match_rate
from harness.papers import get_figure
from harness.papers.ppd import figure_theory as ppd_theory
from harness.papers.ppd import figure_timeline as ppd_timeline
from harness.papers.ppd.pipeline import SHOWN, comparison, shown_arm
from harness.papers.ppd.setup import match_arm
from harness.tables import published
from harness.tables.evidence import Evidence
from harness.tables.style import reaches
from methods.ppd import theory

NAMES = [f"ppd-{number}" for number in range(1, 5)]
FEW = Settings(limit=4)
RecordsOf = Callable[[Experiment], list[Record]]


def decoder(experiment: Experiment) -> Callable[[list[int]], str]:
    """What a font or a formula could stumble over, and a token longer than its bar."""
    words = ["The", " fox", " ü", " $5$", "\n", " 漢", " ", " internationalization"]
    return lambda ids: "".join(words[token % len(words)] for token in ids)


def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, to look into."""
    seen: list[Figure] = []
    monkeypatch.setattr("harness.tables.style.save", lambda figure, folder, name: seen.append(figure) or [])
    return seen


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts] + [text.get_text() for text in figure.texts]


@pytest.mark.parametrize("name", NAMES)
def test_figures_draw_from_records(name: str, synthetic: SimpleNamespace, tmp_path: Path) -> None:
    figure = get_figure(name)
    records_of = synthetic.run_all(figure.plan(FEW))
    first, second = (figure.draw(FEW, Evidence(records_of, decoder_of=decoder), tmp_path / folder) for folder in "ab")
    assert [path.name for path in first] == [f"{name}.svg", f"{name}.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[1].read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"<dc:date>|/work|/tmp", first[0].read_text())


def test_the_papers_points_are_the_computed_ones() -> None:
    """All 18 of them, to the digits that were computed from the paper's rates and equations by other means."""
    curves = {(curve.dataset, curve.head): curve for curve in ppd_theory.published_curves()}
    rows = published.read("ppd", "figure_3_4_computed")
    for row in rows:
        curve, k = curves[row["dataset"], row["trained"]], int(row["k"])
        rate = curve.rates[k]
        assert rate.value == pytest.approx(float(row["p_correct"]))
        assert rate.low is None
        assert curve.latency(rate.value) == pytest.approx(float(row["latency_per_token_over_d"]), abs=5e-6)
        for compute, column in (
            (theory.compute_per_time_unit, "avg_compute_per_time_unit"),
            (theory.compute_per_token, "compute_per_token_over_d"),
        ):
            assert compute(curve.depth, curve.layer, k, rate.value) == pytest.approx(float(row[column]), abs=5e-6)
    assert len(rows) == sum(len(curve.rates) for curve in curves.values()) == 18


def test_our_points_are_table_2s(synthetic: SimpleNamespace) -> None:
    records_of = synthetic.run_all(get_figure("ppd-3").plan(FEW))
    curves = ppd_theory.measured_curves(FEW, Evidence(records_of))
    assert [(curve.dataset, curve.head) for curve in curves] == [(d, h) for d in ("SQUAD", "WMT", "CNN/DM") for h in "NY"]
    for curve in curves:
        records = records_of(match_arm(FEW, curve.dataset))
        assert sorted(curve.rates) == [1, 3, 5]
        for k, rate in curve.rates.items():
            expected = match_rate(records, curve.head, 20, k)
            assert (100 * rate.value, 100 * rate.low, 100 * rate.high) == pytest.approx(
                (expected.value, expected.low, expected.high)
            )
            assert rate.n == 4
            assert reaches([rate.mapped(curve.latency)]) == [[0], [0]], "of four examples no interval is shown"
            [[down], [up]] = reaches([dataclasses.replace(rate, n=100).mapped(curve.latency)])
            assert down == pytest.approx((rate.high - rate.value) / 2)
            assert up == pytest.approx((rate.value - rate.low) / 2)
            assert curve.latency(rate.value) == pytest.approx(1 - rate.value / 2)


def test_another_depth_has_its_own_layer(synthetic: SimpleNamespace) -> None:
    """At an odd depth there is no half: the layer above it, with Theorem 4.1's own fraction."""
    shallow = dataclasses.replace(FEW, profile="test", models=(("vicuna-13b", "zoo:llama-draft-large"),))
    curves = ppd_theory.measured_curves(shallow, Evidence(synthetic.run_all(get_figure("ppd-3").plan(shallow))))
    assert {(curve.depth, curve.layer, curve.head) for curve in curves} == {(2, 1, "N")}
    odd = dataclasses.replace(curves[0], depth=7, layer=4)
    assert odd.latency(0.5) == pytest.approx(1 - 0.5 * 3 / 7)


@pytest.mark.parametrize("name", ["ppd-3", "ppd-4"])
def test_theory_is_drawn_without_records_and_says_so(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = kept(monkeypatch)
    get_figure(name).draw(Settings(), Evidence(lambda experiment: []), tmp_path)
    assert "not run" in texts_of(seen[0])
    left, right = seen[0].axes
    assert len(left.containers) == 6
    assert not right.containers
    assert len(draw_to(name, tmp_path, monkeypatch)) == 2


def draw_to(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.undo()
    return get_figure(name).draw(Settings(), Evidence(lambda experiment: []), folder)


def test_both_panels_show_their_curves(synthetic: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six curves a panel, hollow and dashed for the model's own head; the paper's have no bars; all within the axes."""
    seen = kept(monkeypatch)
    figure = get_figure("ppd-4")
    figure.draw(FEW, Evidence(synthetic.run_all(figure.plan(FEW))), tmp_path)
    for axes in seen[0].axes:
        lines = [container[0] for container in axes.containers]
        assert [line.get_linestyle() for line in lines] == ["--", "-"] * 3
        assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 6
        for line in lines:
            assert axes.get_xlim()[0] < min(line.get_xdata()) <= max(line.get_xdata()) < axes.get_xlim()[1]
            assert axes.get_ylim()[0] < min(line.get_ydata()) <= max(line.get_ydata()) < axes.get_ylim()[1]
    assert "texts: 4 of SQUAD, 4 of WMT, 4 of CNN/DM" in texts_of(seen[0])[-1]


@pytest.mark.parametrize("name", ["ppd-1", "ppd-2"])
def test_a_timeline_needs_a_run(name: str, tmp_path: Path, synthetic: SimpleNamespace) -> None:
    figure = get_figure(name)
    run = synthetic.run_all(figure.plan(FEW))

    def changed(change: Callable[[Record], None]) -> RecordsOf:
        def records_of(experiment: Experiment) -> list[Record]:
            records = run(experiment)
            for record in records:
                change(record)
            return records

        return records_of

    def fail(record: Record) -> None:
        record.status, record.steps, record.error = "failed", None, "RuntimeError: broken"

    def never_match(record: Record) -> None:
        record.steps.matched = [False for _ in record.steps.matched]

    def short(record: Record) -> None:
        for column in ("matched", "units", "parts", "round_s", "candidates", "early_layer"):
            setattr(record.steps, column, getattr(record.steps, column)[:3])

    cases: list[RecordsOf] = [lambda experiment: [], *map(changed, (never_match, short, fail))]
    for records_of in cases:
        with pytest.raises(UsageError, match=f"make reproduce-figure-{name}`"):
            figure.draw(FEW, Evidence(records_of, decoder_of=decoder), tmp_path)
    assert not list(tmp_path.iterdir())


def stretch(synthetic: SimpleNamespace, candidates: int, hits: list[bool], wishes: tuple, change=None) -> int:
    """Where the shown stretch of one record with these matches begins."""
    experiment = shown_arm(FEW, candidates)
    record = synthetic.piped(experiment, "a", len(hits) + 1, hits, 40, 20, candidates)
    if change:
        change(record)
    return ppd_timeline._choose(
        FEW, Evidence(lambda arm: [record] if arm == experiment else []), candidates, wishes, "ppd-1"
    ).first


def test_the_first_stretch_that_fits_is_shown(synthetic: SimpleNamespace) -> None:
    """It begins after a miss, so that its first round is whole; the last round's match is beyond the picture."""
    mixed, run = (lambda hits: True in hits and False in hits, any), (all, any)
    yes, no = True, False
    assert stretch(synthetic, 3, [no, no, no, no, yes, no, no, yes, no], mixed) == 2
    assert stretch(synthetic, 1, [no, yes, no, yes, yes, yes, no, no], run) == 3
    assert stretch(synthetic, 1, [no, yes, yes, no, no, yes, no, no], run) == 1, "no run of three: any match"
    assert stretch(synthetic, 3, [yes] * 9, mixed) == 0, "always matched: only the first token begins at the first layer"

    def unmeasured(record: Record) -> None:
        record.steps.units[4] = []

    assert stretch(synthetic, 1, [no, yes, no, yes, yes, yes, no, yes, yes, yes, no], run, unmeasured) == 7


def test_timelines_are_of_the_shown_arm(synthetic: SimpleNamespace) -> None:
    for candidates in (1, 3):
        arm = shown_arm(FEW, candidates)
        assert arm in comparison(FEW, SHOWN).arms
        assert (arm.task, arm.method.values.get("candidates"), arm.method.heads is not None) == ("cnndm", candidates, True)
        assert arm.method.options.execution == {1: "process", 3: "batched"}[candidates]
    for name in ("ppd-1", "ppd-2"):
        assert get_figure(name).plan(FEW) == [comparison(FEW, SHOWN)]


def bars(axes) -> list[tuple[float, float, float]]:
    """(begin, end, height) of every bar with a width."""
    found = []
    for collection in axes.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            if box.width > 0:
                found.append((box.x0, box.x1, (box.y0 + box.y1) / 2))
    return sorted(found, key=lambda bar: (-bar[2], bar[0]))


def test_the_measured_lanes_are_the_recorded_times(
    synthetic: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen, figure = kept(monkeypatch), get_figure("ppd-2")
    experiment = shown_arm(FEW, 1)
    record = synthetic.piped(experiment, "a", 9, (False, True, True, True, False), 40, 20, layer_s=2e-4, sub_layer_s=2.1e-4)
    figure.draw(FEW, Evidence(lambda arm: [record] if arm == experiment else [], decoder_of=decoder), tmp_path)
    above, below = seen[0].axes
    steps, shown = record.steps, range(1, 5)
    whole_ms = 1e3 * sum(steps.round_s[index] for index in shown)
    main = [bar for bar in bars(above) if bar[2] == pytest.approx(0)]
    assert main[0][0] == pytest.approx(0)
    assert main[-1][1] == pytest.approx(whole_ms)
    for (_, end, _), (begin, _, _) in pairwise(main):
        assert end == pytest.approx(begin), "no gap"
    assert above.get_xlim() == pytest.approx((0, whole_ms))
    subs = [bar for bar in bars(above) if bar[2] == pytest.approx(-1)]
    starts = [1e3 * sum(steps.round_s[1:index]) for index in shown]
    expected = [
        (start + 1e3 * steps.units[index][0], start + 1e3 * steps.units[index][1])
        for start, index in zip(starts, shown, strict=True)
    ]
    assert [bar[:2] for bar in subs] == [pytest.approx(pair) for pair in expected]
    text = ppd_timeline._decoder(ppd_timeline._Shown(experiment, record, 1, 4), Evidence(list, decoder_of=decoder))
    words = [text(record.tokens[index]) for index in shown]
    assert words == ["$5$", "\\n", "□", "(space)"]
    assert [word for word in texts_of(seen[0]) if word in words][:4] == words
    assert sum(annotation.arrow_patch is not None for annotation in above.texts if hasattr(annotation, "arrow_patch")) == 3
    layers = [(bar[0], bar[1]) for bar in bars(below) if bar[2] == pytest.approx(0)]
    assert layers == [(0, 20), *[(20 + 20 * i, 40 + 20 * i) for i in range(4)]]
    begun = [(bar[0], bar[1]) for bar in bars(below) if bar[2] == pytest.approx(-1)]
    assert begun == [(20 + 20 * i, 40 + 20 * i) for i in range(4)]


def test_text_is_shortened_and_spaces_are_named(synthetic: SimpleNamespace) -> None:
    experiment = shown_arm(FEW, 1)
    shown = ppd_timeline._Shown(experiment, synthetic.piped(experiment, "a", 6, (True,), 40, 20), 0, 4)
    text = ppd_timeline._decoder(shown, Evidence(list, decoder_of=decoder))
    assert [text(token) for token in (3, 4, 6, 7)] == ["$5$", "\\n", "(space)", "international…"[:13] + "…"]
    assert ppd_timeline._decoder(shown, Evidence(list))(31) == "31"
