"""The Hugging Face Hub: the commit that a name means, the size of its files, and one line for what cannot be loaded.

The Hub's client and transformers are imported where they are called: they take seconds, and most commands call neither.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

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
from safetensors import SafetensorError

from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import ModelSpec
from harness.models.files import local_folder, model_path
from harness.zoo.recipes import ZOO

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from transformers import PreTrainedConfig

TIMEOUT_S = 10.0
NO_ANSWER = (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError)
REASONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((GatedRepoError,), "it is gated; accept its terms on huggingface.co and set HF_TOKEN, or name another model"),
    ((RevisionNotFoundError,), "the Hub has no such revision; expected a branch, tag or commit of this model"),
    ((RepositoryNotFoundError,), "the Hub has no such model (or it is private: set HF_TOKEN); check the name"),
    ((HFValidationError,), "neither a folder nor a Hub id; expected FOLDER, OWNER/NAME, or zoo:NAME"),
    (NO_ANSWER, "the Hub cannot be reached and the model is not in its cache; go online once, or name a local folder"),
)


def hub_arguments(spec: ModelSpec) -> dict[str, str | bool]:
    """The arguments of from_pretrained beyond a Hub id; none for folders, whose revisions are hashes of files.

    Where the Hub does not answer only its local cache is asked, at once: the client alone would retry for half a minute.
    """
    if spec.name.startswith(ZOO) or local_folder(spec.name) is not None:
        return {}
    revision: dict[str, str | bool] = {"revision": spec.revision} if spec.revision else {}
    return revision if hub_answers() else {**revision, "local_files_only": True}


@lru_cache(maxsize=1)
def hub_answers() -> bool:
    from huggingface_hub import get_session

    try:
        get_session().head(ENDPOINT, timeout=TIMEOUT_S)
    except NO_ANSWER:
        return False
    return True


def load_config(spec: ModelSpec) -> "PreTrainedConfig":
    from transformers import AutoConfig

    path = model_path(spec)
    with one_line(spec, path):
        return AutoConfig.from_pretrained(path, **hub_arguments(spec))


def hub_commit(spec: ModelSpec) -> str:
    """The commit that a Hub id and revision mean now; the given revision (or "main") where the Hub does not answer."""
    info = _model_info(spec, files_metadata=False)
    return (info.sha if info is not None else None) or spec.revision or "main"


def hub_size(spec: ModelSpec) -> tuple[int | None, int | None, bool]:
    """(number of weights, bytes to download, whether it is gated); None where the Hub does not tell."""
    try:
        info = _model_info(spec, files_metadata=True)
    except Unavailable as error:
        if isinstance(error.__cause__, GatedRepoError):
            return None, None, True
        raise
    if info is None:
        return None, None, False
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    weights = [size for name, size in sizes.items() if name.endswith(".safetensors")]
    weights = weights or [size for name, size in sizes.items() if name.endswith(".bin")]
    return info.safetensors.total if info.safetensors else None, sum(weights) or None, bool(info.gated)


def _model_info(spec: ModelSpec, *, files_metadata: bool) -> "ModelInfo | None":
    """The Hub's answer, or None where it gives none. UsageError for a model that it does not have."""
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(spec.name, revision=spec.revision, files_metadata=files_metadata, timeout=TIMEOUT_S)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise explain(spec, spec.name, error) from error
    except NO_ANSWER:
        return None


@contextmanager
def one_line(spec: ModelSpec, path: str) -> Iterator[None]:
    """Turn an error of transformers about a model's files into a UsageError that names the model and the remedy.

    RuntimeError: weights of other shapes than the config's, or no memory. ImportError: a package that this model needs.
    """
    try:
        yield
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, json.JSONDecodeError) as error:
        raise explain(spec, path, error) from error


def explain(spec: ModelSpec, path: str, error: Exception) -> UsageError:
    """The error for a model that could not be loaded; Unavailable where it is the Hub's and cannot be had."""
    causes = list(_chain(error))
    if isinstance(error, ImportError):
        return UsageError(f"model {spec.name}: a package that it needs is missing ({_first_line(error)}); install that package")
    if type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error):  # torch's, which is not imported here
        return UsageError(f"model {spec.name}: no memory for it ({_first_line(error)}); choose a smaller model or dtype")
    if Path(path).is_dir():
        return _unreadable_folder(spec, path, error)
    name = f"model {spec.name!r}" + (f" at revision {spec.revision!r}" if spec.revision else "")
    for kinds, text in REASONS:
        if any(isinstance(cause, kinds) for cause in causes):
            return (UsageError if HFValidationError in kinds else Unavailable)(f"{name}: {text}")
    kind = Unavailable if isinstance(error, OSError) else UsageError
    return kind(f"{name}: cannot be loaded ({_first_line(error)}); expected a folder, a Hub id, or zoo:NAME")


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
