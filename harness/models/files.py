"""The files of models, on this machine and on the Hub: where a name leads, what they hash to, how many weights they hold.

The Hub's client and transformers are imported where they are called: they take seconds, and most commands call neither.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from safetensors import safe_open

from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import POCKET, ZOO, ModelSpec
from harness.core.files import digest_of, readable, short_hash
from harness.core.messages import first_line, is_memory
from harness.models.gguf import converted, gguf_file, gguf_revision, unreadable_gguf
from harness.models.limits import check_folder, check_settings
from harness.models.pocket import TRAINED, PocketDraft, fetched, revision_of
from harness.models.quantised import dequantised_from
from harness.zoo.cache import DONE, is_complete, model_folder, quiet, read_facts, verify
from kernels.inputs import ROUNDINGS
from kernels.native import cache_folder
from methods.options import BLOCKWISE_HEADS, EARLY_HEADS, NGRAM_TABLE

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from transformers import PreTrainedConfig

TIMEOUT_S = 10.0
SHA1_DIGITS, SHA256_DIGITS = 40, 64
NO_ANSWER = (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError)
PANIC = "PanicException"  # of a library in Rust; no Exception
MEANT = {  # what libraries say that name no setting: what is wrong
    "Padding_idx must be within": "pad_token_id in its config.json, expected one below its vocab_size",
}
REASONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((GatedRepoError,), "it is gated; accept its terms on huggingface.co and set HF_TOKEN, or name another model"),
    ((RevisionNotFoundError,), "the Hub has no such revision; expected a branch, tag or commit of this model"),
    ((RepositoryNotFoundError,), "the Hub has no such model (or it is private: set HF_TOKEN); check the name"),
    ((HFValidationError,), "neither a folder nor a Hub id; expected FOLDER, OWNER/NAME, pocket:NAME or zoo:NAME"),
    (NO_ANSWER, "the Hub cannot be reached and the model is not in its cache; go online once, or name a local folder"),
)


def local_folder(name: str) -> Path | None:
    """The folder that a name means, or None for a Hub id. UsageError for a path that is no model's folder."""
    path = Path(expanduser(name))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(
                f"model folder {path}: it has no config.json; expected a folder written by save_pretrained, or with a GGUF file"
            )
        if odd := next((one for one in sorted(path.iterdir()) if one.exists() and not (one.is_file() or one.is_dir())), None):
            raise UsageError(f"model folder {path}: {odd.name} is no regular file, and reading it may never end; remove it")
        return path
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(
            f"model {name!r}: no such folder; expected a folder with config.json, a Hub id, pocket:NAME or zoo:NAME"
        )
    if ":" in name:
        known = ", ".join(f"{one}:" for one in ROUNDINGS)
        raise UsageError(
            f"model {name!r}: unknown {name.partition(':')[0] + ':'!r}; expected pocket:NAME, zoo:NAME, or one of {known} "
            "before a name"
        )
    return None


def ngram_file(name: str) -> Path | None:
    """The file of counted n-grams that a local name means: a .safetensors file, or a folder's. None for other names."""
    path = Path(expanduser(name))
    if path.is_file():
        return path if path.suffix == ".safetensors" else None
    return path / NGRAM_TABLE if (path / NGRAM_TABLE).is_file() else None


def heads_file(name: str) -> Path | None:
    """The file of trained heads, early or blockwise, in a local folder; None for other names."""
    files = (Path(expanduser(name)) / file for file in (EARLY_HEADS, BLOCKWISE_HEADS))
    return next((file for file in files if file.is_file()), None)


def zoo_model_folder(spec: ModelSpec) -> Path:
    """Return the folder of a pinned zoo model in the cache; UsageError if it is not there."""
    name = spec.zoo_name
    if name is None or spec.revision is None:
        raise UsageError(f"model {spec.name}: its revision is not known; expected a model that pin_model has completed")
    folder = model_folder(name, spec.revision)
    if not is_complete(folder):
        raise UsageError(f"model {spec.name}: {folder} does not exist; train it with `foretoken zoo {name}`")
    verify(folder)
    return folder


