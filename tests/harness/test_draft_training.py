"""`foretoken draft`: what it makes drafts, goes on after a kill, is the same whenever it is made, and keeps every run exact."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.cli.main import main
from harness.run import draft_training
from harness.zoo.build import ensure

SMALL = ("--layers", "1", "--width", "64", "--texts", "20", "--steps", "24", "--threads", "1")


@pytest.fixture(scope="module")
def target(zoo_cache: Path) -> str:
    [folder] = ensure(["llama-target"], "test", "toy", workers=0).values()
    return str(folder)


def make(target: str, folder: Path, *words: str) -> int:
    return main(["draft", "--target", target, "--task", "squad", "--output", str(folder), *SMALL, *words])


@pytest.fixture(scope="module")
def draft(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts") / "part"
    assert make(target, folder, "--vocabulary", "200") == 0
    return folder


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "recipe.json").read_text())


def test_it_learns_and_says_what_it_learned_on(draft: Path, target: str) -> None:
    known = facts(draft)
    first, *_, last = known["evaluations"]
    for name in set(first) - {"step"}:
        assert last[name] > first[name] + 0.1, "the draft agrees more often than before any step"
    assert (known["num_kept"], known["num_written"], known["base"]["name"], known["tasks"]) == (200, 20, target, ["squad"])
    assert sorted(path.name for path in draft.iterdir() if not path.name.startswith(".")) == [
        "config.json", "generation_config.json", "model.safetensors", "recipe.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--temperature", "1"), ("--temperature", "0.7", "--top-k", "5")])
def test_a_run_with_it_is_exact(
    draft: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...]
) -> None:
    command = ["run", "--task", "squad", "--target", target, "--draft", str(draft), "--method", "speculative", "--limit", "4"]
    size = ["--max-new-tokens", "12", "--threads", "1", "--replay", "all", "--quiet", "--records", str(tmp_path)]
    assert main([*command, *size, *words]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["audit"]["verdict"] in ("identical", "replayed", "same distribution"), document["audit"]
    assert document["metrics"]["alpha_overlap"]["value"] > 0


class _KilledError(BaseException):
    """As a kill: nothing that tidies up runs."""


@pytest.mark.parametrize("stage", ["_answers", "_read_one", "_laws"])
def test_a_killed_training_ends_with_the_same_weights(
    target: str, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    calls, whole = [], getattr(draft_training, stage)

    def killed(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == {"_answers": 2, "_read_one": 35, "_laws": 20}[stage]:
            raise _KilledError
        return whole(*given)

    monkeypatch.setattr(draft_training, stage, killed)
    folder = tmp_path / "draft"
    with pytest.raises(_KilledError):
        make(target, folder, "--vocabulary", "200")
    monkeypatch.undo()
    assert make(target, folder, "--vocabulary", "200") == 0
    first, second = (load_file(one / "model.safetensors") for one in (draft, folder))
    assert all(torch.equal(first[name], second[name]) for name in first | second)


def test_time_ends_every_stage(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    words = ["--layers", "1", "--width", "64", "--minutes", "0.05", "--threads", "1"]
    assert main(["draft", "--target", target, "--task", "squad", "--output", str(folder), *words]) == 0
    assert facts(folder)["steps"] >= 1
    assert facts(folder)["num_kept"] == len(load_file(folder / "model.safetensors")["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--width", "100"), "width 100: expected a multiple of 64"),
        (("--width", "640"), "width 640: expected at most 64, the target's"),
        (("--vocabulary", "1"), "vocabulary 1: expected 2 to "),
        (("--vocabulary", "100000"), "vocabulary 100000: expected 2 to "),
        (("--minutes", "0"), "'0': expected minutes, more than 0"),
        (("--learning-rate", "2"), "learning_rate 2.0: expected more than 0"),
        (("--task", "nothing"), "task 'nothing'"),
    ],
)
def test_bad_input_is_one_line(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...], expected: str
) -> None:
    try:
        status: Any = make(target, tmp_path / "draft", *words)
    except SystemExit as error:
        status = error.code
    [*_, line] = capsys.readouterr().err.splitlines()
    assert status == 2
    assert expected in line


def test_an_encoder_decoder_is_refused(zoo_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    [folder] = ensure(["t5-small"], "test", "toy", workers=0).values()
    assert make(str(folder), tmp_path / "draft") == 2
    assert "it is an encoder-decoder" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-40]), lambda path: path.write_text("{")])
def test_what_is_damaged_or_anothers_is_refused(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    def stop(*given: Any) -> Any:
        raise _KilledError

    monkeypatch.setattr(draft_training, "distil", stop)
    folder = tmp_path / "draft"
    with pytest.raises(_KilledError):
        make(target, folder)
    monkeypatch.undo()
    assert make(target, folder, "--seed", "1") == 2
    assert "another training" in capsys.readouterr().err
    for name in ("laws-0.pt", "plan.json"):
        content = (folder / name).read_bytes()
        damage(folder / name)
        assert make(target, folder) == 2
        assert name in capsys.readouterr().err
        (folder / name).write_bytes(content)


def test_a_draft_of_a_part_is_no_target(draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["run", "--task", "squad", "--target", str(draft), "--limit", "1", "--quiet", "--records", str(tmp_path)]
    assert main(command) == 2
    assert "knows a part of its vocabulary alone" in capsys.readouterr().err
