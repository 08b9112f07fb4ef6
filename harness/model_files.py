"""Where a named model's files are, what they hash to, how large they are, and what went wrong in one line."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, get_session
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig

from harness import zoo
from harness.errors import Unavailable, UsageError
from harness.experiment import ModelSpec
from harness.zoo.cache import unreadable
from methods.ppd.heads import FILE as HEADS
from methods.specdec.blocks import MODEL_TYPES
from methods.specdec.blockwise import FILE as BLOCK_HEADS

ZOO = "zoo:"
TIMEOUT_S = 10.0
NO_ANSWER = (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError)
BYTES_PER_WEIGHT = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Size:
    """What a model will take. None where that cannot be known without loading or reaching it."""

    num_parameters: int | None
    download_bytes: int | None
    memory_bytes: int | None
    gated: bool = False


def local_folder(name: str) -> Path | None:
    """The folder that a name means, or None for a Hub id. UsageError for a path that is no model's folder."""
    path = Path(expanduser(name))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"model folder {path}: it has no config.json; expected a folder written by save_pretrained")
        return path
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"model {name!r}: no such folder; expected a folder with config.json, a Hub id, or zoo:NAME")
    return None


def table_file(name: str) -> Path | None:
    """The file of counted n-grams that a local name means: a .safetensors file, or that of a folder. None for other names."""
    path = Path(expanduser(name))
    if path.is_file():
        return path if path.suffix == ".safetensors" else None
    return path / zoo.TABLE if (path / zoo.TABLE).is_file() else None


def heads_file(name: str) -> Path | None:
    """The file of trained early heads in a local folder; None for other names."""
    path = Path(expanduser(name)) / HEADS
    return path if path.is_file() else None


def block_heads_file(name: str) -> Path | None:
    """The same of blockwise heads."""
    path = Path(expanduser(name)) / BLOCK_HEADS
    return path if path.is_file() else None


def zoo_folder_of(spec: ModelSpec) -> Path:
    """A pinned zoo model's folder in the cache; UsageError if it is not there."""
    name = spec.name.removeprefix(ZOO)
    if spec.revision is None:
        raise UsageError(f"model {spec.name}: its revision is not known; expected a model that pin_model has completed")
    folder = zoo.model_folder(name, spec.revision)
    if not zoo.is_complete(folder):
        raise UsageError(f"model {spec.name}: {folder} does not exist; train it with `foretoken zoo {name}`")
    return folder


def model_path(spec: ModelSpec) -> str:
    """What from_pretrained is given: a folder, or the Hub id. For counted n-grams: their file, or their folder of the zoo."""
    if spec.name.startswith(ZOO):
        return str(zoo_folder_of(spec))
    if (table := table_file(spec.name)) is not None:
        return str(table)
    folder = local_folder(spec.name)
    return spec.name if folder is None else str(folder)


def hub_arguments(spec: ModelSpec) -> dict[str, str | bool]:
    """What from_pretrained needs beyond a Hub id; nothing for folders, whose revisions are hashes of files.

    Where the Hub does not answer only its local cache is asked, at once: the client alone would retry for half a minute.
    """
    if spec.name.startswith(ZOO) or local_folder(spec.name) is not None:
        return {}
    revision: dict[str, str | bool] = {"revision": spec.revision} if spec.revision else {}
    return revision if hub_answers() else {**revision, "local_files_only": True}


@lru_cache(maxsize=1)
def hub_answers() -> bool:
    try:
        get_session().head(ENDPOINT, timeout=TIMEOUT_S)
    except NO_ANSWER:
        return False
    return True


def load_config(spec: ModelSpec) -> PreTrainedConfig:
    path = model_path(spec)
    with one_line(spec, path):
        return AutoConfig.from_pretrained(path, **hub_arguments(spec))


def is_block_drafter(config: PreTrainedConfig) -> bool:
    """Whether it is the configuration of a network that SpecDec's drafter is: one of our kinds, with a block size."""
    return config.model_type in MODEL_TYPES and hasattr(config, "block_size")


