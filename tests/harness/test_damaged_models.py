"""Damaged checkpoints: each is refused in one line that names what is wrong; none runs on weights that are not its files'."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz_models import save_models, save_whisper
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Pop2PianoConfig,
    Qwen2Config,
    T5Config,
)

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.models import loading
from harness.models.files import verify_fetched
from harness.models.fit import Models, estimate
from harness.models.limits import POINTER, check_folder, check_settings
from harness.models.loading import load_model
from harness.zoo.cache import read_facts, seal
from methods.errors import InputError
from methods.models import stack_for
from methods.models.checkpoint import load_whole, refuse_wiped_out

Weights = dict[str, Tensor]
GPT, T5 = "transformer.h.1.mlp.c_fc.weight", "encoder.block.0.layer.0.SelfAttention.q.weight"
BASE = "transformer."  # which stands before the names of both networks' tensors, or is left out
ENDS = "<|endoftext|>"
ALONE, TEXTS = [{"SpecialToken": {"id": ENDS, "type_id": 0}}], [{"Sequence": {"id": one, "type_id": 0}} for one in "AB"]
END_ALONE = {
    "type": "TemplateProcessing",
    "single": ALONE,
    "pair": [*ALONE, *TEXTS],
    "special_tokens": {ENDS: {"id": ENDS, "ids": [0], "tokens": [ENDS]}},
}
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
    "one of zeros": (lambda all, one: all | {one: all[one] * 0}, "holds nothing but zeros: it was never trained, or was lost"),
    "two names": (
        lambda all, one: all | {(GPT.removeprefix(BASE) if one == GPT else BASE + one): all[one] * 2},
        "are one by two names; expected one of them alone",
    ),
    "another shape": (lambda all, one: all | {one: all[one][:-1]}, "its config.json asks for"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return {name: Path(path) for name, path in save_models(folder).items()} | {"whisper": save_whisper(folder / "whisper")}


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
    if kind in ("missing", "integers", "NaN", "infinity", "one of zeros", "another shape"):
        assert f"tensor {name!r}" in said


@pytest.mark.parametrize(
    ("places", "copies", "expected"),
    [
        ({}, {}, None),
        ({"weight_map": None}, {}, "model.safetensors.index.json has no weight_map from tensors to files"),
        ({"weight_map": {}}, {}, "model.safetensors.index.json has no weight_map from tensors to files"),
        (
            {"weight_map": {T5: "a.safetensors"}},
            {},
            "model.safetensors.index.json has no metadata; expected a table, which may",
        ),
        ({T5: "../model.safetensors"}, {}, "names '../model.safetensors', which is no file of the folder"),
        ({T5: "c.safetensors"}, {}, "names 'c.safetensors', which is no file of the folder"),
        ({T5: "b.safetensors"}, {}, f"tensor '{T5}' is in a.safetensors, and in b.safetensors according to"),
        ({}, {T5: "b.safetensors"}, f"tensor '{T5}' is in b.safetensors, and in a.safetensors according to"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(
    whole: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
    places: dict,
    copies: dict[str, str],
    expected: str | None,
) -> None:
    """A tensor that was in two files was read from the last, whatever the index said; its weights were then other ones."""
    folder = Path(shutil.copytree(whole["t5"], tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    said = {name: "a.safetensors" if "SelfAttention" in name else "b.safetensors" for name in weights}
    for file in ("a.safetensors", "b.safetensors"):
        held = {name: weights[name] for name in weights if said[name] == file}
        held |= {name: weights[name] + 1 for name, other in copies.items() if other == file}
        save_file(held, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": said | places} if "weight_map" not in places else places
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if expected is None:
        load(folder)
    else:
        assert expected in refusal(folder, capfd)


@pytest.mark.parametrize(("num_layers", "expected"), [(1, "has no place in the model"), (3, "is missing from its files")])
def test_a_config_of_another_depth_drops_no_layer(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, num_layers: int, expected: str
) -> None:
    shutil.copytree(whole["target"], tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_layer": num_layers}))
    assert expected in refusal(tmp_path / "model", capfd)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "generation_config.json", "chat_template.jinja"])
def test_a_pipe_in_the_place_of_a_file_hangs_nothing(whole: dict[str, Path], tmp_path: Path, file: str) -> None:
    shutil.copytree(whole["target"], tmp_path / "model")
    (tmp_path / "model" / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "model" / file)
    with pytest.raises(UsageError, match=f"{file} is no regular file, and reading it may never end; remove it"):
        load(tmp_path / "model")


def test_weights_that_half_precision_cannot_hold_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    late = "transformer.wpe.weight"  # of places that no short text reads

    def large(weights: Weights) -> Weights:
        return weights | {late: torch.cat([weights[late][:-1], weights[late][-1:] + 1e6])}

    folder = damaged(whole["target"], tmp_path / "model", large)
    load(folder)
    assert f"tensor {late!r} holds NaN or infinity in float16" in refusal(folder, capfd, dtype="float16")


def test_tied_weights_that_differ_are_refused(whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """Fault: transformers ran with both, and its warning was silenced."""
    tied = "transformer.wte.weight"

    def with_head(change: float) -> Callable[[Weights], Weights]:
        return lambda weights: weights | {"lm_head.weight": weights[tied] + change}

    load(damaged(whole["target"], tmp_path / "equal", with_head(0.0)))
    said = refusal(damaged(whole["target"], tmp_path / "other", with_head(0.1)), capfd)
    assert f"tensor 'lm_head.weight' differs from {tied!r}, and its config.json says that they are one" in said


@pytest.mark.parametrize("facts", [{"num_parameters": "x"}, {"num_parameters": -5}, {"base": "x"}, {"weights": ["a"]}])
def test_a_recipe_of_other_kinds_is_refused(tmp_path: Path, facts: dict[str, object]) -> None:
    """Fault: each ended in a traceback, or stood in a table."""
    (tmp_path / "recipe.json").write_text(json.dumps(facts))
    seal(tmp_path)
    with pytest.raises(UsageError, match=rf"recipe\.json: cannot be read \({next(iter(facts))} .*: expected .*\); delete"):
        read_facts(tmp_path)


def test_tokenizers_that_cut_a_text_differently_are_told_of(
    whole: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Fault: a target's tokenizer that had lost its merges ran in silence beside a whole one."""
    folder = Path(shutil.copytree(whole["target"], tmp_path / "model"))
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(values))
    models = Models()
    target = models.get(ModelSpec(name=str(folder)))
    for _ in range(2):
        models.draft(ModelSpec(name=str(whole["draft"])), target)
    assert capsys.readouterr().err.count("have the same tokens and cut a text into") == 1


