"""What a user chooses for a run of the catalogue, and what the words on the command line mean."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import FOLDER, POCKET, ZOO, ModelSpec, portable_source
from harness.core.files import short_hash
from tasks.sources.hub import commit_of
from tasks.sources.source import HUB, OWN, Source

RESULTS = Path("results")
RECORDS = RESULTS / "records"  # of a fresh clone it is not there yet
REPLICAS = 3  # of what is committed
PROFILES = ("toy", "pocket", "small", "paper", "test")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")  # of the Hub, perhaps at a revision
PUBLIC = ("pocket", "small", "paper")  # profiles of public models, and so of public data


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The choices of a user for a table or figure; None leaves the choice to the table.

    ``models`` are (role, name) pairs that replace the profile's models, for example ("t5-small", "google/mt5-small").
    ``fixed_length`` generates the length that a paper names (PPD's), behind EOS too; else outputs end at EOS. ``replicas`` are
    processes that share the examples of what is timed against a baseline, or compared between trainings: there each has models
    of the zoo that were trained by a seed of their own. With ``graphs`` sessions have fixed shapes, as an experiment's.
    """

    profile: str = "toy"
    source: str = "toy"
    limit: int | None = None
    repeats: int | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    models: tuple[tuple[str, str], ...] = ()
    fixed_length: bool = False
    replicas: int = 1
    graphs: bool = False

    @property
    def written(self) -> dict[str, Any]:
        """The fields as a table's file has them: without graphs where they are off, as files had them before there were any."""
        return {name: value for name, value in asdict(self).items() if name != "graphs" or value}

    @property
    def arithmetic(self) -> str:
        """Say in which numbers, where and how passes are computed."""
        return f"{self.dtype} on {self.device}" + (", graphs" if self.graphs else "")


COMMITTED = Settings(replicas=REPLICAS)
COMMITTED_POCKET = Settings(profile="pocket", source=FOLDER, replicas=REPLICAS)


def portable(settings: Settings) -> Settings:
    """Return the settings under which records are committed: without the place of a folder of data."""
    of_folder = settings.profile == COMMITTED_POCKET.profile
    return replace(settings, source=portable_source(settings.source)) if of_folder else settings


def usual(profile: str) -> Settings:
    """Return what a profile runs where no flag says otherwise."""
    replicas = REPLICAS if profile == COMMITTED_POCKET.profile else 1
    return Settings(profile=profile, source=source_of(None, profile), replicas=replicas)


def committed_for(profile: str) -> Settings | None:
    """Return the settings under which a profile's tables and figures are committed; None where none are."""
    return {COMMITTED.profile: COMMITTED, COMMITTED_POCKET.profile: COMMITTED_POCKET}.get(profile)


def is_committed(settings: Settings) -> bool:
    """Say whether a run by these settings makes what is committed."""
    return portable(settings) == committed_for(settings.profile)


def folder_of(settings: Settings) -> Path:
    """Say where a run's tables and figures go: to those that are committed for the default run, else to a place of its own."""
    if not is_committed(settings):
        return own_folder(settings)
    return RESULTS if settings.profile == COMMITTED.profile else RESULTS / settings.profile


def own_folder(settings: Settings) -> Path:
    """Return the place under ``results/runs`` that belongs to these settings alone.

    It is named by profile, data and whatever is not the default; by a hash, too, where folders or models are the user's own.
    """
    default, source = Settings(), Path(settings.source)
    chosen = {
        one.name: getattr(settings, one.name) for one in fields(settings) if one.name not in ("profile", "source", "models")
    }
    parts = [settings.profile, source.name]
    for name, value in chosen.items():
        if value != getattr(default, name):
            parts.append(name.replace("_", "-") if value is True else f"{name.replace('_', '-')}-{value}")
    if source.is_absolute() or settings.models:
        parts.append(short_hash(repr((settings.source, settings.models)), 8))
    return RESULTS / "runs" / "-".join(parts)


def checked_device(name: str, engine: str = "local") -> str:
    """A device that is there; refused in one line otherwise. With engine ray it is a worker's, which sees its own GPUs only."""
    if name == "cpu":
        return name
    if engine == "ray":
        if name != "cuda":
            raise UsageError(f"device {name!r}: with engine 'ray' expected cpu or cuda; which GPU is chosen by the cluster")
        return name
    import torch

    if not name.startswith("cuda"):
        raise UsageError(f"device {name!r}: expected cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: no CUDA device is visible; use --device cpu or a machine with a GPU")
    return name


def model_name(text: str, revision: str | None = None) -> str:
    """Return a model's name; a local folder or GGUF file is made absolute, so that a record means the same from everywhere.

    ``bf16:`` or ``int8:`` may stand before it.

    Raises:
        UsageError: a ``revision`` was asked for, and the name is not the Hub's.
    """
    base = ModelSpec(name=text).base
    path = Path(expanduser(base))
    is_local = path.is_dir() or (path.suffix == ".gguf" and path.is_file())
    if revision is not None and (is_local or base.startswith((ZOO, POCKET))):
        raise UsageError(f"revision {revision!r}: only models of the Hub have commits, {text!r} has none; leave it out")
    return text.removesuffix(base) + (str(path.resolve()) if is_local else base)


def source_of(
    text: str | None, profile: str = "toy", fields: Sequence[str] = (), config: str | None = None, split: str | None = None
) -> str:
    """Sources are recorded as given, paths made absolute and names of the Hub with their commit, so that a record means the
    same from everywhere and at any time.

    None is the profile's own: "hub" for those of public models, "toy" otherwise. ``fields`` are texts FIELD=COLUMN.

    Raises:
        DataError: the Hub does not say what a name means.
    """
    if text is None:
        place = "hub" if profile in PUBLIC else "toy"
    elif text.startswith(HUB):
        place = HUB + _repository(text.removeprefix(HUB))
    elif text in OWN:
        place = text
    else:
        path = Path(expanduser(text))
        if not path.exists():
            raise UsageError(
                f'data {text!r}: not there; expected "toy", "hub", hub:OWNER/NAME, a folder or a .jsonl, .parquet, .csv, .tsv '
                "or .txt file"
            )
        place = str(path.resolve())
    return Source(place=place, config=config or "", split=split or "", fields=tuple(map(_field, _once(fields)))).text


def _repository(name: str) -> str:
    if (path := Path(expanduser(name))).is_dir():
        return str(path.resolve())
    if not REPOSITORY.fullmatch(name):
        raise UsageError(f"data 'hub:{name}': expected hub:OWNER/NAME, hub:OWNER/NAME@COMMIT, or hub: before a folder")
    return f"{name.partition('@')[0]}@{commit_of(name)}"


def _field(text: str) -> tuple[str, str]:
    name, mark, column = text.partition("=")
    if not (name and mark and column):
        raise UsageError(f"field {text!r}: expected FIELD=COLUMN, for example prompt=story")
    return name, column


def _once(fields: Sequence[str]) -> Sequence[str]:
    names = [text.partition("=")[0] for text in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"field {twice!r}: given twice; expected one column for each field")
    return fields
