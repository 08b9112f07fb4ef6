"""The process that makes records for engine "ray". It imports by itself what it needs, or has it done by a process that began
to before Ray was there."""

import os
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.ray_ahead import Ahead
from harness.ray_writer import Lines

if TYPE_CHECKING:
    from harness.build import Models
    from harness.experiment import Comparison, Experiment
    from harness.prepared import Chunk, Prepared


@dataclass(frozen=True)
class Setup:
    """What makes a worker one of a driver's: its folder of records, its CPU threads (with others a sum may round differently)
    and its plug-ins. Sent with every call, since a worker that was restarted knows nothing."""

    folder: Path
    threads: int
    plugin_files: tuple[str, ...]


def packed(name: str, *arguments: Any) -> bytes:
    """A call of a decoder's method. As bytes it passes through a worker without what it takes to understand it."""
    from ray import cloudpickle

    return cloudpickle.dumps((name, arguments))


class Worker:
    """The actor. ``ahead``: the address of a process that decodes for it (harness.ray_ahead), if there is one."""

    def __init__(self, ahead: str | None = None) -> None:
        import ray

        self.node = ray.get_runtime_context().get_node_id()
        self.answer = _answers(ahead)

    def begin(self) -> None:
        """Returns once the worker has its place."""

    def call(self, call: bytes) -> tuple[str, Any]:
        """The node, and what a decoder returned."""
        return self.node, self.answer(call)


def _answers(ahead: str | None) -> "Callable[[bytes], Any]":
    """What makes a decoder's calls: the process ahead, or this one."""
    if ahead is not None:
        try:
            return Ahead(ahead).answer
        except OSError:  # it was for this worker before it was started again
            pass
    return Decoder().answer


class Decoder:
    """What holds the models."""

    def __init__(self) -> None:
        import transformers

        from harness import runner  # noqa: F401

        self.kinds = transformers.AutoModelForCausalLM, transformers.GPT2LMHeadModel  # named: with all that any model takes
        self.setup: Setup | None = None
        self.comparison: Comparison | None = None
        self.stack = ExitStack()

    def answer(self, call: bytes) -> Any:
        name, arguments = pickle.loads(call)
        return getattr(self, name)(*arguments)

    def run(self, setup: Setup, comparison: "Comparison", chunk: "Chunk") -> Lines:
        """New records by signature, as lines."""
        self._set_up(setup)
        if comparison != self.comparison:
            self._prepare(comparison)
        made = zip(comparison.arms, self.prepared.run(chunk), strict=True)
        return {arm.signature: [record.to_line() for record in records] for arm, records in made}

    def with_models(self, setup: Setup, experiment: "Experiment", function: "Callable[[Models], Any]") -> Any:
        self._set_up(setup)
        return self.runner.with_models(experiment, function)

    def _set_up(self, setup: Setup) -> None:
        import torch

        from harness import plugins
        from harness.decode import default_threads
        from harness.runner import Runner

        if setup == self.setup:
            return
        torch.set_num_threads(setup.threads)
        assert default_threads() == setup.threads
        plugins.load(setup.plugin_files)
        self.runner, self.setup = Runner(setup.folder, quiet=True), setup

    def _prepare(self, comparison: "Comparison") -> None:
        from harness.records import RecordFile

        self.comparison = None
        self.stack.close()
        description = RecordFile(self.runner.folder, comparison.arms[0]).path.with_suffix(".json")
        if not description.exists():
            raise UsageError(
                f"records {self.runner.folder}: node {os.uname().nodename} does not see what the driver wrote there; "
                "expected a folder that all nodes share: choose --records"
            )
        self.prepared: Prepared = self.stack.enter_context(self.runner.prepared(comparison))
        self.comparison = comparison
