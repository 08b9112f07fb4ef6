"""Whisper as CTranslate2 stores it (model.bin, version 6), converted into the folder that save_pretrained writes.

The file is little endian: version (uint32), name of the specification, revision (uint32), number of variables (uint32); of each
variable its name, rank (uint8), dimensions (uint32 each), type (uint8), number of bytes (uint32) and data; then the number of
aliases (uint32), two names of each. A name is its length (uint16, with a closing zero byte) and its bytes. Queries, keys and
values are one matrix; Whisper's keys have no bias, which stands there as zeros.
"""

import json
import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import transformers
from tokenizers import AddedToken
from torch import Tensor
from transformers import (
    PreTrainedTokenizerBase,
)

from harness.core.errors import UsageError
from harness.zoo.cache import quiet
from methods.errors import InputError
from methods.models.checkpoint import load_whole

VERSION, SPECIFICATION = 6, "WhisperSpec"
TYPES = tuple(map(np.dtype, ("<f4", "i1", "<i2", "<i4", "<f2")))  # by their numbers in the file
FORMATS = {torch.float16: "fp16", torch.float32: "fp32"}
EMBEDDING, PROJECTION = "decoder/embeddings/weight", "decoder/projection/weight"
SIDES = ("encoder", "decoder")
ENGLISH_ONLY = 51864  # tokens of the vocabulary that knows one language (OpenAI's whisper/model.py, is_multilingual)
END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
TASKS = ("transcribe", "translate")
TIMESTAMP_S = 0.02


class Variables(NamedTuple):
    """What a file holds: tensors by name, and the other names that some of them have."""

    tensors: dict[str, np.ndarray]
    aliases: dict[str, str]


def convert(source: Path, folder: Path) -> str:
    """Write a Whisper from model.bin, config.json and tokenizer.json in ``source``; return what its weights are.

    Raises:
        UsageError: the files are damaged, or no Whisper of this format.
        OSError, SafetensorError: the folder cannot be written.
    """
    try:
        variables = read(source / "model.bin")
        num_heads = [int(variables.tensors[f"{side}/num_heads"]) for side in SIDES]
        state = state_of(variables)
        with quiet():
            tokenizer = _tokenizer(source, len(state["proj_out.weight"]))
            settings = json.loads((source / "config.json").read_text(encoding="utf8"))
            model = _model(state, num_heads, tokenizer, settings)
    except (InputError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{source}: no Whisper of CTranslate2 that can be read ({' '.join(str(error).split())})") from error
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(folder)
        load_whole(transformers.WhisperForConditionalGeneration, folder)
    return f"{FORMATS[model.dtype]} of CTranslate2"


def read(path: Path) -> Variables:
    """Read every variable of a model.bin. InputError for a file that is torn or of another format."""
    with path.open("rb") as file:
        if (version := _number(file, "<I")) != VERSION or (kind := _name(file)) != SPECIFICATION:
            found = f"version {version}" if version != VERSION else repr(kind)
            raise InputError(f"{path.name}: {found}; expected version {VERSION} with {SPECIFICATION}")
        _number(file, "<I")  # the specification's revision
        tensors = dict(_variable(file) for _ in range(_number(file, "<I")))
        aliases = {_name(file): _name(file) for _ in range(_number(file, "<I"))}
        if file.read(1):
            raise InputError(f"{path.name}: it goes on behind its end")
    return Variables(tensors, aliases)


def _variable(file: BinaryIO) -> tuple[str, np.ndarray]:
    name = _name(file)
    shape = [_number(file, "<I") for _ in range(_number(file, "<B"))]
    number, size = _number(file, "<B"), _number(file, "<I")
    if number >= len(TYPES) or size != prod(shape) * TYPES[number].itemsize:
        raise InputError(f"variable {name}: type {number}, shape {shape} and {size} bytes do not fit")
    return name, np.frombuffer(_bytes(file, size), TYPES[number]).reshape(shape)


def _number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(kind, _bytes(file, struct.calcsize(kind)))[0])


def _name(file: BinaryIO) -> str:
    return _bytes(file, _number(file, "<H")).removesuffix(b"\0").decode("utf8")


def _bytes(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) != size:
        raise InputError(f"{Path(file.name).name}: it ends too soon")
    return found


