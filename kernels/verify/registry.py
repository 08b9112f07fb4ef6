"""The kernels by name. Those of ``EXACT`` decide as the reference does wherever rounding cannot turn a decision over."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kernels.verify import fused, sigmoid, whole_rows
from kernels.verify.interface import Proposal, RoundUniforms, TargetLogits, Verdict, checked
from kernels.verify.reference import Sampling


def _verify(
    decide: Callable[..., Verdict],
    proposal: Proposal,
    target_logits: TargetLogits,
    sampling: Sampling,
    uniforms: RoundUniforms,
    **options: Any,
) -> Verdict:
    """Check a round, then let a kernel decide it; ``options`` are the kernel's own: ``backend``, ``scaling``."""
    return decide(checked(proposal, target_logits, sampling, uniforms), **options)


RELEASED = sigmoid.Scaling(as_released=True)
KERNELS: dict[str, Callable[..., Verdict]] = {
    "baseline": partial(_verify, whole_rows.decide_eagerly),
    "exact": partial(_verify, whole_rows.decide_in_tiles),
    "fused": partial(_verify, fused.decide),
    "sigmoid": partial(_verify, sigmoid.decide),
    "sigmoid-released": partial(_verify, sigmoid.decide, scaling=RELEASED),
}
EXACT = ("baseline", "exact", "fused")
