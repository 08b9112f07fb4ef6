"""A checkpoint of a family without a stack of its own through the command line: decoded, audited, or refused in one line."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from harness.cli.main import main
from methods.models.general import _Layer

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def save(family: str, folder: Path) -> Path:
    """A random model of a family, whose tokens are bytes."""
    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    config = getattr(transformers, f"{family}Config")(vocab_size=len(names), **SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("Qwen3", tmp_path_factory.mktemp("models") / "qwen3")


def words(target: Path, records: Path, *more: str) -> list[str]:
    size = ("--limit", "2", "--max-new-tokens", "12", "--threads", "1", "--quiet", "--records", str(records))
    return ["run", "--task", "text", "--data", "toy", "--target", str(target), *size, *more]


def test_copied_drafts_are_identical_and_beside_generate(qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    peer = ("--peer", "generate", "--replay", "all")
    assert main(words(qwen3, tmp_path, "--method", "speculative", "--drafter", "copy", "--gamma", "3", *peer)) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    audit = document["audit"]
    assert (audit["verdict"], audit["compared"], audit["replayed"]["faults"]) == ("identical", 2, 0)


@pytest.mark.parametrize(
    "drafter", [("--draft", "bf16:TARGET"), ("--drafter", "rounded"), ("--drafter", "rounded", "--draft", "bf16:TARGET")]
)
def test_a_sampled_draft_has_the_targets_law(
    qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture, drafter: tuple[str, ...]
) -> None:
    named = [word.replace("TARGET", str(qwen3)) for word in drafter]
    drafted = ("--method", "speculative", *named, "--gamma", "2", "--temperature", "1", "--replay", "all")
    assert main(words(qwen3, tmp_path, *drafted)) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["audit"]["verdict"] == "same distribution"
    assert document["metrics"]["alpha_overlap"]["value"] > 0.9


@pytest.mark.parametrize(
    "asked",
    [
        ("--method", "ppd", "--early-layer", "2", "--candidates", "3", "--match-layers", "1,2"),
        ("--method", "speculative", "--drafter", "first-layers", "--draft-layers", "1", "--gamma", "2"),
    ],
)
def test_methods_that_run_some_layers_are_identical(
    qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture, asked: tuple[str, ...]
) -> None:
    assert main(words(qwen3, tmp_path, *asked, "--replay", "all")) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["audit"]["verdict"], document["audit"]["replayed"]["faults"]) == ("identical", 0)
    assert [name for name in document["metrics"] if name.startswith("match_rate[N, layer")] or "first-layers" in asked


def test_heads_are_trained_for_layers_of_any_family(qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ("--data", "toy", "--limit", "4", "--layers", "2", "--threads", "1")
    assert main(["heads", "--target", str(qwen3), "--output", str(tmp_path / "heads"), *asked]) == 0
    asked = ("--method", "ppd", "--early-layer", "2", "--candidates", "1", "--heads", str(tmp_path / "heads"))
    capsys.readouterr()
    assert main(words(qwen3, tmp_path, *asked)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["audit"]["verdict"] == "identical"


def test_the_attention_is_the_one_that_was_asked_for(
    qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fused(*_: Any, **__: Any) -> torch.Tensor:
        raise AssertionError("torch's fused attention was called")

    drafted = ("--method", "speculative", "--drafter", "copy", "--gamma", "3", "--peer", "generate", "--replay", "all")
    assert main(words(qwen3, tmp_path, *drafted)) == 0
    default = json.loads(capsys.readouterr().out.splitlines()[-1])
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    assert main(words(qwen3, tmp_path, *drafted, "--attention", "eager")) == 0
    eager = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (eager["audit"]["verdict"], eager["audit"]["replayed"]["faults"]) == ("identical", 0)
    assert eager["signature"] != default["signature"]
    described = [json.loads(Path(one["records"]).with_suffix(".json").read_text()) for one in (default, eager)]
    assert [one.get("attention", "transformers' choice") for one in described] == ["transformers' choice", "eager"]
    assert main(words(qwen3, tmp_path, *drafted, "--attention", "sdpa")) == 2
    assert "torch's fused attention was called" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "attention", "line"),
    [
        ("Gemma2", "sdpa", "attention 'sdpa' of model {folder}: Gemma2ForCausalLM does not support an attention"),
        ("Qwen3", "flash_attention_2", "attention 'flash_attention_2' of model {folder}: FlashAttention2 has been"),
        ("Llama", "eager", "attention 'eager': model: decoded by stacks of our own, which have an attention of their own"),
    ],
)
def test_an_attention_that_a_model_does_not_have_is_refused(
    family: str, attention: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    if attention.startswith("flash") and find_spec("flash_attn") is not None:
        pytest.skip("the package flash_attn is installed here")
    folder = save(family, tmp_path / "model")
    capsys.readouterr()
    for more in ((), ("--dry-run",)):
        assert main(words(folder, tmp_path, "--attention", attention, *more)) == 2
        [said] = capsys.readouterr().err.splitlines()
        assert line.format(folder=folder) in said
        assert said.endswith(("leave it out", "choose a model of another family"))


def test_a_state_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = save("Mamba", tmp_path / "mamba")
    capsys.readouterr()
    assert main(words(folder, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "model type 'mamba': it keeps a running state, which cannot be rewound" in line


def test_a_family_whose_cache_cannot_be_shortened_is_refused_when_it_is_loaded(
    qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Layer, "get_seq_length", lambda self: 0)
    assert main(words(qwen3, tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "model type 'qwen3': its logits behind a shortened cache are" in line
