"""The simulation of what intervals contain, on records whose answer is known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.core.errors import UsageError
from harness.core.records import Record
from harness.measures.coverage import coverage, cut_short, report
from harness.measures.statistics import Estimate


@pytest.fixture
def outputs(synthetic: SimpleNamespace, arms: SimpleNamespace) -> list[Record]:
    """Of 60 outputs 15 end at the limit."""
    records = [synthetic.plain(arms.plain, f"e{number}", 8 + number % 7) for number in range(60)]
    return [replace(one, stop_reason="eos" if number % 4 else "length") for number, one in enumerate(records)]


def test_an_exact_interval_covers_and_half_of_it_does_not(outputs: list[Record]) -> None:
    """400 samples: the chance that 95 % show as less than 92 is below 1 %."""

    def halved(_: list[Record], own: list[Record]) -> Estimate | None:
        found = cut_short(own)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        return replace(found, low=(found.low + found.value) / 2, high=(found.high + found.value) / 2)

    whole = coverage(lambda _, own: cut_short(own), [], outputs, 30, 400)
    half = coverage(halved, [], outputs, 30, 400)
    assert whole is not None
    assert half is not None
    assert whole >= 0.92
    assert half < 0.85


def test_a_report_names_every_kind(tmp_path: Path, synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    synthetic.write(tmp_path, arms.plain, [synthetic.plain(arms.plain, f"e{i}", 8 + i % 7) for i in range(60)])
    lines = report(tmp_path)
    assert lines[0].split()[:2] == ["kind", "numbers"]
    assert any(line.startswith("mean") for line in lines)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="no arm has 60 examples"):
        report(empty)
