"""Plug-ins: tasks, drafters, verify rules, schedules, methods and tables that live outside the project.

An installed package names them in entry points: group ``foretoken.rules``, say, where an entry's name is the name that the rule
is known by. A file that ``--plugin`` names has them in dictionaries called as the project's own: TASKS, DRAFTERS, RULES,
SCHEDULES, METHODS, TABLES. Both fill the project's dictionaries; the room of tables, which stands above this one, registers
its own.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from os.path import expanduser, isfile, realpath  # unlike Path's they answer for names that no file can have
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, TypeVar

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment
from harness.core.messages import FOR_THE_USER, kind_and_line, one_line
from methods.errors import WorkerError
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES
from tasks import BROKEN, TASKS, TRAINING_ONLY, Task

INSTALLED = "installed packages"
NAMES = ("task", "drafter", "rule", "schedule", "method", "table")  # of the kinds, in the order in which they are listed
Value = TypeVar("Value")


@dataclass(frozen=True)
class _Kind:
    """A kind of part: the project's dictionary of it, and ``taken``, which makes an entry of what a plug-in offers."""

    name: str
    registry: dict[Any, Any]
    taken: Callable[[str, Any], tuple[Any, Any]]

    @property
    def group(self) -> str:
        return f"foretoken.{self.name}s"

    @property
    def dictionary(self) -> str:
        return f"{self.name}s".upper()


@dataclass(frozen=True)
class Plugin:
    """One name that comes from outside. ``origin`` is a package or a file's name, ``where`` an entry point's object or a path.

    ``digest`` is a hash of the source: of the file, or of all modules of the package that the entry point lies in. ``error``
    says why it could not be taken.
    """

    kind: str
    name: str
    origin: str
    where: str
    version: str = ""
    digest: str = ""
    error: str | None = None

    @property
    def label(self) -> str:
        return f"{self.origin} {self.version}".rstrip()

    @property
    def identity(self) -> str:
        """Describe it for an experiment's signature: by its content, not by its place."""
        return f"{self.kind} {self.name}: {self.label}, sha256 {self.digest}"


def _task(name: str, offered: Any) -> tuple[str, Any]:
    task = offered() if isinstance(offered, type) else offered
    if not isinstance(task, Task):
        raise UsageError(f"{offered!r} is no task; expected a tasks.base.Task, or its class")
    if getattr(task, "name", None) != name:
        raise UsageError(f"the task calls itself {getattr(task, 'name', None)!r}; expected {name!r}, as it is registered")
    if name in TRAINING_ONLY:
        raise UsageError(f"{name!r} exists already; choose another name")
    return name, task


def _callable(name: str, offered: Any) -> tuple[str, Any]:
    if not callable(offered):
        raise UsageError(f"{offered!r} cannot be called; expected a class or function that makes one")
    return name, offered


KINDS = {
    "task": _Kind("task", TASKS, _task),
    "drafter": _Kind("drafter", DRAFTERS, _callable),
    "rule": _Kind("rule", RULES, _callable),
    "schedule": _Kind("schedule", SCHEDULES, _callable),
    "method": _Kind("method", METHODS, _callable),
}
_seen: dict[str, list[Plugin]] = {}  # by source: INSTALLED, or a file's path
_offers: dict[str, Callable[[_Kind], Iterable[Plugin]]] = {}  # by source: takes what it offers of a kind


def register(name: str, registry: dict[Any, Any], taken: Callable[[str, Any], tuple[Any, Any]]) -> None:
    """Make a dictionary of a room above known; what the sources seen so far offer of its kind is taken now."""
    kind = KINDS[name] = _Kind(name, registry, taken)
    for source, offer in _offers.items():
        _take(source, offer(kind))


def _look_at(source: str, offer: Callable[[_Kind], Iterable[Plugin]]) -> None:
    _seen[source], _offers[source] = [], offer
    for kind in KINDS.values():
        _take(source, offer(kind))


