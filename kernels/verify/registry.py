"""The kernels by name. Those of ``EXACT`` decide as the reference does wherever rounding cannot turn a decision over."""

from collections.abc import Callable
from functools import partial

from kernels.verify import baseline, exact, fused, sigmoid
from kernels.verify.interface import Verdict

RELEASED = sigmoid.Scaling(as_released=True)
KERNELS: dict[str, Callable[..., Verdict]] = {
    "baseline": baseline.verify,
    "exact": exact.verify,
    "fused": fused.verify,
    "sigmoid": sigmoid.verify,
    "sigmoid-released": partial(sigmoid.verify, scaling=RELEASED),
}
EXACT = ("baseline", "exact", "fused")
