"""Records for the notebooks: those of a plan that are at hand, or small ones made now."""

import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UsageError
from harness.core.experiment import Comparison
from harness.core.settings import Settings
from harness.measures.frames import load
from harness.papers import get_figure
from harness.run.plan import run_plan
from harness.run.runner import Runner, ensure_models
from harness.tables.evidence import stored_evidence

if TYPE_CHECKING:
    import pandas as pd

Plan = Callable[[Settings], list[Comparison]]
SMALL = "test"  # the zoo's smallest models: trained and run in seconds


@dataclass(frozen=True)
class _Recorded:
    """The records of a plan in a folder. ``told`` says in a sentence which they are."""

    plan: Plan
    settings: Settings
    folder: Path
    told: str

    def load(self, rows: str = "examples") -> "pd.DataFrame":
        """Return the records of this plan's experiments as ``harness.measures.frames.load`` does."""
        evidence = stored_evidence(self.folder)
        arms = [arm for comparison in self.plan(self.settings) for arm in comparison.arms]
        signatures = dict.fromkeys(record.signature for arm in arms for record in evidence.records_of(arm))
        return load(self.folder, rows=rows, signature=list(signatures))

    def figure(self, name: str) -> bytes:
        """Draw a figure of the catalogue, a PNG, from these records; committed ones stay as they are."""
        with tempfile.TemporaryDirectory() as folder:
            paths = get_figure(name).draw(self.settings, stored_evidence(self.folder), Path(folder))
            return next(path for path in paths if path.suffix == ".png").read_bytes()


def recorded(plan: Plan, folder: str | Path, profile: str | None = None) -> _Recorded:
    """The records of a plan under a profile. None takes "toy" where it was run whole; otherwise records of "test" are made now.

    Raises:
        UsageError: a profile (but "test") is named and nothing of it is recorded: running it may take hours, so it is for
            ``make`` to do.
    """
    folder = Path(folder)
    chosen = profile or ("toy" if stored_evidence(folder).state(plan(Settings())) == "complete" else SMALL)
    settings = Settings(profile=chosen, source="hub" if chosen in ("small", "paper") else "toy")
    planned = plan(settings)
    state = stored_evidence(folder).state(planned)
    if chosen == SMALL and state != "complete":
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):  # bars of many lines; what fails still raises
            ensure_models((arm for comparison in planned for arm in comparison.arms), workers=0)
        run_plan(planned, Runner(folder, quiet=True))
        state = "made just now: the models are tiny and the examples few, so the numbers only show how it is done"
    elif state == "not run":
        raise UsageError(
            f"profile {chosen!r}: nothing of it is recorded in {folder}; run it with make, or leave the profile out"
        )
    return _Recorded(plan, settings, folder, f"Records of profile {chosen!r}: {state}.")
