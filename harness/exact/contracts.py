"""Contracts: each kind of plug-in has one, which ``foretoken check-plugin`` checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.plugins import KINDS, Plugin
from harness.exact.contract_drafter import check_drafter
from harness.exact.contract_method import check_method
from harness.exact.contract_rule import check_rule
from harness.exact.contract_table import check_table
from harness.exact.contract_task import check_task
from harness.exact.finding import Finding
from harness.run.build import BUILDERS


@dataclass(frozen=True)
class Entry:
    """A registered name, the project's own or a plug-in's; or a plug-in that is broken."""

    kind: str
    name: str
    plugin: Plugin | None = None

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name} ({'foretoken' if self.plugin is None else self.plugin.label})"


def find_entries(text: str) -> list[Entry]:
    """Find what a file or a package offers, or a name (KIND:NAME is unambiguous). UsageError if there is none."""
    if text.endswith(".py") or Path(text).is_file():
        plugins.load([text], strict=False)
        return [_entry(plugin) for plugin in plugins.of_file(Path(text))]
    plugins.load()
    if of_package := [_entry(plugin) for plugin in plugins.known() if plugin.origin == text]:
        return of_package
    wanted, colon, name = text.rpartition(":")
    broken = [_entry(plugin) for plugin in plugins.known() if plugin.error and plugin.name == name]
    found = [Entry(kind, name, plugins.find(kind, name)) for kind in KINDS if name in map(str, KINDS[kind].registry)]
    chosen = [one for one in (*found, *broken) if not colon or one.kind == wanted]
    if not chosen:
        raise UsageError(
            f"plug-in {text!r}: no file, package or name that is known; `foretoken plugins` lists them, KIND:NAME chooses "
            f"({', '.join(KINDS)})"
        )
    return chosen


def _entry(plugin: Plugin) -> Entry:
    return Entry(plugin.kind, plugin.name, plugin)


def check_entry(entry: Entry) -> Iterator[Finding]:
    """Yield the findings of the contract of an entry's kind, one check after the other."""
    if entry.plugin is not None and entry.plugin.error:
        yield Finding("broken", entry.plugin.error, check="can be imported")
        return
    part: Any = {str(key): value for key, value in KINDS[entry.kind].registry.items()}[entry.name]
    if entry.kind == "task":
        yield from check_task(entry.name, part)
    elif entry.kind == "drafter":
        yield from check_drafter(part)
    elif entry.kind == "rule":
        yield from check_rule(part)
    elif entry.kind == "method":
        yield from check_method(entry.name, BUILDERS.get(entry.name, part))
    else:
        yield from check_table(part)
