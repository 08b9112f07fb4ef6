"""The catalogue: every table and figure of the papers, by number and by name, and what they claim.

A paper is a folder here that offers TITLE, SHORT, TABLES, FIGURES, CLAIMS and INPUTS, and its name in _FOLDERS.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import FOLDER
from harness.core.settings import Settings, usual
from harness.papers import leviathan, optimized, ppd, specdec
from harness.papers.claim import Claim
from harness.tables import published
from harness.tables.base import Figure, Table, without_idle_replicas

_FOLDERS: tuple[ModuleType, ...] = (ppd, leviathan, specdec, optimized)
PAPERS: dict[str, ModuleType] = {Path(paper.__path__[0]).name: paper for paper in _FOLDERS}
_ALL = [replace(table, paper_title=paper.TITLE) for paper in PAPERS.values() for table in paper.TABLES]
TABLES: dict[int, Table] = {table.number: table for table in sorted(_ALL, key=lambda table: table.number)}
FIGURES: dict[str, Figure] = {figure.name: figure for paper in PAPERS.values() for figure in paper.FIGURES}
INPUTS: list[published.InputTable] = [table for paper in PAPERS.values() for table in paper.INPUTS]


def claims() -> tuple[list[Claim], Sequence[str]]:
    """Return all claims of the papers whose numbers are in this checkout, and the papers whose numbers are not."""
    here = [name for name in PAPERS if (published.FOLDER / name).is_dir()]
    found = [replace(claim(), paper=name) for name in here for claim in PAPERS[name].CLAIMS]
    return found, [name for name in PAPERS if name not in here]


def get_table(number: int) -> Table:
    """A table by its number in the catalogue."""
    if number not in TABLES:
        plugins.refuse_broken("table", number)
        raise UsageError(
            f"table {number}: expected a number from {min(TABLES)} to {max(TABLES)}; `foretoken tables` lists them"
        )
    return TABLES[number]


def get_figure(name: str) -> Figure:
    """A figure by its name, such as "leviathan-2"."""
    if name not in FIGURES:
        raise UsageError(f"figure {name!r}: expected one of {', '.join(FIGURES)}")
    return FIGURES[name]


def command_of(kind: str, name: str, settings: Settings, root: Path = Path()) -> str:
    """The make target where its variables say it all, else the command behind it. Paths are shown from ``root``."""
    item = TABLES[int(name)] if kind == "table" else FIGURES[name]
    own = without_idle_replicas(item, usual(settings.profile))
    settings, default = without_idle_replicas(item, settings), replace(own, profile=Settings().profile)
    fields = {"profile": "PROFILE", "source": "DATA", "limit": "LIMIT", "device": "DEVICE", "dtype": "DTYPE"}
    fields["replicas"] = "REPLICAS"
    changed = {key: _shown(getattr(settings, key), root) for key in fields if getattr(settings, key) != getattr(default, key)}
    given = plugins.given_for(kind, name)
    if settings.seed == default.seed and not settings.models and not given:
        variables = [f"{fields[key]}={value}" for key, value in changed.items()]
        variables += ["FIXED_LENGTH=1"] if settings.fixed_length else []
        variables += ["GRAPHS=on"] if settings.graphs else []
        return " ".join(["make", f"reproduce-{kind}-{name}", *variables])
    flags = [f"--{'data' if key == 'source' else key} {value}" for key, value in changed.items()]
    flags += [f"--seed {settings.seed}"] if settings.seed != default.seed else []
    flags += ["--fixed-length"] if settings.fixed_length else []
    flags += ["--graphs on"] if settings.graphs else []
    flags += [f"--model {role}={_shown(model, root)}" for role, model in settings.models]
    flags += [f"--plugin {_shown(file, root)}" for file in given]
    return " ".join([f"foretoken {kind} {name} --reproduce", *flags])


def _shown(value: object, root: Path) -> str:
    """Show a path from ``root``, so that no machine's folders enter a file."""
    text = "FOLDER" if value == FOLDER else str(value)
    return shlex.quote(os.path.relpath(text, root) if os.path.isabs(text) else text)


def _table(name: str, offered: Any) -> tuple[int, Any]:
    if not isinstance(offered, Table) or str(offered.number) != name:
        raise UsageError(f"{offered!r} is no table of number {name}; expected a table of tables.base registered by its number")
    if offered.name in {table.name for table in TABLES.values()}:
        raise UsageError(f"table name {offered.name!r} exists already; choose another paper or paper_number")
    if not re.fullmatch(r"[\w-]+", offered.paper):
        raise UsageError(f"table paper {offered.paper!r}: files are named after it; expected letters, digits, - and _")
    return offered.number, offered


plugins.register("table", TABLES, _table)
