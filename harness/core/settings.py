"""What a user chooses for a run of the catalogue, and what the words on the command line mean."""

from dataclasses import dataclass
from os.path import expanduser  # unlike Path's it leaves an unknown user's ~ alone
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec

RESULTS = Path("results")
PUBLIC = ("small", "paper")  # profiles of public models, and so of public data


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The choices of a user for a table or figure; None leaves the choice to the table.

    ``models`` are (role, name) pairs that replace the profile's models, for example ("t5-small", "google/mt5-small").
    ``stop_at_eos`` ends outputs at EOS in experiments whose paper generates a fixed length instead (PPD).
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
    stop_at_eos: bool = False


def folder_of(settings: Settings, is_committed: bool = True) -> Path:
    """Say where a run's tables and figures go: the committed ones of the default run to results/, others to a folder there."""
    if settings == Settings() and is_committed:
        return RESULTS
    source = Path(settings.source).name
    return RESULTS / "runs" / f"{settings.profile}-{source}{'-eos' if settings.stop_at_eos else ''}"


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
    """Return a model's name; a local folder is made absolute, so that a record names the same model from everywhere.

    ``bf16:`` or ``int8:`` may stand before it.

    Raises:
        UsageError: a ``revision`` was asked for, and the name is not the Hub's.
    """
    base = ModelSpec(name=text).base
    path = Path(expanduser(base))
    if revision is not None and (path.is_dir() or base.startswith("zoo:")):
        raise UsageError(f"revision {revision!r}: only models of the Hub have commits, {text!r} has none; leave it out")
    return text.removesuffix(base) + (str(path.resolve()) if path.is_dir() else base)


def source_of(text: str | None, profile: str = "toy") -> str:
    """Sources are recorded as given, paths made absolute so that a record means the same from everywhere.

    None is the profile's own: "hub" for small and paper, "toy" otherwise.
    """
    if text is None:
        return "hub" if profile in PUBLIC else "toy"
    if text in ("toy", "hub"):
        return text
    path = Path(text)
    if not path.exists():
        raise UsageError(f'data {text!r}: not there; expected "toy", "hub", a folder or a .jsonl, .parquet or .txt file')
    return str(path.resolve())
