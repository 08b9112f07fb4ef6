"""What can be plugged in: each kind's dictionary in the project, and what makes an entry of what a plug-in offers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError


@dataclass(frozen=True)
class Kind:
    """What can be plugged in: its dictionary, and ``taken``, which makes an entry of what a plug-in offers under a name."""

    name: str
    registry: Callable[[], dict[Any, Any]]
    taken: Callable[[str, Any], tuple[Any, Any]]

    @property
    def group(self) -> str:
        return f"foretoken.{self.name}s"

    @property
    def dictionary(self) -> str:
        return f"{self.name}s".upper()


def _tasks() -> dict:
    from tasks import TASKS

    return TASKS


def _drafters() -> dict:
    from methods.speculative.drafters import DRAFTERS

    return DRAFTERS


def _rules() -> dict:
    from methods.speculative.rules import RULES

    return RULES


def _methods() -> dict:
    from harness.build import METHODS

    return METHODS


def _tables() -> dict:
    from harness.catalogue import TABLES

    return TABLES


def _task(name: str, offered: Any) -> tuple[str, Any]:
    from tasks import TRAINING_ONLY, AdditiveTask

    task = offered() if isinstance(offered, type) else offered
    if not isinstance(task, AdditiveTask):
        raise UsageError(f"{offered!r} is no task; expected a tasks.AdditiveTask, or its class")
    if getattr(task, "name", None) != name:
        raise UsageError(f"the task calls itself {getattr(task, 'name', None)!r}; expected {name!r}, as it is registered")
    if name in TRAINING_ONLY:
        raise UsageError(f"{name!r} exists already; choose another name")
    return name, task


def _callable(name: str, offered: Any) -> tuple[str, Any]:
    if not callable(offered):
        raise UsageError(f"{offered!r} cannot be called; expected a class or function that makes one")
    return name, offered


def _table(name: str, offered: Any) -> tuple[int, Any]:
    from harness.catalogue import TABLES, Table

    if not isinstance(offered, Table) or str(offered.number) != name:
        raise UsageError(
            f"{offered!r} is no table of number {name}; expected a harness.catalogue.Table registered by its number"
        )
    if offered.name in {table.name for table in TABLES.values()}:
        raise UsageError(f"table name {offered.name!r} exists already; choose another paper or paper_number")
    if not re.fullmatch(r"[\w-]+", offered.paper):
        raise UsageError(f"table paper {offered.paper!r}: files are named after it; expected letters, digits, - and _")
    return offered.number, offered


KINDS = {
    kind.name: kind
    for kind in (
        Kind("task", _tasks, _task),
        Kind("drafter", _drafters, _callable),
        Kind("rule", _rules, _callable),
        Kind("method", _methods, _callable),
        Kind("table", _tables, _table),
    )
}
