"""Recordings in the harness: windows and their text against transformers' pipeline, whole runs, bad recordings, bad pairs."""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from fuzz_models import save_whisper
from transformers import Pipeline, WhisperFeatureExtractor, pipeline
from transformers.models.whisper.tokenization_whisper import _find_longest_common_sequence

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.models import loading
from harness.models.fit import check_pair
from harness.models.loading import Listener, LoadedModel, load_model
from harness.models.names import pin_model
from harness.run import decode
from harness.run import record as recording
from harness.run.decode import generate, joined, merged, outputs_of, parts_of, text_of
from harness.run.prompts import examples_of, make_prompt, seed_of
from harness.run.runner import Runner, pin
from harness.zoo.build import ensure
from methods.autoregressive import Autoregressive
from methods.beam import BeamSearch
from methods.sampling import Sampling, Uniforms
from methods.speculative.acceptance import accepted_over_drafted
from methods.steps import Step, Steps
from methods.types import Stop
from tasks import get_task
from tasks.base import SAMPLE_RATE
from tasks.sound import windows_of
from tasks.sources.read import read_examples

TARGET, DRAFT = ModelSpec(name="zoo:whisper-target"), ModelSpec(name="zoo:whisper-draft")
DRAFTED = MethodSpec.of("speculative", drafter=DrafterSpec(kind="model", model=DRAFT), schedule="heuristic", gamma=5)


@pytest.fixture(scope="module")
def whisper(zoo_cache: Path) -> LoadedModel:
    ensure(("whisper-target", "whisper-draft"), "test", "toy", workers=0)
    return load_model(pin_model(TARGET, "test", "toy"))


@pytest.fixture(scope="module")
def hearing(whisper: LoadedModel) -> Pipeline:
    return pipeline("automatic-speech-recognition", model=str(whisper.path))


def plain(task: str = "librispeech-clean", **changes: object) -> Experiment:
    base = Experiment(
        task=task, profile="test", target=TARGET, method=MethodSpec(name="autoregressive"), limit=3, max_new_tokens=12
    )
    return base.replace(prompt_style="t5", **changes)


