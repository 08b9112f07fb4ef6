"""From a table or figure of the catalogue to its files: run what is missing (or nothing), then render from records."""

import argparse
import shlex
from pathlib import Path

from harness import environment
from harness.catalogue.base import Settings
from harness.commands.options import RESULTS, checked_device, source_of
from harness.errors import UsageError
from harness.experiment import Comparison, Experiment
from harness.records import Record, RecordFile
from harness.render.files import Header
from harness.runner import Runner, ensure_models, pin


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(
        profile=args.profile,
        source=source_of(args.data),
        limit=args.limit,
        seed=args.seed,
        device=checked_device(args.device),
        dtype=args.dtype,
        models=_replacements(args.model),
    )


def _replacements(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """``ROLE=MODEL`` pairs that put a Hub id or a folder in a role's place."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"model {pair!r}: expected ROLE=MODEL, for example t5-small=google-t5/t5-small")
    return tuple((role, _absolute(name)) for role, name in (pair.split("=", 1) for pair in pairs))


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else name


def folder_of(settings: Settings) -> Path:
    """Where a run's tables and figures go: the committed place for the default run, else one of its own."""
    if settings == Settings():
        return RESULTS
    source = Path(settings.source).name
    return RESULTS / "runs" / f"{settings.profile}-{source}"


class Store:
    """The stored records of any experiment of the catalogue; pins each description once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pinned: dict[Experiment, Experiment] = {}
        self.read: dict[str, Path] = {}

    def pinned(self, experiment: Experiment) -> Experiment:
        if experiment not in self._pinned:
            self._pinned[experiment] = pin(experiment)
        return self._pinned[experiment]

    def comparison(self, comparison: Comparison) -> Comparison:
        return Comparison(tuple(self.pinned(arm) for arm in comparison.arms))

    def records_of(self, experiment: Experiment) -> list[Record]:
        file = RecordFile(self.folder, self.pinned(experiment))
        if file.path.exists():
            self.read[file.path.name] = file.path
        return file.read()


def run_plan(plan: list[Comparison], store: Store, quiet: bool) -> None:
    """Run every comparison that is not complete; what is complete costs a look at its records and nothing else."""
    runner = Runner(store.folder, quiet=quiet)
    missing = [pinned for pinned in map(store.comparison, plan) if not runner.is_complete(pinned)]
    ensure_models(arm for comparison in missing for arm in comparison.arms)
    for number, comparison in enumerate(missing, start=1):
        first = comparison.arms[0]
        runner.run(comparison, f"[{number}/{len(missing)}] {first.task} t={first.sampling.temperature:g}")


def header_of(kind: str, name: str, settings: Settings, store: Store) -> Header:
    """How to make it again, and from what it was made."""
    facts = environment.describe(settings.device)
    return Header(
        command=command_of(kind, name, settings),
        commit=str(facts["commit"]),
        environment={key: value for key, value in facts.items() if key != "commit"},
        record_files=tuple(sorted(store.read)),
    )


def command_of(kind: str, name: str, settings: Settings) -> str:
    parts = ["make", f"reproduce-{kind}-{name}"]
    default = Settings()
    fields = {"PROFILE": "profile", "DATA": "source", "LIMIT": "limit", "DEVICE": "device", "DTYPE": "dtype"}
    for variable, field in fields.items():
        value = getattr(settings, field)
        if value != getattr(default, field):
            shown = Path(value).name if variable == "DATA" and Path(value).exists() else value
            parts.append(f"{variable}={shlex.quote(str(shown))}")
    return " ".join(parts)


def state_of(plan: list[Comparison], store: Store) -> str:
    """How much of a plan is recorded."""
    arms = {arm.signature: arm for comparison in plan for arm in store.comparison(comparison).arms}
    if not arms:
        return "computed, needs no run"
    runs = sum(arm.limit * arm.repeats for arm in arms.values())
    done = sum(len(RecordFile(store.folder, arm).read()) for arm in arms.values())
    return "not run" if done == 0 else "complete" if done >= runs else f"{done} of {runs} runs recorded"
