"""Decide how much of a node a worker takes: a whole device if it is timed, else as much of one as its models need."""

import math
from dataclasses import dataclass

from harness.core.errors import UsageError
from harness.core.experiment import Comparison
from harness.models.fit import estimate
from harness.models.names import is_ngram_table
from harness.run.build import heads_of, specs_of
from harness.run.decode import num_threads
from harness.zoo.recipes import scale_of

MARGIN = 1.3  # caches, activations and what the allocator keeps, beside the weights
CONTEXT_BYTES = 1 << 30  # that a process takes of a GPU before its first tensor


@dataclass(frozen=True)
class Share:
    """A share of a node: what it has, or what a worker takes of it."""

    num_cpus: float
    num_gpus: float = 0


def request_of(comparison: Comparison, nodes: list[Share], workers: int | None, gpu_bytes: int | None) -> Share:
    """The share of a node for one worker. ``workers``: how many were asked for; on CPUs they share the nodes. ``gpu_bytes``:
    memory of the smallest GPU.

    Raises:
        UsageError: models that are larger than a GPU and not to be spread over several.
    """
    if comparison.arms[0].device == "cpu":
        return _cpus(comparison, nodes, workers)
    share = _share(comparison, gpu_bytes)
    if share > 1 and not any(spec.device_map for arm in comparison.arms for spec in specs_of(arm)):
        raise UsageError(
            f"target {comparison.arms[0].target.name}: the models of this run take {share:.1f} GPUs; spread the target over "
            "several with --device-map auto, or choose a smaller --dtype"
        )
    if share > 1 or comparison.is_timed:
        return Share(1, max(1, math.ceil(share)))
    return Share(1, math.ceil(100 * share) / 100)


def _cpus(comparison: Comparison, nodes: list[Share], workers: int | None) -> Share:
    """Return all CPUs of the largest node where times count; else one for each thread, or fewer if more workers are wanted."""
    if comparison.is_timed:
        return Share(max(node.num_cpus for node in nodes))
    wanted: float = max(num_threads(arm) for arm in comparison.arms)
    fair = sum(node.num_cpus for node in nodes) / (workers or 1)
    if workers is not None and fair < wanted:
        wanted = math.floor(fair) if fair >= 1 else math.floor(100 * fair) / 100
    return Share(wanted)


def _share(comparison: Comparison, gpu_bytes: int | None) -> float:
    """Return the share of a GPU that all models of a comparison take; 1 where that cannot be known."""
    arms = comparison.arms
    specs = {spec: arm for arm in arms for spec in specs_of(arm) if not is_ngram_table(spec) and spec not in heads_of(arm)}
    sizes = [estimate(spec, arm.dtype, scale_of(arm.profile), arm.source).memory_bytes for spec, arm in specs.items()]
    known = [size for size in sizes if size is not None]
    if gpu_bytes is None or len(known) < len(sizes):
        return 1.0
    return (MARGIN * sum(known) + CONTEXT_BYTES) / gpu_bytes


def room_for(request: Share, nodes: list[Share]) -> int:
    """Count the workers that fit at once."""

    def fit(node: Share) -> int:
        rooms = [node.num_cpus / request.num_cpus] + ([node.num_gpus / request.num_gpus] if request.num_gpus else [])
        return math.floor(min(rooms) + 1e-9)

    return sum(fit(node) for node in nodes)
