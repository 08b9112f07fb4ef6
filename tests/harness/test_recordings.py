"""The list of all recordings of committed tables: a line a recording, and the last is the one that is shown."""

import json
from pathlib import Path

import pytest

from harness.core.checkout import ROOT
from harness.core.errors import UsageError
from harness.tables.recordings import FILE, Recording, note_recording, read_recordings

FIRST = Recording("specdec-1", "abc", "on Monday in 3 processes", 'It is "faster", as in the paper.')
AGAIN = FIRST._replace(commit="def", recorded="on Tuesday in 3 processes", finding="It is slower.")
OTHER = FIRST._replace(table="specdec-2")


def test_every_recording_stays(tmp_path: Path) -> None:
    path = tmp_path / "results" / FILE
    assert [note_recording(path, one) for one in (FIRST, OTHER, AGAIN)] == [1, 1, 2]
    assert read_recordings(path) == [FIRST, OTHER, AGAIN]


def test_a_table_that_is_rendered_again_is_no_new_recording(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for one in (FIRST, AGAIN, OTHER):
        note_recording(path, one)
    before = path.read_bytes()
    assert note_recording(path, AGAIN) == 2
    assert path.read_bytes() == before
    told_better = AGAIN._replace(finding="It is slower for both.")
    assert note_recording(path, told_better) == 2
    assert read_recordings(path) == [FIRST, told_better, OTHER]
    assert note_recording(path, FIRST) == 3, "one that was shown before and is put back is shown again, and seen"


def test_a_damaged_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    head = ",".join(FIRST._fields)
    doubled = f"{head}\na,b,c,d\nb,b,c,d\na,b,c,told otherwise\n"
    for text in ("", "table,commit\n", f"{head}\nspecdec-1,abc\n", f"{head}\na,b,c", doubled):
        path.write_text(text, encoding="utf8")
        with pytest.raises(UsageError, match="git checkout"):
            note_recording(path, FIRST)
        assert path.read_text(encoding="utf8") == text


@pytest.mark.parametrize("lines_left", [None, 0, 1])
def test_a_list_that_lost_a_recording_is_refused(tmp_path: Path, lines_left: int | None) -> None:
    """A table that says that it is the second of its recordings, and a list of fewer, or none."""
    path, written = tmp_path / FILE, tmp_path / "tables" / "specdec-1.json"
    for one in (FIRST, AGAIN):
        note_recording(path, one)
    written.parent.mkdir()
    written.write_text(json.dumps({"header": {"recording": 2}}), encoding="utf8")
    assert note_recording(path, AGAIN) == 2
    lines = path.read_text(encoding="utf8").splitlines(keepends=True)
    path.unlink() if lines_left is None else path.write_text("".join(lines[: 1 + lines_left]), encoding="utf8")
    with pytest.raises(UsageError, match=f"{lines_left or 0} of specdec-1, whose table is recording 2; .*git checkout"):
        note_recording(path, AGAIN)


@pytest.mark.parametrize("folder", ["results", "results/pocket"])
def test_what_is_shown_is_the_last_that_is_listed(folder: str) -> None:
    listed = read_recordings(ROOT / folder / FILE)
    shown = {path.stem: json.loads(path.read_text(encoding="utf8")) for path in (ROOT / folder / "tables").glob("*.json")}
    recorded = {name: document for name, document in shown.items() if document["header"]["recorded"]}
    assert recorded.keys() == {one.table for one in listed}
    for name, document in recorded.items():
        own = [one for one in listed if one.table == name]
        header = document["header"]
        assert own[-1] == Recording(name, header["commit"], header["recorded"], document["finding"])
        assert header["recording"] == len(own)
