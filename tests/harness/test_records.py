"""Records survive a kill at any byte, a full disk, and JSON."""

import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probed import with_probe_records

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.files import LineFile
from harness.core.record_files import RecordFile, load_records, read_records
from harness.core.records import Divergence, EarlyRanks, Overlap, ProbeRecord, Record, text_hash
from harness.tables.files import write_whole
from methods.steps import Steps

EXPERIMENT = Experiment(
    task="text",
    target=ModelSpec(name="m"),
    method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=2),
    probes=(OverlapProbe(drafter=DrafterSpec(kind="bigram")),),
)


PIPED = {"early_layer": [1], "parts": [[]], "units": [[]]}  # what a pipeline's rounds have besides

TIE = {"position": 1, "margin": 0.0, "bound": 0.001, "replays_agree": True, "kind": "near-tie"}


def record(index: int) -> Record:
    steps = Steps(drafted=[[1, 2]], num_accepted=[1], emitted=[2], target_probs=[[0.5, 0.1]], draft_probs=[[0.25, 1.0]])
    overlap = [Overlap(drafter="bigram", by_lenience={"1.0": [0.5, 0.25]})]
    return Record(
        signature=EXPERIMENT.signature,
        example=f"é{index}",
        repeat=0,
        status="ok",
        tokens=[1, 2],
        text="naïve\n",
        steps=steps,
        overlap=overlap,
    )


def test_round_trip(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, EXPERIMENT)
    written = [record(i) for i in range(3)]
    with file.open() as writer:
        for one in written:
            writer.append(with_probe_records(EXPERIMENT, one))
    assert file.read() == written
    assert load_records(tmp_path) == written


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cut_at_any_byte_loses_at_most_the_torn_record(data: st.DataObject) -> None:
    whole = b"".join(record(i).to_line().encode() for i in range(3))
    cut = data.draw(st.integers(0, len(whole)))
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"foretoken-cut-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    file = RecordFile(folder, EXPERIMENT.replace(probes=()))
    file.path.write_bytes(whole[:cut])
    expected = whole[:cut].count(b"\n")
    assert len(file.read()) == expected
    with file.open() as writer:
        writer.append(record(9))
    assert [r.example for r in file.read()] == [f"é{i}" for i in range(expected)] + ["é9"]
    file.path.unlink()


