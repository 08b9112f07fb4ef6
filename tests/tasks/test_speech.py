"""Speech: what is spoken, where recordings come from, what is said of bad ones, and word error rates by another's counts."""

import json
import random
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import soundfile

from tasks import get_task
from tasks.base import SAMPLE_RATE, DataError, Example
from tasks.sound import decode, resample, with_noise
from tasks.sources.locate import fingerprint
from tasks.sources.read import read_examples
from tasks.speech import edit_counts, normalise
from tasks.world.speech import ALL_ACCENTS, CONDITIONS, VARIANTS, speak_words, speech_row

TONE_HZ = 440


def speak(*said):
    return speak_words(*said)[0]


def tone(rate, seconds=1.0):
    return (0.5 * np.sin(2 * np.pi * TONE_HZ * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def write_rows(folder, rows, name="test_clean.jsonl"):
    path = folder / "librispeech" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row_of(name, **other):
    return {"id": name, "text": "ONE TWO", "audio": f"clips/{name}.flac", "speaker_id": 7, **other}


def message_of(example):
    with pytest.raises(DataError) as error:
        example.audio.sound()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", CONDITIONS)
def test_toy_speech_has_300_words_and_many_voices(name):
    rows = [speech_row(name, 0, "train", index) for index in range(400)]
    words = {word.strip(".,").lower() for row in rows for word in row["text"].split()}
    assert len(words) >= 300
    assert len({row["speaker_id"] for row in rows}) >= 40
    assert not {row["audio"].text for row in rows} & {speech_row(name, 0, "test", index)["audio"].text for index in range(100)}
    assert speech_row(name, 0, "test", 3) == speech_row(name, 0, "test", 3)
    assert speech_row(name, 0, "test", 3) != speech_row(name, 1, "test", 3)


def test_transcripts_are_written_as_the_datasets_write_them():
    texts = {name: [speech_row(name, 0, "test", index)["text"] for index in range(50)] for name in CONDITIONS}
    for name in ("librispeech-clean", "librispeech-other"):
        assert all(text == text.upper() and "." not in text for text in texts[name])
    assert all(text == text.lower() and "." not in text for text in texts["tedlium"])
    assert all(text[0].isupper() and text[-1] == "." for text in texts["common-voice"])
    assert all(text.count(".") == 2 for text in (speech_row("tedlium", 0, "test", index)["audio"].text for index in range(50)))


def test_the_same_words_are_the_same_samples_in_every_process():
    code = (
        "from hashlib import md5; from tasks.world.speech import speak_words as speak;"
        "speak('{before}', 'en+m3', 300, 70, 50);"
        "print(md5(speak('There was a cat.', 'en-us+f2', 180, 50, 50)[0].tobytes()).hexdigest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code.format(before=words)], capture_output=True, text=True, check=True).stdout
        for words in ("Hello.", "Something else entirely.")
    ]
    assert runs[0] == runs[1] != ""
    first, second = (speak("There was a cat.", "en+croak", 180, 50, 50) for _ in range(2))
    assert np.array_equal(first, second)


def test_every_voice_speaks_and_sounds_unlike_the_others():
    spoken = {speak("A cat.", accent + variant, 180, 50, 50).tobytes() for accent, variant in product(ALL_ACCENTS, VARIANTS)}
    assert len(spoken) == len(ALL_ACCENTS) * len(VARIANTS)
    with pytest.raises(DataError, match="voice 'en-moon': eSpeak NG has no such voice"):
        speak("A cat.", "en-moon", 180, 50, 50)


def test_words_are_said_where_they_are_said_to_be():
    """Speaking only what stands before a word takes about as long as the word's begin says, by eSpeak itself."""
    text = "The old teacher bought a red car and a green boat"
    samples, starts = speak_words(text, "en-us", 175, 50, 50)
    assert len(starts) == len(text.split())
    assert list(starts) == sorted(starts)
    assert starts[0] == 0
    assert starts[-1] < len(samples) / SAMPLE_RATE
    assert np.array_equal(samples, speak(text, "en-us", 175, 50, 50))
    words = text.split()
    for count in (3, 7):
        before = len(speak(" ".join(words[:count]), "en-us", 175, 50, 50)) / SAMPLE_RATE
        assert abs(before - starts[count]) < 0.25  # the last word of a sentence is longer
    assert len(speak_words("The roof of the house", "en-us", 175, 50, 50)[1]) == 5  # "of the" is spoken as one


def test_an_utterance_is_as_long_as_its_rate_says_and_other_is_noisier_than_clean():
    slow, fast = (len(speak("The old teacher bought a red car.", "en-us", rate, 50, 50)) for rate in (150, 225))
    assert slow / fast == pytest.approx(1.5, rel=0.1)
    for name, (least, most) in (("librispeech-clean", (25, 40)), ("librispeech-other", (5, 20))):
        for example in read_examples(get_task(name), "toy", "test", 3, 0):
            said = example.audio
            clean = speak(said.text, said.voice, said.words_per_minute, said.pitch, said.pitch_range)
            noise = said.sound().samples - clean
            assert least - 0.5 < 10 * np.log10(np.mean(clean**2) / np.mean(noise**2)) < most + 0.5


def test_noise_has_the_power_that_its_decibels_say():
    clean = tone(SAMPLE_RATE)
    for snr_db in (0.0, 20.0):
        noise = with_noise(clean, snr_db, (3,)) - clean
        assert 10 * np.log10(np.mean(clean**2) / np.mean(noise**2)) == pytest.approx(snr_db, abs=0.2)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_resampling_keeps_a_tone_where_it_was(rate):
    found, expected = resample(tone(rate), rate), tone(SAMPLE_RATE)
    assert found.dtype == np.float32
    assert len(found) == len(expected)
    inside = slice(800, -800)
    assert np.abs(found[inside] - expected[inside]).max() < 5e-3


def test_stereo_and_other_rates_are_converted_and_say_so(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack((tone(8000), np.zeros(8000, np.float32)), 1), 8000)
    sound = decode(path, "a")
    assert sound.conversion == "2 channels averaged, resampled from 8000 to 16000 Hz"
    assert len(sound.samples) == SAMPLE_RATE
    assert np.abs(sound.samples[800:-800] - 0.5 * tone(SAMPLE_RATE)[800:-800]).max() < 5e-3
    soundfile.write(path, tone(SAMPLE_RATE), SAMPLE_RATE, subtype="FLOAT")
    assert decode(path, "a").conversion is None
    assert np.array_equal(decode(path, "a").samples, tone(SAMPLE_RATE))


def test_a_folder_is_read_and_a_bad_recording_says_what_is_wrong_in_one_line(tmp_path):
    rows = [
        row_of("good"),
        row_of("gone"),
        row_of("void"),
        row_of("noise"),
        row_of("short", audio="clips/short.wav"),
        row_of("none", audio=None),
    ]
    path = write_rows(tmp_path, [*rows, {"id": "bare", "text": "X"}, row_of("music", text="ignore_time_segment_in_scoring")])
    clips = path.parent / "clips"
    clips.mkdir()
    soundfile.write(clips / "good.flac", tone(SAMPLE_RATE), SAMPLE_RATE)
    soundfile.write(clips / "short.wav", np.zeros(0, np.float32), SAMPLE_RATE)
    (clips / "void.flac").write_bytes(b"")
    (clips / "noise.flac").write_bytes(b"fLaC" + b"\0" * 100)
    examples = {example.id: example for example in read_examples(get_task("librispeech-clean"), str(tmp_path), "test", None, 0)}
    assert list(examples) == ["good", "gone", "void", "noise", "short", "none", "bare"]
    assert len(examples["good"].audio.sound().samples) == SAMPLE_RATE
    assert f"{path}:2: audio '{clips / 'gone.flac'}': cannot be decoded (no such file); expected FLAC" in message_of(
        examples["gone"]
    )
    assert "cannot be decoded (0 bytes)" in message_of(examples["void"])
    assert "cannot be decoded (" in message_of(examples["noise"])
    assert "it has 0 samples, expected a recording" in message_of(examples["short"])
    assert f"{path}:6: field 'audio' is 'None', expected the path of a recording" in message_of(examples["none"])
    assert f"{path}:7: field 'audio' is missing, expected the path of a recording" in message_of(examples["bare"])


def test_bytes_in_parquet_and_saved_folders_are_heard(tmp_path):
    import datasets
    import pyarrow
    import pyarrow.parquet

    soundfile.write(tmp_path / "a.wav", tone(SAMPLE_RATE), SAMPLE_RATE)
    data = (tmp_path / "a.wav").read_bytes()
    rows = [{"id": name, "text": "ONE", "audio": {"bytes": data if name == "a" else b"x", "path": "a.wav"}} for name in "ab"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    saved = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio())
    saved.save_to_disk(str(tmp_path / "saved"))
    for source in ("rows.parquet", "saved"):
        good, bad = read_examples(get_task("librispeech-clean"), str(tmp_path / source), "test", None, 0)
        assert len(good.audio.sound().samples) == SAMPLE_RATE
        assert "audio: cannot be decoded (not audio)" in message_of(bad)


def test_a_lone_file_is_all_for_testing_and_a_train_file_is_for_training(tmp_path):
    task = get_task("librispeech-clean")
    write_rows(tmp_path, [row_of(str(index)) for index in range(9)])
    assert len(list(read_examples(task, str(tmp_path), "test", None, 0))) == 9
    with pytest.raises(DataError, match="no row for the train split of librispeech-clean"):
        list(read_examples(task, str(tmp_path), "train", None, 0))
    write_rows(tmp_path, [row_of(f"t{index}") for index in range(5)], "train_clean.jsonl")
    assert [example.id for example in read_examples(task, str(tmp_path), "train", None, 0)] == [
        f"t{index}" for index in range(5)
    ]


def test_the_fingerprint_changes_with_a_recording(tmp_path):
    path = write_rows(tmp_path, [row_of("a")])
    before = fingerprint(get_task("librispeech-clean").dataset, str(tmp_path))
    (path.parent / "clips").mkdir()
    prints = {before}
    for seconds in (1.0, 2.0):
        soundfile.write(path.parent / "clips/a.flac", tone(SAMPLE_RATE, seconds), SAMPLE_RATE)
        prints.add(fingerprint(get_task("librispeech-clean").dataset, str(tmp_path)))
    assert len(prints) == 3


def test_the_normaliser_is_whispers():
    assert normalise("MR. SMITH'S COLOUR (laughs) isn't  twenty-one!") == "mister smith is color is not 21"
    assert normalise("uh, mm") == ""


def levenshtein(first, second):
    """The textbook recurrence."""
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def test_the_rate_is_edits_over_words_and_an_empty_hypothesis_is_all_deletions():
    rng, task, words = random.Random(0), get_task("tedlium"), ("cat", "dog", "bird", "tree")
    pairs = [tuple([rng.choice(words) for _ in range(rng.randint(low, 9))] for low in (0, 1)) for _ in range(40)] + [
        ([], ["cat"] * 5)
    ]
    statistics = [
        task.statistics(Example(str(at), {}, (" ".join(right),)), " ".join(left)) for at, (left, right) in enumerate(pairs)
    ]
    for counts, (left, right) in zip(statistics, pairs, strict=True):
        assert counts["substitutions"] + counts["deletions"] + counts["insertions"] == levenshtein(left, right)
        assert counts["hits"] + counts["substitutions"] + counts["deletions"] == len(right)
    assert statistics[-1] == {"hits": 0.0, "substitutions": 0.0, "deletions": 5.0, "insertions": 0.0}
    found = task.aggregate(statistics)["wer"]
    assert found.value == pytest.approx(sum(levenshtein(*pair) for pair in pairs) / sum(len(right) for _, right in pairs))
    assert found.unit == "WER"
    assert "empty hypotheses:deletions|jiwer:" in found.signature
    twice = np.full((2, len(pairs)), 2.0)
    assert task.resample(statistics, twice)["wer"] == pytest.approx([found.value] * 2)
    assert edit_counts("a", "") == {"hits": 0.0, "substitutions": 0.0, "deletions": 0.0, "insertions": 1.0}
    assert np.isnan(task.aggregate([edit_counts("a", "")])["wer"].value)


@pytest.mark.parametrize("name", CONDITIONS)
def test_real_recordings_are_heard(name, shared):
    examples = list(read_examples(get_task(name), str(shared / "data"), "test", 3, 0))
    assert len(examples) == 3
    for example in examples:
        sound = example.audio.sound()
        assert sound.conversion is None
        assert 0.5 < len(sound.samples) / SAMPLE_RATE < 40
        assert get_task(name).statistics(example, example.references[0])["hits"] > 0
