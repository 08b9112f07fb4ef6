"""Small tables of integers on their way to a device, without a wait for what the device still has to do."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def to_device(values: Sequence[int], device: torch.device) -> Int[Tensor, "N"]:
    """Copy to the device, through pinned memory on a GPU so that the host does not wait."""
    if device.type == "cuda":
        return torch.tensor(values, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)
    return torch.tensor(values, dtype=torch.long)


def bring(values: Sequence[Sequence[int]], place: Int[Tensor, "B n"]) -> None:
    """Copy a table to its fixed place on a device; through pinned memory on a GPU, so that the host does not wait."""
    place.copy_(torch.tensor(values, dtype=torch.long, pin_memory=place.device.type == "cuda"), non_blocking=True)
