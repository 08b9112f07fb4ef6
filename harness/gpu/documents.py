"""The files of the parts: one JSON document each, replaced as a whole after every item."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.files import readable
from harness.gpu.parts import NAMES
from harness.gpu.place import Place
from harness.tables.files import write_whole

Document = dict[str, Any]
PAGE = "README.md"  # beside the parts' files: eight files in all


def path_of(folder: Path, part: str) -> Path:
    return folder / f"{NAMES.index(part) + 1}-{part}.json"


def new(place: Place, part: str) -> Document:
    """Return the document of a part of which nothing is there.

    ``planned`` names its items; ``items`` holds those that were measured, or failed; ``why`` says why others were not; ``last``
    names those that ended the process of an earlier call.
    """
    return {"part": part, "identity": place.identity, "planned": [], "items": {}, "why": {}, "last": []}


def read(place: Place, part: str) -> Document:
    """Return a part's document; a new one where it was made on another device, at another code, or with other sizes."""
    found = stored(place.folder, part)
    made = new(place, part)
    return made | found if found is not None and found["identity"] == place.identity else made


def stored(folder: Path, part: str) -> Document | None:
    """Return a part's document whatever it was made with; None where there is none.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    path = path_of(folder, part)
    with readable(f"part {path}", "remove it, and it is measured again"):
        if not path.is_file():
            return None
        found = json.loads(path.read_text(encoding="utf8"))
        if not isinstance(found, dict) or found.get("part") != part or not isinstance(found["items"], dict):
            raise ValueError(f"it is no document of part {part!r}")
        return found


def write(place: Place, document: Document) -> Path:
    """Replace a part's file."""
    return write_whole(path_of(place.folder, document["part"]), json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def is_complete(document: Mapping[str, Any]) -> bool:
    """Say whether all items of a part were measured; one that failed was not."""
    good = [name for name, item in document["items"].items() if "failed" not in item]
    return bool(document["planned"]) and set(document["planned"]) <= set(good)


def refuse_strangers(folder: Path) -> None:
    """Raise UsageError for a folder that holds other files than these: what comes back is to be committed as it is."""
    known = {path_of(folder, name).name for name in NAMES} | {PAGE}
    other = (
        sorted(path.name for path in folder.iterdir() if path.name not in known and path.name[0] != ".")
        if folder.is_dir()
        else []
    )
    if other:
        raise UsageError(f"out {folder}: holds {other[0]}, which is none of this command's files; choose an empty folder")
