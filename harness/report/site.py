"""Write the site: plain pages that open from disk, one script, no outside resource. The same input gives the same bytes."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.core.environment import commit
from harness.core.errors import UsageError
from harness.papers import INPUTS
from harness.papers import claims as claims_here
from harness.papers.claim import Claim
from harness.report import views
from harness.report.experiments import ExperimentItem, experiment_items
from harness.report.items import FigureItem, TableItem, figure_items, ledger_text, read_json, table_items
from harness.report.relation import tally
from harness.tables.coloured import COLOURS, MEANINGS

MARKER = ".foretoken-report"
STATIC = Path(__file__).resolve().parent / "static"
TABLE_ENDINGS = (".csv", ".json", ".html")


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything that the pages show."""

    tables: list[TableItem]
    figures: list[FigureItem]
    claims: list[Claim]
    unchecked: Sequence[str]
    experiments: list[ExperimentItem]
    audits: dict[str, Any] = field(default_factory=dict)
    limit: int = 4


def collect(results: Path, records: Path, limit: int) -> Content:
    """Read what lies under ``results`` and ``records``. Either may lack anything; the pages say what is missing."""
    if not results.is_dir():
        raise UsageError(f"results {results}: not a folder; expected the one with tables/ and figures/, as a checkout has it")
    tables = table_items(results / "tables")
    claims, unchecked = claims_here()
    return Content(
        tables=tables,
        figures=figure_items(results / "figures", tables),
        claims=claims,
        unchecked=unchecked,
        experiments=experiment_items(records, tables, results / "runs", limit),
        audits={path.stem: read_json(path) for path in sorted((results / "audit").glob("*.json"))},
        limit=limit,
    )


def write_site(content: Content, output: Path) -> int:
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


def _fill(content: Content, folder: Path) -> int:
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


def copied(content: Content) -> dict[str, list[Path]]:
    """The files that pages link to, by the folder into which they are copied."""
    return {
        "tables": [path for table in content.tables for path in _beside(table)],
        "figures": [path for figure in content.figures for path in figure.files],
    }


def _beside(table: TableItem) -> list[Path]:
    """The files of a table; none if it was not made."""
    file = table.file
    return [] if file is None else [path for ending in TABLE_ENDINGS if (path := file.with_suffix(ending)).exists()]


def pages(content: Content) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """File name, template and values of every page."""
    yield "index.html", "index.html", {}
    for paper in views.papers_of(content.tables):
        yield f"paper-{paper}.html", "paper.html", {"paper": paper, "inputs": [one for one in INPUTS if one.paper == paper]}
    for table in content.tables:
        made, footnotes = views.blocks(table)
        yield table.page, "table.html", {"table": table, "blocks": made, "footnotes": footnotes}
    for figure in content.figures:
        yield figure.page, "figure.html", {"figure": figure}
    yield "claims.html", "claims.html", {}
    yield "ledger.html", "ledger.html", {}
    yield "regenerate.html", "regenerate.html", {"environments": _environments(content.tables)}
    yield "experiments.html", "experiments.html", {}
    for experiment in content.experiments:
        yield experiment.page, "experiment.html", {"item": experiment}
    if content.audits:
        yield "audit.html", "audit.html", {}


def _environment() -> Environment:
    loader = PackageLoader("harness.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"shown": views.shown, "number_key": views.number_key, "capitalize_first": views.capitalized}
    made.filters |= {"line_kind": views.line_kind, "remark": views.remark}
    made.globals |= {name: getattr(views, name) for name in ("interval", "codes", "paper_name", "columns_of")} | {
        "tally": tally
    }
    return made


def _common(content: Content) -> dict[str, Any]:
    """The values that every template sees."""
    return {
        "content": content,
        "papers": views.papers_of(content.tables),
        "colours": COLOURS,
        "meanings": MEANINGS,
        "commit": commit(),
        "table_pages": {table.number: table for table in content.tables},
        "experiment_pages": {item.path.name: item.page for item in content.experiments},
        "claim_anchor": views.anchors(content.claims).__getitem__,
        "files_of": lambda table: [path.name for path in _beside(table)],
    }


def _environments(tables: Sequence[TableItem]) -> list[tuple[Mapping[str, str | int], list[TableItem]]]:
    """Group the tables by the machine and versions that made them."""
    groups: dict[tuple[tuple[str, str | int], ...], list[TableItem]] = {}
    for table in tables:
        if table.environment:
            groups.setdefault(tuple(table.environment.items()), []).append(table)
    return [(dict(facts), made) for facts, made in groups.items()]
