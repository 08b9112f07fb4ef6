"""Contracts: each kind of plug-in has one, which ``foretoken check-plugin`` checks. Those of methods and tables stand here.

A method (methods/types.py) is held on a tiny model of random weights: its outputs, and its guarantee. The plan of a table
(harness/tables/base.py) must repeat, and its cells must be functions of records.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, MethodSpec
from harness.core.plugins import KINDS, Plugin
from harness.core.settings import Settings
from harness.exact.checks import Contract, Finding, expect, expect_guarantee, hold
from harness.exact.contract_drafter import check_drafter
from harness.exact.contract_rule import check_rule, check_schedule
from harness.exact.contract_task import check_task
from harness.exact.toy import Toy, greedy_output, random_llama
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.build import BUILDERS
from harness.tables.base import Table
from harness.tables.evidence import Evidence
from methods.options import options_class
from methods.parts import METHODS
from methods.sampling import Sampling
from methods.types import Method, Stop
from tasks import TASKS

VOCAB, LENGTH, NUM_SAMPLES = 12, 12, 700  # so many that the test of one context of 12 tokens finds MUST_FIND
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0))
Factory = Callable[[MethodSpec, LoadedModel, Models], Method]
PROFILES = ("toy", "small", "paper")  # under which a table is planned


def find_entries(text: str) -> list[Plugin]:
    """Find what a file or a package offers, or a name (KIND:NAME is unambiguous), the project's own too.

    Raises:
        UsageError: there is none.
    """
    if text.endswith(".py") and not Path(text).exists():
        raise UsageError(f"plug-in {text!r}: not there; expected a Python file")
    if text.endswith(".py") or Path(text).is_file():
        plugins.load([text], strict=False)
        return plugins.of_file(Path(text))
    plugins.load()
    if of_package := [plugin for plugin in plugins.known() if plugin.origin == text]:
        return of_package
    wanted, colon, name = text.rpartition(":")
    broken = [plugin for plugin in plugins.known() if plugin.error and plugin.name == name]
    found = [plugins.find(kind, name) or own_part(kind, name) for kind in KINDS if name in map(str, KINDS[kind].registry)]
    chosen = [one for one in (*found, *broken) if not colon or one.kind == wanted]
    if not chosen and Path(text).is_dir():
        return find_entries(str(_only_file(Path(text))))
    if not chosen:
        raise UsageError(
            f"plug-in {text!r}: no file, package or name that is known; `foretoken plugins` lists them, KIND:NAME chooses "
            f"({', '.join(KINDS)})"
        )
    return chosen


def _only_file(folder: Path) -> Path:
    """Return the one Python file of a folder such as docs/plugin-example."""
    files = sorted(path for path in folder.glob("*.py") if path.name != "setup.py")
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise UsageError(
            f"plug-in {str(folder)!r}: a folder with {len(files)} Python files ({found}); give the one that offers something, "
            "such as FOLDER/my_rules.py, or install the package and give its name"
        )
    return files[0]


def own_part(kind: str, name: str) -> Plugin:
    """Describe a part of the project itself as if it were plugged in."""
    return Plugin(kind, name, "foretoken", "")


def check_entry(entry: Plugin) -> Iterator[Finding]:
    """Yield the findings of the contract of a part's kind, one check after the other."""
    if entry.error:
        yield Finding("broken", entry.error, check="can be imported")
        return
    part: Any = {str(key): value for key, value in KINDS[entry.kind].registry.items()}[entry.name]
    contracts: dict[str, Callable[[], Contract]] = {
        "task": lambda: check_task(entry.name, part),
        "drafter": lambda: check_drafter(part),
        "rule": lambda: check_rule(part),
        "schedule": lambda: check_schedule(part),
        "method": lambda: check_method(entry.name, BUILDERS.get(entry.name, part)),
        "table": lambda: check_table(part),
    }
    yield from hold(contracts[entry.kind]())


