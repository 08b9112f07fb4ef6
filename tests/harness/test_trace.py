"""The trace of a run: the Trace Event Format's rules, and the times that were recorded."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec
from harness.core.records import Record
from harness.tables.trace import trace

SLACK = 1e-6  # microseconds


def complete(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The events with a duration, once all rules of the format hold that a viewer relies on."""
    document = json.loads(json.dumps(document, allow_nan=False))
    assert {"traceEvents", "displayTimeUnit"} <= set(document)
    for event in document["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts", "args"} <= set(event)
        assert event["ph"] in ("X", "M")
        assert event["ph"] == "M" or (event["ts"] >= 0 and event["dur"] >= 0)
    named = {event["tid"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert named == {event["tid"] for event in events}
    for thread in named:
        open_until: list[float] = []
        for event in sorted((one for one in events if one["tid"] == thread), key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= event["ts"] + SLACK:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + SLACK, f"{event['name']} overlaps what it does not lie within"
            open_until.append(end)
    return events


def seconds_of(events: list[dict[str, Any]], name: str) -> list[float]:
    return [event["dur"] / 1e6 for event in events if event["name"] == name]


def test_a_drafting_runs_rounds_are_what_was_recorded(synthetic: SimpleNamespace) -> None:
    """Faults: seconds for microseconds, a verification that outlasts its round, examples that all begin at 0."""
    arm = synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=3)
    records = [synthetic.drafted(arm, name, 9, start_s=0.03) for name in ("a", "b")]
    events = complete(trace(arm, [*records, synthetic.failed(arm, "c")]))
    first, second = [event for event in events if event["name"].startswith("example ")]
    assert first["ts"] + first["dur"] == pytest.approx(second["ts"])
    assert second["dur"] == pytest.approx(1e6 * records[1].wall_s)
    rounds = [event for event in events if event["name"].startswith("round ")]
    assert [event["args"]["emitted"] for event in rounds] == [*records[0].steps.emitted, *records[1].steps.emitted]
    for name, times in (("draft", "draft_s"), ("verify", "verify_s")):
        assert seconds_of(events, name) == pytest.approx([one for record in records for one in getattr(record.steps, times)])
    assert seconds_of(events, "other") == pytest.approx([0.001] * len(rounds))


def test_plain_decoding_and_outputs_without_rounds(synthetic: SimpleNamespace) -> None:
    plain = synthetic.plain_experiment()
    record = synthetic.plain(plain, "a", 5, ar_s=0.01, start_s=0.02)
    events = complete(trace(plain, [record]))
    assert seconds_of(events, "target") == pytest.approx([0.01] * 5)
    assert [event["name"] for event in complete(trace(plain, [replace(record, steps=None)]))] == ["example a"]


def piped(synthetic: SimpleNamespace, num_units: int) -> tuple[Experiment, Record]:
    method = MethodSpec.of("ppd", early_layer=5)
    arm = Experiment(task="text", target=ModelSpec(name="zoo:llama-deep"), method=method)
    return arm, synthetic.piped(arm, "a", 6, num_candidates=2, num_units=num_units)


@pytest.mark.parametrize("num_units", [1, 2])
def test_a_pipelines_processes_have_threads_of_their_own(synthetic: SimpleNamespace, num_units: int) -> None:
    arm, record = piped(synthetic, num_units)
    document = trace(arm, [record])
    events = complete(document)
    names = {event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert names == {0: "decoding"} | {unit: f"sub-process {unit}" for unit in range(1, num_units + 1)}
    for unit in range(1, num_units + 1):
        work = [event for event in events if event["tid"] == unit]
        assert [event["args"]["round"] for event in work] == [1, 2, 3, 4, 5], "the last token has no candidates"
    assert sum(seconds_of(events, "wait")) == pytest.approx(sum(parts[5] for parts in record.steps.parts))


def test_what_has_no_times_of_its_own_is_refused(synthetic: SimpleNamespace) -> None:
    plain = synthetic.plain_experiment()
    with pytest.raises(UsageError, match="trace: no output of these records has times"):
        trace(plain, [synthetic.failed(plain, "a")])
    with pytest.raises(UsageError, match="trace: the 4 rows of a batch share their times"):
        trace(plain.replace(batch_size=4), [synthetic.plain(plain, "a")])


def test_show_writes_all_records_or_one(synthetic: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arm = synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=3)
    path = synthetic.write(tmp_path, arm, [synthetic.drafted(arm, name, 9) for name in ("a", "b")])
    for address, wanted in ((f"{path}", ["a", "b"]), (f"{path}:2", ["b"])):
        assert main(["show", address, "--trace", str(tmp_path / "trace.json")]) == 0
        events = complete(json.loads((tmp_path / "trace.json").read_text(encoding="utf8")))
        assert [one["name"].split()[1] for one in events if one["name"].startswith("example")] == wanted
    assert str(tmp_path / "trace.json") in capsys.readouterr().out
    for number in (0, 3):
        assert main(["show", f"{path}:{number}"]) == 2
        assert "expected a number from 1 to 2 after the colon" in capsys.readouterr().err
