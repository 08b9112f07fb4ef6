"""`foretoken draft` for a Whisper: a decoder over the target's encoder, exact, resumed, and never tested on what it learned."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from fuzz_models import save_whisper
from killed import kill_once_there
from safetensors.torch import load_file
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from harness.cli.main import main
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.models.fit import Models
from harness.models.loading import LoadedModel, load_model
from harness.models.names import pin_model
from harness.models.pocket import TRAINED, PocketDraft
from harness.run import draft_network, draft_sounds
from harness.run.build import build_method
from harness.run.decode import generate
from harness.run.draft_material import ROWS, Material, collect
from harness.run.own_data import evaluated_source
from harness.run.prompts import make_prompt
from harness.zoo.build import ensure
from harness.zoo.state import CHECKPOINT, load_state, save_state
from kernels.native import cache_folder
from methods.models.whisper import WhisperStack, same_encoder
from methods.sampling import Sampling
from methods.speculative.model import ModelDrafter, SameEncoderDrafter
from methods.types import Inputs
from tasks import get_task
from tasks.base import SAMPLE_RATE, Example, Recording, Sound
from tasks.sources.read import read_examples
from tasks.sources.rows import Rows, row_hash
from tasks.sources.source import PARTED, Source

TASK, KNOWN = "librispeech-clean", "200"
SMALL = ("--layers", "1", "--texts", "40", "--steps", "24", "--max-new-tokens", "12", "--threads", "1")
ENCODER = "model.encoder."


@pytest.fixture(scope="module")
def target(zoo_cache: Path) -> str:
    [folder] = ensure(["whisper-target"], "test", "toy", workers=0).values()
    return str(folder)


@pytest.fixture(scope="module")
def loaded(target: str) -> LoadedModel:
    return load_model(pin_model(ModelSpec(name=target), "toy", "toy"))


def words_of(target: str, folder: Path, *words: str) -> list[str]:
    return ["draft", "--target", target, "--task", TASK, "--data", "toy", "--output", str(folder), *SMALL, *words]


@pytest.fixture(scope="module")
def draft(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts") / "part"
    assert main(words_of(target, folder, "--vocabulary", KNOWN)) == 0
    return folder


def material_for(target: str, source: str = "toy", task: str = TASK) -> Material:
    return Material(
        target=pin_model(ModelSpec(name=target), "toy", "toy"), tasks=(task,), source=source, max_input_tokens=512,
        max_new_tokens=12, chat_template=False, seed=0,
    )  # fmt: skip


def test_it_learns_over_the_encoder_of_its_target(draft: Path, target: str) -> None:
    known = json.loads((draft / "recipe.json").read_text())
    first, *_, last = known["evaluations"]
    for name in set(first) - {"step"}:
        assert last[name] > first[name] + 0.05, "the draft agrees more often than before any step"
    task = get_task(TASK)
    read = Rows.of((task, one) for one in read_examples(task, "toy", "train", 40, 0))
    assert Rows.from_dict(known["rows"]) == read
    assert len(read.hashes) > 30, "rows are told apart"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (draft, Path(target)))
    heard = [name for name in theirs if name.startswith(ENCODER)]
    assert len(heard) > 10
    assert all(torch.equal(ours[name], theirs[name]) for name in heard)
    kept = json.loads((draft / "config.json").read_text())["kept_tokens"]
    embedding = "model.decoder.embed_tokens.weight"
    assert torch.equal(ours[embedding][: len(kept)], theirs[embedding][kept]), "words that no recording has stay known"
    assert 0 < known["num_learning_parameters"] < known["num_parameters"]
    assert {"preprocessor_config.json", "tokenizer.json", "generation_config.json"} <= {path.name for path in draft.iterdir()}


def test_its_folder_is_a_whisper_of_transformers(draft: Path, target: str) -> None:
    network, found = WhisperForConditionalGeneration.from_pretrained(draft, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert network.config.decoder_layers == 1
    assert network.config.vocab_size == int(KNOWN) + 1
    theirs = WhisperFeatureExtractor.from_pretrained(target)
    assert WhisperFeatureExtractor.from_pretrained(draft).to_dict() == theirs.to_dict()


@pytest.mark.parametrize("words", [(), ("--temperature", "0.8", "--top-k", "5")])
def test_a_run_with_it_is_exact(
    draft: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    command = ["run", "--task", TASK, "--data", "toy", "--target", target, "--draft", str(draft), "--method", "speculative"]
    size = ["--limit", "4", "--max-new-tokens", "12", "--threads", "1", "--replay", "all", "--quiet"]
    assert main([*command, *size, "--records", str(tmp_path), *words]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["audit"]["verdict"] in ("identical", "replayed", "same distribution"), document["audit"]
    assert document["metrics"]["alpha_overlap"]["value"] > 0


def test_it_hears_with_its_target(draft: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window is encoded once, also of a batch that shrinks; a draft that hears on its own proposes the very same."""
    models = Models()
    spec = pin_model(ModelSpec(name=target), "toy", "toy")
    model, other = models.get(spec), pin_model(ModelSpec(name=str(draft)), "toy", "toy")
    experiment = Experiment(
        task=TASK, source="toy", target=spec, max_new_tokens=12, sampling=Sampling(temperature=1.0),
        method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="model", model=other), gamma=3),
    )  # fmt: skip
    task = get_task(TASK)
    prompts = [make_prompt(task, one, experiment, model) for one in read_examples(task, "toy", "test", 3, 0)]
    method: Any = build_method(experiment.method, model, models)
    assert isinstance(method.drafter, SameEncoderDrafter)
    heard: list[int] = []
    hear = WhisperStack.hear
    monkeypatch.setattr(WhisperStack, "hear", lambda self, features: heard.append(len(features)) or hear(self, features))
    runs = []
    for drafter, encoded in ((method.drafter, 3), (ModelDrafter(method.drafter.session), 6)):
        method.drafter = drafter
        rows, _ = generate(experiment, method, prompts, model, model.session(), repeat=0)
        runs.append([(row.tokens, [step.drafted for step in row.steps]) for row in rows])
        assert sum(heard) == encoded
        heard.clear()
    assert runs[0] == runs[1]