def test_a_window_counts_where_transformers_heeds_it(tmp_path: Path) -> None:
    """Fault: a Llama with sliding_window in its configuration had a window here and none there."""
    for kind, window in ((LlamaConfig, None), (MistralConfig, 2)):
        config = kind(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
        config.sliding_window = 2
        assert stack_for(AutoModelForCausalLM.from_config(config)).window == window


def test_what_transformers_knows_to_be_left_over_is_no_damage(whole: dict[str, Path], tmp_path: Path) -> None:
    """GPT-2 of the Hub has names without prefix, and the masks of attention among its weights."""

    def as_on_the_hub(weights: Weights) -> Weights:
        old = {name.removeprefix("transformer."): weight for name, weight in weights.items() if name != "lm_head.weight"}
        return old | {"h.0.attn.bias": torch.ones(1, 1, 4, 4).tril().bool()}

    spec = ModelSpec(name=str(damaged(whole["target"], tmp_path / "model", as_on_the_hub)))
    stored, loaded = load_file(whole["target"] / "model.safetensors"), load_model(spec).stack.model.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in stored.items())


def test_files_that_are_not_loaded_are_not_looked_at(whole: dict[str, Path], tmp_path: Path) -> None:
    """Mistral's folders have the weights a second time, by names of its own, whether they were fetched or not."""
    folder = damaged(whole["target"], tmp_path / "model", lambda weights: weights)
    weights, other = load_file(folder / "model.safetensors"), folder / "consolidated.safetensors"
    save_file({name.removeprefix(BASE): weight * 2 for name, weight in weights.items()}, other)
    for content in (other.read_bytes(), POINTER):
        other.write_bytes(content)
        loaded = load_model(ModelSpec(name=str(folder))).stack.model.state_dict()
        assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())