def _take(source: str, plugins: Iterable[Plugin]) -> None:
    """Tasks are looked up in a room that knows nothing of plug-ins, so it is told of broken ones."""
    for plugin in plugins:  # one at a time: the next is told whose name it has
        _seen[source].append(plugin)
        if plugin.kind == "task" and plugin.error:
            BROKEN[plugin.name] = f"its plug-in {plugin.label} is broken: {plugin.error}"


def load(files: Iterable[str | Path] = (), strict: bool = True) -> None:
    """Take what installed packages and these files offer, each source once in a process.

    A broken plug-in of a package is kept with its error and harms nothing until it is named. ``strict``: a file, which is named
    by being given, raises UsageError instead.
    """
    if INSTALLED not in _seen:
        _look_at(INSTALLED, _installed)
    for path in (Path(realpath(expanduser(file))) for file in files):
        if str(path) not in _seen:
            _load_file(path)
        broken = next((plugin for plugin in _seen[str(path)] if plugin.error), None)
        if strict and broken:
            raise UsageError(f"plug-in {path.name}: {broken.kind} {broken.name!r}: {broken.error}")


def known() -> list[Plugin]:
    """Return every plug-in that was looked at, broken ones too."""
    return [plugin for plugins in _seen.values() for plugin in plugins]


def files() -> list[str]:
    """Return the files that were given and offer something, which another process must load to know the same names."""
    return [source for source, found in _seen.items() if source != INSTALLED and not all(plugin.error for plugin in found)]


def given_for(kind: str, name: object) -> list[str]:
    """Return the files without which a name is not known: all that were given, if one of them offers it."""
    plugin = find(kind, name)
    return files() if plugin is not None and plugin.where in files() else []


def warn_of_broken(kind: str) -> None:
    """Print a warning for each part of a kind that could not be taken."""
    for one in known():
        if one.kind == kind and one.error:
            print(f"foretoken: warning: plug-in {one.label}: {kind} {one.name!r} is broken: {one.error}", file=sys.stderr)


def of_file(path: Path) -> list[Plugin]:
    """Return what a file that was loaded offers."""
    return _seen.get(realpath(expanduser(path)), [])


def find(kind: str, name: object) -> Plugin | None:
    """Return the plug-in that a name stands for; None for the project's own."""
    return next((one for one in known() if (one.kind, one.name) == (kind, str(name)) and not one.error), None)


