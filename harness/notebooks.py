"""What the notebooks read: a plan's records, those at hand or, where there are none, small ones made now."""

import io
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.catalogue import get_figure
from harness.catalogue.base import Settings
from harness.errors import UsageError
from harness.experiment import Comparison, Experiment
from harness.models import load_tokenizer
from harness.records import load
from harness.reproduce import Store, state_of
from harness.runner import Runner, ensure_models

if TYPE_CHECKING:
    import pandas as pd

Plan = Callable[[Settings], list[Comparison]]
SMALL = "test"  # the zoo's smallest models: trained and run in seconds


@dataclass(frozen=True)
class Recorded:
    """The records of a plan in a store. ``told`` says in a sentence which they are."""

    plan: Plan
    settings: Settings
    store: Store
    told: str

    def load(self, rows: str = "examples") -> "pd.DataFrame":
        """``harness.records.load`` of this plan's experiments."""
        arms = [arm for comparison in self.plan(self.settings) for arm in self.store.comparison(comparison).arms]
        return load(self.store.folder, rows=rows, signature=[arm.signature for arm in arms])

    def figure(self, name: str) -> bytes:
        """A figure of the catalogue, a PNG, as these records have it; those that are committed stay as they are."""
        with tempfile.TemporaryDirectory() as folder:
            paths = get_figure(name).draw(self.settings, self.store.records_of, Path(folder), self._pieces_of)
            return next(path for path in paths if path.suffix == ".png").read_bytes()

    def _pieces_of(self, experiment: Experiment) -> Callable[[Sequence[int]], str]:
        tokenizer = load_tokenizer(self.store.pinned(experiment).target)
        return lambda ids: str(tokenizer.decode(list(ids)))


def recorded(plan: Plan, folder: str | Path, profile: str | None = None) -> Recorded:
    """The records of a plan under a profile; None takes "toy" where it has been run whole, else makes those of "test".

    Raises:
        UsageError: a profile (but "test") is named and nothing of it is recorded: running it may take hours, so it is for
            ``make`` to do.
    """
    store = Store(Path(folder))
    chosen = profile or ("toy" if state_of(plan(Settings()), store) == "complete" else SMALL)
    settings = Settings(profile=chosen, source="hub" if chosen in ("small", "paper") else "toy")
    state = state_of(plan(settings), store)
    if chosen == SMALL and state != "complete":
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):  # bars of many lines; what fails still raises
            ensure_models((arm for comparison in plan(settings) for arm in comparison.arms), workers=0)
        store.run(plan(settings), Runner(store.folder, quiet=True))
        state = "made just now: the models are tiny and the examples few, so the numbers only show how it is done"
    elif state == "not run":
        raise UsageError(
            f"profile {chosen!r}: nothing of it is recorded in {folder}; run it with make, or leave the profile out"
        )
    return Recorded(plan, settings, store, f"Records of profile {chosen!r}: {state}.")