def with_file(whole: dict[str, Path], tmp_path: Path, file: str, content: str | dict, model: str = "target") -> Path:
    """A copy of a model whose file is replaced, or has other values for some keys."""
    folder = Path(shutil.copytree(whole[model], tmp_path / "model"))
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / file).read_text()) | content)
    (folder / file).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", {"n_layer": 1_000_000}, "num_hidden_layers 1000000 in its config.json, expected 1 to 1000"),
        ("config.json", {"n_layer": 0}, "num_hidden_layers 0 in its config.json, expected 1 to 1000"),
        ("config.json", {"n_embd": 2**20}, "its files hold"),
        ("config.json", {"n_head": 0}, "n_head 0 in its config.json, expected 1 to"),
        ("config.json", {"n_head": 3}, "cannot be read ("),
        ("config.json", {"n_embd": "8"}, "cannot be read (Validation error for field 'n_embd': TypeError"),
        ("config.json", {"dtype": "float99"}, "float99"),
        ("config.json", {"eos_token_id": "x"}, "cannot be read (Validation error for field 'eos_token_id': TypeError"),
        ("config.json", {"eos_token_id": -5}, "eos_token_id -5 in its config.json or generation_config.json; expected a token"),
        ("config.json", {"layer_norm_epsilon": -0.5}, "layer_norm_epsilon -0.5 in its config.json, expected 1e-30 to 1"),
        ("config.json", {"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon inf in its config.json"),
        ("config.json", {"resid_pdrop": float("nan")}, "resid_pdrop nan in its config.json, expected 0 to 1"),
        ("config.json", {"pad_token_id": 10**30}, "pad_token_id 1000000000000000000000000000000 in its config.json"),
        ("config.json", {"n_head": -1}, "n_head -1 in its config.json, expected 1 to"),
        ("config.json", {"vocab_size": 0}, "vocab_size 0 in its config.json, expected 1 to"),
        (
            "config.json",
            {"num_attention_heads": 8},
            "num_attention_heads 8 and n_head 1 in its config.json are one setting",
        ),
        (
            "config.json",
            {"architectures": ["LlamaForCausalLM"]},
            "model_type 'gpt2' and architectures 'LlamaForCausalLM'",
        ),
        ("config.json", {"return_dict": False}, "return_dict false in its config.json; leave it out"),
        ("config.json", "[]", "config.json holds '[]', expected a table of settings"),
        ("generation_config.json", {"eos_token_id": [7, "x"]}, "eos_token_id 'x' in its config.json or generation_config.json"),
        ("generation_config.json", "[]", "generation_config.json holds '[]', expected a table of settings"),
        ("generation_config.json", "{", "cannot be read (generation_config.json: Expecting property name"),
        ("tokenizer.json", "[]", "cannot be read ("),
        ("tokenizer_config.json", "[]", "tokenizer_config.json holds '[]', expected a table of settings"),
        (
            "tokenizer_config.json",
            {"model_max_length": "x"},
            "model_max_length 'x' in its tokenizer_config.json, expected a num",
        ),
        ("tokenizer_config.json", {"tokenizer_class": 3}, "tokenizer_class 3 in its tokenizer_config.json, expected a text"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": []},
            "added_tokens_decoder [] in its tokenizer_config.json, expected a",
        ),
    ],
)
def test_odd_configurations_are_refused_in_one_line(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, file: str, content: str | dict, expected: str
) -> None:
    said = refusal(with_file(whole, tmp_path, file, content), capfd)
    assert expected in said
    assert "\n" not in said
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("model", "content", "expected"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_theta": 0.0, "rope_type": "default"}},
            "its logits are NaN; correct its config.json",
        ),
        ("llama", {"sliding_window": 0}, "sliding_window 0 in its config.json, expected 1 to"),
        (
            "t5",
            {"relative_attention_max_distance": 1},
            "relative_attention_max_distance 1 of model type 't5': expected more than half",
        ),
        ("t5", {"relative_attention_max_distance": 10**9}, "relative_attention_max_distance 1000000000 in its config.json"),
    ],
)
def test_settings_that_spoil_every_output_are_found_when_a_model_is_loaded(
    whole: dict[str, Path], tmp_path: Path, model: str, content: dict, expected: str
) -> None:
    if model == "llama":
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).save_pretrained(tmp_path)
        for file in whole["target"].glob("tok*"):
            shutil.copy(file, tmp_path)
    else:
        shutil.copytree(whole["t5"], tmp_path, dirs_exist_ok=True)
    load(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | content))
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    assert expected in str(caught.value)


def test_a_single_row_of_zeros_is_no_matrix_that_was_lost() -> None:
    """RoBERTa's embedding of its one kind of token is zeros, Marian's final bias too. Fault: they are refused as damaged."""
    refuse_wiped_out({"decoder.token_type_embeddings.weight": torch.zeros(1, 8), "final_logits_bias": torch.zeros(1, 9)})
    with pytest.raises(InputError, match=r"tensor 'a', \[2, 8\], holds nothing but zeros"):
        refuse_wiped_out({"a": torch.zeros(2, 8)})


