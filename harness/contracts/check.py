"""Which contract holds for which kind, and what a name on the command line stands for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import plugins
from harness.contracts.base import Finding
from harness.errors import UsageError
from harness.plugins import KINDS, Plugin


@dataclass(frozen=True)
class Subject:
    """A name of a kind that is registered, ours or a plug-in's; or a plug-in that could not be taken."""

    kind: str
    name: str
    plugin: Plugin | None = None

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name} ({'foretoken' if self.plugin is None else self.plugin.label})"


def subjects_of(text: str) -> list[Subject]:
    """A file, all that a package offers, or a name, which KIND:NAME makes unambiguous. UsageError where nothing is meant."""
    if text.endswith(".py") or Path(text).is_file():
        plugins.load([text], strict=False)
        return [_subject(plugin) for plugin in plugins.of_file(Path(text))]
    plugins.load()
    if of_package := [_subject(plugin) for plugin in plugins.known() if plugin.origin == text]:
        return of_package
    wanted, colon, name = text.rpartition(":")
    broken = [_subject(plugin) for plugin in plugins.known() if plugin.error and plugin.name == name]
    found = [Subject(kind, name, plugins.find(kind, name)) for kind in KINDS if name in map(str, KINDS[kind].registry())]
    chosen = [one for one in (*found, *broken) if not colon or one.kind == wanted]
    if not chosen:
        raise UsageError(
            f"plug-in {text!r}: no file, package or name that is known; `foretoken plugins` lists them, KIND:NAME chooses "
            f"({', '.join(KINDS)})"
        )
    return chosen


def _subject(plugin: Plugin) -> Subject:
    return Subject(plugin.kind, plugin.name, plugin)


def findings(subject: Subject) -> Iterator[Finding]:
    """The checks of a subject's kind, one after the other."""
    from harness.contracts.drafter import check_drafter
    from harness.contracts.method import check_method
    from harness.contracts.rule import check_rule
    from harness.contracts.table import check_table
    from harness.contracts.task import check_task

    if subject.plugin is not None and subject.plugin.error:
        yield Finding("can be taken", False, subject.plugin.error)
        return
    entry: Any = {str(key): value for key, value in KINDS[subject.kind].registry().items()}[subject.name]
    if subject.kind == "task":
        yield from check_task(subject.name, entry)
    elif subject.kind == "drafter":
        yield from check_drafter(entry)
    elif subject.kind == "rule":
        yield from check_rule(entry)
    elif subject.kind == "method":
        yield from check_method(subject.name, entry)
    else:
        yield from check_table(entry)
