"""The process that makes records for engine "ray". It imports what it needs by itself: that takes seconds, in which the driver
is not done with its own imports yet."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
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


class Worker:
    def __init__(self) -> None:
        import ray
        import transformers

        from harness import runner  # noqa: F401

        self.begun = transformers.AutoModelForCausalLM  # named here: with it comes what loading any model takes

        self.node = ray.get_runtime_context().get_node_id()
        self.setup: Setup | None = None
        self.comparison: Comparison | None = None
        self.stack = ExitStack()

    def prepare(self, setup: Setup, comparison: "Comparison") -> None:
        """Load, build and warm up what a comparison takes, unless it is there already."""
        self._set_up(setup)
        if comparison != self.comparison:
            self._prepare(comparison)

    def run(self, setup: Setup, comparison: "Comparison", chunk: "Chunk") -> tuple[str, Lines]:
        """The node, and new records by signature, as lines."""
        self.prepare(setup, comparison)
        made = zip(comparison.arms, self.prepared.run(chunk), strict=True)
        return self.node, {arm.signature: [record.to_line() for record in records] for arm, records in made}

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