def test_weights_that_tell_no_token_from_another_are_refused(whole: dict[str, Path], tmp_path: Path) -> None:
    norm = ("transformer.ln_f.weight", "transformer.ln_f.bias")
    least = 1e-45  # no zero, and what it is multiplied with is
    folder = damaged(whole["target"], tmp_path / "model", lambda all: all | {name: all[name] * 0 + least for name in norm})
    with pytest.raises(UsageError, match="its logits are the same for every token"):
        load(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_embeddings_that_a_norm_wipes_out_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, dtype: str
) -> None:
    """Fault: only some tokens were, and the audit blamed the method for what a draft then said."""
    name = "transformer.wte.weight"

    def large(weights: Weights) -> Weights:
        return weights | {name: torch.cat([weights[name][:-1], torch.full_like(weights[name][-1:], 1e19)])}

    folder = damaged(whole["target"], tmp_path / "model", large)
    assert f"tensor {name!r} has a row whose squares fp32 does not hold" in refusal(folder, capfd, dtype=dtype)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("target", "transformer.h.0.ln_1.weight"),
        ("t5", "decoder.block.0.layer.0.layer_norm.weight"),
        ("whisper", "model.decoder.layers.0.final_layer_norm.weight"),
    ],
)
def test_a_norm_of_zeros_is_refused(whole: dict[str, Path], tmp_path: Path, model: str, name: str) -> None:
    """Its layer did nothing, and the run was "identical" with other tokens."""
    folder = damaged(whole[model], tmp_path / "model", lambda all: all | {name: all[name] * 0})
    with pytest.raises(UsageError, match=f"tensor '{name}' holds nothing but zeros: it was never trained"):
        load(folder)


def test_a_norm_that_multiplies_by_one_more_than_its_weights_may_be_zeros(tmp_path: Path) -> None:
    """An untrained Gemma's are. Fault: it is refused as damaged."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8}
    model = GemmaForCausalLM(GemmaConfig(vocab_size=300, num_key_value_heads=1, **sizes))
    for module in model.modules():
        if type(module).__name__ == "GemmaRMSNorm":
            torch.nn.init.zeros_(module.weight)
    model.save_pretrained(tmp_path)
    assert not load_whole(GemmaForCausalLM, tmp_path).model.norm.weight.any()


SAID = {  # what stands in a file of settings: what its refusal says
    '{"hidden_act": "silu", "hidden_act": "relu"': "config.json: 'hidden_act' stands there twice; leave one of them",
    '{"hidden_act": "nosuch"': "hidden_act 'nosuch' in its config.json, expected an activation of transformers",
    '{"hidden_act": 3': "hidden_act 3 in its config.json, expected a text",
    '{"num_key_value_heads": 0': "num_key_value_heads 0 in its config.json, expected 1 to",
    '{"num_attention_heads": 0': "num_attention_heads 0 in its config.json, expected 1 to",
    '{"head_dim": -12': "head_dim -12 in its config.json, expected 1 to",
    '{"max_position_embeddings": -1': "max_position_embeddings -1 in its config.json, expected 1 to",
    '{"quantization_config": 5': "quantization_config 5 in its config.json, expected a table",
    '{"model_type": ["llama"]': "model_type ['llama'] in its config.json, expected a text",
    '{"dtype": 7': "dtype 7 in its config.json, expected a text",
    '{"tie_word_embeddings": "yes"': "tie_word_embeddings 'yes' in its config.json, expected true or false",
    '{"rope_parameters": {"rope_type": null}': "rope_type None in its config.json, expected one of default, linear, ",
    '{"rope_parameters": {"rope_type": "yarm"}': "rope_type 'yarm' in its config.json, expected one of default, linear, ",
    '{"rope_parameters": {"rope_theta": "1e4"}': "rope_theta '1e4' in its config.json, expected a number",
    '{"rope_parameters": {"rope_theta": null}': "rope_theta None in its config.json, expected a number",
    '{"dtype": "float8"': "dtype 'float8' in its config.json, expected a type of torch, as 'float32' or 'bfloat16'",
    '{"dtype": "nn"': "dtype 'nn' in its config.json, expected a type of torch, as 'float32' or 'bfloat16'",
    '{"pad_token_id": 9999': "pad_token_id in its config.json, expected one below its vocab_size: Padding_idx must be within",
    '{"use_return_dict": false': "use_return_dict false in its config.json; leave it out: outputs are read by their names",
}


@pytest.mark.parametrize("damage", SAID)
def test_a_refused_setting_is_named(whole: dict[str, Path], tmp_path: Path, damage: str) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).save_pretrained(tmp_path)
    for file in whole["target"].glob("tok*"):
        shutil.copy(file, tmp_path)
    load(tmp_path)
    file = tmp_path / "config.json"
    key = damage.split('"')[1]
    kept = {name: value for name, value in json.loads(file.read_text()).items() if name != key}
    file.write_text(f"{damage}, {json.dumps(kept)[1:]}")
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    assert SAID[damage] in str(caught.value)


def test_two_settings_of_a_t5s_activation_agree(whole: dict[str, Path], tmp_path: Path) -> None:
    """transformers runs with dense_act_fn, whatever feed_forward_proj says."""
    shutil.copytree(whole["t5"], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"dense_act_fn": "gelu"}))
    with pytest.raises(UsageError, match=r"dense_act_fn 'gelu' and is_gated_act False in its config\.json are not what"):
        load(tmp_path)
    file.write_text(json.dumps(settings | {"feed_forward_proj": "relu", "dense_act_fn": "relu"}))
    load(tmp_path)


@pytest.mark.parametrize("kind", [T5Config, Pop2PianoConfig, GemmaConfig, LlamaConfig])
def test_settings_as_transformers_has_them_pass(tmp_path: Path, kind: type) -> None:
    """Fault: a Pop2Piano's two activations, which do not follow from one another, were refused as a T5's that disagree."""
    kind().save_pretrained(tmp_path)
    check_folder(tmp_path)
    check_settings(kind.from_pretrained(tmp_path))


def test_settings_that_are_a_folder_are_refused(whole: dict[str, Path], tmp_path: Path) -> None:
    """transformers passed over them in silence."""
    shutil.copytree(whole["target"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(UsageError, match=r"generation_config\.json is no regular file; expected JSON"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "model.safetensors is no regular file; expected tensors"),
        (
            "version https://git-lfs.github.com/spec/v1\n",
            "model.safetensors is a pointer of Git LFS, expected tensors; run git",
        ),
    ],
)
def test_weights_that_are_no_file_of_tensors_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, content: str | None, expected: str
) -> None:
    folder = Path(shutil.copytree(whole["target"], tmp_path / "model"))
    file = folder / "model.safetensors"
    file.unlink()
    file.mkdir() if content is None else file.write_text(content)
    assert expected in refusal(folder, capfd)


@pytest.mark.parametrize("start", ["0", 99999])
def test_a_first_token_that_a_decoder_does_not_have_is_named(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, start: object
) -> None:
    folder = with_file(whole, tmp_path, SETTINGS, {"decoder_start_token_id": start}, "t5")
    assert f"decoder_start_token_id {start!r}: expected a token id from 0 to" in refusal(folder, capfd)


def test_an_untrained_model_whose_padding_has_no_embedding_is_loaded(whole: dict[str, Path], tmp_path: Path) -> None:
    """The draft of Optimized's tables that knows nothing: its token 0 is zeros, and so were its logits behind that alone."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=300, pad_token_id=0, **sizes))
    assert not network.get_input_embeddings().weight[0].any()
    network.save_pretrained(tmp_path)
    for file in whole["target"].glob("tok*"):
        shutil.copy(file, tmp_path)
    load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
