"""Checkpoints with quantised weights: which of them run, and what is said of them. GGUF files have a module of their own."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

RUNS = "torchao"
# torchao's kinds that round weights alone and can say which numbers they stand for, as Int4WeightOnlyConfig cannot.
KINDS = ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig")
BY_PART = "Fqn"  # in the names of its kinds that hold others, one for each part of a model


def check_quantised(spec: ModelSpec, config: "PreTrainedConfig") -> None:
    """UsageError for a quantised checkpoint that does not run here."""
    asked = _settings(config)
    if not asked:
        return
    method = asked.get("quant_method")
    if method != RUNS:
        by = method if isinstance(method, str) else "a quant_method that its config.json does not name"
        raise UsageError(
            f"model {spec.name}: its weights are quantised by {by}, which nothing here reads; expected torchao's or a GGUF "
            "file's, which are dequantised, or the model's original weights"
        )
    kinds = kinds_of(config)
    if not kinds:
        raise UsageError(
            f"model {spec.name}: quant_type {asked.get('quant_type')!r} in its config.json names no kind of torchao's; "
            "expected one as torchao 0.18 writes it, such as Int8WeightOnlyConfig: quantise the model anew"
        )
    if other := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(
            f"model {spec.name}: its weights are of torchao's {other[0]}, which is not dequantised here; expected "
            f"{', '.join(KINDS)}, or the model's original weights"
        )
    if spec.rounding is not None or spec.untrained:
        raise UsageError(f"model {spec.name}: its weights are quantised by torchao; expected them as they are, or its original")
    if find_spec(RUNS) is None:
        raise UsageError(f"model {spec.name}: package torchao is not installed; run: .venv/bin/pip install -e '.[torchao]'")


def is_quantised(config: "PreTrainedConfig") -> bool:
    return bool(_settings(config))


def dequantised_from(config: "PreTrainedConfig") -> str | None:
    """Say what a checkpoint's weights are dequantised from, for those that read a table; None where they are not."""
    kinds = kinds_of(config) if _settings(config).get("quant_method") == RUNS else []
    return f"torchao's {' and '.join(kind.removesuffix('Config') for kind in kinds)} dequantised" if kinds else None


def kinds_of(config: "PreTrainedConfig") -> list[str]:
    """Return the names of torchao's kinds of quantisation that a checkpoint's weights have, each once."""
    return list(dict.fromkeys(kind for kind in _kinds(_settings(config).get("quant_type")) if BY_PART not in kind))


def _settings(config: "PreTrainedConfig") -> dict[str, Any]:
    found = getattr(config, "quantization_config", None) or {}
    return found if isinstance(found, dict) else found.to_dict()


def _kinds(asked: Any) -> Iterator[str]:
    """Yield the names in a configuration as torchao writes them: "_type" beside "_data", of which some name dtypes."""
    if isinstance(asked, dict):
        kind = asked.get("_type")
        if isinstance(kind, str) and kind.endswith("Config"):
            yield kind
        for part in asked.values():
            yield from _kinds(part)