def test_what_was_heard_once_is_every_rows() -> None:
    """A row of several that are all alike once had an empty tensor, of a batch with states of its own it has its own."""
    states = torch.arange(6.0).view(3, 1, 2)
    alike, apart = (Inputs(((1,), (1,), (1,)), encoded=encoded) for encoded in (states[:1], states))
    for row in range(3):
        assert torch.equal(alike.row(row).encoded, states[:1])
        assert torch.equal(apart.row(row).encoded, states[row : row + 1])


def test_a_model_with_another_encoder_hears_on_its_own(draft: Path, target: str, loaded: LoadedModel) -> None:
    own = load_model(pin_model(ModelSpec(name=str(draft)), "toy", "toy")).stack
    assert same_encoder(own, loaded.stack)
    with torch.no_grad():
        list(own.model.model.encoder.parameters())[3].flatten()[0].add_(1e-3)
    assert not same_encoder(own, loaded.stack)
    assert not same_encoder(own, load_model(pin_model(ModelSpec(name=target), "toy", "toy"), dtype="float64").stack)


def test_laws_are_the_targets_behind_its_forced_tokens(target: str, loaded: LoadedModel) -> None:
    readings = collect(material_for(target), loaded, 2 * ROWS, lambda: True)
    [example] = read_examples(get_task(TASK), "toy", "train", 1, 0)
    features = loaded.listener.features(example.audio.sound().samples)
    whole = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32)
    first = readings[0]
    with torch.no_grad():
        states = whole.model.encoder(features).last_hidden_state
        logits = whole(encoder_outputs=(states,), decoder_input_ids=first.tokens[None, :-1]).logits[0]
    assert torch.allclose(first.heard.float(), states[0], atol=2e-3)
    assert tuple(first.tokens[: first.num_prompt].tolist()) == loaded.opening
    never = list(whole.generation_config.suppress_tokens)
    for place in range(first.num_prompt - 1, len(first.tokens) - 1):
        begins = list(whole.generation_config.begin_suppress_tokens) if place == first.num_prompt - 1 else []
        law = logits[place].index_fill(0, torch.tensor([*never, *begins]), float("-inf")).softmax(-1)
        assert torch.allclose(first.probs[place].float(), law[first.likely[place].long()], atol=2e-3)
        assert int(law.argmax()) == int(first.tokens[place + 1])
    assert all(not one.probs[: one.num_prompt - 1].any() for one in readings)
    assert {one.is_greedy for one in readings} == {True, False}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[0].update(heard=rows[0]["heard"][1:]), "what was heard is of another kind"),
        (lambda rows: rows[0].update(heard=None), "what was heard is of another kind"),
        (lambda rows: rows[0]["heard"].fill_(float("nan")), "what was heard is not finite"),
    ],
)
def test_edited_states_are_refused(target: str, draft: Path, change: Any, reason: str, loaded: LoadedModel) -> None:
    path = material_for(target).folder / "00000.pt"
    content, rows = path.read_bytes(), load_state(path, torch.device("cpu"))
    change(rows)
    save_state(rows, path)
    try:
        with pytest.raises(Exception, match=reason):
            collect(material_for(target), loaded, ROWS, lambda: True)
    finally:
        path.write_bytes(content)