def test_older_files_of_whole_numbers_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, dtype: torch.dtype
) -> None:
    folder = Path(shutil.copytree(whole["target"], tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    load(folder)
    torch.save(weights | {GPT: weights[GPT].to(dtype)}, folder / "pytorch_model.bin")
    assert f"tensor {GPT!r} in pytorch_model.bin is of type {dtype}; expected one of F64, F32" in refusal(folder, capfd)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% for i in range(10**9) %}{{ i }}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{% if %}",
        "{{ messages[7].content }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 2000000 }}",
        "{{ 'a' * 10**10 }}",
        "{{ 9**(9**9) }}",
        "hello",
    ],
)
def test_chat_templates_that_fail_are_refused_in_one_line(
    whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(loading, "TEMPLATE_S", 1)
    folder = with_file(whole, tmp_path, "chat_template.jinja", template)
    model = load_model(ModelSpec(name=str(folder)))
    with pytest.raises(UsageError, match=rf"chat_template of {folder}: \w+Error: .*; correct it in") as caught:
        model.encode_chat("a b c")
    assert "\n" not in str(caught.value)


def test_templates_that_trim_a_text_or_mark_it_are_right(whole: dict[str, Path], tmp_path: Path) -> None:
    template = "{% for one in messages %}{% generation %}{{ one.content | trim }}{% endgeneration %}{% break %}{% endfor %}"
    folder = with_file(whole, tmp_path, "chat_template.jinja", template)
    model = load_model(ModelSpec(name=str(folder)))
    assert model.encode_chat(" a b c\n") == model.encode_continuation("a b c")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"rope_parameters": {"rope_type": "linear", "factor": -4.0}},
            "factor -4.0 of its rotary positions in its",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 8}, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "rope_parameters {'rope_type': 'default', 'rope_theta': 10000.0} in its config.json say two of rope_type",
        ),
        (
            {"num_local_experts": 4, "num_experts_per_tok": 0},
            "num_experts_per_tok 0 beside num_local_experts 4 in its config.json",
        ),
        ({"rope_scaling": {"type": "linear", "factor": True}}, "factor True of its rotary positions in its config.json"),
        ({"rope_parameters": {"all": {"factor": -1}}}, "factor -1 of its rotary positions in its config.json"),
        (
            {"rope_theta": 500000, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "rope_theta 500000 beside 10000.0 in rope_parameters in its config.json are one setting in two places; leave one",
        ),
        ({"partial_rotary_factor": -1}, "partial_rotary_factor -1 in its config.json, expected 1e-09 to 1"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor 2 in its config.json, expected 1e-09 to 1"),
        ({"rope_scaling": {"low_freq_factor": -1.0}}, "low_freq_factor -1.0 in its config.json, expected 1e-09 to"),
        (
            {"rope_scaling": {"low_freq_factor": 4, "high_freq_factor": 4}},
            "low_freq_factor 4 and high_freq_factor 4 of its rotary positions in its config.json, expected the first below",
        ),
        (
            {"rope_parameters": {"beta_fast": 1, "beta_slow": 32}},
            "beta_slow 32 and beta_fast 1 of its rotary positions in its config.json, expected the first below the second",
        ),
        (
            {"model_type": "marian", "vocab_size": 1024, "decoder_vocab_size": 2048},
            "vocab_size 1024 and decoder_vocab_size 2048 in its config.json, which says that both sides share",
        ),
        ({"model_type": "gemma2", "query_pre_attn_scalar": -8}, "query_pre_attn_scalar -8 in its config.json, expected 1e-09"),
        (
            {"model_type": "llama", "rope_thetta": 5e5},
            "'rope_thetta' in its config.json, which nothing reads; expected 'rope_theta'",
        ),
        ({"model_type": "gemma2", "atn_logit_softcapping": 5.0}, "which nothing reads; expected 'attn_logit_softcapping', or"),
        (
            {"model_type": "gpt2", "layer_norm_epsilom": 1e-3},
            "which nothing reads; expected 'layer_norm_epsilon', or leave it out",
        ),
    ],
)
def test_settings_that_no_network_can_run_with_are_refused(tmp_path: Path, settings: dict[str, object], expected: str) -> None:
    """Fault: each ran in silence."""
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=re.escape(expected)):
        check_folder(tmp_path)
    alike = {"beta_fast": 1.0, "beta_slow": 1.0}  # as Kimi K2 has them
    newer = {"rope_type": "linear", "rope_theta": 1e4, **alike}
    both: dict[str, Any] = {"rope_scaling": {"type": "linear", "factor": 8}, "rope_parameters": newer}
    both |= {"rope_theta": 10000, "partial_rotary_factor": 0.5, "use_sliding_window": False, "sliding_window": 0}
    (tmp_path / "config.json").write_text(json.dumps({"num_local_experts": 0, "num_experts_per_tok": 0} | both))
    check_folder(tmp_path)


