"""What a model's settings may be, whatever file they are from, and how an error of a library about a file is told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")  # as configurations name them
MOST_LAYERS = 1000  # the deepest public model has 126; many more take hours to build before a tensor is found missing
LIMITS = {  # of numbers in a configuration, by a part of their names, the first that fits; others must fit into 64 bits
    "drop": (0, 1),
    "_eps": (1e-30, 1),
    "epsilon": (1e-30, 1),
    "max_distance": (1, 2**20),
    "sliding_window": (1, 2**40),
    "type_vocab_size": (0, 2**40),
    "vocab_size": (1, 2**40),
    "attention_heads": (1, 2**20),
    "key_value_heads": (1, 2**20),
    "n_head": (1, 2**20),
    "head_dim": (1, 2**20),
    "hidden_size": (1, 2**40),
    "shared_intermediate_size": (0, 2**40),
    "intermediate_size": (1, 2**40),
    "max_position_embeddings": (1, 2**40),
    "query_pre_attn_scalar": (1e-9, 2**40),
    "partial_rotary_factor": (1e-9, 1),
    "_freq_factor": (1e-9, 2**40),
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # as configurations name them; 0 of a network without any
ROPE = ("rope_scaling", "rope_parameters")  # the older name and the newer of one table of settings
ROPE_NUMBERS = ("rope_theta", "partial_rotary_factor")  # in that table, or beside it
ORDERED = (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast"))  # in that table: the first is not the larger
DIVIDED = "low_freq_factor"  # by its distance from the other is divided
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
SETTINGS = (CONFIG, GENERATION, TOKENIZER_CONFIG, "preprocessor_config.json", "special_tokens_map.json")
KINDS: dict[str, dict[str, Any]] = {
    CONFIG: {
        "model_type": str, "architectures": list, "quantization_config": dict, "rope_scaling": dict, "rope_parameters": dict,
        "dtype": str, "torch_dtype": str, "hidden_act": str, "activation_function": str, "dense_act_fn": str,
        "feed_forward_proj": str, "tie_word_embeddings": bool, "is_encoder_decoder": bool,
    },
    TOKENIZER_CONFIG: {"tokenizer_class": str, "model_max_length": int | float, "added_tokens_decoder": dict},
}  # fmt: skip
MISSPELT = 0.9  # of 1 for the same: one letter off, or two of a long name
DTYPES = ("dtype", "torch_dtype")
T5S = ("t5", "mt5", "umt5", "longt5")  # in which one setting of the activation follows from the other
ACTIVATIONS = ("hidden_act", "activation_function", "dense_act_fn")
JSON_NAMES = {str: "a text", list: "a list", dict: "a table", bool: "true or false", int | float: "a number"}
POINTER = b"version https://git-lfs"  # begins a file that Git LFS has not fetched


def check_folder(folder: Path) -> None:
    """Look at the settings of a model's folder before transformers reads them, which takes the last of a key's two values, and
    whose errors name no field.

    Raises:
        ValueError: a file of settings is no file, no JSON or no table, names a key twice, or says what no model can run with.
    """
    from methods.models.checkpoint import loaded_files  # here: limits alone take no torch

    for name in SETTINGS:
        path = folder / name
        if not path.exists():
            continue
        if not path.is_file():
            raise ValueError(f"{name} is no regular file; expected JSON")
        try:
            settings = json.loads(path.read_text(encoding="utf8"), object_pairs_hook=_once)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if not isinstance(settings, dict):
            raise ValueError(f"{name} holds {str(settings)[:40]!r}, expected a table of settings")
        _check_kinds(settings, name)
        if name == CONFIG:
            _check_numbers(settings, CONFIG)
            _check_agreement(settings)
    _check_cuts(folder / TOKENIZER)
    for path in loaded_files(folder):
        if not path.is_file():
            raise ValueError(f"{path.name} is no regular file; expected tensors")
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise ValueError(f"{path.name} is a pointer of Git LFS, expected tensors; run git lfs pull")


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    settings = dict(pairs)
    if len(settings) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice; leave one of them")
    return settings


def _check_agreement(settings: Mapping[str, Any]) -> None:
    """ValueError for settings that are there under two names, and for those of another network than the one that is named."""
    import torch
    import transformers

    for name in DTYPES:
        if settings.get(name) is not None and not isinstance(getattr(torch, settings[name], None), torch.dtype):
            raise ValueError(f"{name} {settings[name]!r} in its {CONFIG}, expected a type of torch, as 'float32' or 'bfloat16'")
    older, newer = (settings.get(name) for name in ROPE)
    first, second = ({**table, "rope_type": table.get("rope_type", table.get("type"))} for table in (older or {}, newer or {}))
    if older and newer and (apart := [name for name in first.keys() & second.keys() if first[name] != second[name]]):
        raise ValueError(f"{ROPE[0]} {older} and {ROPE[1]} {newer} in its {CONFIG} say two of {min(apart)}; leave one of them")
    for table in _rope_tables(older, newer):
        if (factor := table.get("factor")) is not None and not (_is_number(factor) and factor > 0):
            raise ValueError(f"factor {factor!r} of its rotary positions in its {CONFIG}, expected a number above 0")
        for lower, upper in ORDERED:
            if not (_is_number(table.get(lower)) and _is_number(table.get(upper))):
                continue
            if table[lower] > table[upper] or (lower == DIVIDED and table[lower] == table[upper]):
                both = f"{lower} {table[lower]!r} and {upper} {table[upper]!r}"
                raise ValueError(f"{both} of its rotary positions in its {CONFIG}, expected the first below the second")
    for place, table in zip(ROPE, (older or {}, newer or {}), strict=True):
        for name in ROPE_NUMBERS:
            if _is_number(table.get(name)) and _is_number(settings.get(name)) and table[name] != settings[name]:
                both = f"{name} {settings[name]!r} beside {table[name]!r} in {place}"
                raise ValueError(f"{both} in its {CONFIG} are one setting in two places; leave one of them")
    if settings.get("num_experts_per_tok") == 0 and (many := next((one for one in EXPERTS if settings.get(one)), None)):
        raise ValueError(f"num_experts_per_tok 0 beside {many} {settings[many]} in its {CONFIG}, expected 1 or more")
    if odd := next((one for one in ("return_dict", "use_return_dict") if settings.get(one) is False), None):
        raise ValueError(f"{odd} false in its {CONFIG}; leave it out: outputs are read by their names")
    family = str(settings.get("model_type"))
    kind = transformers.CONFIG_MAPPING[family] if family in transformers.CONFIG_MAPPING else None  # noqa: SIM401, it is lazy
    for name, other in getattr(kind, "attribute_map", {}).items():
        if name in settings and other in settings and settings[name] != settings[other]:
            both = f"{name} {settings[name]!r} and {other} {settings[other]!r}"
            raise ValueError(f"{both} in its {CONFIG} are one setting by two names; leave one of them")
    _check_spelling(settings, kind)
    rows, others = settings.get("vocab_size"), settings.get("decoder_vocab_size")
    if family == "marian" and settings.get("share_encoder_decoder_embeddings", True) and others not in (rows, None):
        both = f"vocab_size {rows!r} and decoder_vocab_size {others!r}"
        raise ValueError(f"{both} in its {CONFIG}, which says that both sides share their embeddings; correct one of them")
    for name in settings.get("architectures") or ():
        if (families := _families_of(str(name))) and family not in families:
            both = f"model_type {family!r} and architectures {name!r}"
            raise ValueError(f"{both} in its {CONFIG} are of two families; correct one of them")


def _check_spelling(settings: Mapping[str, Any], kind: type | None) -> None:
    """ValueError for a name that nothing reads and that is nearly one that is missing: the network would run with its default.

    Other names that a family does not know are left alone: public configurations hold many.
    """
    if kind is None or not is_dataclass(kind):
        return
    known = {field.name for field in fields(kind)} | set(getattr(kind, "attribute_map", {})) | {*ROPE, *ROPE_NUMBERS, *DTYPES}
    for name in sorted(settings.keys() - known):
        near = [] if name.endswith("_token_id") else get_close_matches(name, known - settings.keys(), 1, MISSPELT)
        if near:
            raise ValueError(f"{name!r} in its {CONFIG}, which nothing reads; expected {near[0]!r}, or leave it out")


def _rope_tables(*found: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the tables of rotary positions that are there, and those in them, one for a kind of layer."""
    tables = [table for table in found if table]
    return tables + [one for table in tables for one in table.values() if isinstance(one, Mapping)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _families_of(network: str) -> set[str]:
    """Return the families whose texts or speech transformers makes a class of this name for; none of other classes."""
    from transformers.models.auto import modeling_auto as auto

    known = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    )
    return {family for names in known for family, name in names.items() if name == network}


