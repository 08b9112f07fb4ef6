"""The zoo's Whispers: recipes, what they are trained on, exact and resumable training, and files that transformers reads."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoFeatureExtractor, AutoTokenizer, WhisperForConditionalGeneration

from harness.core.errors import UsageError
from harness.zoo import whisper
from harness.zoo.build import ensure, missing_of
from harness.zoo.corpus import DATA, read_tokenizer
from harness.zoo.descriptions import WhisperRecipe
from harness.zoo.networks import build_network, num_parameters
from harness.zoo.recipes import RECIPES, Scale, digest, folder_of, recipe_for
from harness.zoo.speech import SpeechRows, build_speech, features_of, generation_settings, labelled_windows, read_speech
from harness.zoo.state import generator_of
from harness.zoo.whisper import (
    IGNORED,
    alignment_loss,
    copy_teacher,
    decoder_tokens,
    disturb,
    held_out_loss,
    rows_of_step,
    transcription,
    with_alignment,
)
from methods.models import stack_for
from methods.session import ModelSession
from methods.types import Inputs
from tasks import get_task
from tasks.base import SAMPLE_RATE
from tasks.sources.read import read_examples

TARGET, DRAFT = "whisper-target", "whisper-draft"


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    return ensure((TARGET, DRAFT), "test", "toy", workers=0)


def recipe_of(name: str, **changes: Any) -> WhisperRecipe:
    recipe = RECIPES["test"][name]
    assert isinstance(recipe, WhisperRecipe)
    return dataclasses.replace(recipe, **changes)


def rows_of(recipe: WhisperRecipe) -> SpeechRows:
    return read_speech(folder_of(recipe.corpus, "toy"))


def fresh(recipe: WhisperRecipe) -> Any:
    tokenizer = read_tokenizer(folder_of(recipe.corpus, "toy"))
    network: Any = build_network(recipe, tokenizer)
    network.generation_config = generation_settings(tokenizer, recipe.position_limit)
    return network


@pytest.mark.parametrize("scale", ["toy", "test", "paper"])
def test_a_pair_shares_encoder_and_corpus_and_the_draft_is_smaller(scale: Scale) -> None:
    target, draft = (recipe_for(name, scale, "toy") for name in (TARGET, DRAFT))
    assert draft.teacher == target
    assert draft.corpus == target.corpus
    assert (draft.width, draft.num_encoder_layers) == (target.width, target.num_encoder_layers)
    assert 2 * draft.num_layers <= target.num_layers
    assert num_parameters(draft) < num_parameters(target)


def test_toy_speech_trains_whatever_the_source_is(tmp_path: Path) -> None:
    for scale in ("toy", "test"):
        assert digest(RECIPES[scale][TARGET], str(tmp_path)) == digest(RECIPES[scale][TARGET], "toy")
    assert digest(RECIPES["paper"][TARGET], "hub") != digest(RECIPES["paper"][TARGET], "toy")


def test_the_draft_waits_for_the_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    assert [one.name for one in missing_of([RECIPES["toy"][DRAFT]], "toy").values()] == ["whisper", TARGET, DRAFT]


def test_rows_are_what_the_recordings_sound_like(folders: dict[str, Path]) -> None:
    recipe = recipe_of(TARGET)
    rows, tokenizer = rows_of(recipe), read_tokenizer(folder_of(recipe.corpus, "toy"))
    extractor = AutoFeatureExtractor.from_pretrained(folders[TARGET])
    assert 48 < len(rows) <= 64 + 8
    assert rows.features.shape[1:] == (16, 150)
    assert set(rows.part.tolist()) == {0, 1, 2, 3}
    said = {tokenizer.decode(rows.tokens(row), skip_special_tokens=True): row for row in range(len(rows))}
    found = 0
    for example in read_examples(get_task("librispeech-clean"), "toy", "train", 32, 0):
        row = said.get(example.references[0].lower())
        if row is not None:
            found += 1
            features = features_of(extractor, example.audio.sound().samples)[0]
            assert (rows.features[row].float() - features).abs().max() < 2e-3
            assert rows.tokens(row)[-1] == tokenizer.eos_token_id
    assert found >= 20


def test_a_talk_is_cut_into_windows_with_the_words_that_they_hold() -> None:
    """Every word is in some window, those of the overlap in two, in order; a real recording that is too long is left out."""
    talks = [example.audio for example in read_examples(get_task("tedlium"), "toy", "train", 6, 0)]
    size, several = 3 * SAMPLE_RATE, 0
    for talk in talks:
        cut = list(labelled_windows(talk, talk.text, size))
        if len(cut) == 1:
            assert cut[0][0] == talk.text
            continue
        several += 1
        words = [text.split() for text, _ in cut]
        assert all(len(samples) <= size for _, samples in cut)
        assert [len(samples) for _, samples in cut[:-1]] == [size] * (len(cut) - 1)
        merged = words[0]
        for text in words[1:]:
            shared = max(count for count in range(len(text) + 1) if merged[len(merged) - count :] == text[:count])
            assert shared > 0
            merged = merged + text[shared:]
        assert merged == talk.text.split()
    assert several >= 4
    sound = talks[0].sound()
    assert list(labelled_windows(SimpleNamespace(sound=lambda: sound), "text", len(sound.samples) - 1)) == []


def test_transformers_transcribes_with_the_folder_as_we_do(folders: dict[str, Path]) -> None:
    example = next(iter(read_examples(get_task("librispeech-clean"), "toy", "test", 1, 0)))
    for folder in folders.values():
        model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        tokenizer, extractor = AutoTokenizer.from_pretrained(folder), AutoFeatureExtractor.from_pretrained(folder)
        features = features_of(extractor, example.audio.sound().samples)
        session = ModelSession(stack_for(model))
        assert tokenizer.decode(session.stack.opening) == "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
        pending = session.prefill(Inputs((session.stack.opening,), features))
        ours = session.extend(torch.tensor([pending]))[0, -1].argmax()
        assert int(model.generate(features, max_new_tokens=1, do_sample=False)[0, 0]) == ours


def test_the_draft_has_the_targets_encoder_and_its_first_layer_to_begin_with(folders: dict[str, Path]) -> None:
    target, draft = (WhisperForConditionalGeneration.from_pretrained(folders[name]) for name in (TARGET, DRAFT))
    for ours, theirs in zip(draft.model.encoder.parameters(), target.model.encoder.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(draft.model.decoder.layers[0].fc1.weight, target.model.decoder.layers[0].fc1.weight)
    begun = fresh(recipe_of(DRAFT))
    copy_teacher(target, begun)
    assert torch.equal(begun.model.decoder.layers[0].fc1.weight, target.model.decoder.layers[0].fc1.weight)
    assert not any(weight.requires_grad for weight in begun.model.encoder.parameters())


def test_what_is_reported_is_measured(folders: dict[str, Path]) -> None:
    for name, folder in folders.items():
        facts = json.loads((folder / "recipe.json").read_text())
        network = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        assert facts["held_out"]["loss_nats"] == pytest.approx(
            held_out_loss(recipe_of(name), rows_of(recipe_of(name)), network)
        )
        assert facts["held_out"]["loss_nats"] < torch.tensor(network.config.vocab_size).log()
        assert facts["held_out"]["wer"] > 0
        assert facts["num_parameters"] == network.num_parameters()


@pytest.mark.parametrize("name", [TARGET, DRAFT])
def test_resumed_training_equals_an_unbroken_one(
    folders: dict[str, Path], tmp_path: Path, name: str, steps_of: Callable[..., Any]
) -> None:
    """Stopped after 2 of 5 steps (the target still shallow) and after 4: the weights are the same bit for bit."""
    recipe = recipe_of(name, steps=5, **({"shallow_frac": 0.5, "shallow_layers": 1} if name == TARGET else {}))
    teacher = None if name == TARGET else WhisperForConditionalGeneration.from_pretrained(folders[TARGET]).eval()
    rows, tokenizer, states = rows_of(recipe), read_tokenizer(folder_of(recipe.corpus, "toy")), []
    for interruptions in ((None,), (2, 4, None)):
        folder = tmp_path / str(len(interruptions))
        folder.mkdir()
        for before in interruptions:
            network = fresh(recipe)
            if teacher is not None:
                copy_teacher(teacher, network)
            parts = with_alignment(recipe, network)
            steps_of(recipe, parts, transcription(recipe, rows, tokenizer, teacher), folder, before=before, grown=network)
        states.append(network.state_dict())
    untrained = fresh(recipe).state_dict()
    assert all(torch.equal(weight, states[1][key]) for key, weight in states[0].items())
    assert any(not torch.equal(weight, untrained[key]) for key, weight in states[0].items())


def test_a_target_learns_transcript_and_alignment_in_their_shares_and_a_draft_its_teacher_alone(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, generator = recipe_of(TARGET, ctc_weight=0.25), torch.Generator()
    monkeypatch.setattr(whisper, "decoder_loss", lambda *args: torch.tensor(2.0))
    monkeypatch.setattr(whisper, "alignment_loss", lambda *args: torch.tensor(10.0))
    parts, found = with_alignment(recipe, fresh(recipe)), []
    for weight, teacher in ((0.25, None), (0.0, None), (0.25, parts["network"])):
        one = dataclasses.replace(recipe, ctc_weight=weight)
        objective = transcription(one, rows_of(one), read_tokenizer(folder_of(one.corpus, "toy")), teacher)
        found.append(float(objective.loss(parts, objective.batch(0), 0, generator)))
    assert found == [0.75 * 2 + 0.25 * 10, 2.0, 2.0]


def test_a_step_sees_rows_that_are_not_held_out_each_once_an_epoch(folders: dict[str, Path]) -> None:
    recipe = recipe_of(TARGET)
    rows = rows_of(recipe)
    per_epoch = (len(rows) - 8) // 8
    for epoch in range(2):
        seen = [row for step in range(per_epoch) for row in rows_of_step(recipe, rows, epoch * per_epoch + step)]
        assert len(set(seen)) == len(seen) == 8 * per_epoch
        assert min(seen) >= 8
    assert rows_of_step(recipe, rows, 0) != rows_of_step(recipe, rows, per_epoch)


def test_disturbing_shifts_and_hides_no_more_than_it_may() -> None:
    recipe = recipe_of(TARGET, mel_shift=1, hidden_bins=3, hidden_frames=4)
    features = torch.arange(16 * 20.0).view(1, 16, 20).repeat(50, 1, 1)
    found = disturb(recipe, features.clone(), generator_of(0, 1))
    assert torch.equal(found, disturb(recipe, features.clone(), generator_of(0, 1)))
    shifts = set()
    for one in found:
        same = [int(((one - features[0].roll(shift, 0)).abs() < 1e-3).sum()) for shift in (-1, 0, 1)]
        shifts.add(same.index(max(same)))
        assert max(same) >= 16 * 20 - 3 * 20 - 4 * 16
    assert shifts == {0, 1, 2}
    still = recipe_of(TARGET, mel_shift=0, hidden_bins=0, hidden_frames=0)
    assert torch.equal(disturb(still, features.clone(), generator_of(0, 1)), features)


def test_the_decoder_learns_the_transcript_behind_the_forced_tokens(folders: dict[str, Path]) -> None:
    settings = fresh(recipe_of(TARGET)).generation_config
    opening = [settings.decoder_start_token_id, *settings.lang_to_id.values(), *settings.task_to_id.values()]
    opening.append(settings.no_timestamps_token_id)
    end = settings.eos_token_id
    fed, labels = decoder_tokens(settings, [[11, 12, end], [13, end]])
    assert fed.tolist() == [[*opening, 11, 12], [*opening, 13, end]]
    assert labels.tolist() == [[IGNORED] * 3 + [11, 12, end], [IGNORED] * 3 + [13, end, IGNORED]]


def test_alignment_is_the_sum_over_paths() -> None:
    """Two frames, one word: the paths are (w w), (w blank) and (blank w); the blank is the end of text, token 0."""
    logits = torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(0))
    probs = logits.softmax(-1)[0]
    likely = probs[0, 2] * probs[1, 2] + probs[0, 2] * probs[1, 0] + probs[0, 0] * probs[1, 2]
    labels = torch.tensor([[IGNORED, 2, 0, IGNORED]])
    torch.testing.assert_close(alignment_loss(logits, labels), -likely.log())


def test_an_unreadable_corpus_and_a_task_without_recordings_are_named(tmp_path: Path, folders: dict[str, Path]) -> None:
    (tmp_path / DATA).write_bytes(b"short")
    with pytest.raises(UsageError, match=r"corpus\.safetensors: cannot be read"):
        read_speech(tmp_path)
    recipe = recipe_of(TARGET)
    part = dataclasses.replace(recipe.corpus.parts[0], task="text")
    other = dataclasses.replace(recipe, corpus=dataclasses.replace(recipe.corpus, parts=(part,)))
    with pytest.raises(UsageError, match="task 'text': it has no recordings; expected a task of speech"):
        build_speech(other.corpus, tmp_path, "toy")
