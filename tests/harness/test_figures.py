"""Figures draw from records without a warning (pytest turns them into errors), the same bytes twice, and refuse to invent."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.settings import Settings
from harness.papers import get_figure
from harness.papers.leviathan.figures import _marker_legend, points
from harness.papers.leviathan.generation import spans
from harness.tables.evidence import Evidence

NAMES = [f"leviathan-{number}" for number in range(1, 6)]


def decoder(experiment: Experiment) -> Callable[[list[int]], str]:
    """Latin, umlauts, a dollar sign (no formula), a line break and a character that the font lacks."""
    words = ["The", " fox", " ü", " $5$", "\n", " 漢", " dog"]
    return lambda ids: "".join(words[token % len(words)] for token in ids)


@pytest.mark.parametrize("name", NAMES)
def test_figures_draw_from_records(name: str, synthetic: SimpleNamespace, tmp_path: Path) -> None:
    figure, settings = get_figure(name), Settings(limit=4)
    records_of = synthetic.run_all(figure.plan(settings))
    paths = figure.draw(settings, Evidence(records_of, decoder_of=decoder), tmp_path)
    assert {path.name for path in paths} >= {f"{name}.svg", f"{name}.png"}
    png, svg = (tmp_path / f"{name}.png").read_bytes(), (tmp_path / f"{name}.svg").read_text()
    assert png.startswith(b"\x89PNG")
    assert svg.startswith("<?xml")
    assert not re.search(r"<dc:date>", svg)


@pytest.mark.parametrize("name", ["leviathan-2", "leviathan-5"])
def test_the_same_records_give_the_same_bytes(name: str, synthetic: SimpleNamespace, tmp_path: Path) -> None:
    figure, settings = get_figure(name), Settings(limit=3)
    records_of = synthetic.run_all(figure.plan(settings))
    first, second = (figure.draw(settings, Evidence(records_of), tmp_path / folder) for folder in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("name", ["leviathan-2", "leviathan-3", "leviathan-4"])
def test_theory_is_drawn_without_records(name: str, tmp_path: Path) -> None:
    assert len(get_figure(name).draw(Settings(), Evidence(lambda experiment: []), tmp_path)) == 2


@pytest.mark.parametrize("name", ["leviathan-1", "leviathan-5"])
def test_a_picture_of_records_needs_records(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"make reproduce-figure-{name}"):
        get_figure(name).draw(Settings(), Evidence(lambda experiment: []), tmp_path)
    assert not list(tmp_path.iterdir())


def test_measured_points_are_the_tables(synthetic: SimpleNamespace) -> None:
    settings = Settings(limit=6)
    found = points(settings, Evidence(synthetic.run_all(get_figure("leviathan-2").plan(settings))))
    assert len(found) == 12
    assert {point.gamma for point in found} == {3, 5, 7}
    for point in found:
        assert point.operations.value == pytest.approx((point.gamma + 1) / point.tokens_per_step.value)


def test_every_draft_that_ran_under_a_papers_name_is_named(synthetic: SimpleNamespace) -> None:
    """On real models translation has drafts of its own; the legend named the last task's alone, at what it learned from."""
    settings = Settings(limit=3)
    found = points(settings, Evidence(synthetic.run_all(get_figure("leviathan-2").plan(settings))))
    drafts = [point for point in found if point.draft == "T5-small"]
    ran = ("T5 12 M, 6+6; T5 1.2 M, 2+2", "llama 134 M, 30; llama 5.3 M, 4, distilled from llama, 256 texts of cnndm")
    mixed = [replace(point, ran=ran[place % 2]) for place, point in enumerate(drafts)]
    (line,) = _marker_legend(mixed)
    assert line.get_label() == "T5-small\n(T5 1.2 M, 2+2)\n(llama 5.3 M, 4)"


def test_spans_fill_the_wall_clock(synthetic: SimpleNamespace) -> None:
    plain = synthetic.plain_experiment()
    record = synthetic.drafted(synthetic.drafted_experiment(plain, gamma=3), "a", 9, start_s=0.03)
    drawn = spans(record)
    assert sum(seconds for _, _, seconds in drawn) == pytest.approx(record.wall_s)
    for (_, start, seconds), (_, following, _) in pairwise(drawn):
        assert start + seconds == pytest.approx(following)
    assert sum(kind == "draft" for kind, _, _ in drawn) == 9
    alone = spans(synthetic.plain(plain, "a", 9, ar_s=0.01, start_s=0.03))
    assert sum(seconds for kind, _, seconds in alone if kind == "target") == pytest.approx(0.09)


def test_trace_of_a_plain_arm_has_only_target_spans(synthetic: SimpleNamespace) -> None:
    """Records of plain decoding hold no draft or verification times at all."""
    record = synthetic.plain(synthetic.plain_experiment(), "a", num_tokens=5)
    record.steps.draft_s, record.steps.verify_s = [], []
    kinds = [kind for kind, _, seconds in spans(record) if seconds > 0]
    assert kinds.count("target") == 5
    assert "draft" not in kinds