def test_malformed_line_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(record(0).to_line().encode() + b'{"nonsense": 1}\n')
    with pytest.raises(UsageError, match=r"x\.jsonl:2: not a record"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"wall_s": -1.0}, "wall_s: -1.0; expected 0 to 1e+07"),
        ({"wall_s": 1e300}, "wall_s: 1e+300; expected 0 to 1e+07"),
        ({"wall_s": 0}, "wall_s: 0, of 2 tokens"),
        ({"wall_s": 1e-300}, "wall_s: 1e-300, of 2 tokens; expected what they took"),
        ({"repeat": -1}, "repeat: -1"),
        ({"num_rows": 0}, "num_rows: 0; expected 1 or more"),
        ({"tokens": [1, -2]}, "tokens: -2"),
        ({"tokens": [1, 2**63]}, "tokens: 9223372036854775808; expected 0 to 2.14748e+09"),
        ({"error": "but it worked"}, "status 'ok', but error 'but it worked'"),
        ({"status": "failed"}, "error: null, of an example that failed"),
        ({"status": "failed", "error": "why"}, "tokens: of an example that failed; expected null"),
        ({"status": "failed", "error": "why", "tokens": None}, "text: of an example that failed; expected null"),
        ({"status": "failed", "error": "why", "tokens": None, "text": None}, "steps: of an example that failed; expected null"),
        ({"replayed": 10**9}, "replayed: 1000000000; expected 0 to 80"),
        ({"steps": {"num_accepted": [99]}}, "drafted 2, accepted 99 and emitted 2 tokens"),
        ({"steps": {"num_accepted": [0]}}, "drafted 2, accepted 0 and emitted 2 tokens"),
        ({"steps": {"target_probs": [[5.0, 0.1]]}}, "steps.target_probs: 5.0; expected 0 to 1.01"),
        ({"steps": {"draft_probs": [[-0.5, 0.1]]}}, "steps.draft_probs: -0.5"),
        ({"steps": {"round_s": [-0.5]}}, "steps.round_s: -0.5"),
        ({"steps": {"drafted": [[1, -7]]}}, "steps.drafted: -7"),
        ({"steps": {"drafted": [[1] * 16385]}}, "steps.drafted, in a round: 16385; expected 0 to 16384"),
        ({"steps": {"drafted": [[1]], "num_accepted": [1]}}, "a round has more target_probs than drafts"),
        ({"divergence": TIE | {"margin": 100.0}}, "divergence.kind: 'near-tie', of margin 100.0, bound 0.001 and replays that"),
        ({"divergence": TIE | {"replays_agree": False}}, "bound 0.001 and replays that do not agree; expected 'bug'"),
        ({"divergence": TIE | {"kind": "bug"}}, "replays that agree; expected 'near-tie'"),
        ({"divergence": TIE | {"kind": "unresolved"}}, "divergence.kind: 'unresolved', of margin 0.0"),
        ({"divergence": TIE | {"margin": -1.0}}, "divergence.margin: -1.0; expected 0 or more"),
        ({"divergence": TIE | {"bound": -1.0}}, "divergence.bound: -1.0; expected 0 or more"),
        ({"stop_reason": "nosuch"}, "Invalid enum value 'nosuch' - at `$.stop_reason`"),
        ({"on_processor_frac": 7.0}, "on_processor_frac: 7.0; expected 0 to 1"),
        ({"wall_s": 1.0, "encode_s": 2.0}, "clock: a batch took 1 s, its rounds and encoding 2 s"),
        ({"wall_s": 1.0, "steps": {"round_s": [1.5]}}, "clock: a batch took 1 s, its rounds and encoding 1.5 s"),
        ({"wall_s": 3.0, "steps": {"round_s": [1.5], "draft_s": [1.0], "verify_s": [1.0]}}, "clock: a round took 1.5 s"),
        (
            {"steps": PIPED | {"candidates": [[3, 4]], "matched": [True]}},
            "steps.matched: True of token 1 and candidates [3, 4]",
        ),
        (
            {"steps": PIPED | {"candidates": [[1, 4]], "matched": [None]}},
            "steps.matched: None of token 1 and candidates [1, 4]",
        ),
        (
            {"overlap": [{"drafter": "bigram", "by_lenience": {"1.0": [0.5, 0.2], "0.5": [0.5]}}]},
            "overlap.by_lenience: [1, 2] positions; expected as many of each",
        ),
        ({"nats": 1e308}, "nats: 1e+308; expected 0 to 1400"),
        ({"statistics": {"log_prob": -1e308}}, "statistics.log_prob: -1e+308; expected -1e+100 to 1e+100"),
        ({"steps": {"draft_probs": []}}, "target_probs and draft_probs of different lengths"),
        ({"steps": {"early_layer": [3]}}, "some of candidates, matched, early_layer, parts, units are missing"),
        ({"steps": {"drafted": [[1, 10**30]]}}, "steps.drafted: 1000000000000000000000000000000; expected 0 to"),
    ],
)
def test_impossible_numbers_are_refused_by_name(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    values = json.loads(record(0).to_line())
    steps = values["steps"] | change.get("steps", {})
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(values | change | {"steps": steps}) + "\n")
    with pytest.raises(UsageError, match=r"x\.jsonl:1: not a record") as caught:
        list(read_records(path))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "divergence",
    [
        Divergence(position=1, margin=0.0, bound=0.001, replays_agree=True, kind="near-tie"),
        Divergence(position=1, margin=None, bound=None, replays_agree=True, kind="near-tie"),
        Divergence(position=1, margin=None, bound=None, replays_agree=False, kind="unresolved"),
        Divergence(position=1, margin=1.0, bound=0.0, replays_agree=False, kind="bug", what="choice"),
    ],
)
def test_what_a_run_finds_of_a_divergence_is_read_back(divergence: Divergence) -> None:
    assert Record.from_line(replace(record(0), divergence=divergence).to_line()).divergence == divergence


@pytest.mark.parametrize("appended", ['"wall_s":5.0', '"tokens":[7,8]', '"text":"another"', '"checksum":"0"'])
def test_nothing_stands_behind_a_checksum(appended: str) -> None:
    """Fault: of a field that a line has twice the last counts, and one behind the checksum was not in its sum."""
    line = record(0).to_line()
    assert Record.from_line(line) == Record.from_line(line.rstrip()) == record(0).with_probes([])
    with pytest.raises(ValueError, match="changed after it was written"):
        Record.from_line(line.rstrip()[:-1] + f",{appended}}}\n")


PARTED = Divergence(position=1, margin=None, bound=None, replays_agree=True, kind="near-tie")


def speculating(gamma: int) -> Experiment:
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=gamma)
    return EXPERIMENT.replace(method=method, probes=())


