"""What the parts' files say, as a page: goals first, then what failed and what was not reached, then every part.

A folder of results is read by ``read_folder``, by the site too. Every number on the page is one of the files'.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.text import markdown_lines
from harness.gpu import goals
from harness.gpu.documents import PAGE, stored
from harness.gpu.parts import NAMES, PARTS
from harness.measures.verdicts import is_red
from harness.tables.files import write_whole

REHEARSAL = (
    "REHEARSAL: no device was there. The CPU, or Triton's interpreter, took its place, with tiny models and sizes, to run the "
    "lines that a device would; no number here says anything about a GPU."
)
Results = dict[str, Any]


def read_folder(folder: Path) -> Results:
    """Return the parts of a folder, its device, goals, and what failed or was not reached.

    Parts that were made at another code, or on another device, than the newest file are named as old, and are not shown.
    """
    found = {name: document for name in NAMES if (document := stored(folder, name)) is not None}
    newest = max(found, key=lambda name: (folder / f"{NAMES.index(name) + 1}-{name}.json").stat().st_mtime, default=None)
    identity: Mapping[str, Any] = (
        found[newest]["identity"] if newest else {"device": "none", "scale": "device", "code": "unknown"}
    )
    documents = {name: one for name, one in found.items() if one["identity"] == identity}
    is_rehearsal = identity["scale"] != "device"
    return {
        "device": identity["device"],
        "scale": identity["scale"],
        "code": identity["code"],
        "rehearsal": REHEARSAL if is_rehearsal else "",
        "goals": goals.judge(documents, is_rehearsal),
        "failed": list(_failed(documents)),
        "not reached": list(_not_reached(documents)),
        "old": sorted(set(found) - set(documents)),
        "parts": [{"name": one.name, "title": one.title, **_shown(documents.get(one.name))} for one in PARTS],
    }


def _shown(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The items of a part in the order that they were planned in, with what is shown of each."""
    if document is None:
        return {"items": {}}
    names = [name for name in document["planned"] if name in document["items"]]
    return {"items": {name: document["items"][name] for name in names}}


def _failed(documents: goals.Documents) -> Iterator[dict[str, str]]:
    """What raised an error, and what was measured and is red."""
    for part, document in documents.items():
        for name, item in document["items"].items():
            if "failed" in item:
                yield {"part": part, "item": name, "why": f"{item['failed']} ({item['where']})"}
            elif item.get("passed") is False:
                yield {"part": part, "item": name, "why": _red(item)}


def _red(item: Mapping[str, Any]) -> str:
    """Say which rows of an item are red, or that its facts are."""
    rows = item.get("rows", [])
    red = [row for row in rows if _is_red(row)]
    if not red:
        return "red: see its facts"
    first = ", ".join(str(value) for value in red[0].values() if value is not None)
    return f"red: {len(red)} of {len(rows)} rows; the first: {first}"


def _is_red(row: Mapping[str, Any]) -> bool:
    """Of a kernel, a property, a control, or a subject of the audit."""
    if "declared" in row:
        return is_red(row)
    return row.get("verdict") in ("RED", "MISSED") or row.get("holds") is False


def _not_reached(documents: goals.Documents) -> Iterator[dict[str, str]]:
    for part in NAMES:
        if part not in documents:
            yield {"part": part, "item": "all of it", "why": "not begun"}
            continue
        document = documents[part]
        for name in document["planned"]:
            if name not in document["items"]:
                yield {"part": part, "item": name, "why": document["why"].get(name, "not begun")}


def is_right(results: Results) -> bool:
    """Say whether nothing failed; a goal that is missed is a finding, what was not reached is not there yet."""
    return not results["failed"]


def summary(results: Results) -> str:
    """One line for the terminal."""
    verdicts = [row["verdict"] for row in results["goals"]]
    counted = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))
    items = sum(len(part["items"]) for part in results["parts"])
    return (
        f"{'REHEARSAL: ' if results['rehearsal'] else ''}{items} items measured, {len(results['failed'])} failed or red, "
        f"{len(results['not reached'])} not reached; goals: {counted}"
    )


def write_page(folder: Path) -> Results:
    """Write the page beside the parts' files, and return what stands there."""
    results = read_folder(folder)
    write_whole(folder / PAGE, as_markdown(results))
    return results


def as_markdown(results: Results) -> str:
    lines = [f"# {results['device']}", "", summary(results) + ".", ""]
    if results["rehearsal"]:
        lines += [f"**{results['rehearsal']}**", ""]
    lines += [f"Code {results['code']}. Made by `foretoken gpu`.", "", "## Goals", "", *_table(results["goals"]), ""]
    for name in ("failed", "not reached"):
        lines += [f"## {name.capitalize()}", "", *(_table(results[name]) or ["nothing"]), ""]
    if results["old"]:
        lines += [
            f"Made at another code, on another device or with other sizes, and left out: {', '.join(results['old'])}.",
            "",
        ]
    for number, part in enumerate(results["parts"], start=1):
        lines += [f"## {number}. {part['title'][:1].upper()}{part['title'][1:]}", ""]
        for name, item in part["items"].items():
            lines += [f"### {name} ({item['seconds']} s)", "", *_item(item)]
        if not part["items"]:
            lines += ["Not reached.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _item(item: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "failed" in item:
        lines += [f"Failed: {item['failed']} ({item['where']})", ""]
    if facts := item.get("facts"):
        lines += [*markdown_lines(("what", "value"), [(name, shown(value)) for name, value in facts.items()]), ""]
    for name in ("rows", "predicted"):
        if item.get(name):
            lines += [*_table(item[name]), ""]
    if item.get("text"):
        lines += ["```", item["text"].rstrip(), "```", ""]
    return lines + [f"- {note}" for note in item.get("notes", [])] + ([""] if item.get("notes") else [])


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = list(dict.fromkeys(name for row in rows for name in row))
    return markdown_lines(heads, [[shown(row.get(head)) for head in heads] for row in rows]) if rows else []


def shown(value: Any) -> str:
    """Format a number with four digits; None as "-", a truth as yes or no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")
