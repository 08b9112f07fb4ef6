"""All recordings of the committed tables: at which commits and when each was made, and what the table said of it.

``recordings.csv`` has a line for each, oldest first. The table of a new recording adds its own, so that nobody can record again
until a number pleases and show the last one alone.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.files import readable, replace_file

FILE = "recordings.csv"


class Recording(NamedTuple):
    """One recording of a table, and the sentences on top of it."""

    table: str
    commit: str
    recorded: str
    finding: str


def note_recording(path: Path, new: Recording) -> int:
    """Add a recording to the list, unless it is the last of its table, which then says what is found now.

    Returns which recording of its table it is, from 1 on.

    Raises:
        UsageError: the table that is there was counted as a later recording than the list has: of the list something is gone.
    """
    known = read_recordings(path)
    own = [place for place, one in enumerate(known) if one.table == new.table]
    if (shown := _shown(path.parent / "tables" / f"{new.table}.json")) > len(own):
        raise UsageError(
            f"recordings {path}: {len(own)} of {new.table}, whose table is recording {shown}; expected all of them: "
            "`git checkout` brings back the list that is committed"
        )
    is_known = bool(own) and known[own[-1]][:3] == new[:3]
    changed = [*known[: own[-1]], new, *known[own[-1] + 1 :]] if is_known else [*known, new]
    if changed != known:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _text(changed))
    return len(own) if is_known else len(own) + 1


def read_recordings(path: Path) -> list[Recording]:
    """Return the recordings that are listed, none where there is no list."""
    if not path.is_file():
        return []
    with readable(f"recordings {path}", "`git checkout` brings back the list that is committed"):
        head, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf8")))
        if tuple(head) != Recording._fields:
            raise ValueError(f"its columns are {', '.join(head)}, not {', '.join(Recording._fields)}")
        if cut := next((place for place, line in enumerate(lines, start=2) if len(line) != len(Recording._fields)), None):
            raise ValueError(f"line {cut} is not whole")
        last = dict[str, list[str]]()  # of each table; one that is shown again behind another is listed again
        for place, (table, *made, _) in enumerate(lines, start=2):
            if last.get(table) == made:
                raise ValueError(f"line {place} is the recording of {table} before it once more")
            last[table] = made
        return [Recording(*line) for line in lines]


def _shown(path: Path) -> int:
    """Return as which recording a written table was counted; 0 where there is none, or nobody counted."""
    if not path.is_file():
        return 0
    with readable(f"table {path}", "`git checkout` brings back the one that is committed"):
        return int(json.loads(path.read_text(encoding="utf8"))["header"].get("recording", 0))


def _text(recordings: Sequence[Recording]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([Recording._fields, *recordings])
    return out.getvalue()