@pytest.mark.parametrize(
    ("family", "unread"),
    [  # names that public configurations hold beside what transformers reads, and some that are like what it reads
        ("llama", "is_llama_config rope_interleaved _name_or_path unk_token_id num_local_layers max_sequence_length"),
        ("gpt2", "n_ctx task_specific_params gradient_checkpointing summary_hidden_size predict_special_tokens"),
        ("t5", "output_past n_positions decoder_start_token_id is_gated_act max_length num_beams length_penalty"),
        ("opt", "prefix word_embed_proj_dimension do_layer_norm_after max_length forced_eos_token_id"),
        ("whisper", "begin_suppress_tokens suppress_tokens forced_decoder_ids max_length num_hidden_layers_of_encoder"),
    ],
)
def test_names_that_no_network_reads_are_left_alone_unless_one_is_nearly_another(
    tmp_path: Path, family: str, unread: str
) -> None:
    whole = CONFIG_MAPPING[family]().to_dict() | dict.fromkeys(unread.split(), 1)
    for settings in (whole, {"model_type": family} | dict.fromkeys(unread.split(), 1)):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        check_folder(tmp_path)


def save_llama(kind: Any, folder: Path, words: Path) -> Any:
    """Save a tiny, random model of Llama's shape with another's tokenizer, and return its settings."""
    config = kind(
        vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for file in words.glob("tok*"):
        shutil.copy(file, folder)
    return config


@pytest.mark.parametrize("kinds", [["linear_attention"] * 2, ["sliding_attention", "full_attention"]])
def test_layers_of_kinds_that_a_stack_does_not_read_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, kinds: list[str]
) -> None:
    """Fault: our stack ran, and the replay by transformers ended in a traceback."""
    config = save_llama(Qwen2Config, tmp_path, whole["target"])
    load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {"layer_types": kinds, "architectures": None}))
    assert "\n" not in refusal(tmp_path, capfd)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": {"dropout": 0.3}}, "dropout 0.3 in its tokenizer.json cuts a text otherwise each time; set it to null"),
        ({"model": {"continuing_subword_prefix": "##"}}, "cannot be read ("),
        ({"decoder": None}, "of the text 'a B, 12.\\n\u00e9 \u8a9e' (decoder in tokenizer.json); take tokenizer.json and"),
        (
            {"post_processor": END_ALONE},
            "its tokenizer makes no tokens of a text (post_processor in tokenizer.json)",
        ),
    ],
)
def test_tokenizers_that_lose_or_scatter_texts_are_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, change: dict[str, Any], expected: str
) -> None:
    """Fault: arms read other prompts and were called near-ties; a panic in Rust ended the command; prompts were lost."""
    settings = json.loads((whole["target"] / "tokenizer.json").read_text())
    for part, values in change.items():
        settings[part] = settings[part] | values if part == "model" else values
    save_llama(LlamaConfig, tmp_path, whole["target"])
    told = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"tokenizer_class": "TokenizersBackend"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))  # GPT-2's own class makes its processor anew
    load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    said = refusal(tmp_path, capfd)
    assert expected in said
    assert "\n" not in said