def recordings(folder: Path, names: dict[str, int]) -> Path:
    """A folder of LibriSpeech's layout; each name has so many seconds of noise, none where the file is broken."""
    clips = folder / "librispeech"
    clips.mkdir()
    for name, seconds in names.items():
        samples = 0.1 * np.random.default_rng(len(name)).standard_normal(seconds * SAMPLE_RATE)
        soundfile.write(clips / f"{name}.wav", samples, SAMPLE_RATE)
    rows = [{"id": name, "text": "ONE TWO THREE", "audio": f"{name}.wav"} for name in names]
    (clips / "test_clean.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name in [name for name, seconds in names.items() if seconds == 0]:
        (clips / f"{name}.wav").write_bytes(b"RIFF")
    return folder


@pytest.mark.parametrize("num_samples", [1, 10, 30, 31, 50, 51, 200])
def test_windows_overlap_by_a_third_and_cover_all(num_samples: int) -> None:
    cut = windows_of(np.arange(num_samples), 30)
    assert [len(one) for one in cut[:-1]] == [30] * (len(cut) - 1)
    assert 0 < len(cut[-1]) <= 30
    assert all(second[0] - first[0] == 20 for first, second in itertools.pairwise(cut))
    assert cut[0][0] == 0
    assert cut[-1][-1] == num_samples - 1
    assert len(cut) == 1 or len(cut[-1]) > 10


@pytest.mark.parametrize("seconds", range(1, 13))
def test_windows_of_any_length_are_those_of_transformers_pipeline(hearing: Pipeline, seconds: int) -> None:
    """Fault: of 1, 4, 7 or 10 seconds, where a sixth is no whole number of samples, a window began one sample late."""
    samples = np.arange(int(2.6 * seconds * SAMPLE_RATE), dtype=np.float32)
    expected = [said["stride"] for said in hearing.preprocess(samples, chunk_length_s=seconds)]
    cut = windows_of(samples, seconds * SAMPLE_RATE)
    assert [len(one) for one in cut] == [length for length, _, _ in expected]
    shared = [left[-1] - right[0] + 1 for left, right in itertools.pairwise(cut)]
    assert shared == [left[2] + right[1] for left, right in itertools.pairwise(expected)]


def test_the_text_of_windows_is_transformers() -> None:
    """Texts cut from one, with faults; and unrelated ones, which are put one behind the other."""
    rng = random.Random(0)
    for trial in range(300):
        text = [rng.randrange(100 if trial % 2 else 4) for _ in range(rng.randint(4, 30))]
        cut = rng.randint(1, len(text) - 1)
        left, right = text[: cut + rng.randint(0, 5)], text[cut:]
        right = [rng.randrange(100) if rng.random() < 0.15 else token for token in right]
        third = right[len(right) // 2 :] + [rng.randrange(100) for _ in range(5)]
        assert merged([left, right], ()) == _find_longest_common_sequence([left, right])
        assert merged([left, right, third], ()) == _find_longest_common_sequence([left, right, third])
    assert merged([[7, 1, 2, 3, 4, 9], [7, 3, 4, 5, 9], [7, 9]], {7, 9}) == [1, 2, 3, 4, 5]


def test_outputs_one_behind_the_other_come_apart_again() -> None:
    rng = random.Random(1)
    for _ in range(200):
        parts = [[rng.randint(1, 5) for _ in range(rng.randint(0, 7))] for _ in range(rng.randint(1, 4))]
        parts = [part if len(part) == 7 else [*part, 0] for part in parts]
        assert parts_of([token for part in parts for token in part], {0}, 7) == parts


def test_a_models_features_are_transformers(whisper: LoadedModel) -> None:
    example = next(iter(read_examples(get_task("librispeech-clean"), "toy", "test", 1, 0)))
    prompt = make_prompt(get_task("librispeech-clean"), example, plain(), whisper)
    (inputs,) = prompt.windows()
    extractor = WhisperFeatureExtractor.from_pretrained(whisper.path)
    samples = example.audio.sound().samples
    expected = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    assert torch.equal(inputs.features, expected)
    assert expected.shape == (1, *whisper.stack.feature_shape)
    assert prompt.tokens == inputs.prompts[0] == whisper.opening
    assert whisper.tokenizer.convert_ids_to_tokens(list(prompt.tokens)) == [
        "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>",
    ]  # fmt: skip
    text = whisper.tokenizer("a cat", add_special_tokens=False).input_ids
    assert whisper.decode([*prompt.tokens, *text, *whisper.eos_token_ids]) == "a cat"


def test_windows_are_decoded_one_after_another_whatever_the_batch(whisper: LoadedModel) -> None:
    """A talk of several windows and recordings of one, together and alone; each window has random numbers of its own."""
    tasks = [get_task("tedlium"), get_task("common-voice")]
    examples = [example for task in tasks for example in read_examples(task, "toy", "test", 6, 0)]
    experiment = plain(sampling=Sampling(temperature=1.0))
    prompts = [make_prompt(tasks[0], example, experiment, whisper) for example in examples]
    windows = [prompt.windows() for prompt in prompts]
    assert {1, 2} <= {len(one) for one in windows}
    longest = max(range(len(windows)), key=lambda index: len(windows[index]))
    chosen = [prompts[longest], prompts[-1]]
    session = whisper.session()
    together, _ = generate(experiment, Autoregressive(), chosen, whisper, session, repeat=0)
    alone = [generate(experiment, Autoregressive(), [prompt], whisper, session, repeat=0)[0][0] for prompt in chosen]
    assert [row.tokens for row in together] == [row.tokens for row in alone]
    stop = Stop(max_new_tokens=12, token_ids=frozenset(whisper.eos_token_ids))
    said = []
    for number, inputs in enumerate(windows[longest]):
        uniforms = Uniforms([seed_of(experiment, examples[longest].id, 0, number)], 12)
        said.append(Autoregressive().generate(session, inputs, experiment.sampling, uniforms, stop)[0].tokens)
    assert together[0].tokens == [token for part in said for token in part]
    assert outputs_of(experiment, chosen[0], together[0].tokens, whisper) == said
    whole = text_of(experiment, chosen[0], together[0].tokens, whisper)
    assert whole == whisper.decode(merged(said, set(whisper.tokenizer.all_special_ids)))
    assert joined([windows[longest][0], windows[-1][0]]).batch == 2


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_k=50)])
def test_a_run_with_a_draft_is_recorded_with_rates_overlap_and_the_guarantee(
    whisper: LoadedModel, tmp_path: Path, sampling: Sampling
) -> None:
    base = plain("tedlium", sampling=sampling, probes=(OverlapProbe(drafter=DRAFTED.drafter),), batch_size=2)
    arms = tuple(pin(arm) for arm in (base, base.replace(method=DRAFTED, probes=())))
    runner = Runner(tmp_path, quiet=True)
    runner.run(Comparison(arms))
    first, second = (runner.records(arm) for arm in arms)
    assert [record.status for record in (*first, *second)] == ["ok"] * 6
    for record in first:
        assert set(record.statistics) == {"hits", "substitutions", "deletions", "insertions"}
        assert record.prompt_tokens == 4
        assert len(record.overlap[0].by_lenience["1.0"]) == len(record.tokens)
        assert sum(record.steps.emitted) == len(record.tokens)
    if sampling.greedy:
        assert [record.tokens for record in first] == [record.tokens for record in second]
        assert all(record.divergence is None for record in second)


