"""Part 5: tables of the papers on the device, by the code that makes every table, with few examples.

Models are the toy zoo's where they are in the cache, else those of the tests, trained in a minute or two; the smallest
rehearsal takes the committed checkpoints. A table that has a static form is made once more with graphs; one whose scores need
a package that is not there is not reached.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from harness.core.checkout import ROOT
from harness.core.experiment import ZOO, Comparison, arms_of
from harness.core.settings import Settings
from harness.gpu.place import Item, Measured, Place
from harness.papers import get_table
from harness.run.build import specs_of
from harness.run.plan import run_plan
from harness.run.refusals import why_not_static
from harness.run.runner import Runner
from harness.tables.base import Table
from harness.tables.evidence import stored_evidence
from harness.tables.layout import terminal_table, title
from harness.zoo.cache import is_complete, model_folder
from harness.zoo.recipes import recipe_hash, scale_of

CHECKPOINTS = ROOT / "results" / "baselines" / "checkpoints"
SMALLEST = {"t5-xxl": "t5-target", **{f"t5-{size}": "t5-draft" for size in ("small", "base", "large")}}
KEPT = ("row", "column", "published", "measured", "low", "high", "unit", "n")  # of a cell; the table's text says more


def items(place: Place) -> Sequence[Item]:
    found = []
    for graphs, (number, limit), dtype in product((False, True), place.sizes.tables, place.sizes.table_dtypes):
        if not graphs or has_static_form(get_table(number)):
            name = f"table {number}, {dtype}" + (", graphs" if graphs else "")
            make = partial(make_table, place, number, limit, dtype, graphs)
            found.append(Item(name=name, seconds=60, measure=make))
    return found


def has_static_form(table: Table) -> bool:
    """Say whether everything that a table runs can be run with graphs."""
    return not any(map(why_not_static, arms_of(table.plan(Settings()))))


def make_table(place: Place, number: int, limit: int, dtype: str, graphs: bool) -> Measured:
    """Record what a table lacks, and return its cells."""
    table = get_table(number)
    asked = Settings(limit=limit, repeats=1, device=place.device, dtype=dtype, graphs=graphs)
    settings = settings_for(place, table, asked)
    plan = table.plan(settings)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library warns of it in a process that was forked
    run_plan(plan, Runner(place.records, quiet=True), table.scores)
    evidence = stored_evidence(place.records)
    made = table.cells(settings, evidence)
    failed = [record for arm in arms_of(plan) for record in evidence.records_of(arm) if record.error]
    statuses = [cell.status for cell in made]
    counts = {f"cells {name}": statuses.count(name) for name in dict.fromkeys(statuses)}
    cells = [{name: getattr(cell, name) for name in KEPT} for cell in made if cell.status == "measured"]
    facts = {
        "title": title(table),
        "models": settings.profile,
        "examples": limit,
        "examples failed": len(failed),
        **counts,
    }
    return {"facts": facts, "text": terminal_table(table, settings, made), "cells": cells, "passed": not failed}


def settings_for(place: Place, table: Table, settings: Settings) -> Settings:
    """Choose the models: the checkpoints of the smallest rehearsal, the toy zoo's that are all there, or the tests'."""
    if place.scale == "smallest":
        return replace(settings, profile="test", models=tuple(_checkpoints(place)))
    if place.is_rehearsal or not are_cached(table.plan(settings), settings):
        return replace(settings, profile="test")
    return settings


def are_cached(plan: Sequence[Comparison], settings: Settings) -> bool:
    """Say whether the cache holds every model of the zoo that a plan names."""
    specs = {spec.base for arm in arms_of(plan) for spec in specs_of(arm)}
    names = [name.removeprefix(ZOO) for name in specs if name.startswith(ZOO)]
    scale = scale_of(settings.profile)
    return all(is_complete(model_folder(name, recipe_hash(name, scale, settings.source))) for name in names)


def _checkpoints(place: Place) -> Iterator[tuple[str, str]]:
    """Each role with a committed checkpoint, in a folder that has the role's name: two drafters must not share one."""
    for role, name in SMALLEST.items():
        folder = place.records / "models" / role
        shutil.copytree(CHECKPOINTS / name, folder, dirs_exist_ok=True)
        yield role, str(folder.resolve())
