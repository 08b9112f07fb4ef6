"""Write the site: plain pages that open from disk, one script, no outside resource. The same input gives the same bytes.

Its last part is what the templates ask: a table as rows of places, each with its text, sort key and relation to the paper.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.advise.page import ADVICE
from harness.core.checkout import commit
from harness.core.errors import UsageError
from harness.gpu.page import Results, read_folder
from harness.papers import INPUTS, PAPERS
from harness.papers import claims as claims_here
from harness.papers.claim import Claim
from harness.report.experiments import ExperimentItem, experiment_items
from harness.report.items import (
    AdviceItem,
    FigureItem,
    TableItem,
    advice_items,
    figure_items,
    ledger_text,
    read_json,
    table_items,
)
from harness.report.relation import REASONS, Judged, tally
from harness.tables.coloured import COLOURS, MEANINGS
from harness.tables.finding import capitalized
from harness.tables.layout import RAN, Grid, column_heads, measured_text, published_text, ran_by_row

MARKER = ".foretoken-report"
STATIC = Path(__file__).resolve().parent / "static"
TABLE_ENDINGS = (".csv", ".json", ".html")
SHORT_HEAD = 32
MARKS = {"agrees": "=", "above": "▲", "below": "▼", "not comparable": ""}


@dataclass(frozen=True, kw_only=True)
class _Content:
    """Everything that the pages show."""

    tables: list[TableItem]
    figures: list[FigureItem]
    claims: list[Claim]
    unchecked: Sequence[str]
    experiments: list[ExperimentItem]
    advice: list[AdviceItem] = field(default_factory=list)
    audits: dict[str, Any] = field(default_factory=dict)
    devices: list[Results] = field(default_factory=list)
    limit: int = 4


def collect(results: Path, records: Path, limit: int) -> _Content:
    """Read what lies under ``results`` and ``records``. Either may lack anything; the pages say what is missing."""
    if not results.is_dir():
        raise UsageError(f"results {results}: not a folder; expected the one with tables/ and figures/, as a checkout has it")
    tables = table_items(results / "tables")
    claims, unchecked = claims_here()
    return _Content(
        tables=tables,
        figures=figure_items(results / "figures", tables),
        claims=claims,
        unchecked=unchecked,
        experiments=experiment_items(records, tables, results / "runs", limit),
        advice=advice_items(records / ADVICE),
        audits={path.stem: read_json(path) for path in sorted((results / "audit").glob("*.json"))},
        devices=[read_folder(path) for path in sorted((results / "gpu").glob("*/"))],
        limit=limit,
    )


def write_site(content: _Content, output: Path) -> int:
    """Write all pages and return their number. The folder is replaced as a whole, and only if it is a report or missing.

    Raises:
        UsageError: ``output`` is something else, or cannot be written.
    """
    if output.exists() and not (output / MARKER).exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"output {output}: holds something that is not a report; choose another folder, or remove it")
    fresh = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        count = _fill(content, fresh)
        if output.exists():
            shutil.rmtree(output)
        fresh.rename(output)
    except OSError as error:
        raise UsageError(f"output {output}: cannot be written ({error.strerror}); free space or choose --output") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return count


def _fill(content: _Content, folder: Path) -> int:
    shutil.copytree(STATIC, folder / "static")
    (folder / MARKER).write_text("made by `foretoken report`, which replaces this folder\n", encoding="utf8")
    (folder / "ledger.csv").write_text(ledger_text(content.tables), encoding="utf8")
    for name, files in copied(content).items():
        (folder / name).mkdir()
        for path in files:
            shutil.copyfile(path, folder / name / path.name)
    environment, common, count = _environment(), _common(content), 0
    for page, template, values in pages(content):
        text = environment.get_template(template).render(common | values, page=page)
        (folder / page).write_text(text, encoding="utf8")
        count += 1
    return count


def copied(content: _Content) -> dict[str, list[Path]]:
    """The files that pages link to, by the folder into which they are copied."""
    return {
        "tables": [path for table in content.tables for path in _beside(table)],
        "figures": [path for figure in content.figures for path in figure.files],
        ADVICE: [path for item in content.advice for path in item.files],
    }


def _beside(table: TableItem) -> list[Path]:
    """The files of a table; none if it was not made."""
    file = table.file
    return [] if file is None else [path for ending in TABLE_ENDINGS if (path := file.with_suffix(ending)).exists()]


def pages(content: _Content) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """File name, template and values of every page."""
    yield "index.html", "index.html", {}
    for paper in papers_of(content.tables):
        yield f"paper-{paper}.html", "paper.html", {"paper": paper, "inputs": [one for one in INPUTS if one.paper == paper]}
    for table in content.tables:
        made, footnotes = blocks(table)
        yield table.page, "table.html", {"table": table, "blocks": made, "footnotes": footnotes}
    for figure in content.figures:
        yield figure.page, "figure.html", {"figure": figure}
    yield "claims.html", "claims.html", {}
    yield "ledger.html", "ledger.html", {}
    yield "regenerate.html", "regenerate.html", {"environments": _environments(content.tables)}
    yield "experiments.html", "experiments.html", {}
    for experiment in content.experiments:
        yield experiment.page, "experiment.html", {"item": experiment}
    if content.advice:
        yield "advice.html", "advice.html", {}
    if content.audits:
        yield "audit.html", "audit.html", {}
    if content.devices:
        yield "gpu.html", "gpu.html", {}


def _environment() -> Environment:
    loader = PackageLoader("harness.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"shown": shown, "number_key": number_key, "capitalize_first": capitalized, "line_kind": line_kind}
    made.globals |= {"interval": interval, "codes": codes, "paper_name": paper_name, "columns_of": columns_of, "tally": tally}
    made.globals |= {"published_text": published_text}
    return made


def _common(content: _Content) -> dict[str, Any]:
    """The values that every template sees."""
    return {
        "content": content,
        "papers": papers_of(content.tables),
        "colours": COLOURS,
        "meanings": MEANINGS,
        "commit": commit(),
        "table_pages": {table.number: table for table in content.tables},
        "experiment_pages": {item.path.name: item.page for item in content.experiments},
        "claim_anchor": anchors(content.claims).__getitem__,
        "files_of": lambda table: [path.name for path in _beside(table)],
    }


def _environments(tables: Sequence[TableItem]) -> list[tuple[Mapping[str, str | int], list[TableItem]]]:
    """Group the tables by the machine and versions that made them."""
    groups: dict[tuple[tuple[str, str | int], ...], list[TableItem]] = {}
    for table in tables:
        if table.environment:
            groups.setdefault(tuple(table.environment.items()), []).append(table)
    return [(dict(facts), made) for facts, made in groups.items()]


# What the templates ask


@dataclass(frozen=True)
class _Place:
    """One place of a printed table. It sorts by ``key``, a number, or "" for its text; ``kind`` is its style class."""

    text: str
    key: str = ""
    kind: str = ""
    mark: str = ""


@dataclass(frozen=True)
class _Block:
    heads: tuple[str, ...]
    rows: tuple[tuple[_Place, ...], ...]
    num_row_heads: int


def blocks(table: TableItem) -> tuple[list[_Block], list[str]]:
    """Lay a table out as the paper does, in blocks of columns, with the footnotes that (1), (2)... refer to."""
    notes = Grid([], [], 0)
    return [_block(table, block, notes) for block in table.blocks], notes.footnotes


def _block(table: TableItem, columns: Sequence[str], notes: Grid) -> _Block:
    """Lay out one block. A column with published numbers becomes two: the paper's and ours."""
    judged = [one for one in table.judged if one.cell.column in columns]
    by_place = {(one.cell.row, one.cell.column): one for one in judged}
    heads = {column: column_heads(column, [one.cell for one in judged if one.cell.column == column]) for column in columns}
    ran, rows = ran_by_row([one.cell for one in judged]), []
    parts = {one.cell.row: one.cell.heads for one in judged}
    told = [RAN] if any(ran.values()) else []
    for row in ran:
        places = [_Place(part, kind=line_kind(part)) for part in (*parts[row], *([ran[row]] if told else []))]
        for column in columns:
            places += _places(by_place.get((row, column)), len(heads[column]) > 1, notes)
        rows.append(tuple(places))
    shown = (*table.row_heads, *told, *(head for column in columns for head in heads[column]))
    return _Block(shown, tuple(rows), len(table.row_heads))


