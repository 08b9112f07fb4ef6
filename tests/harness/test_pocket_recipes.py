"""Drafts and early heads of the profile pocket: made once, found by their names, and refused where a name is not clear."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import EarlyProbe, Experiment, MethodSpec, ModelSpec
from harness.models import pocket
from harness.models.files import weights_of
from harness.models.loading import load_model
from harness.models.pocket import TRAINED, PocketDraft, PocketHeads, fetched, folder_for, trained_folder
from harness.papers.leviathan import setup as leviathan
from harness.papers.optimized import setup as optimized
from harness.run import head_training
from harness.run.draft_material import collect
from harness.run.pocket_recipes import job_of
from harness.run.runner import fetch_models
from harness.zoo.build import ensure
from harness.zoo.cache import DONE, seal
from methods.options import EARLY_HEADS
from tasks.sources.rows import Rows

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TINY = PocketDraft(
    target="smollm2", tasks=("squad",), max_input_tokens=160, max_new_tokens=8, texts=24, layers=1, vocabulary=200, steps=6
)
HEADS = PocketHeads(
    target="smollm2",
    tasks=("squad",),
    max_input_tokens=160,
    max_new_tokens=8,
    texts=24,
    epochs=2,
    learning_rate=1e-2,
    batch_size=4,
)
OWN_HEADS = ("--target", "pocket:smollm2", "--task", "squad", "--data", "toy", "--output", "x")


@pytest.fixture
def cache(zoo_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which a toy model stands for SmolLM2, and a small draft of it is known as ``tiny``."""
    [trained] = ensure(["llama-target"], "test", "toy", workers=0).values()
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    folder = folder_for("smollm2", pocket.TABLE["smollm2"].hub)
    folder.parent.mkdir()
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns(".*"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    (folder / DONE).write_text(json.dumps({"weights": "toy"}))
    seal(folder)
    monkeypatch.setitem(TRAINED, "tiny", TINY)
    monkeypatch.setitem(TRAINED, "tiny-heads", HEADS)
    return tmp_path / "cache"


def planned(target: str) -> Experiment:
    method = MethodSpec(name="autoregressive")
    return Experiment(task="squad", source="toy", profile="pocket", target=ModelSpec(name=target), method=method)


def test_a_plan_that_names_a_draft_makes_it_once(cache: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(Unavailable, match="train it with `foretoken draft --recipe tiny"):
        fetched("pocket:tiny")
    fetch_models([planned("pocket:tiny")])
    folder = fetched("pocket:tiny")
    assert folder == trained_folder("tiny", job_of("tiny", "toy").identity)
    assert json.loads((folder / DONE).read_text())["num_kept"] == 200
    written = (folder / "model.safetensors").stat().st_mtime_ns
    fetch_models([planned("pocket:tiny")])
    assert main(["draft", "--recipe", "tiny", "--data", "toy"]) == 0
    assert str(folder) in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert not (folder / "plan.json").exists()
    assert not list(cache.glob("*.partial"))


def with_heads(name: str) -> Experiment:
    return planned("pocket:smollm2").replace(probes=(EarlyProbe(layers=(1,), heads=ModelSpec(name=name)),))


def test_a_plan_that_names_heads_trains_them_once(cache: Path, capsys: pytest.CaptureFixture) -> None:
    """They learn what the target answers, and of the answers of one article none is both learned and held out."""
    with pytest.raises(Unavailable, match="train it with `foretoken heads --recipe tiny-heads"):
        fetched("pocket:tiny-heads")
    fetch_models([with_heads("pocket:tiny-heads")])
    folder = fetched("pocket:tiny-heads")
    facts = json.loads((folder / DONE).read_text())
    assert facts["num_texts"] == 24 == facts["num_documents"] + facts["num_held_out"]
    assert weights_of(ModelSpec(name="pocket:tiny-heads")) == "heads that learned from pocket:smollm2, 24 texts of squad"
    written = (folder / EARLY_HEADS).stat().st_mtime_ns
    assert main(["heads", "--recipe", "tiny-heads", "--data", "toy"]) == 0
    assert "match rate N" in (out := capsys.readouterr().out)
    assert str(folder) in out
    assert (folder / EARLY_HEADS).stat().st_mtime_ns == written


def test_trained_heads_are_read_by_their_name(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fetch_models([with_heads("pocket:tiny-heads")])
    words = ["run", "--task", "squad", "--data", "toy", "--target", "pocket:smollm2", "--method", "ppd", "--early-layer", "2"]
    words += ["--candidates", "1", "--execution", "simulated", "--limit", "1", "--max-new-tokens", "4", "--chat-template"]
    words += ["--records", str(tmp_path / "records"), "--heads"]
    assert main([*words, "pocket:tiny-heads"]) == 0
    capsys.readouterr()
    assert main([*words, "pocket:smollm2"]) == 2
    assert "no heads there" in capsys.readouterr().err


def test_heads_learn_answers_and_hold_whole_groups_out(cache: Path) -> None:
    job = job_of("tiny-heads", "toy")
    assert isinstance(job, head_training.Job)
    texts = job.texts
    assert isinstance(texts, head_training.OwnAnswers)
    target = load_model(job.target)
    learned, held_out = texts.read(target, job.training, job.seed)
    readings = collect(texts.material, target, 24, lambda: False)
    group_of = {tuple(one.tokens.tolist()): one.group for one in readings}
    groups = [{group_of[tuple(one.tokens.tolist())] for one in part} for part in (learned, held_out)]
    assert all(groups)
    assert not groups[0] & groups[1]
    prompts = {tuple(one.tokens.tolist()): one.num_prompt for one in readings}
    assert all(one.first == prompts[tuple(one.tokens.tolist())] for one in (*learned, *held_out))
    of_task = head_training.TaskTexts(task="squad", source="toy")
    for rows in (texts.rows(job.training, job.seed), of_task.rows(replace(job.training, max_documents=24), job.seed)):
        noted = Rows.from_dict(rows)
        assert noted is not None
        assert len(noted.hashes) == 24


def test_heads_of_a_users_own_model_may_learn_its_answers(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["heads", "--target", "pocket:smollm2", "--task", "squad", "--data", "toy", "--layers", "1", "--limit", "16"]
    words += ["--max-new-tokens", "6", "--chat-template", "--output", str(tmp_path / "heads"), "--answers", "16"]
    assert main(words) == 0
    facts = json.loads((tmp_path / "heads" / DONE).read_text())
    assert facts["material"]["max_new_tokens"] == 6
    assert facts["material"]["chat_template"]
    assert facts["num_texts"] == 16


def test_a_run_with_a_draft_says_what_it_learned(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fetch_models([planned("pocket:tiny")])
    words = ["run", "--task", "squad", "--data", "toy", "--target", "pocket:smollm2", "--draft", "pocket:tiny", "--method"]
    words += ["speculative", "--limit", "1", "--max-new-tokens", "4", "--chat-template", "--records", str(tmp_path / "records")]
    for more in (["--dry-run"], []):
        assert main([*words, *more]) == 0
        assert "distilled from pocket:smollm2, 24 texts of squad" in capsys.readouterr().out


def test_a_damaged_draft_is_refused(cache: Path) -> None:
    fetch_models([planned("pocket:tiny")])
    weights = fetched("pocket:tiny") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(UsageError, match="its checksum differs"):
        fetch_models([planned("pocket:tiny")])


def test_a_draft_of_other_sizes_is_another(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = job_of("tiny", "toy").identity
    for changes in ({"steps": 7}, {"texts": 25}, {"vocabulary": 201}, {"max_new_tokens": 9}, {"width": 64}):
        monkeypatch.setitem(TRAINED, "tiny", replace(TINY, **changes))
        assert job_of("tiny", "toy").identity != before, changes
    before = job_of("tiny-heads", "toy").identity
    for changes in ({"epochs": 3}, {"texts": 25}, {"learning_rate": 1e-3}, {"max_new_tokens": 9}, {"batch_size": 5}):
        monkeypatch.setitem(TRAINED, "tiny-heads", replace(HEADS, **changes))
        assert job_of("tiny-heads", "toy").identity != before, changes


def test_a_name_of_two_drafts_is_refused(cache: Path) -> None:
    for digit in "ab":
        folder = trained_folder("tiny", digit * 16)
        folder.mkdir()
        (folder / DONE).write_text("{}")
        seal(folder)
    with pytest.raises(UsageError, match="2 of different data are on this machine; name the folder"):
        fetched("pocket:tiny")
    assert fetched("pocket:tiny", "a" * 16) == trained_folder("tiny", "a" * 16)
    with pytest.raises(Unavailable, match="at revision cccccccccccccccc"):
        fetched("pocket:tiny", "c" * 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "none"], "recipe 'none': expected one of smollm2-draft-small"),
        (["--recipe", "smollm2-heads"], "recipe 'smollm2-heads': expected one of smollm2-draft-small"),
        (["--recipe", "smollm2-draft-small", "--layers", "3"], "--layers: --recipe smollm2-draft-small fixes it"),
        (["--recipe", "smollm2-draft-small", "--chat-template"], "--chat-template: --recipe smollm2-draft-small fixes it"),
        (["--recipe", "smollm2-draft-small", "--output", "x"], "--output: --recipe smollm2-draft-small fixes it"),
        ([], "draft: expected --recipe NAME, or --target MODEL and --output FOLDER"),
        (["--target", "x"], "draft: expected --recipe NAME, or --target MODEL and --output FOLDER"),
    ],
)
def test_bad_input_is_one_line(cache: Path, words: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["draft", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "smollm2-draft-small"], "recipe 'smollm2-draft-small': expected one of smollm2-heads"),
        (["--recipe", "smollm2-heads", "--layers", "3"], "--layers: --recipe smollm2-heads fixes it"),
        ([], "heads: expected --recipe NAME, or --target MODEL and --output FOLDER"),
        ([*OWN_HEADS, "--chat-template"], "--chat-template: nothing reads it without --answers"),
        ([*OWN_HEADS, "--max-new-tokens", "9"], "--max-new-tokens: nothing reads it without --answers"),
    ],
)
def test_bad_input_for_heads_is_one_line(cache: Path, words: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["heads", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_dry_run_makes_nothing(cache: Path, capsys: pytest.CaptureFixture) -> None:
    before = sorted(cache.iterdir())
    assert main(["draft", "--recipe", "tiny", "--data", "toy", "--dry-run"]) == 0
    assert "not there" in capsys.readouterr().out
    assert sorted(cache.iterdir()) == before


def test_every_role_of_the_profile_names_a_known_model() -> None:
    known = {f"pocket:{name}" for name in (*pocket.TABLE, *TRAINED)}
    for roles in (leviathan.POCKET, optimized.POCKET):
        named = {name for name in roles.values() if isinstance(name, str) and name.startswith("pocket:")}
        assert named <= known
