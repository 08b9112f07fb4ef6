"""Bad recordings, through the command line: one clear line each, counted as failed, and the others go on."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from harness.cli.main import main
from harness.zoo.build import ensure
from tasks.base import SAMPLE_RATE

TARGET, DRAFT = "zoo:whisper-target", "zoo:whisper-draft"
READABLE = ("good", "stereo-8-khz")
BAD = {  # what is wrong, as it is said
    "cut-off": "it is cut off (8000 bytes, its header announces 32000); copy it again or remove the row",
    "no-samples": "it has 0 samples, expected a recording; correct the file or remove the row",
    "no-bytes": "cannot be decoded (0 bytes); expected FLAC, WAV, OGG or MP3: correct the file or remove the row",
    "no-sound": "cannot be decoded (",
    "cut-flac": "cannot be decoded (",
    "not-finite": "its samples are not all finite, expected numbers; correct the file or remove the row",
    "no-file": "cannot be decoded (no such file)",
    "no-path": "field 'audio' is 'None', expected the path of a recording; add it or remove the row",
    "no-field": "field 'audio' is missing, expected the path of a recording; add it or remove the row",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """LibriSpeech's layout: two recordings that can be read, and one row for everything that can be wrong."""
    clips = tmp_path / "librispeech"
    clips.mkdir()
    tone = (0.1 * np.sin(np.arange(SAMPLE_RATE) / 6)).astype(np.float32)
    soundfile.write(clips / "good.wav", tone, SAMPLE_RATE)
    soundfile.write(clips / "stereo-8-khz.wav", np.stack((tone[:8000], tone[8000:]), 1), 8000)
    soundfile.write(clips / "no-samples.wav", tone[:0], SAMPLE_RATE)
    soundfile.write(clips / "not-finite.wav", np.full(100, np.nan, np.float32), SAMPLE_RATE, subtype="FLOAT")
    soundfile.write(clips / "whole.flac", tone, SAMPLE_RATE)
    whole = (clips / "good.wav").read_bytes()
    (clips / "cut-off.wav").write_bytes(whole[: len(whole) - len(tone) * 2 + 8000])
    (clips / "cut-flac.wav").write_bytes((clips / "whole.flac").read_bytes()[:2000])
    (clips / "no-bytes.wav").write_bytes(b"")
    (clips / "no-sound.wav").write_bytes(bytes(range(256)) * 8)
    rows = [{"id": name, "text": "ONE TWO THREE", "audio": f"{name}.wav"} for name in (*READABLE, *BAD)]
    for row in rows:
        if row["id"] == "no-path":
            row["audio"] = None
        if row["id"] == "no-field":
            del row["audio"]
    (clips / "test_clean.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


def run(folder: Path, *options: str) -> int:
    ensure(("whisper-target", "whisper-draft"), "test", "toy", workers=0)
    arguments = ["run", "--task", "librispeech-clean", "--data", str(folder), "--target", TARGET, "--draft", DRAFT]
    sampled = ["--method", "speculative", "--rule", "fused", "--temperature", "1"]
    sizes = ["--profile", "test", "--limit", "20", "--max-new-tokens", "4", "--batch-size", "3"]
    return main([*arguments, *sampled, *sizes, "--records", str(folder / "records"), *options])


@pytest.mark.usefixtures("zoo_cache")
def test_each_bad_recording_is_one_failed_example_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--quiet") == 0
    captured = capsys.readouterr()
    metrics = json.loads(captured.out.splitlines()[-1])["metrics"]
    assert metrics["failed_frac"]["value"] == pytest.approx(len(BAD) / (len(BAD) + len(READABLE)))
    assert metrics["wer"]["n"] == len(READABLE)
    said = [line for line in captured.err.splitlines() if "failed" in line]
    assert len(said) == 1
    assert f"{len(BAD)} of {len(BAD) + len(READABLE)} examples failed" in said[0]
    arms = [
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in (folder / "records").glob("*.jsonl")
    ]
    assert len(arms) == 2
    for arm in arms:
        records = {record["example"]: record for record in arm}
        assert {name for name, record in records.items() if record["status"] == "ok"} == set(READABLE)
        for number, (name, expected) in enumerate(BAD.items(), 1 + len(READABLE)):
            error = records[name]["error"]
            assert error.startswith("DataError: ")
            assert expected in error
            assert f"test_clean.jsonl:{number}: " in error
            assert "\n" not in error
            assert records[name]["tokens"] is None


@pytest.mark.usefixtures("zoo_cache")
def test_a_row_without_transcript_is_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = folder / "librispeech" / "test_clean.jsonl"
    rows.write_text(json.dumps({"id": "good", "audio": "good.wav"}) + "\n", encoding="utf-8")
    assert run(folder, "--quiet") == 2
    expected = "field 'text' is missing (found: id, audio); add it, or name its column by --field"
    assert capsys.readouterr().err == f"foretoken: {rows}:1: {expected}\n"