def check_method(name: str, make: Factory) -> Contract:
    target = random_llama(VOCAB)
    toy = Toy(target.session, PROMPTS, Stop(max_new_tokens=LENGTH))
    takes = getattr(options_class(METHODS[name]), "takes", ("drafter",)) if name in METHODS else ("drafter",)
    spec = MethodSpec(name=name, drafter=DrafterSpec(kind="copy") if "drafter" in takes else None)

    def made() -> Method:
        return make(spec, target, Models())

    signature = "generate(target, inputs, sampling, uniforms, stop, clock)"
    declared = "is made of an experiment's method and declares its guarantee"
    yield declared, lambda: expect_guarantee(made(), Method, signature)
    guarantee = made().guarantee
    yield "emits what was asked for", lambda: _check_stops(made(), toy)
    if guarantee != "lossy":
        yield "greedy output is plain decoding's", lambda: toy.check_greedy(made())
    yield "draws from the numbers that it is given", lambda: _check_repeats(made(), toy)
    if guarantee != "lossy":
        yield "sampled output has the target's law", lambda: toy.check_samples(made(), NUM_SAMPLES, 0)


def _check_stops(method: Method, toy: Toy) -> str:
    ends = frozenset({greedy_output(toy.new_session(), PROMPTS[0], LENGTH, frozenset())[LENGTH // 2]})
    for stopping in (frozenset(), ends):
        rows = toy.decode(method, Sampling(), stop=Stop(max_new_tokens=LENGTH, token_ids=stopping))
        expect(len(rows) == len(PROMPTS), f"{len(rows)} rows for {len(PROMPTS)} prompts")
        for row in rows:
            ended = bool(row.tokens) and row.tokens[-1] in stopping
            expect(ended or len(row.tokens) == LENGTH, f"stops after {len(row.tokens)} of {LENGTH} tokens")
            expect(row.stop_reason == ("eos" if ended else "length"), f"stop_reason {row.stop_reason!r} after {row.tokens}")
            expect(not set(row.tokens[:-1]) & stopping, f"goes on behind a stopping token: {row.tokens}")
            emitted = sum(step.emitted for step in row.steps)
            expect(emitted == len(row.tokens), f"its steps say {emitted} tokens, its output has {len(row.tokens)}")
    return f"{2 * len(PROMPTS)} outputs"


def _check_repeats(method: Method, toy: Toy) -> None:
    outputs = []
    for seed in range(2):
        torch.manual_seed(seed)
        outputs.append([row.tokens for row in toy.decode(method, Sampling(temperature=1.0))])
    expect(outputs[0] == outputs[1], "other tokens from the same seeds: it draws random numbers of its own")


def check_table(table: Table) -> Contract:
    yield "names what it shows", lambda: _check_names(table)
    for profile in PROFILES:
        settings = Settings(profile=profile, source="toy" if profile == "toy" else "hub")
        yield f"plans under profile {profile}", partial(_check_plan, table, settings)
        yield f"says what is missing under profile {profile}", partial(_check_cells, table, settings)


def _check_names(table: Table) -> str:
    for field in ("paper", "title"):
        expect(bool(getattr(table, field).strip()), f"{field} is empty")
    expect(bool(table.row_heads) and bool(table.columns), "has no row heads or no columns")
    expect(len(set(table.columns)) == len(table.columns), "two columns share a name")
    return f"{table.name}: {table.title}"


def _check_plan(table: Table, settings: Settings) -> str:
    plan = table.plan(settings)
    expect(all(isinstance(one, Comparison) for one in plan), "its plan holds what is no Comparison")
    expect(plan == table.plan(settings), "its plan differs when asked twice")
    unknown = {arm.task for one in plan for arm in one.arms} - set(TASKS)
    expect(not unknown, f"plans tasks that nobody knows: {', '.join(sorted(unknown))}")
    return f"{sum(len(one.arms) for one in plan)} experiments"


def _check_cells(table: Table, settings: Settings) -> str:
    cells = table.cells(settings, Evidence(lambda experiment: []))
    for cell in cells:
        expect(cell.column in table.columns, f"column {cell.column!r} is none of its columns")
        heads = len(cell.heads)
        expect(heads == len(table.row_heads), f"row {cell.row!r} has {heads} parts for {len(table.row_heads)} row heads")
        expect(cell.status != "measured", f"cell {cell.row!r}, {cell.column!r} is measured, without any record")
    places = {(cell.row, cell.column) for cell in cells}
    expect(len(places) == len(cells) > 0, "has no cells, or two in one place")
    expect(all(isinstance(note, str) for note in table.notes(settings)), "a note is no text")
    return f"{len(cells)} cells"