def _check_cuts(path: Path) -> None:
    """ValueError for a tokenizer that cuts a text otherwise each time, and for a file that holds no table."""
    if not path.is_file():
        return
    try:
        model = json.loads(path.read_text(encoding="utf8")).get("model") or {}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    if model.get("dropout"):
        raise ValueError(f"dropout {model['dropout']!r} in its {path.name} cuts a text otherwise each time; set it to null")


def _check_kinds(settings: Mapping[str, Any], source: str) -> None:
    for name, kind in KINDS.get(source, {}).items():
        value = settings.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} {value!r} in its {source}, expected {JSON_NAMES[kind]}")


def check_settings(config: "PreTrainedConfig", source: str = "config.json") -> None:
    """ValueError for a depth or another number that no model can run with; ``source`` says where it stands."""
    for name in DEPTHS:
        depth = getattr(config, name, 1)
        if not isinstance(depth, int) or not 1 <= depth <= MOST_LAYERS:
            raise ValueError(f"{name} {depth!r} in its {source}, expected 1 to {MOST_LAYERS}")
    _check_numbers(config.to_dict(), source)
    _check_activations(config, source)
    _check_rope(config, source)


def _check_rope(config: "PreTrainedConfig", source: str) -> None:
    """ValueError for rotary positions of a type that transformers does not know, or whose base is no number."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known = ("default", *ROPE_INIT_FUNCTIONS)
    for table in _rope_tables(getattr(config, "rope_parameters", None)):
        if (kind := table.get("rope_type", "default")) not in known:
            raise ValueError(f"rope_type {kind!r} in its {source}, expected one of {', '.join(known)}")
        if not _is_number(theta := table.get("rope_theta", 1.0)):
            raise ValueError(f"rope_theta {theta!r} in its {source}, expected a number")


def _check_activations(config: "PreTrainedConfig", source: str) -> None:
    """ValueError for an activation that transformers does not know, or a T5's two settings of it that do not agree."""
    from transformers.activations import ACT2FN

    for name in ACTIVATIONS:
        if (value := getattr(config, name, None)) is not None and value not in ACT2FN:
            raise ValueError(f"{name} {value!r} in its {source}, expected an activation of transformers, as 'silu' or 'relu'")
    if config.model_type in T5S:
        both = config.feed_forward_proj
        meant = "gelu_new" if both == "gated-gelu" else both.split("-")[-1]
        if (config.dense_act_fn, config.is_gated_act) != (meant, both.startswith("gated-")):
            raise ValueError(
                f"dense_act_fn {config.dense_act_fn!r} and is_gated_act {config.is_gated_act} in its {source} are not what its "
                f"feed_forward_proj {both!r} says; leave one of the two"
            )


def _check_numbers(settings: Mapping[str, Any], source: str) -> None:
    """ValueError for a number that no model can run with; some of them would hang, or be noticed by transformers alone."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_numbers(value, source)
        elif _is_number(value) and not (name == "sliding_window" and settings.get("use_sliding_window") is False):
            least, most = next((limits for word, limits in LIMITS.items() if word in name), (-(2**62), 2**62))
            if not least <= value <= most:
                raise ValueError(f"{name} {value!r} in its {source}, expected {least:g} to {most:g}")
