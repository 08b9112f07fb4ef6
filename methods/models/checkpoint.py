"""A checkpoint's weights, loaded whole or refused: none left to chance, none dropped, none NaN, infinite or wiped out."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from methods.errors import InputError

AS_NAMED_THERE = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
FLOATING = tuple(AS_NAMED_THERE.values())  # as safetensors names them
KEPT_TOKENS = (
    "kept_tokens"  # in the configuration of a draft that knows a part of its vocabulary: these tokens, as it numbers them
)
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # the index says which tensor is in which of several files
LARGEST_ROW = torch.finfo(torch.float32).max ** 0.5  # of an embedding, by its length
REPORTER = "transformers"  # logs a table of many lines where a checkpoint does not fit


def load_whole(kind: Any, path: Any, **arguments: Any) -> Any:
    """Return ``kind.from_pretrained(path, **arguments)``, a model whose every weight is the files'.

    Weights that are tied to others, and those that transformers itself knows to be left over, need not be in the files.

    Raises:
        InputError: a tensor is missing, left over, twice there, of another shape or no floating point, or holds NaN or
            infinity; or a matrix is all zeros.
    """
    _refuse_odd_index(Path(path))
    with _silenced():
        model, found = kind.from_pretrained(path, output_loading_info=True, ignore_mismatched_sizes=True, **arguments)
    _refuse_misfits(found)
    _refuse_apart(model)
    _refuse_doubles(Path(path), model)
    _refuse_numbers_of_other_kinds(Path(path), model)
    _refuse_wiped_out_model(model)
    return model


def load_dequantised(kind: Any, path: Any, *, dtype: torch.dtype, **arguments: Any) -> Any:
    """Return ``kind.from_pretrained(path, ...)`` of a checkpoint with quantised weights, with the numbers that they stand for.

    Products are then those of any other model in ``dtype``: the law is the quantised model's, its speed is not.

    Raises:
        InputError: as ``load_whole``.
    """
    _refuse_odd_index(Path(path))
    _refuse_lost_parts(Path(path))
    with _silenced():
        model, found = kind.from_pretrained(path, output_loading_info=True, dtype=dtype, **arguments)
    _refuse_misfits(found)
    _refuse_doubles(Path(path), model)
    _refuse_numbers_of_other_kinds(Path(path), model)
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if type(weight.data) is not Tensor:
                setattr(module, name, nn.Parameter(_numbers(weight.data).to(dtype), requires_grad=False))
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    _refuse_wiped_out_model(model)
    return model


def _numbers(weight: Any) -> Tensor:
    """Return what a quantised weight stands for: in fp32, not rounded to the dtype that it was quantised from, but for kinds
    whose products round it so, which give it in that dtype alone."""
    rounds = "output_dtype" not in signature(weight.dequantize).parameters
    return weight.dequantize() if rounds else weight.dequantize(output_dtype=torch.float32)


def _refuse_wiped_out_model(model: nn.Module) -> None:
    """InputError as ``refuse_wiped_out``, and for a norm whose output is the same whatever it reads: its layer does nothing;
    and for an embedding that every norm, computed in fp32, wipes out: the method would be blamed for what follows.

    A norm's weights may all be zero where it multiplies by 1 + weight, as Gemma's.
    """
    refuse_wiped_out(model.state_dict())
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Embedding) and isinstance(weight, Tensor) and not weight.is_meta:
            wide = torch.promote_types(weight.dtype, torch.float32)
            if not bool((torch.linalg.vector_norm(weight, dim=-1, dtype=wide) < LARGEST_ROW).all()):
                raise InputError(f"tensor '{name}.weight' has a row whose squares fp32 does not hold: a norm makes zeros of it")
        if not type(module).__name__.endswith("Norm") or not isinstance(weight, Tensor) or weight.dim() != 1:
            continue
        if weight.is_meta or len(weight) == 1 or weight.any():
            continue
        ramp = torch.arange(1, len(weight) + 1, dtype=weight.dtype, device=weight.device)[None]
        with torch.no_grad():
            if torch.equal(module(ramp), module(-ramp)):
                raise InputError(f"tensor '{name}.weight' holds nothing but zeros: it was never trained, or was lost in a copy")


def refuse_wiped_out(tensors: Mapping[str, Tensor]) -> None:
    """InputError as ``refuse_not_finite``, and for a matrix that is all zeros: a trained one never is.

    Biases may be, and what has a single row: RoBERTa's one kind of token, say.
    """
    for name, extremes in _finite_extremes(tensors):
        shape = list(tensors[name].shape)
        if len(shape) > 1 and min(shape) > 1 and not name.endswith("bias") and not extremes.any():
            raise InputError(f"tensor {name!r}, {shape}, holds nothing but zeros: it was never trained, or was lost in a copy")


def refuse_whole_numbers(tensors: Mapping[str, Tensor]) -> None:
    """InputError for the first tensor of no floating point: whole numbers are those of a quantised copy, or of other data."""
    if odd := next((name for name, tensor in tensors.items() if not tensor.is_floating_point()), None):
        raise InputError(f"tensor {odd!r} is of type {str(tensors[odd].dtype).removeprefix('torch.')}; expected floating point")


def refuse_not_finite(tensors: Mapping[str, Tensor]) -> None:
    """InputError for the first tensor that holds NaN or an infinity; whole numbers hold neither."""
    for _ in _finite_extremes(tensors):
        pass


def _finite_extremes(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the least and the most of every tensor that can be read; InputError as ``refuse_not_finite``."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
            continue
        kept = tensor if tensor.dtype in AS_NAMED_THERE else tensor.float()  # torch knows no extremes of eight bits
        extremes = torch.stack(kept.aminmax())  # NaN is both; no second tensor of this size is made
        if not extremes.isfinite().all():
            raise InputError(f"tensor {name!r} holds NaN or infinity in {str(tensor.dtype).removeprefix('torch.')}")
        yield name, extremes


def _refuse_misfits(found: Mapping[str, Any]) -> None:
    if others := sorted(found["mismatched_keys"]):
        name, theirs, ours = others[0]
        raise InputError(f"tensor {name!r} has shape {list(theirs)}, its config.json asks for {list(ours)}{_more(others)}")
    if missing := sorted(found["missing_keys"]):
        raise InputError(f"tensor {missing[0]!r} is missing from its files, so its weights would be random{_more(missing)}")
    if left_over := sorted(found["unexpected_keys"]):
        raise InputError(f"tensor {left_over[0]!r} has no place in the model that its config.json describes{_more(left_over)}")


def _refuse_apart(model: Any) -> None:
    """InputError for two tensors that are one by the configuration and differ in the files: transformers runs with both."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, source in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        own, other = weights.get(name), weights.get(source)
        if own is None or other is None or own is other or own.is_meta or other.is_meta:
            continue
        if own.shape != other.shape or not torch.equal(own, other.to(own.device)):  # equal copies lie on several devices
            raise InputError(
                f"tensor {name!r} differs from {source!r}, and its config.json says that they are one (tie_word_embeddings "
                "true): expected one of them alone, or false there"
            )


