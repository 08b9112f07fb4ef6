"""From a table or figure of the catalogue to its files: run what is missing (or nothing), then render from records."""

import argparse
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path

from harness import environment, plugins
from harness.audit.verdicts import notes_of
from harness.catalogue.base import RATIO, Cell, Settings, Table
from harness.commands.options import RESULTS, checked_device, source_of
from harness.errors import Unavailable, UsageError
from harness.experiment import Comparison, Experiment
from harness.records import Record, RecordFile, read_environment
from harness.render.files import Header
from harness.runner import Runner, ensure_models, pin
from tasks.errors import DataError


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        profile=args.profile,
        source=source_of(args.data, args.profile),
        limit=args.limit,
        seed=args.seed,
        device=checked_device(args.device, getattr(args, "engine", "local")),
        dtype=args.dtype,
        models=_replacements(args.model),
        stop_at_eos=args.stop_at_eos,
    )


def check_stop_at_eos(plan: Callable[[Settings], list[Comparison]], settings: Settings, name: str) -> None:
    """UsageError where it was asked for and changes nothing."""
    if settings.stop_at_eos and plan(settings) == plan(replace(settings, stop_at_eos=False)):
        raise UsageError(f"stop_at_eos: {name} has no fixed lengths, its outputs end at EOS already; leave the flag out")


def _replacements(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """``ROLE=MODEL`` pairs that put a Hub id or a folder in a role's place."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"model {pair!r}: expected ROLE=MODEL, for example t5-small=google-t5/t5-small")
    return tuple((role, _absolute(name)) for role, name in (pair.split("=", 1) for pair in pairs))


def _absolute(name: str) -> str:
    path = Path(expanduser(name))
    return str(path.resolve()) if path.is_dir() else name


def folder_of(settings: Settings) -> Path:
    """Where a run's tables and figures go: the committed place for the default run, else one of its own."""
    if settings == Settings():
        return RESULTS
    source = Path(settings.source).name
    return RESULTS / "runs" / f"{settings.profile}-{source}{'-eos' if settings.stop_at_eos else ''}"


class Store:
    """The stored records of any experiment of the catalogue; pins each description once and remembers what it read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pinned: dict[Experiment, Experiment] = {}
        self.read: dict[str, list[Record]] = {}
        self.unavailable: list[str] = []

    def pinned(self, experiment: Experiment) -> Experiment:
        if experiment not in self._pinned:
            self._pinned[experiment] = pin(experiment)
        return self._pinned[experiment]

    def comparison(self, comparison: Comparison) -> Comparison:
        return Comparison(tuple(self.pinned(arm) for arm in comparison.arms))

    def records_of(self, experiment: Experiment) -> list[Record]:
        try:
            file = RecordFile(self.folder, self.pinned(experiment))
        except Unavailable as error:
            self._note(error)
            return []
        records = file.read()
        if records:
            self.read[file.path.name] = records
        return records

    def run(self, plan: list[Comparison], runner: Runner) -> None:
        """Run every comparison that is not complete; what is complete costs a look at its records and nothing else.

        A model or data set that cannot be had from the Hub stops its own comparison only.
        """
        missing = []
        for comparison in plan:
            with self._noting(comparison):
                pinned = self.comparison(comparison)
                if not runner.is_complete(pinned):
                    missing.append(pinned)
        for number, comparison in enumerate(missing, start=1):
            if number == 1:
                ensure_models(arm for comparison in missing for arm in comparison.arms)
            first = comparison.arms[0]
            with self._noting(comparison):
                runner.run(comparison, f"[{number}/{len(missing)}] {first.task} t={first.sampling.temperature:g}")

    @contextmanager
    def _noting(self, comparison: Comparison) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            self._note(error)
        except DataError as error:
            if comparison.arms[0].source != "hub":
                raise
            self._note(error)

    def _note(self, error: Exception) -> None:
        if (reason := str(error)) not in self.unavailable:
            self.unavailable.append(reason)

    def explained(self, cells: list[Cell]) -> list[Cell]:
        """Cells that could not be run because of what is not available say so."""
        if not self.unavailable:
            return cells
        status = "impossible: " + "; ".join(" ".join(reason.split()) for reason in self.unavailable)
        return [replace(cell, status=status) if cell.status == "not run" else cell for cell in cells]


def header_of(kind: str, name: str, settings: Settings, store: Store) -> Header:
    """How to make it again, and from what it was made: the environments are those of the records."""
    digests = sorted({record.environment for records in store.read.values() for record in records})
    environments = [read_environment(store.folder, digest) for digest in digests] or [environment.describe(settings.device)]
    commits = ", ".join(dict.fromkeys(str(facts.get("commit", "unknown")) for facts in environments))
    merged: dict[str, str | int] = {
        key: " and ".join(dict.fromkeys(str(facts.get(key)) for facts in environments))
        for key in environments[0]
        if key != "commit"
    }
    return Header(
        command=command_of(kind, name, settings),
        commit=commits,
        environment=merged,
        record_files=tuple(sorted(store.read)),
    )


def command_of(kind: str, name: str, settings: Settings) -> str:
    """The make target where its variables say it all, else the command behind it."""
    default = Settings()
    fields = {"profile": "PROFILE", "source": "DATA", "limit": "LIMIT", "device": "DEVICE", "dtype": "DTYPE"}
    changed = {key: _shown(getattr(settings, key)) for key in fields if getattr(settings, key) != getattr(default, key)}
    given = plugins.given_for(kind, name)
    if settings.seed == default.seed and not settings.models and not given:
        variables = [f"{fields[key]}={value}" for key, value in changed.items()]
        variables += ["STOP_AT_EOS=1"] if settings.stop_at_eos else []
        return " ".join(["make", f"reproduce-{kind}-{name}", *variables])
    flags = [f"--{'data' if key == 'source' else key} {value}" for key, value in changed.items()]
    flags += [f"--seed {settings.seed}"] if settings.seed != default.seed else []
    flags += ["--stop-at-eos"] if settings.stop_at_eos else []
    flags += [f"--model {role}={_shown(model)}" for role, model in settings.models]
    flags += [f"--plugin {_shown(file)}" for file in given]
    return " ".join([f"foretoken {kind} {name} --reproduce", *flags])


def _shown(value: object) -> str:
    """Paths are shown from here, so that no machine's folders enter a file."""
    text = str(value)
    return shlex.quote(os.path.relpath(text) if os.path.isabs(text) else text)


def with_verdicts(table: Table, cells: list[Cell]) -> Table:
    """A table that shows ratios of times also says, in a note, what the exactness audit found of its methods."""
    if not any(cell.unit == RATIO for cell in cells):
        return table

    def notes(settings: Settings) -> list[str]:
        arms = [arm for comparison in table.plan(settings) for arm in comparison.arms]
        return [*table.notes(settings), *notes_of(arms)]

    return replace(table, notes=notes)


def state_of(plan: list[Comparison], store: Store) -> str:
    """How much of a plan is recorded."""
    arms = {arm.signature: arm for comparison in plan for arm in store.comparison(comparison).arms}
    if not arms:
        return "computed, needs no run"
    runs = sum(arm.limit * arm.repeats for arm in arms.values())
    done = sum(len(RecordFile(store.folder, arm).read()) for arm in arms.values())
    return "not run" if done == 0 else "complete" if done >= runs else f"{done} of {runs} runs recorded"
