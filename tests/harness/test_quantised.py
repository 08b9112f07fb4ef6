"""Checkpoints with quantised weights: torchao's have the law that torchao gives them, others are refused in one line.

`make test` runs this file once more where torchao can be imported; elsewhere the tests that need it are skipped.
"""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from transformers import AutoModelForCausalLM

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.models import files, quantised
from harness.models.files import weights_of
from harness.models.loading import load_model
from methods.models.general import GeneralStack
from methods.models.llama import LlamaStack
from tests.harness.test_any_family import save, words

BY_TORCHAO = pytest.mark.skipif(find_spec("torchao") is None, reason="the package torchao cannot be imported here")
FAMILIES = {"Llama": LlamaStack, "Qwen3": GeneralStack}
TOKENS = torch.tensor([[1, 5, 9, 4, 7, 8]])


def asking(folder: Path, **settings: Any) -> Path:
    """A checkpoint whose configuration says that it is quantised."""
    save("Llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder


def torchaos(kind: str) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": 2, "_data": {}}}}


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"])
def test_another_method_is_refused(method: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = asking(tmp_path / "model", quant_method=method, bits=4)
    capsys.readouterr()
    assert main(words(folder, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"model {folder}: its weights are quantised by {method}, which nothing here reads; expected torchao's" in line


@pytest.mark.parametrize(
    ("settings", "name", "installed", "said"),
    [
        (torchaos("Int8DynamicActivationInt8WeightConfig"), "", True, "which is not dequantised here; expected Int8"),
        (torchaos("Int4WeightOnlyConfig"), "", True, "torchao's Int4WeightOnlyConfig, which is not dequantised here"),
        ({"bits": 4}, "", True, "quantised by a quant_method that its config.json does not name, which nothing here reads"),
        (
            {"quant_method": "torchao", "quant_type": "int8_weight_only"},
            "",
            True,
            "quant_type 'int8_weight_only' in its config",
        ),
        (torchaos("Int8WeightOnlyConfig"), "bf16:", True, "its weights are quantised by torchao; expected them as they are"),
        (
            torchaos("Int8WeightOnlyConfig"),
            "",
            False,
            "package torchao is not installed; run: .venv/bin/pip install -e '.[torchao]'",
        ),
    ],
)
def test_what_does_not_run_of_torchao_is_refused(
    settings: dict[str, Any], name: str, installed: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda _: object() if installed else None)
    folder = asking(tmp_path / "model", **settings)
    with pytest.raises(UsageError) as caught:
        load_model(ModelSpec(name=f"{name}{folder}"))
    assert said in str(caught.value)


def test_kinds_of_parts_are_looked_into() -> None:
    """A configuration by part names a kind for each; dtypes have types of their own."""
    parts = {
        "_type": "FqnToConfig",
        "_data": {
            "fqn_to_config": {
                "a": {"_type": "Int8WeightOnlyConfig", "_data": {"granularity": {"_type": "PerRow", "_data": {}}}},
                "b": {"_type": "Int8DynamicActivationInt8WeightConfig", "_data": {}},
                "c": {"_type": "Int8WeightOnlyConfig", "_data": {}},
            }
        },
    }

    found: Any = SimpleNamespace(quantization_config={"quant_method": "torchao", "quant_type": {"default": parts}})
    assert quantised.kinds_of(found) == ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"]


def saved(family: str, kind: Any, dtype: torch.dtype, folder: Path, **more: Any) -> Any:
    """Quantise a random model as torchao and transformers do, and save it; return it."""
    from transformers import TorchAoConfig

    plain = save(family, folder.parent / f"{folder.name} plain")
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=TorchAoConfig(kind), dtype=dtype)
    model.save_pretrained(folder, **more)
    for file in plain.glob("*token*"):
        shutil.copy(file, folder)
    return model


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from torchao.quantization import Int8WeightOnlyConfig

    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        saved(family, Int8WeightOnlyConfig(), torch.float32, folder / family)
    return {family: folder / family for family in FAMILIES}


@BY_TORCHAO
@pytest.mark.parametrize("family", FAMILIES)
def test_the_law_is_torchaos(stored: dict[str, Path], family: str) -> None:
    own = AutoModelForCausalLM.from_pretrained(stored[family], dtype=torch.float32)
    assert type(own.model.layers[0].mlp.up_proj.weight.data).__name__ == "Int8Tensor"
    plain = load_model(ModelSpec(name=str(stored[family].parent / f"{family} plain"))).stack.model
    for dtype in ("float32", "float64"):
        model = load_model(ModelSpec(name=str(stored[family])), dtype=dtype)
        assert isinstance(model.stack, FAMILIES[family])
        with torch.inference_mode():
            wanted, given, original = (one(TOKENS).logits.double() for one in (own, model.stack.model, plain))
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
        assert (given - original).abs().max() > 1e-2 * wanted.abs().max()  # eight bits are seen
    assert weights_of(ModelSpec(name=str(stored[family]))) == "torchao's Int8WeightOnly dequantised"


@BY_TORCHAO
def test_numbers_are_not_rounded_to_what_was_quantised(tmp_path: Path) -> None:
    """Fault: those of a bf16 model were rounded to bf16, whatever dtype was asked for. A number is an integer times a scale."""
    from torchao.quantization import Int8WeightOnlyConfig

    folder = tmp_path / "model"
    model = saved("Qwen3", Int8WeightOnlyConfig(), torch.bfloat16, folder)
    own = model.model.layers[1].mlp.up_proj.weight.data
    loaded = load_model(ModelSpec(name=str(folder))).stack.model
    torch.testing.assert_close(loaded.model.layers[1].mlp.up_proj.weight, own.qdata.float() * own.scale.float(), rtol=0, atol=0)


@BY_TORCHAO
@pytest.mark.parametrize("family", FAMILIES)
def test_it_decodes_beside_generate(
    stored: dict[str, Path], family: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    asked = ("--method", "speculative", "--drafter", "copy", "--gamma", "3", "--peer", "generate", "--replay", "all")
    assert main(words(stored[family], tmp_path, *asked)) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["audit"]["verdict"], document["audit"]["replayed"]["faults"]) == ("identical", 0)
    assert document["weights"] == {str(stored[family]): "torchao's Int8WeightOnly dequantised"}


@BY_TORCHAO
def test_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    """Fault: each file tells of the tensors of all, of which it was said to lack those of the others."""
    from torchao.quantization import Int8WeightOnlyConfig

    own = saved("Llama", Int8WeightOnlyConfig(), torch.float32, tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    model = load_model(ModelSpec(name=str(tmp_path / "model"))).stack.model
    with torch.inference_mode():
        torch.testing.assert_close(model(TOKENS).logits, own(TOKENS).logits, rtol=1e-4, atol=1e-3)


@BY_TORCHAO
def test_a_kind_that_rounds_its_numbers_keeps_them(tmp_path: Path) -> None:
    """Weights of few bits give their numbers in the dtype that was quantised alone, and are multiplied so."""
    from torchao.quantization import IntxWeightOnlyConfig

    own = saved("Qwen3", IntxWeightOnlyConfig(weight_dtype=torch.int4), torch.bfloat16, tmp_path / "model")
    model = load_model(ModelSpec(name=str(tmp_path / "model"))).stack.model
    wanted = own.model.layers[0].mlp.up_proj.weight.data.dequantize().float()
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, wanted)


def changed(source: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """A copy of a checkpoint with other tensors; what torchao tells of them stays."""
    shutil.copytree(source, folder)
    with safe_open(folder / "model.safetensors", "pt") as opened:
        metadata = opened.metadata()
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata)
    return folder


DAMAGE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor | None], str]] = {
    "model.norm.weight": (lambda one: one.to(torch.int32), "in model.safetensors is of type I32; expected one of F64"),
    "model.layers.1.mlp.up_proj._weight_scale": (lambda one: one * float("nan"), "holds NaN or infinity"),
    "model.layers.1.mlp.up_proj._weight_qdata": (lambda one: None, "is missing from its files"),
}


@BY_TORCHAO
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_tensor_is_refused(stored: dict[str, Path], tmp_path: Path, name: str) -> None:
    damage, said = DAMAGE[name]

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = damage(tensors.pop(name))
        return tensors if found is None else tensors | {name: found}

    folder = changed(stored["Llama"], tmp_path / "model", change)
    with pytest.raises(UsageError) as caught:
        load_model(ModelSpec(name=str(folder)))
    assert said in str(caught.value)


def test_a_plan_does_not_ask_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what the weights of a Hub's model are made of was looked up, so that a dry run without a network ended there."""

    def ask(*_: Any) -> None:
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr(files, "load_config", ask)
    assert weights_of(ModelSpec(name="nobody/has-this-model")) is None