def _places(one: Judged | None, doubled: bool, notes: Grid) -> list[_Place]:
    if one is None:
        return [_Place("")] * (1 + doubled)
    cell = one.cell
    kind = one.relation.replace(" ", "-") if one.is_comparison else ""
    if cell.measured is None:
        kind = "absent"
    mark = MARKS[one.relation] if one.is_comparison else ""
    ours = _Place(measured_text(cell, notes), number_key(cell.measured), kind, mark)
    paper = _Place(published_text(cell, is_mixed=True), number_key(cell.published))
    return [paper, ours] if doubled else [ours]


def line_kind(text: str) -> str:
    """The style class of a row's head: short ones stay on one line, long ones get room."""
    return "line" if len(text) <= SHORT_HEAD else "wide"


def number_key(value: object) -> str:
    """The sort key of a number; "none", which sorts last, of anything else."""
    return repr(float(value)) if isinstance(value, int | float) else "none"


def shown(value: object) -> str:
    """Format a number with six digits at most; None as "", anything else as it is."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def interval(one: Judged) -> str:
    low, high = one.cell.low, one.cell.high
    return "" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def codes(judged: Sequence[Judged]) -> list[tuple[str, str]]:
    """The reason codes that occur, with their meanings."""
    present = {code for one in judged for code in one.reason.split("; ") if one.is_comparison}
    return [(code, meaning) for code, meaning in REASONS.items() if code in present]


def anchors(claims: Sequence[Claim]) -> dict[Claim, str]:
    """The anchor of each claim on the page of claims: its paper and its number there."""
    found: dict[Claim, str] = {}
    for claim in claims:
        number = 1 + sum(other.paper == claim.paper for other in found)
        found[claim] = f"{claim.paper}-{number}"
    return found


def paper_name(paper: str) -> str:
    """Return a paper's short name; a plug-in's paper has its key alone."""
    return str(PAPERS[paper].SHORT) if paper in PAPERS else paper


def papers_of(tables: Sequence[TableItem]) -> dict[str, str]:
    """Return every paper's title: those of the catalogue, and those that tables of plug-ins belong to."""
    known = {name: str(paper.TITLE) for name, paper in PAPERS.items()}
    return known | {table.paper: table.paper for table in tables if table.paper not in known}


def columns_of(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """All names that occur in any row, in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))