@pytest.mark.parametrize(
    ("experiment", "change", "expected"),
    [
        (speculating(2), {}, None),
        (speculating(1), {}, "a round of 2 drafts; its experiment asks for 1 at most"),
        (EXPERIMENT.replace(probes=(), method=MethodSpec(name="autoregressive")), {}, "a round of 2 drafts; .* for 0 at most"),
        (speculating(2), {"num_rows": 2}, "2 rows in a batch; its experiment asks for 1 at most"),
        (speculating(2).replace(batch_size=2), {"num_rows": 2}, None),
        (
            speculating(2),
            {"divergence": PARTED},
            "a near-tie without a margin, as only .* one beam",
        ),
        (speculating(2).replace(method=MethodSpec.of("beam", num_beams=2)), {"divergence": PARTED, "steps": None}, None),
    ],
)
def test_what_an_experiment_does_not_ask_for_is_refused(
    tmp_path: Path, experiment: Experiment, change: dict[str, Any], expected: str | None
) -> None:
    """Fault: such lines, signed by somebody who knows how, were read in silence."""
    file = RecordFile(tmp_path, experiment)
    file.path.write_text(replace(record(0), signature=experiment.signature, overlap=[], **change).to_line())
    if expected is None:
        assert len(file.stored()) == 1
    else:
        with pytest.raises(UsageError, match=rf"example 'é0' has {expected}: remove that line"):
            file.stored()


def measured(**found: Any) -> ProbeRecord:
    return ProbeRecord(example="é0", repeat=0, text=text_hash([1, 2]), **found)


@pytest.mark.parametrize(
    ("found", "odd"),
    [
        (measured(early=[EarlyRanks(head="N", layer=1, ranks=[0])]), 1),
        (measured(overlap=[Overlap(drafter="bigram", by_lenience={"1.0": [0.5] * 3})]), 3),
    ],
)
def test_probes_of_other_positions_are_refused(tmp_path: Path, found: ProbeRecord, odd: int) -> None:
    file = RecordFile(tmp_path, EXPERIMENT)
    file.path.write_text(record(0).to_line())
    path = file.probe_path(EXPERIMENT.probes[0])
    path.parent.mkdir()
    path.write_text(found.to_line())
    with pytest.raises(UsageError, match=f"example 'é0' was measured at {odd} positions of 2 tokens; remove this file"):
        file.read()


def test_a_file_that_holds_the_records_of_another_is_refused(tmp_path: Path) -> None:
    """All of one experiment, but not of that which the file is named by and whose description lies beside it."""
    path = tmp_path / f"{'0123' * 4}.jsonl"
    path.write_text(record(0).to_line())
    with pytest.raises(UsageError, match=r"is of experiment \w+; expected 0123012301230123, the file's own"):
        load_records(path)


def test_a_record_of_another_experiment_is_refused(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, EXPERIMENT.replace(probes=()))
    file.path.write_text(record(0).to_line() + replace(record(1), signature="0123").to_line())
    for read in (file.read, lambda: load_records(tmp_path)):
        with pytest.raises(UsageError, match=rf"example 'é1' is of experiment 0123; expected {EXPERIMENT.signature}"):
            read()


def test_each_line_is_on_the_disk_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without power loses the line that is being written alone; other tests do not wait for disks."""
    path, seen = tmp_path / "lines.jsonl", list[bytes]()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: seen.append(path.read_bytes()))
    with LineFile(path) as file:
        file.write(b"one\n")
        file.write(b"two\n")
    assert seen == [b"one\n", b"one\ntwo\n"]


def test_full_disk_is_one_clear_line_and_keeps_what_was_written(tmp_path: Path) -> None:
    """A limit on the file's size fails the write as a full disk does: part of a record fits, the rest does not."""
    file, size = RecordFile(tmp_path, EXPERIMENT.replace(probes=())), len(record(0).to_line().encode())
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with file.open() as writer:
        writer.append(record(0))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, before[1]))
            with pytest.raises(UsageError, match="what was recorded before is kept"):
                writer.append(record(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert [one.example for one in file.read()] == ["é0"]
        writer.append(record(2))
    assert [one.example for one in file.read()] == ["é0", "é2"]


def test_what_a_link_points_to_is_replaced_and_a_pipe_is_not(tmp_path: Path) -> None:
    """Fault: the link, or the pipe, became a file of its own."""
    link, pipe, target = (tmp_path / name for name in ("link", "pipe", "target"))
    link.symlink_to(target)
    os.mkfifo(pipe)
    for content in ("one", "two"):
        assert write_whole(link, content) == link
        assert (link.is_symlink(), target.read_text()) == (True, content)
    with pytest.raises(UsageError, match=r"output .*pipe: cannot be written \(no regular file\); .* or name another file"):
        write_whole(pipe, "three")
    assert pipe.is_fifo()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "pipe", "target"]
    with target.open("w") as file, pytest.raises(UsageError, match="no regular file"):
        write_whole(Path(f"/proc/self/fd/{file.fileno()}"), "four")


def test_missing_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not there"):
        load_records(tmp_path / "none.jsonl")