def converted_folder(spec: ModelSpec) -> Path | None:
    """The folder of the cache that holds a public model or a GGUF file's weights, converted now if need be; else None.

    Raises:
        Unavailable: a public model that was not fetched.
        UsageError: a damaged file or folder.
    """
    if spec.base.startswith(POCKET):
        folder = fetched(spec.base, spec.revision)
        verify(folder)
        return folder
    file = gguf_file(spec.base)
    return None if file is None else converted(file)


def weights_of(spec: ModelSpec) -> str | None:
    """Say what the weights of a public model, of a draft or heads for one, of a GGUF file or of a quantised checkpoint were
    made of; else None."""
    folder = converted_folder(spec)
    if folder is None:
        return dequantised_from(load_config(spec)) if _has_config_here(spec) else None
    facts = read_facts(folder)
    with readable(f"{folder / DONE}", f"delete {folder} and run the command again to rebuild it"):
        return _made_of(spec, facts)


def _made_of(spec: ModelSpec, facts: Mapping[str, Any]) -> str:
    if spec.base.removeprefix(POCKET) not in TRAINED:
        return str(facts["weights"])
    learned = facts["material"]
    is_draft = isinstance(TRAINED[spec.base.removeprefix(POCKET)], PocketDraft)
    how = "distilled from" if is_draft else "heads that learned from"
    return f"{how} {learned['target']['name']}, {facts['num_texts']} texts of {', '.join(learned['tasks'])}"


def _has_config_here(spec: ModelSpec) -> bool:
    """Say whether a model's config.json can be read without asking the Hub: a plan is made without it."""
    path = Path(expanduser(spec.base))
    return (path / "config.json").is_file() or (not path.exists() and _cached_config(spec) is not None)


def _cached_config(spec: ModelSpec) -> Path | None:
    """The config.json of a Hub id that was fetched; None for all others."""
    from huggingface_hub import try_to_load_from_cache

    if not is_of_the_hub(spec.base):
        return None
    try:
        config = try_to_load_from_cache(spec.base, "config.json", revision=spec.revision)
    except HFValidationError:  # no Hub id: nothing was fetched, and load_config says so
        return None
    return Path(config) if isinstance(config, str) else None


def converted_revision(spec: ModelSpec) -> str | None:
    """The revision of a public model that was fetched, or of a GGUF file; None for other names. Converts nothing."""
    if spec.base.startswith(POCKET):
        return revision_of(fetched(spec.base))
    file = gguf_file(spec.base)
    return None if file is None else gguf_revision(file)


def model_path(spec: ModelSpec) -> str:
    """The argument of from_pretrained: a folder or a Hub id. Of counted n-grams: their file, or their folder of the zoo."""
    if spec.zoo_name is not None:
        return str(zoo_model_folder(spec))
    if (file := ngram_file(spec.base)) is not None:
        return str(file)
    folder = converted_folder(spec) or local_folder(spec.base)
    return spec.base if folder is None else str(folder)


def is_of_the_hub(name: str) -> bool:
    """Say whether a name is a Hub id, as far as this machine can tell."""
    return not name.startswith((ZOO, POCKET)) and gguf_file(name) is None and local_folder(name) is None