@contextmanager
def at_fault() -> Iterator[None]:
    """Turn an error that a plug-in's code raised, or that a given file may have led to, into a UsageError. Others pass."""
    try:
        yield
    except (*FOR_THE_USER, WorkerError, KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:
        where = _place_of(error)
        if where is None and (isinstance(error, OSError) or not files()):
            raise
        given = ", ".join(Path(file).name for file in files()) or "NAME"
        raise UsageError(
            f"plug-in {where or given}: {_said(error)}; `foretoken check-plugin {given}` says what does not keep its contract"
        ) from error


def _place_of(error: BaseException) -> str | None:
    """Return the last line of a plug-in's own code that an error came through."""
    homes = {one.where.partition(":")[0].partition(".")[0] for one in known() if not one.error} - {""} | set(files())
    frames = reversed(list(walk_tb(error.__traceback__)))
    return next(
        (
            f"{Path(file).name}:{line}"
            for frame, line in frames
            for file in (frame.f_code.co_filename,)
            if file in homes or str(frame.f_globals.get("__name__")).partition(".")[0] in homes
        ),
        None,
    )


def refuse_broken(kind: str, name: object) -> None:
    """UsageError for a name that a plug-in would have if it were not broken."""
    broken = next((one for one in known() if (one.kind, one.name) == (kind, str(name)) and one.error), None)
    if broken is not None:
        raise UsageError(f"{kind} {name!r}: its plug-in {broken.label} is broken: {broken.error}")


def choose(kind: str, name: str, registry: dict[str, Value]) -> Value:
    """Return a part by its name. UsageError for one that no registry knows, or whose plug-in is broken."""
    if name not in registry:
        refuse_broken(kind, name)
        raise UsageError(f"{kind} {name!r}: expected one of {', '.join(sorted(registry))}")
    return registry[name]


def used_by(experiment: Experiment) -> tuple[str, ...]:
    """Return the identities of the plug-ins that an experiment names, in order: a changed plug-in is another experiment."""

    def of_drafter(spec: DrafterSpec | None) -> Iterator[Plugin | None]:
        if spec is not None:
            yield find("drafter", spec.kind)
            yield from of_drafter(spec.inner)

    method = experiment.method
    found = [find("task", experiment.task), find("method", method.name)]
    found += [find("rule", method.rule and method.rule.name), find("schedule", method.schedule and method.schedule.name)]
    for drafter in (method.drafter, *experiment.overlap):
        found += of_drafter(drafter)
    return tuple(sorted({plugin.identity for plugin in found if plugin is not None}))


def _installed(kind: _Kind) -> Iterator[Plugin]:
    """Return what installed packages offer of a kind, in the order of their names."""
    entries = sorted(entry_points(group=kind.group), key=lambda entry: (_package(entry)[0], entry.name))
    return (_of_entry(kind, entry) for entry in entries)


def _of_entry(kind: _Kind, entry: EntryPoint) -> Plugin:
    origin, version = _package(entry)
    plugin = Plugin(kind.name, entry.name, origin, entry.value, version)
    try:
        offered = entry.load()
        plugin = replace(plugin, digest=_digest(_modules(entry.module)))
    except BaseException as error:  # a stranger's module may raise anything; what it was is shown
        return replace(plugin, error=_said(error))
    return _taken(kind, plugin, offered)


def _package(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else ("unknown", "")


def _load_file(path: Path) -> None:
    """Import a file, once, and take what it offers of every kind."""
    whole = Plugin("file", path.name, path.name, str(path))
    try:
        module = _imported(path)
    except BaseException as error:  # as above
        _seen[str(path)] = [replace(whole, error=_said(error))]
        return
    digest = _digest([path])

    def offer(kind: _Kind) -> list[Plugin]:
        offered = vars(module).get(kind.dictionary, {})
        if offered is kind.registry:  # imported, not declared
            return []
        if not isinstance(offered, dict):
            error = f"{kind.dictionary} is a {type(offered).__name__}; expected a dictionary, from names to {kind.name}s"
            return [replace(whole, error=error)]
        named = [(Plugin(kind.name, str(name), path.name, str(path), digest=digest), value) for name, value in offered.items()]
        return [_taken(kind, plugin, value) for plugin, value in named]

    _look_at(str(path), offer)
    if not _seen[str(path)]:
        expected = ", ".join(kind.dictionary for kind in KINDS.values())
        _seen[str(path)] = [replace(whole, error=f"offers nothing; expected a dictionary of entries called one of {expected}")]


def _imported(path: Path) -> ModuleType:
    if not isfile(path):
        raise UsageError("not there; expected a Python file")
    name = f"foretoken_plugin_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("not a Python file; expected its name to end in .py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _taken(kind: _Kind, plugin: Plugin, offered: Any) -> Plugin:
    """Registered, or with the reason why not. A name that exists already stays what it was."""
    try:
        key, value = kind.taken(plugin.name, offered)
        if key in kind.registry:
            first = find(plugin.kind, plugin.name)
            owner = "the project" if first is None else first.label
            raise UsageError(f"{plugin.name!r} exists already, from {owner}; choose another name")
    except BaseException as error:  # a task's constructor is a stranger's code too
        return replace(plugin, error=_said(error))
    kind.registry[key] = value
    return plugin


def _modules(name: str) -> Sequence[Path]:
    """Return the source of a module, or of all modules of the package that it lies in."""
    top = sys.modules[name.split(".")[0]]
    if hasattr(top, "__path__"):
        return sorted(path for folder in top.__path__ for path in Path(folder).rglob("*.py"))
    return [Path(top.__file__)] if top.__file__ else []


def _digest(paths: Sequence[Path]) -> str:
    """Hash names and contents, so that a file has the same digest wherever it lies."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _said(error: BaseException) -> str:
    """Return an error's message in one line. Ctrl-C, which the user meant for all of it, is raised again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return one_line(error) if isinstance(error, UsageError) else kind_and_line(error)
