"""Drafts of the profile pocket: made once into the cache, found there by their names, and refused where a name is not clear."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec
from harness.models import pocket
from harness.models.pocket import DRAFTS, PocketDraft, draft_folder, fetched, folder_for
from harness.papers.leviathan import setup as leviathan
from harness.papers.optimized import setup as optimized
from harness.run.draft_recipes import job_of
from harness.run.runner import fetch_models
from harness.zoo.build import ensure
from harness.zoo.cache import DONE, seal

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TINY = PocketDraft(
    target="smollm2", tasks=("squad",), max_input_tokens=160, max_new_tokens=8, texts=24, layers=1, vocabulary=200, steps=6
)


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
    monkeypatch.setitem(DRAFTS, "tiny", TINY)
    return tmp_path / "cache"


def planned(target: str) -> Experiment:
    method = MethodSpec(name="autoregressive")
    return Experiment(task="squad", source="toy", profile="pocket", target=ModelSpec(name=target), method=method)


def test_a_plan_that_names_a_draft_makes_it_once(cache: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(Unavailable, match="train it with `foretoken draft --recipe tiny"):
        fetched("pocket:tiny")
    fetch_models([planned("pocket:tiny")])
    folder = fetched("pocket:tiny")
    assert folder == draft_folder("tiny", job_of("tiny", "toy").identity)
    assert json.loads((folder / DONE).read_text())["num_kept"] == 200
    written = (folder / "model.safetensors").stat().st_mtime_ns
    fetch_models([planned("pocket:tiny")])
    assert main(["draft", "--recipe", "tiny", "--data", "toy"]) == 0
    assert str(folder) in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert not (folder / "plan.json").exists()
    assert not list(cache.glob("*.partial"))


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
        monkeypatch.setitem(DRAFTS, "tiny", replace(TINY, **changes))
        assert job_of("tiny", "toy").identity != before, changes


def test_a_name_of_two_drafts_is_refused(cache: Path) -> None:
    for digit in "ab":
        folder = draft_folder("tiny", digit * 16)
        folder.mkdir()
        (folder / DONE).write_text("{}")
        seal(folder)
    with pytest.raises(UsageError, match="2 of different data are on this machine; name the folder"):
        fetched("pocket:tiny")
    assert fetched("pocket:tiny", "a" * 16) == draft_folder("tiny", "a" * 16)
    with pytest.raises(Unavailable, match="at revision cccccccccccccccc"):
        fetched("pocket:tiny", "c" * 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "none"], "recipe 'none': expected one of smollm2-draft-small"),
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


def test_a_dry_run_makes_nothing(cache: Path, capsys: pytest.CaptureFixture) -> None:
    before = sorted(cache.iterdir())
    assert main(["draft", "--recipe", "tiny", "--data", "toy", "--dry-run"]) == 0
    assert "not there" in capsys.readouterr().out
    assert sorted(cache.iterdir()) == before


def test_every_role_of_the_profile_names_a_known_model() -> None:
    known = {f"pocket:{name}" for name in (*pocket.TABLE, *DRAFTS)}
    for roles in (leviathan.POCKET, optimized.POCKET):
        named = {name for name in roles.values() if isinstance(name, str) and name.startswith("pocket:")}
        assert named <= known