def _refuse_odd_index(folder: Path) -> None:
    """InputError where the index of a folder's several files and these files do not say the same.

    transformers reads every file that the index names, anywhere, and of a tensor that is in two the one that it reads last.
    """
    if not (folder / INDEX).is_file() or (folder / WHOLE).is_file():
        return
    content = json.loads((folder / INDEX).read_bytes())
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise InputError(f"{INDEX} has no weight_map from tensors to files")
    if not isinstance(content.get("metadata"), dict):
        raise InputError(f"{INDEX} has no metadata; expected a table, which may be empty")
    files = sorted(set(places.values()))
    if lacking := [file for file in files if Path(file).name != file or not (folder / file).is_file()]:
        raise InputError(f"{INDEX} names {lacking[0]!r}, which is no file of the folder")
    for file in files:
        with safe_open(folder / file, "pt") as tensors:
            if odd := next((name for name in tensors.keys() if places.get(name, file) != file), None):  # noqa: SIM118
                raise InputError(f"tensor {odd!r} is in {file}, and in {places[odd]} according to {INDEX}")


def _refuse_doubles(folder: Path, model: Any) -> None:
    """InputError for a tensor under two names, with the network's prefix and without: transformers takes either of them."""
    names = {name for _, name, _ in _kinds(folder)}
    prefix = f"{model.base_model_prefix}."
    if double := min((name for name in names if prefix + name in names), default=None):
        raise InputError(f"tensors {double!r} and {prefix + double!r} are one by two names; expected one of them alone")


def _refuse_numbers_of_other_kinds(folder: Path, model: Any) -> None:
    """InputError for weights of whole numbers, which loading would turn into floating point. Looks into folders only."""
    ours = [name for name, _ in model.named_parameters()]
    for path, name, kind in _kinds(folder):
        if kind not in FLOATING and any(f".{one}".endswith(f".{name}") for one in ours):
            raise InputError(f"tensor {name!r} in {path.name} is of type {kind}; expected one of {', '.join(FLOATING)}")


def _refuse_lost_parts(folder: Path) -> None:
    """InputError where a quantised tensor lacks one of the parts that torchao says it has. Looks into folders only."""
    names, told = set[str](), dict[str, str]()  # each of several files tells of the tensors of all
    for file in loaded_files(folder):
        with safe_open(file, "pt") as tensors:
            names |= set(tensors.keys())
            told |= tensors.metadata() or {}
    for name, text in told.items():
        described = json.loads(text) if text.startswith("{") else {}
        owner, _, last = name.rpartition(".")
        parts = [f"{owner}._{last}_{part}" for part in described.get("_tensor_data_names", ())]
        if lost := [part for part in parts if part not in names]:
            raise InputError(f"tensor {lost[0]!r} is missing from its files, so its weights would be random{_more(lost)}")


def _kinds(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield file, name and type of every tensor of a folder's checkpoint; without safetensors of PyTorch's older files."""
    files = loaded_files(folder)
    for path in files:
        with safe_open(path, "pt") as file:
            yield from ((path, name, file.get_slice(name).get_dtype()) for name in file.keys())  # noqa: SIM118
    for path in () if files else sorted(folder.glob("pytorch_model*.bin")):
        tensors = torch.load(path, map_location="meta", weights_only=True)
        yield from ((path, name, AS_NAMED_THERE.get(one.dtype, str(one.dtype))) for name, one in tensors.items())


def loaded_files(folder: Path) -> list[Path]:
    """Return a folder's safetensors files but those of Mistral's own layout, which transformers does not load."""
    return sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))


def _more(tensors: list[Any]) -> str:
    return f" (one of {len(tensors)} such tensors)" if len(tensors) > 1 else ""


@contextmanager
def _silenced() -> Iterator[None]:
    reporter = logging.getLogger(REPORTER)
    before = reporter.level
    reporter.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        reporter.setLevel(before)
