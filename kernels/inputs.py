"""What callers give: how logits become a distribution, and the errors about values that cannot work. Imports no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

Rounding = Literal["bf16", "int8"]  # of weights: see kernels.products.narrow
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
LEAST_TEMPERATURE = 1e-30  # fp32 logits divided by less are infinite


class InputError(ValueError):
    """A value that cannot work: the message names the field, the value, what was expected and what to do."""


class NotFiniteError(InputError):
    """Logits from which no token can be chosen: one example's, where others may have none."""


@dataclass(frozen=True, kw_only=True)
class SamplingSpec:
    """How logits become a distribution: divide by temperature, keep top-k, then the nucleus of mass top-p.

    ``temperature=0`` is argmax: all mass on the first largest logit. ``top_k=None`` and ``top_p=None`` filter nothing.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or LEAST_TEMPERATURE <= self.temperature < float("inf")):
            raise InputError(f"temperature {self.temperature!r}: expected a number >= {LEAST_TEMPERATURE:g}, or 0 for greedy")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k {self.top_k!r}: expected an integer >= 1, or none to keep all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p {self.top_p!r}: expected 0 < top_p <= 1, or none to keep all tokens")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        """Return whether any token is left out."""
        return self.top_k is not None or (self.top_p is not None and self.top_p < 1)