def folder_hash(folder: Path) -> str:
    """sha256 (16 digits) over the names, sizes and contents of a folder's files; hidden files and folders are left out."""
    return hash_of(sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")))


def hash_of(files: Sequence[Path]) -> str:
    """sha256 (16 digits) over the names, sizes and contents of files."""
    stats = [path.stat() for path in files]
    return _hash_files(tuple(zip(files, (s.st_size for s in stats), (s.st_mtime_ns for s in stats), strict=True)))


@lru_cache(maxsize=64)
def _hash_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for path, size, _ in files:
        with path.open("rb") as file:
            whole.update(f"{path.name} {size} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def hub_commit(spec: ModelSpec) -> str:
    """The commit that a Hub id and revision mean now; what was given (or "main") where the Hub does not answer."""
    try:
        return HfApi().model_info(spec.name, revision=spec.revision, timeout=TIMEOUT_S).sha or spec.revision or "main"
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise explain(spec, spec.name, error) from error
    except NO_ANSWER:
        return spec.revision or "main"


def estimate(spec: ModelSpec, dtype: str = "float32", scale: zoo.Scale = "toy", source: str = "toy") -> Size:
    """Parameters and bytes without loading: from the recipe, from the files' headers, or from the Hub's listing."""
    if spec.name.startswith(ZOO):
        recipe = zoo.recipe_for(spec.name.removeprefix(ZOO), scale, source)
        from harness.zoo.networks import num_parameters  # with every architecture, which takes seconds

        return _sized(0 if recipe.family == "ngram" else num_parameters(recipe), 0, dtype)
    folder = local_folder(spec.name)
    if folder is not None:
        return _sized(sum(_num_weights(path) for path in sorted(folder.glob("*.safetensors"))) or None, 0, dtype)
    return _hub_size(spec, dtype)


def _sized(count: int | None, download: int | None, dtype: str, gated: bool = False) -> Size:
    return Size(count, download, None if count is None else count * BYTES_PER_WEIGHT[dtype], gated)


def _num_weights(path: Path) -> int:
    try:
        with safe_open(path, "pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from error
    total = 0
    for shape in shapes:
        count = 1
        for length in shape:
            count *= length
        total += count
    return total


def _hub_size(spec: ModelSpec, dtype: str) -> Size:
    try:
        info = HfApi().model_info(spec.name, revision=spec.revision, files_metadata=True, timeout=TIMEOUT_S)
    except GatedRepoError:
        return Size(None, None, None, gated=True)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise explain(spec, spec.name, error) from error
    except NO_ANSWER:
        return Size(None, None, None)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    weights = [size for name, size in sizes.items() if name.endswith(".safetensors")]
    weights = weights or [size for name, size in sizes.items() if name.endswith(".bin")]
    count = info.safetensors.total if info.safetensors else None
    return _sized(count, sum(weights) or None, dtype, bool(info.gated))


@contextmanager
def one_line(spec: ModelSpec, path: str) -> Iterator[None]:
    """Turn what transformers raises about a model's files into a UsageError that names the model and the remedy.

    RuntimeError: weights of other shapes than the config's, or no memory. ImportError: a package that this model needs.
    """
    try:
        yield
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, json.JSONDecodeError) as error:
        raise explain(spec, path, error) from error


def explain(spec: ModelSpec, path: str, error: Exception) -> UsageError:
    """What to say of a model that could not be loaded; Unavailable where it is the Hub's and cannot be had."""
    causes = list(_chain(error))
    if isinstance(error, ImportError):
        return UsageError(f"model {spec.name}: a package that it needs is missing ({_first_line(error)}); install that package")
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
        return UsageError(f"model {spec.name}: no memory for it ({_first_line(error)}); choose a smaller model or dtype")
    if Path(path).is_dir():
        return _unreadable_folder(spec, path, error)
    name = f"model {spec.name!r}" + (f" at revision {spec.revision!r}" if spec.revision else "")
    for kinds, text in REASONS:
        if any(isinstance(cause, kinds) for cause in causes):
            return (UsageError if HFValidationError in kinds else Unavailable)(f"{name}: {text}")
    kind = Unavailable if isinstance(error, OSError) else UsageError
    return kind(f"{name}: cannot be loaded ({_first_line(error)}); expected a folder, a Hub id, or zoo:NAME")


REASONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((GatedRepoError,), "it is gated; accept its terms on huggingface.co and set HF_TOKEN, or name another model"),
    ((RevisionNotFoundError,), "the Hub has no such revision; expected a branch, tag or commit of this model"),
    ((RepositoryNotFoundError,), "the Hub has no such model (or it is private: set HF_TOKEN); check the name"),
    ((HFValidationError,), "neither a folder nor a Hub id; expected FOLDER, OWNER/NAME, or zoo:NAME"),
    (NO_ANSWER, "the Hub cannot be reached and the model is not in its cache; go online once, or name a local folder"),
)


def _unreadable_folder(spec: ModelSpec, path: str, error: Exception) -> UsageError:
    reason = _first_line(error)
    if spec.name.startswith(ZOO):
        return UsageError(f"model {spec.name}: {path} cannot be read ({reason}); delete that folder and run the command again")
    return UsageError(f"model folder {path}: cannot be read ({reason}); expected what save_pretrained writes; copy it again")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def eos_ids(*sources: Any) -> tuple[int, ...]:
    """All end-of-text ids that generation config and config name, in order, each once."""
    found: list[int] = []
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        found += [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    return tuple(dict.fromkeys(found))