def test_a_killed_training_ends_with_the_same_weights(target: str, draft: Path, tmp_path: Path) -> None:
    """Killed with SIGKILL once a checkpoint is there; the other training never was, in another cache."""
    words = words_of(target, tmp_path / "draft", "--vocabulary", KNOWN)
    (tmp_path / "cache").mkdir()
    for compiled in cache_folder().glob("native-*"):
        shutil.copy2(compiled, tmp_path / "cache")
    kill_once_there(tmp_path, f"draft/{CHECKPOINT}", words, tmp_path / "cache")
    assert not (tmp_path / "draft" / "recipe.json").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
        assert main(words) == 0
    first, second = (load_file(one / "model.safetensors") for one in (draft, tmp_path / "draft"))
    assert all(torch.equal(first[name], second[name]) for name in first | second)


def test_a_draft_as_deep_as_its_target_is_the_target(loaded: LoadedModel) -> None:
    """Before any step, of all tokens and of some."""
    stack = loaded.stack
    features = loaded.listener.features(np.sin(np.arange(SAMPLE_RATE) / 9, dtype=np.float32))
    tokens = [*loaded.opening, 30, 31, 32]
    kept = sorted({*range(100), *loaded.opening, *loaded.eos_token_ids})
    with torch.no_grad():
        theirs = stack.model(input_features=features, decoder_input_ids=torch.tensor([tokens])).logits[0]
        for known in (list(range(loaded.vocab_size)), kept):
            network = draft_network.new_network(stack.num_layers, None, 0, loaded, known).eval()
            own = torch.tensor([[known.index(token) for token in tokens]])
            ours = network(input_features=features, decoder_input_ids=own).logits[0]
            assert torch.allclose(ours[:, : len(known)], theirs[:, known], atol=1e-4)
            opening = WhisperStack(network).opening
            assert [known[token] for token in opening] == list(loaded.opening)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--width", "64"), "width 64: a draft of a Whisper reads its encoder"),
        (("--vocabulary", "5"), "vocabulary 5: expected 6 to "),
        (("--layers", "9"), "layers 9: expected at most "),
        (("--chat-template",), "hears, and reads no prompt"),
    ],
)
def test_bad_sizes_are_one_line(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert main(words_of(target, tmp_path / "draft", *words)) == 2
    [*_, line] = capsys.readouterr().err.splitlines()
    assert expected in line


def test_tasks_and_models_that_do_not_fit_are_one_line(
    target: str, draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task that is read, a model that reads, and a target of other tokens and ears."""
    reader = str(next(iter(ensure(["gpt-draft"], "test", "toy", workers=0).values())))
    other = str(save_whisper(tmp_path / "other"))
    run = ["run", "--task", TASK, "--data", "toy", "--method", "speculative", "--draft", str(draft), "--limit", "1", "--quiet"]
    for words, expected in (
        (["draft", "--target", target, "--task", "squad", "--output", str(tmp_path / "a"), *SMALL], "hears, and this task has"),
        (["draft", "--target", reader, "--task", TASK, "--output", str(tmp_path / "b"), *SMALL], "it is speech, and model"),
        ([*run, "--target", other, "--records", str(tmp_path / "c")], " differ: target "),
        ([*run, "--target", reader, "--task", "squad", "--records", str(tmp_path / "d")], "kinds differ: target "),
    ):
        capsys.readouterr()
        assert main(words) == 2
        [*_, line] = capsys.readouterr().err.splitlines()
        assert expected in line


def spoken(folder: Path, stem: str, count: int) -> None:
    """A lone test file of a speech task: rows of three speakers, tones for recordings."""
    clips = folder / "librispeech"
    clips.mkdir(exist_ok=True)
    rows = []
    for number in range(count):
        name, samples = f"{stem}-{number}.wav", 0.1 * np.sin(np.arange(SAMPLE_RATE // 2) * (number + 1) / 50)
        soundfile.write(clips / name, samples, SAMPLE_RATE)
        rows.append({"id": f"{stem}-{number}", "text": f"{stem} {number}", "audio": name, "speaker_id": number % 7})
    (clips / f"{stem}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")


def test_a_lone_test_set_is_parted_and_what_was_learned_is_not_tested(target: str, tmp_path: Path, monkeypatch: Any) -> None:
    """By speakers. The other test set of the folder stays whole, and so does this one for who learned nothing."""
    for stem in ("test_other", "test_clean"):
        spoken(tmp_path, stem, 42)
    material = material_for(target, str(tmp_path), "librispeech-other")
    other, clean = get_task("librispeech-other"), get_task("librispeech-clean")
    learned = Rows.from_dict(material.rows(1000))
    assert learned is not None
    folder = tmp_path / "draft"
    folder.mkdir()
    facts = {"rows": learned.as_dict(), "material": {"source": str(tmp_path)}}
    (folder / "recipe.json").write_text(json.dumps(facts))
    monkeypatch.setitem(TRAINED, "heard", replace(recipe_of("whisper-base-draft"), tasks=("librispeech-other",)))
    plain = ModelSpec(name=target)
    for name in (str(folder), "pocket:heard"):
        drafted = [plain, ModelSpec(name=name)]
        tested = list(read_examples(other, evaluated_source(str(tmp_path), other.name, drafted), "test", None, 0))
        assert tested
        assert not {row_hash(other, one) for one in tested} & learned.hashes
        assert len(tested) + len(learned.hashes) == 42, "nothing is lost"
        assert Source.of(evaluated_source(f"{tmp_path}?split=test", other.name, drafted)).split == PARTED
        whole = evaluated_source(str(tmp_path), clean.name, drafted)
        assert len(list(read_examples(clean, whole, "test", None, 0))) == 42
    for asked in (str(tmp_path), f"{tmp_path}?split=test"):
        whole = evaluated_source(asked, other.name, [plain])
        assert len(list(read_examples(other, whole, "test", None, 0))) == 42, "also where it is asked for by its name"


def recipe_of(name: str) -> PocketDraft:
    recipe = TRAINED[name]
    assert isinstance(recipe, PocketDraft)
    return recipe


class Tone:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def sound(self) -> Sound:
        return Sound(np.full(int(self.seconds * SAMPLE_RATE), self.seconds, np.float32))


def test_mixtures_go_on_where_recordings_end() -> None:
    """Of one window each, the same by one seed, and without the first windows, among which some are held out."""
    size, tones = 3 * SAMPLE_RATE, [Tone(0.5 + 0.01 * number) for number in range(12)]
    examples = [("task", Example(str(number), {}, ("",), tone)) for number, tone in enumerate([*tones, Tone(7.0)])]

    def heard(count: int) -> list[tuple[str, np.ndarray]]:
        sounds = draft_sounds.recordings(examples, size, 8, 0)
        return [(group, samples()) for group, samples in (next(sounds) for _ in range(count))]

    found = heard(60)
    assert [group for group, _ in found[:12]] == [f"task {number}" for number in range(12)]
    assert len({group for group, _ in found if group.startswith("mixture")}) == 60 - 12 - 3
    assert [group for group, _ in found].count("task 12") == 3
    assert max(len(samples) for _, samples in found) <= size
    assert len(list(draft_sounds.recordings(examples, size, 8, 0))) == draft_sounds.MOST
    again = heard(60)
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(found, again, strict=True))
    of: list[Recording] = [*tones[8:]]
    assert all(np.array_equal(draft_sounds.mixture(of, size, (0, k)), found[15 + k][1]) for k in range(45))
    lengths = [len(samples) for _, samples in found[15:]]
    assert len(set(lengths)) > 20


def test_every_whisper_of_the_profile_has_a_draft() -> None:
    for name in ("whisper-base", "whisper-tiny.en"):
        recipe = recipe_of(f"{name}-draft")
        assert recipe.target == name
        assert "librispeech-clean" not in recipe.tasks, "whose rows stay for tests"
        assert not recipe.chat_template
