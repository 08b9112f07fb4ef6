"""Records for the notebooks: one's own, those that are committed, or small ones made now."""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UsageError
from harness.core.experiment import arms_of
from harness.core.settings import COMMITTED, RECORDS, Settings, committed_for, folder_of, usual
from harness.measures.frames import load
from harness.papers import get_figure
from harness.run.plan import run_plan
from harness.run.runner import Runner, ensure_models
from harness.tables.archive import archive_of, unpacked
from harness.tables.base import Figure, Table
from harness.tables.evidence import Evidence, kept_evidence, stored_evidence

if TYPE_CHECKING:
    import pandas as pd

SMALL = "test"  # the zoo's smallest models: trained and run in seconds


@dataclass(frozen=True)
class _Recorded:
    """The records of a table or figure. ``told`` says in a sentence which they are."""

    item: Table | Figure
    settings: Settings
    evidence: Evidence
    told: str

    def load(self, rows: str = "examples") -> "pd.DataFrame":
        """Return the records of this plan's experiments as ``harness.measures.frames.load`` does."""
        arms = self.item.arms(self.settings)
        signatures = sorted({record.signature for arm in arms for record in self.evidence.records_of(arm)})
        return load(self.evidence.folder, rows=rows, signature=signatures)

    def figure(self, name: str) -> bytes:
        """Draw a figure of the catalogue, a PNG, from these records; committed ones stay as they are."""
        with tempfile.TemporaryDirectory() as folder:
            paths = get_figure(name).draw(self.settings, self.evidence, Path(folder))
            return next(path for path in paths if path.suffix == ".png").read_bytes()


def recorded(item: Table | Figure, folder: str | Path, profile: str | None = None) -> _Recorded:
    """The records of a table or figure under a profile: of a folder, else, where that is the default one, the committed ones.

    Without a profile it is "toy" where that is there whole; otherwise records of "test" are made now.

    Raises:
        UsageError: a profile (but "test") is named and nothing of it is recorded: running it may take hours, so it is for
            ``make`` to do; or it runs nothing of this.
    """
    folder = Path(folder)
    if profile is not None and not item.plan(usual(profile)):
        raise UsageError(f"profile {profile!r}: it runs nothing of this table or figure; name another one, such as toy")
    at_hand = {
        state: _Recorded(item, settings, evidence, f"Records of profile {settings.profile!r}, {place}: {state}.")
        for settings, evidence, place in reversed(_at_hand(item, folder, profile or COMMITTED.profile))
        if (state := evidence.state(item.plan(settings))) != "not run"
    }
    if "complete" in at_hand:
        return at_hand["complete"]
    if profile not in (None, SMALL):
        if not at_hand:
            raise UsageError(
                f"profile {profile!r}: nothing of it is recorded in {folder}; run it with make, or leave the profile out"
            )
        return next(reversed(at_hand.values()))
    settings = Settings(profile=SMALL)
    planned = item.plan(settings)
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):  # bars of many lines; what fails still raises
        ensure_models(arms_of(planned), workers=0)
    run_plan(planned, Runner(folder, quiet=True))
    told = (
        f"Records of profile {SMALL!r}, made just now: the models are tiny and the examples few, so the numbers only show how "
        "it is done. `make reproduce` makes those of profile 'toy'."
    )
    return _Recorded(item, settings, stored_evidence(folder), told)


def _at_hand(item: Table | Figure, folder: Path, profile: str) -> list[tuple[Settings, Evidence, str]]:
    """Where a profile's records may be: in the folder, as what is committed or of single processes; in what is committed."""
    settings, committed, own = usual(profile), committed_for(profile), stored_evidence(folder)
    if committed is None:
        return [(settings, own, str(folder))]
    kept = unpacked(archive_of(folder_of(committed), item.paper)) if folder == RECORDS else None
    found = [(committed, own, str(folder)), (settings, own, str(folder))]
    return found if kept is None else [*found, (committed, kept_evidence(kept), "committed")]