def folder_hash(folder: Path) -> str:
    """sha256 (16 digits) over the names, sizes and contents of a folder's files; hidden files and folders are left out."""
    return files_hash(sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")))


def files_hash(files: Sequence[Path]) -> str:
    """sha256 (16 digits) over the names, sizes and contents of files."""
    lines = (f"{path.name} {path.stat().st_size} {digest_of(path)}\n" for path in files)
    return short_hash("".join(lines))


def num_weights(folder: Path) -> int | None:
    """Count the weights in the safetensors files that are loaded of a folder, by their headers; None where there are none.

    Raises:
        OSError, SafetensorError: a file that cannot be read.
    """
    from methods.models.checkpoint import loaded_files  # here: naming models takes no torch

    return sum(map(_num_weights, loaded_files(folder))) or None


def _num_weights(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def hub_arguments(spec: ModelSpec) -> dict[str, str | bool]:
    """The arguments of from_pretrained beyond a Hub id; none for folders, whose revisions are hashes of files.

    Where the Hub does not answer only its local cache is asked, at once: the client alone would retry for half a minute.
    """
    if not is_of_the_hub(spec.base):
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
    with quiet(), one_line(spec, path):
        if (folder := Path(path)).is_dir():
            check_folder(folder)
        config = AutoConfig.from_pretrained(path, **hub_arguments(spec))
        check_settings(config)
        return config


def layers_of(config: "PreTrainedConfig") -> str:
    """The layers of a network in words: "30", or "4+4" of an encoder and a decoder."""
    if not config.is_encoder_decoder:
        return str(config.num_hidden_layers)
    encoder, decoder = (getattr(config, f"{side}_layers", None) for side in ("encoder", "decoder"))
    return f"{encoder or config.num_hidden_layers}+{decoder or getattr(config, 'num_decoder_layers', config.num_hidden_layers)}"


def verify_fetched(spec: ModelSpec) -> None:
    """UsageError for a file in the Hub's cache that is not what the Hub sent: there a file's name is its checksum.

    Large files are named by their sha256, the others by what git calls them. Each is read once, and again if it changes.
    """
    config = _cached_config(spec)
    for path in () if config is None else sorted(config.parent.rglob("*")):
        blob = path.resolve()
        if blob.parent.name == "blobs" and blob.is_file() and not is_named_by_content(blob, blob.name):
            raise UsageError(
                f"model {spec.name}: {path.name} is not as the Hub sent it: its checksum differs; delete {blob} and run the "
                "command again, which fetches it anew"
            )


def is_named_by_content(path: Path, name: str) -> bool:
    """Say whether a file is what the Hub names so: its sha256, or what git calls it. A name of another length tells nothing."""
    if len(name) == SHA1_DIGITS:
        content = path.read_bytes()
        return name == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return len(name) != SHA256_DIGITS or name == digest_of(path)


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
        return HfApi().model_info(spec.base, revision=spec.revision, files_metadata=files_metadata, timeout=TIMEOUT_S)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise explain(spec, spec.base, error) from error
    except NO_ANSWER:
        return None


@contextmanager
def one_line(spec: ModelSpec, path: str) -> Iterator[None]:
    """Turn an error of transformers about a model's files into a UsageError that names the model and the remedy.

    Any error: what transformers does with values that it did not expect cannot be listed.
    """
    try:
        yield
    except UsageError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise explain(spec, path, error) from error


def explain(spec: ModelSpec, path: str, error: BaseException) -> UsageError:
    """The error for a model that could not be loaded; Unavailable where it is the Hub's and cannot be had."""
    causes = list(_chain(error))
    if isinstance(error, ImportError):
        return UsageError(f"model {spec.name}: a package that it needs is missing ({first_line(error)}); install that package")
    if is_memory(error):
        return UsageError(f"model {spec.name}: no memory for it ({first_line(error)}); choose a smaller model or dtype")
    if Path(path).is_dir():
        return _unreadable_folder(spec, path, error)
    name = f"model {spec.name!r}" + (f" at revision {spec.revision!r}" if spec.revision else "")
    for kinds, text in REASONS:
        if any(isinstance(cause, kinds) for cause in causes):
            return (UsageError if HFValidationError in kinds else Unavailable)(f"{name}: {text}")
    kind = Unavailable if isinstance(error, OSError) else UsageError
    return kind(f"{name}: cannot be loaded ({first_line(error)}); expected a folder, a Hub id, pocket:NAME or zoo:NAME")


def _unreadable_folder(spec: ModelSpec, path: str, error: BaseException) -> UsageError:
    reason = first_line(error)
    reason = next((f"{meant}: {reason}" for words, meant in MEANT.items() if words in reason), reason)
    if Path(path).parent == cache_folder():
        if not spec.base.startswith((ZOO, POCKET)) and (file := gguf_file(spec.base)) is not None:
            return unreadable_gguf(file, reason)  # its conversion has been verified: it holds what the file does
        return UsageError(f"model {spec.name}: {path} cannot be read ({reason}); delete that folder and run the command again")
    return UsageError(f"model folder {path}: cannot be read ({reason}); expected what save_pretrained writes; copy it again")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