@pytest.mark.parametrize(
    ("fault", "of"),
    [
        (lambda patch: patch.setattr(decode, "_change_over", lambda left, right: (len(left), 1)), "tedlium"),
        (lambda patch: patch.setattr(recording, "text_of", lambda *given: text_of(*given)[:-1]), "common-voice"),
    ],
)
def test_a_text_that_its_tokens_do_not_give_is_a_fault(
    whisper: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None], of: str
) -> None:
    """Fault: windows joined at the wrong word, of which the run said that each output is as the target gives it."""
    arm = pin(plain(of, sampling=Sampling(temperature=1.0)))
    fault(monkeypatch)
    runner = Runner(tmp_path, quiet=True)
    runner.run(Comparison((arm,)))
    assert "text" in [one.divergence.what for one in runner.records(arm) if one.divergence is not None]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda samples, size: windows_of(samples, size)[: max(1, len(samples) // size)],
        lambda samples, size: [samples[start : start + size] for start in range(0, len(samples), size)],
        lambda samples, size: windows_of(samples, size)[::-1],
    ],
    ids=["the last is left out", "none overlaps", "the last first"],
)
def test_windows_that_are_not_transformers_are_a_fault(
    whisper: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., list[np.ndarray]]
) -> None:
    """Every arm hears the same wrong windows, and writes what the target gives for them."""
    source = str(recordings(tmp_path, {"short": 2, "longer": 7}))
    monkeypatch.setattr(loading, "windows_of", wrong)
    runner = Runner(tmp_path / "records", quiet=True)
    arm = pin(plain(source=source, limit=2))
    runner.run(Comparison((arm,)))
    found = {one.example: one.divergence.what for one in runner.records(arm) if one.divergence is not None}
    assert found == {"longer": "window of the recording"}


def test_drafts_behind_the_end_of_an_earlier_window_do_not_count_in_a_record(whisper: LoadedModel) -> None:
    """A window that ends inside an accepted block drafted what nobody verified; a record keeps where each window ended."""
    rounds = [Step([5, 6, 7], 1, 1, stop_reason="eos"), Step([5, 6], 2, 3), Step([5, 6], 1, 1, stop_reason="length")]
    kept = Steps.of(rounds).rounds("length")
    assert [step.stop_reason for step in kept] == ["eos", None, "length"]
    assert accepted_over_drafted(kept) == accepted_over_drafted(rounds)
    assert Steps.of(rounds[1:]).stop_reason == []  # of a text the record's own says it


def test_a_recording_that_cannot_be_read_fails_alone(whisper: LoadedModel, tmp_path: Path, capfd) -> None:
    folder = recordings(tmp_path, {"broken": 0, "good": 2, "long": 7})
    stereo = np.zeros((8000, 2), np.float32) + 0.01
    soundfile.write(tmp_path / "librispeech/good.wav", stereo, 8000)
    arm = pin(plain(source=str(folder), batch_size=3))
    runner = Runner(tmp_path / "records", quiet=True)
    runner.run(Comparison((arm,)))
    in_turn = [example.id for example in examples_of(arm)]
    assert [record.example for record in runner.records(arm)] == in_turn, "a smaller limit takes the first of them"
    assert in_turn[-1] != "broken", "which would be the last one anyway"
    records = {record.example: record for record in runner.records(arm)}
    assert {name: record.status for name, record in records.items()} == {"broken": "failed", "good": "ok", "long": "ok"}
    assert "broken.wav': cannot be decoded (" in records["broken"].error
    assert "\n" not in records["broken"].error
    assert records["broken"].tokens is None
    assert len(records["long"].tokens) > 12
    notes = [line for line in capfd.readouterr().err.splitlines() if line.startswith("foretoken: note")]
    assert notes == ["foretoken: note: example 'good': 2 channels averaged, resampled from 8000 to 16000 Hz"]


