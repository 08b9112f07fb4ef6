"""Damaged checkpoints: each is refused in one line that names what is wrong; none runs on weights that are not its files'."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fuzz_models import save_models
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.models.loading import load_model

Weights = dict[str, Tensor]
GPT, T5 = "transformer.h.1.mlp.c_fc.weight", "encoder.block.0.layer.0.SelfAttention.q.weight"
DAMAGE: dict[str, tuple[Callable[[Weights, str], Weights], str]] = {
    "missing": (lambda all, one: {name: weight for name, weight in all.items() if name != one}, "is missing from its files"),
    "renamed": (lambda all, one: {("x." + name if name == one else name): w for name, w in all.items()}, "is missing from its"),
    "all renamed": (lambda all, one: {"module." + name: weight for name, weight in all.items()}, "such tensors"),
    "none": (lambda all, one: {}, "is missing from its files, so its weights would be random (one of "),
    "surplus": (lambda all, one: all | {"surplus.weight": torch.zeros(3)}, "tensor 'surplus.weight' has no place in the model"),
    "integers": (lambda all, one: all | {one: all[one].to(torch.int32)}, "is of type I32; expected one of F64, F32, F16, BF16"),
    "NaN": (lambda all, one: all | {one: torch.full_like(all[one], float("nan"))}, "holds NaN or infinity in float32"),
    "infinity": (lambda all, one: all | {one: all[one].index_fill(0, torch.tensor(0), float("-inf"))}, "holds NaN or infinity"),
    "zeros": (lambda all, one: {name: torch.zeros_like(weight) for name, weight in all.items()}, "holds nothing but zeros"),
    "another shape": (lambda all, one: all | {one: all[one][:-1]}, "its config.json asks for"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: Path(path) for name, path in save_models(tmp_path_factory.mktemp("whole")).items()}


def load(folder: Path, **settings: str) -> None:
    load_model(ModelSpec(name=str(folder)), **settings)


def damaged(source: Path, folder: Path, change: Callable[[Weights], Weights]) -> Path:
    shutil.copytree(source, folder)
    weights = change(load_file(folder / "model.safetensors"))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def refusal(folder: Path, capfd: pytest.CaptureFixture, **settings: str) -> str:
    capfd.readouterr()
    with pytest.raises(UsageError) as caught:
        load(folder, **settings)
    assert "LOAD REPORT" not in capfd.readouterr().err  # transformers' own table of many lines
    return str(caught.value)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize(("model", "name"), [("target", GPT), ("t5", T5)])
def test_weights_that_are_not_whole_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, model: str, name: str, kind: str
) -> None:
    change, expected = DAMAGE[kind]
    folder = damaged(whole[model], tmp_path / "model", lambda weights: change(weights, name))
    said = refusal(folder, capfd)
    assert said.startswith(f"model folder {folder}: cannot be read (")
    assert expected in said
    assert "\n" not in said
    if kind in ("missing", "integers", "NaN", "infinity", "another shape"):
        assert f"tensor {name!r}" in said


@pytest.mark.parametrize(("num_layers", "expected"), [(1, "has no place in the model"), (3, "is missing from its files")])
def test_a_config_of_another_depth_drops_no_layer(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, num_layers: int, expected: str
) -> None:
    shutil.copytree(whole["target"], tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_layer": num_layers}))
    assert expected in refusal(tmp_path / "model", capfd)


def test_weights_that_half_precision_cannot_hold_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    folder = damaged(whole["target"], tmp_path / "model", lambda weights: weights | {GPT: weights[GPT] + 1e6})
    load(folder)
    assert f"tensor {GPT!r} holds NaN or infinity in float16" in refusal(folder, capfd, dtype="float16")


def test_what_transformers_knows_to_be_left_over_is_no_damage(whole: dict[str, Path], tmp_path: Path) -> None:
    """GPT-2 of the Hub has names without prefix, and the masks of attention among its weights."""

    def as_on_the_hub(weights: Weights) -> Weights:
        old = {name.removeprefix("transformer."): weight for name, weight in weights.items() if name != "lm_head.weight"}
        return old | {"h.0.attn.bias": torch.ones(1, 1, 4, 4).tril().bool()}

    load(damaged(whole["target"], tmp_path / "model", as_on_the_hub))
