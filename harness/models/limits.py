"""What a model's settings may be, whatever file they are from, and how an error of a library about a file is told."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")  # as configurations name them
MOST_LAYERS = 1000  # the deepest public model has 126; many more take hours to build before a tensor is found missing
LIMITS = {  # of numbers in a configuration, by a part of their names; others must fit into 64 bits
    "drop": (0, 1),
    "_eps": (1e-30, 1),
    "epsilon": (1e-30, 1),
    "max_distance": (1, 2**20),
    "sliding_window": (1, 2**40),
}


def check_settings(config: "PreTrainedConfig", source: str = "config.json") -> None:
    """ValueError for a depth or another number that no model can run with; ``source`` says where it stands."""
    for name in DEPTHS:
        depth = getattr(config, name, 1)
        if not isinstance(depth, int) or not 1 <= depth <= MOST_LAYERS:
            raise ValueError(f"{name} {depth!r} in its {source}, expected 1 to {MOST_LAYERS}")
    _check_numbers(config.to_dict(), source)


def _check_numbers(settings: Mapping[str, Any], source: str) -> None:
    """ValueError for a number that no model can run with; some of them would hang, or be noticed by transformers alone."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_numbers(value, source)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            least, most = next((limits for word, limits in LIMITS.items() if word in name), (-(2**62), 2**62))
            if not least <= value <= most:
                raise ValueError(f"{name} {value!r} in its {source}, expected {least:g} to {most:g}")