def test_beams_search_every_row(whisper: LoadedModel) -> None:
    task, experiment = get_task("common-voice"), plain("common-voice")
    prompts = [make_prompt(task, example, experiment, whisper) for example in read_examples(task, "toy", "test", 2, 0)]
    rows, _ = generate(experiment, BeamSearch(2), prompts, whisper, whisper.session(), repeat=0)
    alone = [generate(experiment, BeamSearch(2), [one], whisper, whisper.session(), repeat=0)[0][0].tokens for one in prompts]
    assert [row.tokens for row in rows] == alone


@pytest.mark.parametrize("method", ["speculative", "transformers"])
def test_the_command_line_transcribes(whisper: LoadedModel, tmp_path: Path, capsys, method: str) -> None:
    """By our loop and by transformers', which says nothing beside."""
    arguments = [
        "run",
        "--task",
        "librispeech-other",
        "--target",
        TARGET.name,
        "--draft",
        DRAFT.name,
        "--method",
        method,
    ]
    options = ["--profile", "test", "--limit", "2", "--max-new-tokens", "6", "--quiet", "--records", str(tmp_path)]
    assert main([*arguments, *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out.splitlines()[-1])
    assert document["metrics"]["accepted_over_drafted"]["n"] == 2
    assert document["audit"]["verdict"] == "identical"
    assert document["metrics"]["wer"]["unit"] == "WER"


def test_tasks_and_models_that_do_not_fit_are_refused(whisper: LoadedModel) -> None:
    squad = get_task("squad")
    with pytest.raises(UsageError, match="task 'squad': model zoo:whisper-target hears, and this task has no recordings"):
        make_prompt(squad, next(iter(read_examples(squad, "toy", "test", 1, 0))), plain("squad"), whisper)
    ensure(("gpt-draft",), "test", "toy", workers=0)
    reader = load_model(pin_model(ModelSpec(name="zoo:gpt-draft"), "test", "toy"))
    tedlium = get_task("tedlium")
    with pytest.raises(UsageError, match="task 'tedlium': it is speech, and model zoo:gpt-draft reads; expected a Whisper"):
        make_prompt(tedlium, next(iter(read_examples(tedlium, "toy", "test", 1, 0))), plain("tedlium"), reader)
    with pytest.raises(UsageError, match="kinds differ"):
        check_pair(whisper, reader)


def test_a_draft_that_hears_otherwise_is_refused(whisper: LoadedModel) -> None:
    other = Listener(WhisperFeatureExtractor(feature_size=40, chunk_length=3, hop_length=320), "other")
    with pytest.raises(
        UsageError, match=r"features differ: target zoo:whisper-target has feature_size 16, .*choose two that hear"
    ):
        check_pair(whisper, replace(whisper, name="other", listener=other))
    with pytest.raises(UsageError, match="model other: its feature extractor wants 8000 Hz; expected 16000"):
        Listener(SimpleNamespace(sampling_rate=8000), "other")


def test_a_checkpoint_of_whispers_own_classes_is_loaded_from_its_folder(tmp_path: Path) -> None:
    """As an English-only one of the paper's is: its tokenizer, feature extractor and settings, tiny and random."""
    folder = save_whisper(tmp_path / "tiny.en")
    spec = ModelSpec(name=str(folder))
    loaded = load_model(pin_model(spec, "paper", "toy"))
    assert loaded.opening == (4, 7)
    assert loaded.eos_token_ids == (3,)
    assert loaded.stack.feature_shape == (16, 200)
    arm = pin(plain(target=spec, profile="paper", method=replace(DRAFTED, drafter=DrafterSpec(kind="model", model=spec))))
    runner = Runner(tmp_path / "records", quiet=True)
    runner.run(Comparison((arm,)))
    assert [record.status for record in runner.records(arm)] == ["ok"] * 3
    assert all(set(record.text) <= {"a", "b", " "} for record in runner.records(arm))
    assert all(step == drafted for record in runner.records(arm) for step, drafted in zip(
        record.steps.num_accepted, map(len, record.steps.drafted), strict=True))  # fmt: skip