def test_a_cut_file_of_ones_own_is_never_to_be_deleted(whole: dict[str, Path], tmp_path: Path) -> None:
    """Its headers are read before anything is loaded; what the cache is told does not hold for a checkpoint."""
    folder = Path(shutil.copytree(whole["target"], tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"cannot be read .*; expected what save_pretrained writes; copy it again") as caught:
        estimate(ModelSpec(name=str(folder)))
    assert "delete" not in str(caught.value)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_of_the_hub_that_changed_in_its_cache_is_refused(
    whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """The Hub's client names large files by their sha256, others as git does, and never looks at them again."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder, commit = tmp_path / "models--some--model", "c" * 40
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshots" / commit).mkdir(parents=True)
    for path in whole["target"].iterdir():
        content = path.read_bytes()
        by_git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        name = hashlib.sha256(content).hexdigest() if path.suffix == ".safetensors" else by_git
        (folder / "blobs" / name).write_bytes(content)
        (folder / "snapshots" / commit / path.name).symlink_to(folder / "blobs" / name)
    spec = ModelSpec(name="some/model", revision=commit)
    verify_fetched(spec)
    blob = (folder / "snapshots" / commit / file).resolve()
    content = bytearray(blob.read_bytes())
    content[-9] ^= 1
    blob.write_bytes(content)
    with pytest.raises(UsageError, match=f"model some/model: {file} is not as the Hub sent it: its checksum differs; delete"):
        verify_fetched(spec)


EXTRACTOR, SETTINGS = "preprocessor_config.json", "generation_config.json"


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (
            EXTRACTOR,
            {"chunk_length": 0},
            "chunk_length 0 in its preprocessor_config.json, expected 2 for the network of its con",
        ),
        (EXTRACTOR, {"chunk_length": 10**9}, "chunk_length 1000000000 in its preprocessor_config.json, expected 2"),
        (EXTRACTOR, {"feature_size": 10**9}, "feature_size 1000000000 in its preprocessor_config.json, expected 16"),
        (EXTRACTOR, {"hop_length": True}, "hop_length True in its preprocessor_config.json, expected 1 to 4096"),
        (EXTRACTOR, {"hop_length": 10**5}, "hop_length 100000 in its preprocessor_config.json, expected 1 to 4096"),
        (EXTRACTOR, {"n_fft": 800}, "n_fft 800 in its preprocessor_config.json, expected 400"),
        (EXTRACTOR, {"dither": 1.0}, "dither 1.0 in its preprocessor_config.json, expected 0"),
        (EXTRACTOR, {"padding_side": "left"}, "padding_side 'left' in its preprocessor_config.json, expected 'right'"),
        (EXTRACTOR, {"padding_value": None}, "padding_value None in its preprocessor_config.json, expected 0"),
        (EXTRACTOR, {"sampling_rate": 8000}, "sampling_rate 8000 in its preprocessor_config.json, expected 16000"),
        (EXTRACTOR, "{", "cannot be read ("),
        (
            SETTINGS,
            {"suppress_tokens": [-1]},
            "token -1 in suppress_tokens; expected one from 0 to 7: take generation_config.json",
        ),
        (SETTINGS, {"begin_suppress_tokens": 3}, "begin_suppress_tokens 3; expected a list of tokens"),
        (SETTINGS, {"begin_suppress_tokens": [1.5]}, "token 1.5 in begin_suppress_tokens; expected one from 0 to 7"),
        (SETTINGS, {"begin_suppress_tokens": [8]}, "token 8 in begin_suppress_tokens; expected one from 0 to 7"),
        (SETTINGS, {"decoder_start_token_id": None}, "token None in decoder_start_token_id; expected one from 0 to 7"),
        (
            SETTINGS,
            {"decoder_start_token_id": 3},
            "numbers '<|startoftranscript|>' as 4, the forced tokens are [3, 7]; correct dec",
        ),
        (SETTINGS, {"no_timestamps_token_id": "x"}, "token 'x' in no_timestamps_token_id; expected one from 0 to 7"),
        (
            SETTINGS,
            {"no_timestamps_token_id": None},
            "numbers '<|notimestamps|>' as 7, the forced tokens are [4]; correct no_tim",
        ),
    ],
)
def test_a_whisper_that_would_hear_or_write_otherwise_is_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture, file: str, content: str | dict, expected: str
) -> None:
    """A feature extractor of odd settings failed in the middle of a run, filled all memory, or changed what was heard."""
    load(whole["whisper"])
    said = refusal(with_file(whole, tmp_path, file, content, "whisper"), capfd)
    assert expected in said
    assert "\n" not in said


def test_a_tokenizer_of_another_network_is_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """Half of the vocabulary, one token too many, and none at all, where transformers makes an empty tokenizer."""
    folder = Path(shutil.copytree(whole["t5"], tmp_path / "model"))
    content = json.loads((folder / "tokenizer.json").read_text())
    words, size = content["model"]["vocab"], len(content["model"]["vocab"])
    few = {word: number for word, number in words.items() if number < size // 3}
    for vocabulary, expected in (
        (few, f"its tokenizer has {len(few)} tokens, its network {size}; take tokenizer.json and tokenizer_config.json"),
        (words | {"newest": size + 7}, f"its tokenizer numbers 'newest' as {size + 7}, its network has {size} tokens; take"),
    ):
        changed = content["model"] | {"vocab": vocabulary, "merges": []}
        (folder / "tokenizer.json").write_text(json.dumps(content | {"model": changed}))
        assert expected in refusal(folder, capfd)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert f"tokens, its network {size}; take tokenizer.json" in refusal(folder, capfd)


def test_a_tokenizer_that_cannot_write_every_text_is_refused(
    whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """It was a traceback of the first prompt with a word that it lacks."""
    folder = with_file(whole, tmp_path, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}, "t5")
    assert "WordPiece error: Missing [UNK] token from the vocabulary" in refusal(folder, capfd)


KEPT = [1, 5, 7, 9, 40]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (KEPT, None),
        ([], "kept_tokens in its config.json: 0 tokens, expected 5: its network has 6, and the last stands for all others"),
        (KEPT[:-1], "kept_tokens in its config.json: 4 tokens, expected 5"),
        ([*KEPT, 41], "kept_tokens in its config.json: 6 tokens, expected 5"),
        ([5, 1, 7, 9, 40], "kept_tokens in its config.json: 1 behind 5, expected whole numbers in ascending order"),
        ([1, 1, 7, 9, 40], "kept_tokens in its config.json: 1 behind 1, expected whole numbers in ascending order"),
        ([1, "5", 7, 9, 40], "kept_tokens in its config.json: '5', expected whole numbers in ascending order"),
        ([1, 5.5, 7, 9, 40], "kept_tokens in its config.json: 5.5, expected whole numbers in ascending order"),
        (False, "kept_tokens in its config.json: a bool, expected whole numbers in ascending order"),
        ({"1": 1}, "kept_tokens in its config.json: a dict, expected whole numbers in ascending order"),
        ([-1, 1, 7, 9, 40], "kept_tokens -1 to 40 of draft"),
        ([1, 5, 7, 9, 10**9], "kept_tokens 1 to 1000000000 of draft"),
        ([2, 5, 7, 9, 40], "its texts end with token 2 of"),
        (None, "its tokenizer numbers"),
    ],
)
def test_a_drafts_damaged_list_of_tokens_is_refused(
    whole: dict[str, Path], tmp_path: Path, kept: object, expected: str | None
) -> None:
    """Lists of other kinds were tracebacks; one that was too long, out of order or shifted drafted other tokens in silence."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=6, eos_token_id=0, bos_token_id=None, **sizes))
    network.config.kept_tokens = kept
    network.save_pretrained(tmp_path)
    for file in whole["target"].glob("tok*"):
        shutil.copy(file, tmp_path)
    models = Models()
    target = models.get(ModelSpec(name=str(whole["target"])))
    assert target.eos_token_ids == (1,)
    if expected is None:
        assert models.translation(target, models.draft(ModelSpec(name=str(tmp_path)), target)).target_ids.tolist() == kept
        return
    with pytest.raises(UsageError) as caught:
        models.translation(target, models.draft(ModelSpec(name=str(tmp_path)), target))
    assert expected in str(caught.value)