def state_of(variables: Variables) -> dict[str, Tensor]:
    """Name the weights as transformers does. InputError for a weight that is missing, left over, or no Whisper's."""
    left, state = dict(variables.tensors), dict[str, Tensor]()

    def take(name: str, ours: Sequence[str]) -> None:
        """Give a tensor to one of ours, or its equal parts to several."""
        tensor = torch.from_numpy(left.pop(name).copy())
        if tensor.dtype not in FORMATS:
            raise InputError(f"variable {name} is of {tensor.dtype}; expected {' or '.join(FORMATS.values())}")
        state.update(zip(ours, tensor.chunk(len(ours)), strict=True))

    def linear(name: str, *ours: str) -> None:
        for kind in ("weight", "bias"):
            take(f"{name}/{kind}", [f"{one}.{kind}" for one in ours])

    def norm(name: str, ours: str) -> None:
        take(f"{name}/gamma", [f"{ours}.weight"])
        take(f"{name}/beta", [f"{ours}.bias"])

    for side in SIDES:
        layer = 0
        while f"{side}/layer_{layer}/ffn/linear_0/weight" in left:
            theirs, ours = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            norm(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            linear(f"{theirs}/self_attention/linear_0", *(f"{ours}.self_attn.{one}_proj" for one in "qkv"))
            linear(f"{theirs}/self_attention/linear_1", f"{ours}.self_attn.out_proj")
            if side == "decoder":
                norm(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
                linear(f"{theirs}/attention/linear_0", f"{ours}.encoder_attn.q_proj")
                linear(f"{theirs}/attention/linear_1", *(f"{ours}.encoder_attn.{one}_proj" for one in "kv"))
                linear(f"{theirs}/attention/linear_2", f"{ours}.encoder_attn.out_proj")
            norm(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
            linear(f"{theirs}/ffn/linear_0", f"{ours}.fc1")
            linear(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
            layer += 1
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        take(f"{side}/position_encodings/encodings", [f"model.{side}.embed_positions.weight"])
    for name in ("conv1", "conv2"):
        linear(f"encoder/{name}", f"model.encoder.{name}")
    take(EMBEDDING, ["model.decoder.embed_tokens.weight"])
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    for name in [one for one in state if one.endswith("k_proj.bias")]:
        if state.pop(name).any():
            raise InputError(f"{name} is not zero; a Whisper's keys have no bias")
    if variables.aliases != {PROJECTION: EMBEDDING}:
        raise InputError(f"aliases {variables.aliases}; expected {PROJECTION} to be {EMBEDDING}")
    if others := [name for name, value in left.items() if value.ndim]:  # what has no dimensions is a setting
        raise InputError(f"variable {others[0]} has no place in a Whisper")
    return state


def _model(
    state: dict[str, Tensor], num_heads: Sequence[int], tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]
) -> Any:
    """The network with these weights, and what generation needs to know: forced and suppressed tokens."""
    vocab_size, width = state["proj_out.weight"].shape
    end, start, silent = (_id(tokenizer, token) for token in (END, START, NO_TIMESTAMPS))
    ends: dict[str, Any] = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    sizes: dict[str, Any] = {}
    for side, heads in zip(SIDES, num_heads, strict=True):
        ours = f"model.{side}.layers"
        sizes[f"{side}_layers"] = sum(name.startswith(ours) and name.endswith("fc1.bias") for name in state)
        sizes[f"{side}_attention_heads"] = heads
        sizes[f"{side}_ffn_dim"] = len(state[f"{ours}.0.fc1.bias"])
    config = transformers.WhisperConfig(
        vocab_size=vocab_size,
        d_model=width,
        num_mel_bins=state["model.encoder.conv1.weight"].shape[1],
        max_source_positions=len(state["model.encoder.embed_positions.weight"]),
        max_target_positions=len(state["model.decoder.embed_positions.weight"]),
        dtype=state["proj_out.weight"].dtype,
        **sizes,
        **ends,
    )
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(config)
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    many = vocab_size != ENGLISH_ONLY
    languages = {tokenizer.convert_ids_to_tokens(one): one for one in settings["lang_ids"]}
    named = {"lang_to_id": languages, "task_to_id": {one: _id(tokenizer, f"<|{one}|>") for one in TASKS}} if many else {}
    model.generation_config = transformers.GenerationConfig(
        **ends, max_length=config.max_target_positions, suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"], alignment_heads=settings["alignment_heads"],
        no_timestamps_token_id=silent, is_multilingual=many, return_timestamps=False, **named,
    )  # fmt: skip
    return model


def _tokenizer(source: Path, vocab_size: int) -> PreTrainedTokenizerBase:
    """The tokenizer with its timestamps, which end Whisper's vocabulary and which some conversions leave out."""
    tokenizer = transformers.WhisperTokenizer.from_pretrained(source)
    lacking, last = vocab_size - len(tokenizer), _id(tokenizer, NO_TIMESTAMPS)
    if lacking < 0 or (lacking and last != len(tokenizer) - 1):
        raise InputError(f"tokenizer.json has {len(tokenizer)} tokens, the network {vocab_size}")
    tokenizer.add_tokens([AddedToken(f"<|{TIMESTAMP_S * one:.2f}|>", normalized=False) for one in range(lacking)])
    return tokenizer


def _id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    if (found := tokenizer.get_vocab().get(token)) is None:
        raise InputError(f"tokenizer.json has no token {token}")
    return int(found)
